"""A lane: one of L logical data streams, a single-threaded state machine that decides on sizes alone.

It is handed measured documents in any order, and gives closed sequences, each with the state that it had right after.
The state names documents, it does not hold them: a restore measures those of the open sequences again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import numpy as np

from zephon_vl.contracts import DocumentRef, Measured, Mixer, OpenSequence, Packer, Piece, Skipped
from zephon_vl.errors import StateError

STATE_VERSION = 1

_Count = Annotated[int, msgspec.Meta(ge=0)]


class LaneState(msgspec.Struct, array_like=True, frozen=True):
    """What a lane needs to go on: a few hundred bytes."""

    version: int
    lane: _Count
    lanes: _Count
    closed: _Count
    """Sequences closed since the start of the run."""
    taken: list[_Count]
    """Samples of each source that this lane has used or skipped."""
    spent: list[_Count]
    """Tokens (or samples) of each source, the account of the mixture."""
    open: list[list[DocumentRef]]
    carry: DocumentRef | None


@dataclass(slots=True, frozen=True)
class SkipEvent:
    """A sample that a lane passed over."""

    source: int
    index: int
    skipped: Skipped


_Result = tuple[int, int, Measured | Skipped]
"""(epoch, index, what the worker returned)."""


@dataclass(slots=True)
class ClosedSequence:
    """A packed sequence, decided but not rendered."""

    lane: int
    number: int
    """Counts the sequences of the lane from 0."""
    pieces: list[Piece]
    state: bytes
    """Encoded `LaneState` right after this sequence."""
    skips: list[SkipEvent]
    """Samples passed over since the sequence before."""
    used: list[tuple[int, int]]
    """(source, samples taken into a sequence) since the sequence before."""


@dataclass(slots=True)
class _Inbox:
    """Measured documents of one source that this lane has not used yet."""

    weight: float
    count: int
    """Samples of the source; an inbox of a run without repeats ends there."""
    taken: int = 0
    requested: int = 0
    results: dict[int, _Result] = field(default_factory=dict)
    head: Piece | None = None
    """The next document as it will be placed."""
    fruitless: int = 0
    """Samples passed over in a row."""
    mean_tokens: float = 0.0


class Lane:
    """Mixes, packs and remembers where it is.

    Args:
        lane: its number, of `lanes`.
        counts: samples of each source.
        weights: of the mixture; a source of weight 0 is never taken from.
        repeat: False ends each source after one epoch.
    """

    def __init__(
        self,
        lane: int,
        lanes: int,
        counts: Sequence[int],
        weights: Sequence[float],
        mixer: Mixer,
        packer: Packer,
        repeat: bool,
    ) -> None:
        self.lane, self.lanes, self.repeat = lane, lanes, repeat
        self.mixer, self.packer = mixer, packer
        self.closed = 0
        self.ended = False
        self._inboxes = [_Inbox(weight, count) for weight, count in zip(weights, counts, strict=True)]
        self._total_weight = sum(weights)
        self._restoring: list[list[DocumentRef]] | None = None
        self._carry_ref: DocumentRef | None = None
        self._again: dict[tuple[int, int], _Result | None] = {}
        self._to_request: list[tuple[int, int]] = []
        self._skips: list[SkipEvent] = []
        self._used = [0] * len(counts)

    # --- what the engine feeds it ---------------------------------------------------------------------------------

    def take(self, source: int, k: int) -> int:
        """The take that is this lane's `k`-th of a source."""
        return self.lane + k * self.lanes

    def request(self, source: int, ahead: int) -> range:
        """The next takes (as `k`) of a source to measure so that `ahead` wait; marks them as requested."""
        inbox = self._inboxes[source]
        if inbox.weight <= 0:
            return range(0)
        until = inbox.taken + (1 if inbox.head else 0) + ahead
        if not self.repeat:
            until = min(until, self._share(inbox))
        ks = range(inbox.requested, max(until, inbox.requested))
        inbox.requested = ks.stop
        return ks

    def restore_requests(self) -> list[tuple[int, int]]:
        """(source, take) of documents in open sequences that must be measured again; each is returned once."""
        requests, self._to_request = self._to_request, []
        return requests

    def waiting(self, source: int) -> int:
        """Samples of a source that were requested and not used yet."""
        inbox = self._inboxes[source]
        return inbox.requested - inbox.taken

    def supply(self, source: int, take: int, epoch: int, index: int, result: Measured | Skipped) -> None:
        """Hand over a measured sample."""
        if (source, take) in self._again:
            self._again[source, take] = (epoch, index, result)
        else:
            self._inboxes[source].results[(take - self.lane) // self.lanes] = (epoch, index, result)

    def expected_documents(self, source: int, tokens: int) -> float:
        """About how many documents of a source make `tokens` tokens of this lane's mixture; 0 if not known yet."""
        inbox = self._inboxes[source]
        if inbox.mean_tokens <= 0:
            return 0.0
        return tokens * inbox.weight / self._total_weight / inbox.mean_tokens

    @property
    def fruitless(self) -> tuple[int, int]:
        """(source, samples passed over in a row) of the worst source."""
        worst = max(range(len(self._inboxes)), key=lambda s: self._inboxes[s].fruitless)
        return worst, self._inboxes[worst].fruitless

    def passed_over(self, source: int) -> list[Skipped]:
        """Samples of a source that were passed over since the last closed sequence."""
        return [event.skipped for event in self._skips if event.source == source]

    def take_skips(self) -> list[SkipEvent]:
        """What was passed over since the last closed sequence; returned once."""
        skips, self._skips = self._skips, []
        return skips

    # --- what it decides ------------------------------------------------------------------------------------------

    def advance(self) -> ClosedSequence | None:
        """The next closed sequence; None if a measured document is missing, or `ended`."""
        if self._restoring is not None and not self._restore_open():
            return None
        while not self.ended:
            if self.packer.carry is not None:
                piece = self.packer.carry
                self.packer.carry = None
            else:
                piece = self._next_document()
                if piece is None and not self._exhausted():
                    return None
            sequence = self.packer.flush() if piece is None else self.packer.place(piece)
            if sequence is not None:
                return self._close(sequence)
            self.ended = piece is None
        return None

    def _next_document(self) -> Piece | None:
        sizes: list[int | None] = []
        for source, inbox in enumerate(self._inboxes):
            if inbox.head is None and inbox.weight > 0:
                self._fill_head(source, inbox)
                if inbox.head is None and not self._at_end(inbox):
                    return None
            sizes.append(len(inbox.head) if inbox.head else None)
        if all(size is None for size in sizes):
            return None
        source = self.mixer.choose(sizes)
        inbox = self._inboxes[source]
        piece, inbox.head = inbox.head, None
        assert piece is not None
        inbox.taken += 1
        inbox.fruitless = 0
        inbox.mean_tokens += (len(piece) - inbox.mean_tokens) / min(inbox.taken, 64)
        self._used[source] += 1
        self.mixer.charge(source, len(piece))
        return piece

    def _fill_head(self, source: int, inbox: _Inbox) -> None:
        """Move the next usable document to the head; pass over the others, on record."""
        while inbox.head is None and (found := inbox.results.pop(inbox.taken, None)) is not None:
            epoch, index, result = found
            if isinstance(result, Skipped):
                self._pass_over(source, inbox, index, result)
                continue
            whole = _whole(source, self.take(source, inbox.taken), epoch, index, result)
            if len(whole) == 0:
                self._pass_over(source, inbox, index, Skipped("the document is empty", "", ""))
            elif (piece := self.packer.admit(whole)) is None:
                reason = f"{len(whole)} tokens do not fit in a sequence (packing.overlong = drop)"
                self._pass_over(source, inbox, index, Skipped(reason, "", ""))
            else:
                inbox.head = piece

    def _pass_over(self, source: int, inbox: _Inbox, index: int, skipped: Skipped) -> None:
        inbox.taken += 1
        inbox.fruitless += 1
        self._skips.append(SkipEvent(source, index, skipped))

    def _share(self, inbox: _Inbox) -> int:
        """This lane's samples of one epoch."""
        return len(range(self.lane, inbox.count, self.lanes))

    def _at_end(self, inbox: _Inbox) -> bool:
        return not self.repeat and inbox.taken >= self._share(inbox)

    def _exhausted(self) -> bool:
        return all(inbox.weight <= 0 or (inbox.head is None and self._at_end(inbox)) for inbox in self._inboxes)

    def _close(self, sequence: OpenSequence) -> ClosedSequence:
        number, self.closed = self.closed, self.closed + 1
        used, self._used = self._used, [0] * len(self._used)
        return ClosedSequence(
            self.lane,
            number,
            sequence.pieces,
            self.state(),
            self.take_skips(),
            [(s, n) for s, n in enumerate(used) if n],
        )

    # --- state ----------------------------------------------------------------------------------------------------

    def state(self) -> bytes:
        """Encoded `LaneState`. Samples that were measured ahead are not in it: they are measured again."""
        if self._restoring is not None:
            open_refs, carry = self._restoring, self._carry_ref
        else:
            open_refs = [[piece.ref for piece in sequence.pieces] for sequence in self.packer.open]
            carry = self.packer.carry.ref if self.packer.carry else None
        taken = [inbox.taken for inbox in self._inboxes]
        state = LaneState(
            STATE_VERSION, self.lane, self.lanes, self.closed, taken, list(self.mixer.spent), open_refs, carry
        )
        return msgspec.msgpack.encode(state)

    def restore(self, encoded: bytes) -> None:
        """Take up a state. The documents of `restore_requests` must be supplied before it advances.

        Raises:
            StateError: for a state that is damaged, of another version, or of another lane; the lane is as before.
        """
        state = decode_state(encoded)
        self._check(state)
        self.closed, self.ended = state.closed, False
        self.mixer.spent = list(state.spent)
        for inbox, taken in zip(self._inboxes, state.taken, strict=True):
            inbox.taken = inbox.requested = taken
            inbox.head, inbox.fruitless = None, 0
            inbox.results.clear()
        self._skips, self._used = [], [0] * len(self._inboxes)
        self._restoring, self._carry_ref = state.open, state.carry
        self._again = {(ref.source, ref.take): None for ref in _refs(state)}
        self._to_request = sorted(self._again)

    def _check(self, state: LaneState) -> None:
        """Whether a state is one of this lane. Raises `StateError`."""
        if (state.lane, state.lanes) != (self.lane, self.lanes):
            raise StateError(
                f"the state is of lane {state.lane} of {state.lanes}, but this is lane {self.lane} of {self.lanes}; "
                "lanes are fixed for a run"
            )
        for sources in (len(state.taken), len(state.spent)):
            if sources != len(self._inboxes):
                raise StateError(f"the state has {sources} sources, but the recipe has {len(self._inboxes)}")
        for ref in _refs(state):
            in_range = ref.source < len(state.taken) and 0 <= ref.start < ref.stop and min(ref.source, ref.take) >= 0
            lane, k = ref.take % self.lanes, ref.take // self.lanes
            if not in_range or lane != self.lane or k >= state.taken[ref.source]:
                raise StateError(f"a lane's state is damaged: it holds {ref}, which lane {self.lane} has not taken")

    def _restore_open(self) -> bool:
        """Rebuild the open sequences once all their documents are there again."""
        if any(value is None for value in self._again.values()):
            return False
        assert self._restoring is not None
        restored: list[OpenSequence] = []
        for refs in self._restoring:
            restored.append(OpenSequence())
            for ref in refs:
                restored[-1].add(self._restored(ref))
        self.packer.carry = self._restored(self._carry_ref) if self._carry_ref else None
        self.packer.open = restored
        self._restoring, self._carry_ref, self._again = None, None, {}
        return True

    def _restored(self, ref: DocumentRef) -> Piece:
        found = self._again[ref.source, ref.take]
        assert found is not None
        epoch, index, result = found
        if isinstance(result, Skipped):
            raise StateError(
                f"a document of the saved state cannot be used any more: source {ref.source}, sample {index} "
                f"({result.shard}: {result.key}): {result.reason or 'a filter drops it now'}. The data or an operator "
                "has changed since the state was saved"
            )
        whole = _whole(ref.source, ref.take, epoch, index, result)
        if ref.stop > len(whole):
            raise StateError(
                f"a document of the saved state is shorter now: source {ref.source}, sample {index} has {len(whole)} "
                f"tokens, the state refers to {ref.stop}. The data or the tokenizer has changed since it was saved"
            )
        return Piece(ref, whole.tokens, whole.images, whole.sample)


def decode_state(encoded: bytes) -> LaneState:
    """Decode and check a lane's state. Raises `StateError`."""
    try:
        state = msgspec.msgpack.decode(encoded, type=LaneState)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise StateError(f"a lane's state is damaged or not a state of this library: {error}") from error
    if state.version != STATE_VERSION:
        raise StateError(f"a lane's state has schema version {state.version}, this library reads {STATE_VERSION}")
    return state


def _refs(state: LaneState) -> list[DocumentRef]:
    """Every document that a state names, pieces of the same one each by itself."""
    return [ref for refs in state.open for ref in refs] + ([state.carry] if state.carry else [])


def _whole(source: int, take: int, epoch: int, index: int, measured: Measured) -> Piece:
    tokens = np.frombuffer(measured.tokens, dtype="<i4")
    return Piece(DocumentRef(source, take, 0, len(tokens)), tokens, measured.images, (epoch, index))
