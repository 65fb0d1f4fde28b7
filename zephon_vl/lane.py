"""A lane: one of L logical data streams, a single-threaded state machine that decides on sizes alone.

It is handed measured documents in any order, and gives closed sequences, each with the state that it had right after.
The state names documents, it does not hold them: a restore measures those of the open sequences again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from zephon_vl.contracts import DocumentRef, Measured, Mixer, OpenSequence, Packer, Piece, Skipped
from zephon_vl.errors import StateError
from zephon_vl.lane_state import STATE_VERSION, LaneState, decode_state, refs_of


@dataclass(slots=True, frozen=True)
class LanePhase:
    """What lanes work with from their sequence `first_number` on."""

    first_number: int
    weights: Sequence[float]
    """Of the mixture; a source of weight 0 is never taken from."""
    seq_len: int
    mixer: Callable[[], Mixer]
    packer: Callable[[], Packer]


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

    count: int
    """Samples of the source; an inbox of a run without repeats ends there."""
    taken: int = 0
    weight: float = 0.0
    requested: int = 0
    results: dict[int, _Result] = field(default_factory=dict)
    head: Piece | None = None
    """The next document as it will be placed; its result stays in `results` until it is."""
    size: int | None = None
    """Its tokens."""
    fruitless: int = 0
    """Samples passed over in a row."""
    mean_tokens: float = 0.0
    seen: int = 0
    """Documents in `mean_tokens`: those used since the start, or since a restore."""


class Lane:
    """Mixes, packs and remembers where it is.

    Args:
        lane: its number, of `lanes`.
        counts: samples of each source.
        phases: in order, the first from sequence 0.
        repeat: False ends each source after one epoch.
    """

    def __init__(
        self,
        lane: int,
        lanes: int,
        counts: Sequence[int],
        phases: Sequence[LanePhase],
        repeat: bool,
    ) -> None:
        self.lane, self.lanes, self.repeat = lane, lanes, repeat
        self.closed = 0
        self.ended = False
        self._phases = phases
        self._inboxes = [_Inbox(count) for count in counts]
        self._carry: deque[Piece] = deque()
        self._begin(0)
        self._restoring: list[list[DocumentRef]] | None = None
        self._carry_refs: list[DocumentRef] = []
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
        until = inbox.taken + (inbox.head is not None) + ahead
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
    def seq_len(self) -> int:
        """Tokens of the sequences that it fills now."""
        return self._phases[self._phase].seq_len

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
        following = self._phase + 1
        if following < len(self._phases) and self.closed == self._phases[following].first_number:
            self._change(following)
        while not self.ended:
            piece = self._next_carried() or self._next_document()
            if piece is None and not self._exhausted():
                return None
            sequence = self.packer.flush() if piece is None else self.packer.place(piece)
            if sequence is not None:
                return self._close(sequence)
            self.ended = piece is None
        return None

    def _next_carried(self) -> Piece | None:
        piece, self.packer.carry = self.packer.carry, None
        return piece or (self._carry.popleft() if self._carry else None)

    def _next_document(self) -> Piece | None:
        for source, inbox in enumerate(self._inboxes):
            if inbox.head is None and inbox.weight > 0:
                self._fill_head(source, inbox)
                if inbox.head is None and not self._at_end(inbox):
                    return None
        sizes = [inbox.size for inbox in self._inboxes]
        if not any(sizes):
            return None
        source = self.mixer.choose(sizes)
        inbox = self._inboxes[source]
        piece, size = inbox.head, inbox.size
        inbox.head = inbox.size = None
        assert piece is not None and size is not None
        del inbox.results[inbox.taken]
        inbox.taken += 1
        inbox.fruitless = 0
        inbox.seen += 1
        inbox.mean_tokens += (size - inbox.mean_tokens) / min(inbox.seen, 64)
        self._used[source] += 1
        self.mixer.charge(source, size)
        return piece

    def _fill_head(self, source: int, inbox: _Inbox) -> None:
        """Move the next usable document to the head; pass over the others, on record."""
        while inbox.head is None and (found := inbox.results.get(inbox.taken)) is not None:
            epoch, index, result = found
            if isinstance(result, Skipped):
                self._pass_over(source, inbox, index, result)
                continue
            whole = _whole(source, self.take(source, inbox.taken), epoch, index, result)
            if len(whole) == 0:
                self._pass_over(source, inbox, index, Skipped("the document is empty", "", ""))
            elif (piece := self.packer.admit(whole)) is None:
                self._pass_over(source, inbox, index, _too_long(whole))
            else:
                inbox.head, inbox.size = piece, len(piece)

    def _pass_over(self, source: int, inbox: _Inbox, index: int, skipped: Skipped) -> None:
        del inbox.results[inbox.taken]
        inbox.taken += 1
        inbox.fruitless += 1
        self._skips.append(SkipEvent(source, index, skipped))

    # --- phases ---------------------------------------------------------------------------------------------------

    def _begin(self, number: int) -> None:
        """A phase from its beginning, with nothing open and even accounts."""
        phase = self._phases[number]
        self._phase = number
        self.mixer, self.packer = phase.mixer(), phase.packer()
        self._weigh(phase)

    def _change(self, number: int) -> None:
        """Go from one phase to the next. What is open stays, but is packed anew if the length changes."""
        before, phase = self._phases[self._phase], self._phases[number]
        self._phase = number
        if phase.weights != before.weights:
            self.mixer = phase.mixer()
            self._weigh(phase)
        for inbox in self._inboxes:
            inbox.head = inbox.size = None  # admitted under the old length; its result is still there
        if phase.seq_len != before.seq_len:
            old, self.packer = self.packer, phase.packer()
            pieces = [piece for sequence in old.open for piece in sequence.pieces]
            pieces += ([old.carry] if old.carry else []) + list(self._carry)
            self._carry = deque(admitted for piece in pieces if (admitted := self._admit_again(piece)) is not None)

    def _admit_again(self, piece: Piece) -> Piece | None:
        admitted = self.packer.admit(piece)
        if admitted is None:
            self._skips.append(SkipEvent(piece.ref.source, piece.sample[1], _too_long(piece)))
        return admitted

    def _weigh(self, phase: LanePhase) -> None:
        self._total_weight = sum(phase.weights)
        for inbox, weight in zip(self._inboxes, phase.weights, strict=True):
            inbox.weight = weight

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
            open_refs, carry = self._restoring, self._carry_refs
        else:
            open_refs = [[piece.ref for piece in sequence.pieces] for sequence in self.packer.open]
            carry = [piece.ref for piece in ([self.packer.carry] if self.packer.carry else []) + list(self._carry)]
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
        # A state at the end of a phase is one of that phase: the change is made when the lane moves on.
        self._begin(max(i for i, phase in enumerate(self._phases) if phase.first_number < max(state.closed, 1)))
        count = len(self._inboxes)
        self.mixer.spent = _fitted(state.spent, count)
        for inbox, taken in zip(self._inboxes, _fitted(state.taken, count), strict=True):
            inbox.taken = inbox.requested = taken
            inbox.head, inbox.size, inbox.fruitless = None, None, 0
            inbox.results.clear()
        self._skips, self._used = [], [0] * len(self._inboxes)
        self._restoring, self._carry_refs = state.open, state.carry
        self._carry.clear()
        self._again = {(ref.source, ref.take): None for ref in refs_of(state)}
        self._to_request = sorted(self._again)

    def _check(self, state: LaneState) -> None:
        """Whether a state is one of this lane. Raises `StateError`."""
        if (state.lane, state.lanes) != (self.lane, self.lanes):
            raise StateError(
                f"the state is of lane {state.lane} of {state.lanes}, but this is lane {self.lane} of {self.lanes}; "
                "lanes are fixed for a run"
            )
        for counts in (state.taken, state.spent):
            if any(counts[len(self._inboxes) :]):
                raise StateError(
                    f"the state has used {len(counts)} sources, but the recipe has {len(self._inboxes)}: a source may "
                    "be retired with weight 0, not taken out"
                )
        for ref in refs_of(state):
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
        self._carry = deque(self._restored(ref) for ref in self._carry_refs)
        self.packer.open = restored
        self._restoring, self._carry_refs, self._again = None, [], {}
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


def _fitted(counts: Sequence[int], sources: int) -> list[int]:
    """The counts of a state for as many sources: those added since, or never used, count nothing."""
    return [*counts[:sources], *[0] * (sources - len(counts))]


def _too_long(piece: Piece) -> Skipped:
    return Skipped(f"{len(piece)} tokens do not fit in a sequence (packing.overlong = drop)", "", "")


def _whole(source: int, take: int, epoch: int, index: int, measured: Measured) -> Piece:
    tokens = np.frombuffer(measured.tokens, dtype="<i4")
    return Piece(DocumentRef(source, take, 0, len(tokens)), tokens, measured.images, (epoch, index))
