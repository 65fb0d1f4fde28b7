"""A lane decides the same whatever arrives first, and wherever it was saved and restored."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_vl.contracts import DocumentRef, ImageSlot, Measured, Skipped
from zephon_vl.errors import StateError
from zephon_vl.lane import ClosedSequence, Lane, LanePhase
from zephon_vl.lane_state import LaneState
from zephon_vl.operators.mix import DeficitMixer
from zephon_vl.operators.pack import SequencePacker
from zephon_vl.order import Permutation

Algorithm = Literal["best_fit", "first_fit", "concat"]
algorithms: st.SearchStrategy[Algorithm] = st.sampled_from(["best_fit", "first_fit", "concat"])
permutation = lru_cache(lambda epoch, count: Permutation(count, epoch))


@dataclass(frozen=True, kw_only=True)
class World:
    """Sources whose samples are decided by a hash of their number, and a packing configuration."""

    counts: tuple[int, ...] = (23, 40, 9)
    weights: tuple[float, ...] = (2.0, 1.0, 0.5)
    lanes: int = 3
    repeat: bool = True
    seq_len: int = 48
    algorithm: Algorithm = "best_fit"
    overlong: Literal["truncate", "split", "drop"] = "split"
    open_sequences: int = 3
    mean: int = 20
    phases: tuple[tuple[int, tuple[float, ...], int], ...] = ()
    """(first sequence, weights, seq_len) of the phases after the first."""
    changed: frozenset[tuple[int, int]] = frozenset()
    """(source, index) of samples that are bad now."""
    shorter: int = 0
    """Tokens that all documents lack now."""

    def lane(self, number: int = 0) -> Lane:
        phases = [self.phase(0, self.weights, self.seq_len), *(self.phase(*phase) for phase in self.phases)]
        return Lane(number, self.lanes, self.counts, phases, self.repeat)

    def phase(self, first: int, weights: tuple[float, ...], seq_len: int) -> LanePhase:
        def packer() -> SequencePacker:
            return SequencePacker(
                seq_len=seq_len,
                algorithm=self.algorithm,
                open_sequences=self.open_sequences,
                overlong=self.overlong,
                reserve=3,
            )

        return LanePhase(first, weights, seq_len, mixer=lambda: DeficitMixer(weights), packer=packer)

    def measure(self, source: int, take: int) -> tuple[int, int, Measured | Skipped]:
        epoch, position = divmod(take, self.counts[source])
        index = int(permutation(epoch, self.counts[source])(np.array([position]))[0])
        return epoch, index, self.content(source, index)

    def content(self, source: int, index: int) -> Measured | Skipped:
        draw = random.Random(zlib.crc32(f"{source}/{index}".encode()))
        kind = draw.random()
        if kind < 0.1 or (source, index) in self.changed:
            return Skipped("broken" if kind < 0.06 else "", "shard", str(index))
        text = max(0, int(draw.expovariate(1 / self.mean)) - self.shorter)
        images: list[ImageSlot] = []
        length = text
        if kind < 0.4:
            offset, tokens = text + 1, draw.randint(1, 12)
            images.append(ImageSlot(offset, tokens, (1, 2, 2 * tokens), 0, None, (9, 9), (8, 8), 81))
            length += tokens + 2
        return Measured(np.arange(length, dtype="<i4").tobytes(), images)

    def is_good(self, source: int, index: int) -> bool:
        measured = self.content(source, index)
        return isinstance(measured, Measured) and len(measured.tokens) > 0


@dataclass
class Drive:
    """Feeds a lane as the engine does, with results in random order."""

    world: World
    lane: Lane
    seed: int = 0
    pending: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def next(self) -> ClosedSequence | None:
        """The next sequence, None at the end."""
        for _ in range(100_000):
            sequence = self.lane.advance()
            if sequence is not None or self.lane.ended:
                return sequence
            self.feed()
        raise AssertionError("the lane does not move")

    def feed(self) -> None:
        """Hand over one sample of those that the lane waits for."""
        self.pending += self.lane.restore_requests()
        for source in range(len(self.world.counts)):
            ks = self.lane.request(source, self.random.randint(1, 5))
            self.pending += [(source, self.lane.take(source, k)) for k in ks]
        assert self.pending, "the lane waits for nothing"
        source, take = self.pending.pop(self.random.randrange(len(self.pending)))
        self.lane.supply(source, take, *self.world.measure(source, take))

    def many(self, most: int) -> list[object]:
        """What decides the data of up to `most` sequences."""
        out: list[object] = []
        while len(out) < most and (sequence := self.next()) is not None:
            out.append(facts(sequence))
        return out


def facts(sequence: ClosedSequence) -> object:
    pieces = [(piece.ref, piece.sample, len(piece.inside)) for piece in sequence.pieces]
    return sequence.number, pieces, sequence.state, sequence.skips, sequence.used


def restored(world: World, state: bytes, seed: int = 0, number: int = 0) -> Drive:
    lane = world.lane(number)
    lane.restore(state)
    return Drive(world, lane, seed)


# Each source has a good sample among its first four, however long documents may be: with fewer, lanes would search it
# for ever.
worlds = st.builds(
    World,
    counts=st.lists(st.integers(4, 60), min_size=3, max_size=3).map(tuple),
    lanes=st.integers(1, 4),
    repeat=st.booleans(),
    algorithm=algorithms,
    overlong=st.sampled_from(["truncate", "split", "drop"]),
    mean=st.sampled_from([5, 20, 60]),
    phases=st.lists(
        st.tuples(st.integers(1, 6), st.permutations([2.0, 1.0, 0.5]).map(tuple), st.sampled_from([48, 64, 96])),
        max_size=3,
    ).map(lambda phases: tuple((sum(p[0] for p in phases[: i + 1]), *p[1:]) for i, p in enumerate(phases))),
)


@settings(max_examples=80, deadline=None)
@given(world=worlds, seed=st.integers(0, 2**32))
def test_the_order_of_arrival_decides_nothing(world: World, seed: int) -> None:
    assert Drive(world, world.lane(), seed).many(25) == Drive(world, world.lane(), seed + 1).many(25)


@settings(max_examples=80, deadline=None)
@given(world=worlds, first=st.integers(1, 12), second=st.integers(1, 12), seed=st.integers(0, 2**32))
def test_restoring_twice_goes_on_as_if_nothing_happened(world: World, first: int, second: int, seed: int) -> None:
    drive = Drive(world, world.lane())
    whole = [sequence for _ in range(40) if (sequence := drive.next()) is not None]
    for stop in (first, first + second):
        if stop > len(whole):
            return
        again = restored(world, whole[stop - 1].state, seed + stop)
        assert again.lane.state() == whole[stop - 1].state, "the state is whole before the documents are there"
        assert again.many(len(whole) - stop) == [facts(sequence) for sequence in whole[stop:]]


@settings(max_examples=50, deadline=None)
@given(world=worlds, seed=st.integers(0, 2**32))
def test_restoring_after_each_sequence_changes_nothing(world: World, seed: int) -> None:
    whole = Drive(world, world.lane()).many(20)
    drive = Drive(world, world.lane())
    for expected in whole:
        sequence = drive.next()
        assert sequence is not None
        assert facts(sequence) == expected
        drive = restored(world, sequence.state, seed)
    assert drive.many(20 - len(whole)) == []


@settings(max_examples=80, deadline=None)
@given(world=worlds)
def test_without_repeats_every_good_sample_is_used_once_over_all_lanes(world: World) -> None:
    world = replace(world, repeat=False, overlong="split")
    seen: Counter[tuple[int, int]] = Counter()
    used = 0
    for number in range(world.lanes):
        drive = Drive(world, world.lane(number), number)
        while (sequence := drive.next()) is not None:
            seen.update((piece.ref.source, piece.sample[1]) for piece in sequence.pieces if piece.ref.start == 0)
            used += sum(count for _, count in sequence.used)
        assert drive.lane.advance() is None
    good = {(s, i) for s, count in enumerate(world.counts) for i in range(count) if world.is_good(s, i)}
    assert seen == Counter(good)
    assert used == len(good)


def test_a_source_of_weight_zero_is_never_asked_for() -> None:
    world = World(weights=(1.0, 0.0, 1.0), repeat=False)
    drive = Drive(world, world.lane())
    sources = {piece.ref.source for _ in range(100) if (s := drive.next()) for piece in s.pieces}
    assert sources == {0, 2}
    assert drive.lane.waiting(1) == 0


def test_epochs_follow_each_other() -> None:
    world = World(counts=(5, 7, 3), lanes=2)
    drive = Drive(world, world.lane())
    seen: Counter[tuple[int, int]] = Counter()
    for _ in range(200):
        sequence = drive.next()
        assert sequence is not None
        seen.update((piece.ref.source, piece.ref.take) for piece in sequence.pieces if piece.ref.start == 0)
    assert max(seen.values()) == 1, "no take is used twice"
    assert max(take // world.counts[source] for source, take in seen) > 10


def test_an_empty_document_is_passed_over_on_record() -> None:
    world = World(counts=(1,), weights=(1.0,), lanes=1)
    lane = world.lane()
    lane.request(0, 2)
    lane.supply(0, 0, 0, 0, Measured(b"", []))
    assert lane.advance() is None
    assert lane.fruitless == (0, 1)
    lane.supply(0, 1, 1, 0, Measured(np.arange(48, dtype="<i4").tobytes(), []))
    sequence = lane.advance()
    assert sequence is not None
    assert [event.skipped.reason for event in sequence.skips] == ["the document is empty"]


def test_an_overlong_document_is_dropped_on_record() -> None:
    world = World(counts=(9,), weights=(1.0,), lanes=1, overlong="drop")
    lane = world.lane()
    lane.request(0, 2)
    lane.supply(0, 0, 0, 0, Measured(bytes(4 * 47), []))
    lane.supply(0, 1, 0, 1, Measured(bytes(4 * 45), []))
    sequence = lane.advance()
    assert sequence is not None
    assert [event.skipped.reason for event in sequence.skips] == [
        "47 tokens do not fit in a sequence (packing.overlong = drop)"
    ]


def test_requests_are_made_once_and_end_with_the_data() -> None:
    world = World(counts=(7,), weights=(1.0,), lanes=2, repeat=False)
    lane = world.lane(1)
    assert lane.request(0, 2) == range(0, 2)
    assert lane.request(0, 2) == range(2, 2)
    assert lane.waiting(0) == 2
    assert lane.request(0, 9) == range(2, 3)
    assert [lane.take(0, k) for k in range(3)] == [1, 3, 5]


@pytest.mark.parametrize("algorithm", ["best_fit", "concat"])
def test_a_state_is_small(algorithm: Literal["best_fit", "concat"]) -> None:
    world = World(
        counts=(10**9,) * 4,
        weights=(4.0, 3.0, 2.0, 1.0),
        lanes=64,
        seq_len=2048,
        algorithm=algorithm,
        open_sequences=8,
        mean=250,
    )
    lane = world.lane(63)
    start = LaneState(2, 63, 64, 10**6, [10**7] * 4, [40 * 10**9, 30 * 10**9, 20 * 10**9, 10**10], [], [])
    lane.restore(msgspec.msgpack.encode(start))
    drive = Drive(world, lane)
    sizes = [len(sequence.state) for _ in range(60) if (sequence := drive.next()) is not None]
    assert len(sizes) == 60
    assert max(sizes) < 2048


# --- states that do not fit ----------------------------------------------------------------------------------------

GOOD = LaneState(2, 0, 3, 5, [4, 4, 4], [10, 10, 10], [[DocumentRef(0, 0, 0, 4)]], [])


def test_a_good_state_is_taken_up() -> None:
    lane = World().lane()
    lane.restore(msgspec.msgpack.encode(GOOD))
    assert lane.restore_requests() == [(0, 0)]
    assert lane.restore_requests() == []


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (b"", "damaged"),
        (b"\xc1garbage", "damaged"),
        (msgspec.msgpack.encode(GOOD)[:-3], "damaged"),
        (msgspec.msgpack.encode({"lane": 0}), "damaged"),
        (msgspec.msgpack.encode(msgspec.structs.replace(GOOD, version=3)), "version 3, this library reads 2"),
        (msgspec.msgpack.encode(msgspec.structs.replace(GOOD, lane=1)), "lane 1 of 3, but this is lane 0 of 3"),
        (msgspec.msgpack.encode(msgspec.structs.replace(GOOD, lanes=4)), "lane 0 of 4, but this is lane 0 of 3"),
        (msgspec.msgpack.encode(msgspec.structs.replace(GOOD, taken=[1, 2, 3, 4])), "4 sources, but the recipe has 3"),
        (msgspec.msgpack.encode(msgspec.structs.replace(GOOD, spent=[1, 2, 3, 4])), "4 sources, but the recipe has 3"),
        (msgspec.msgpack.encode(msgspec.structs.replace(GOOD, taken=[1, -2, 3])), "damaged"),
        (msgspec.msgpack.encode(msgspec.structs.replace(GOOD, closed=-1)), "damaged"),
        (msgspec.msgpack.encode(msgspec.structs.replace(GOOD, carry=[DocumentRef(3, 0, 0, 4)])), "damaged"),
        (msgspec.msgpack.encode(msgspec.structs.replace(GOOD, carry=[DocumentRef(0, -3, 0, 4)])), "damaged"),
        (msgspec.msgpack.encode(msgspec.structs.replace(GOOD, open=[[DocumentRef(0, 0, 5, 4)]])), "damaged"),
        (msgspec.msgpack.encode(msgspec.structs.replace(GOOD, open=[[DocumentRef(0, 1, 0, 4)]])), "damaged"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(state: bytes, text: str) -> None:
    world = World()
    drive, other = Drive(world, world.lane()), Drive(world, world.lane())
    assert drive.many(4) == other.many(4)
    with pytest.raises(StateError, match=text):
        drive.lane.restore(state)
    assert drive.many(6) == other.many(6)


@given(flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_flipped_byte_gives_a_state_error_or_a_state(flips: list[tuple[int, int]]) -> None:
    drive = Drive(World(), World().lane())
    sequence = [drive.next() for _ in range(5)][-1]
    assert sequence is not None
    damaged = bytearray(sequence.state)
    for at, value in flips:
        damaged[at % len(damaged)] = value
    lane = World().lane()
    try:
        lane.restore(bytes(damaged))
    except StateError:
        return
    assert all(0 <= source < 3 and take % 3 == 0 for source, take in lane.restore_requests())


@settings(max_examples=30, deadline=None)
@given(stops=st.lists(st.integers(1, 12), min_size=2, max_size=4), fed=st.integers(0, 60), algorithm=algorithms)
def test_a_used_lane_takes_up_a_state_as_a_new_one_does(stops: list[int], fed: int, algorithm: Algorithm) -> None:
    world = World(repeat=False, algorithm=algorithm)
    drive = Drive(world, world.lane())
    whole = [sequence for _ in range(100) if (sequence := drive.next()) is not None]
    assert drive.lane.ended
    for stop in stops:
        drive.lane.restore(whole[stop - 1].state)
        drive.pending.clear()
        assert drive.many(3) == [facts(sequence) for sequence in whole[stop : stop + 3]]
        for _ in range(fed):
            if drive.lane.advance() is None and not drive.lane.ended:
                drive.feed()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"changed": frozenset((s, i) for s in range(3) for i in range(40))}, "cannot be used any more: source"),
        ({"shorter": 60}, "is shorter now: source"),
    ],
)
def test_changed_data_is_noticed_each_time(change: dict, text: str) -> None:
    drive = Drive(World(), World().lane())
    sequence = [drive.next() for _ in range(5)][-1]
    assert sequence is not None
    again = restored(World(**change), sequence.state)
    for _ in range(2):
        with pytest.raises(StateError, match=text):
            again.many(1)
    assert again.lane.packer.open == [], "nothing was half restored"


def test_after_a_restore_no_more_documents_are_expected_than_before() -> None:
    world = World(counts=(5000,), weights=(1.0,), lanes=1, seq_len=480, mean=40)
    drive = Drive(world, world.lane())
    whole = [sequence for _ in range(40) if (sequence := drive.next()) is not None]
    again = restored(world, whole[-1].state)
    again.next()
    before, after = drive.lane.expected_documents(0, 4800), again.lane.expected_documents(0, 4800)
    assert before / 4 < after < before * 4
