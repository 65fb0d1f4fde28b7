"""Pack: which open sequence a document goes to, and when a sequence is closed.

All algorithms keep three rules: nothing is cut inside an image's tokens or between them and their delimiters; a
sequence is never longer than `seq_len`; with `reserve`, a sequence without an image keeps room for the dummy image that
closes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from zephon_vl.contracts import DocumentRef, ImageSlot, OpenSequence, Piece

DUMMY_TOKENS = 3
"""Room that a sequence without images keeps: vision start, one image token, vision end."""


@dataclass(slots=True, kw_only=True)
class SequencePacker:
    """Places documents in open sequences; one in each lane."""

    seq_len: int
    algorithm: Literal["best_fit", "first_fit", "concat"]
    open_sequences: int
    overlong: Literal["truncate", "split", "drop"]
    reserve: int = 0
    """Tokens that a sequence without images keeps free: `DUMMY_TOKENS` in vision recipes."""
    open: list[OpenSequence] = field(default_factory=list)
    carry: Piece | None = None

    def admit(self, piece: Piece) -> Piece | None:
        """The document as it will be placed: truncated if the recipe says so, None if it is dropped."""
        head, rest = self._cut(piece, self.seq_len)
        if rest is None or self.overlong == "split":
            return piece
        return None if self.overlong == "drop" else head

    def place(self, piece: Piece) -> OpenSequence | None:
        """Place a piece, set `carry` to what is left of it, return the sequence that this closed, if any."""
        if self.algorithm == "concat":
            return self._append(piece)
        piece, self.carry = self._cut(piece, self.seq_len)
        if self._room(piece) < 2:
            whole = OpenSequence()
            whole.add(piece)
            return whole
        return self._fit(piece)

    def flush(self) -> OpenSequence | None:
        """Close one more sequence, oldest first; None when all are out."""
        return self.open.pop(0) if self.open else None

    def _fit(self, piece: Piece) -> OpenSequence | None:
        i, room = self._best_open(piece)
        if i >= 0:
            self.open[i].add(piece)
            return self.open.pop(i) if room < 2 else None
        closed = None
        if len(self.open) >= self.open_sequences:
            fullest = max(range(len(self.open)), key=lambda i: self.open[i].used)
            closed = self.open.pop(fullest if self.algorithm == "best_fit" else 0)
        self.open.append(OpenSequence())
        self.open[-1].add(piece)
        return closed

    def _best_open(self, piece: Piece) -> tuple[int, int]:
        """(which open sequence takes the piece, room that it leaves); -1 if none does."""
        size, reserve = len(piece), 0 if piece.inside else self.reserve
        best, least = -1, self.seq_len + 1
        for i, sequence in enumerate(self.open):
            room = self.seq_len - sequence.used - size - (0 if sequence.images else reserve)
            if 0 <= room < least:
                best, least = i, room
                if self.algorithm == "first_fit":
                    break
        return best, least

    def _append(self, piece: Piece) -> OpenSequence | None:
        """Concat: fill the one open sequence, cut what does not fit, carry the rest."""
        if not self.open:
            self.open.append(OpenSequence())
        sequence = self.open[0]
        room = self.seq_len - sequence.used
        head, rest = self._cut(piece, room, has_image=sequence.images > 0)
        if len(head) == 0:
            self.carry = piece
            return self.open.pop(0)
        sequence.add(head)
        self.carry = rest
        if rest is not None or self._room(None, sequence) < 2:
            return self.open.pop(0)
        return None

    def _room(self, piece: Piece | None, sequence: OpenSequence | None = None) -> int:
        """Tokens left in `sequence` (None: a new one) after `piece`, the dummy image's reserve taken off."""
        used = (sequence.used if sequence else 0) + (len(piece) if piece else 0)
        images = (sequence is not None and sequence.images > 0) or (piece is not None and len(piece.inside) > 0)
        return self.seq_len - used - (0 if images else self.reserve)

    def _cut(self, piece: Piece, room: int, has_image: bool = False) -> tuple[Piece, Piece | None]:
        """The longest head of `piece` that `room` tokens hold, and the rest, None if nothing worth placing is left.

        The head may be empty only where `room` is less than a sequence.
        """
        head = _head(piece, room)
        if not has_image and not head.inside:
            head = _head(piece, room - self.reserve)
        if len(head) == len(piece):
            return head, None
        if len(head) == 0 and room >= self.seq_len:
            head = _leading_image(piece)
        rest = _slice(piece, head.ref.stop, piece.ref.stop)
        # One token has nothing to predict.
        return head, rest if len(rest) > 1 else None


def _head(piece: Piece, room: int) -> Piece:
    """The first `room` tokens, fewer where that would cut into an image or part it from its delimiters."""
    start, stop = piece.ref.start, piece.ref.stop
    if stop - start <= room:
        return piece
    cut = start + max(room, 0)
    for image in reversed(piece.images):
        first, last = _block(image, start, stop)
        if first < cut < last:
            cut = first
    return _slice(piece, start, cut)


def _leading_image(piece: Piece) -> Piece:
    """The image that `piece` starts with, where its delimiters alone keep it from being a head."""
    image = piece.inside[0]
    return _slice(piece, piece.ref.start, image.offset + image.tokens)


def _block(image: ImageSlot, start: int, stop: int) -> tuple[int, int]:
    """An image's tokens with their delimiters, inside a piece."""
    return max(start, image.offset - 1), min(stop, image.offset + image.tokens + 1)


def _slice(piece: Piece, start: int, stop: int) -> Piece:
    if start == piece.ref.start and stop == piece.ref.stop:
        return piece
    ref = DocumentRef(piece.ref.source, piece.ref.take, start, stop)
    return Piece(ref, piece.tokens, piece.images, piece.sample)
