"""The engine: from lanes to microbatches. It plans, hands out tasks, and puts results together; it does no input or
output of its own, so the same code runs in the coordinator process and inline.

The loop is `pump()`: ask for measurements that lanes will need, advance the lanes, plan the next microbatches into free
slabs, deliver the finished ones in order.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from zephon_vl.agenda import Agenda, Turn
from zephon_vl.contracts import Pipeline, SourceReader
from zephon_vl.lane import ClosedSequence, Lane, LanePhase, SkipEvent
from zephon_vl.layout import BatchLayout
from zephon_vl.messages import BadRecord, BatchHeader, Ended, Start
from zephon_vl.order import orders_of
from zephon_vl.plan import MicrobatchJob, MicrobatchPlanner
from zephon_vl.policing import BadSampleLimit
from zephon_vl.runner import load_pipeline
from zephon_vl.schedule import Phase, Schedule
from zephon_vl.slabs import Slab, SlabPool
from zephon_vl.sources import open_sources
from zephon_vl.tasks import MeasureResult, MeasureTask, RenderResult, RenderTask, Result, Setup, Task
from zephon_vl.topology import EMPTY, Topology, topologies_of

_MEASURE_CHUNK = 16
"""Samples of a measure task: enough to make a message cheap, few enough to spread a cold start over the workers."""
_FIRST_REQUEST = 4
"""Samples per lane and source to ask for while their lengths are unknown."""
_MOST_AHEAD = 512
_ORDER_BLOCK = 32
"""Takes of a lane and source whose samples are computed at once."""


class Executor(Protocol):
    """What runs tasks."""

    def submit(self, task: Task, priority: int) -> None: ...


class Engine:
    """All lanes of one rank.

    Args:
        setup: recipe, vocabulary, layout.
        sources: opened for their sizes and names.
        topologies: which lanes, which rows, in each phase.
        prefetch: microbatches that may be planned or ready beyond the one that the consumer took last.
        slabs: buffers.
        executor: where tasks go; results come back through `on_result`.
        deliver: called with finished microbatches, in order.
        states: encoded lane states to go on from, by lane.
        start_step: steps before it are planned, but neither rendered nor delivered.
        done: slots of `start_step` that were delivered before, by any rank.
        microbatch: of `start_step` to begin with.
    """

    def __init__(
        self,
        setup: Setup,
        sources: Sequence[SourceReader],
        topologies: Sequence[Topology],
        *,
        prefetch: int,
        slabs: SlabPool,
        executor: Executor,
        deliver: Callable[[BatchHeader], None],
        states: Mapping[int, bytes] | None = None,
        start_step: int = 0,
        done: frozenset[int] = frozenset(),
        microbatch: int = 0,
    ) -> None:
        recipe, owned = setup.recipe, topologies[0].owned
        self._recipe, self._sources = recipe, sources
        self._schedule = Schedule(recipe)
        self._prefetch, self._slabs, self._executor, self._deliver = prefetch, slabs, executor, deliver
        self._orders = orders_of(recipe, sources)
        # Without repeats every rank follows all lanes, to end at the same step as the others without asking them.
        followed = owned if recipe.repeat else range(recipe.lanes)
        self._lanes = self._make_lanes(load_pipeline(setup.pipeline), followed)
        self._closed: dict[int, deque[ClosedSequence]] = {lane: deque() for lane in owned}
        self._known_order: dict[tuple[int, int], tuple[int, NDArray[np.int64], NDArray[np.int64]]] = {}
        self._ids = itertools.count()
        self._jobs: dict[int, MicrobatchJob] = {}
        self._planner = MicrobatchPlanner(setup, [BatchLayout(spec) for spec in setup.layouts])
        self._limit = BadSampleLimit(recipe, sources)
        self._planned = self._delivered = self._consumed = 0
        self._upcoming: tuple[int, dict[int, int]] = (-1, {})
        self._ready: dict[int, BatchHeader] = {}
        self._events: list[BadRecord] = []
        self._filtered = 0
        self._samples = [0] * len(sources)
        self.ended = False
        self._first_step = self._schedule.from_step(start_step)
        self._resumed_inside = bool(done) or microbatch > 0
        self._agenda = Agenda(self._schedule, topologies, self._first_step, done, microbatch)
        for lane, state in (states or {}).items():
            self._lanes[lane].restore(state)

    # --- what the outside calls -----------------------------------------------------------------------------------

    def pump(self) -> None:
        """Do all that can be done now without waiting."""
        while self._plan_next():
            pass
        for lane, microbatch in self._upcoming_lanes().items():
            self._advance(lane, microbatch)
        self._deliver_ready()

    def on_result(self, task: Task, result: Result) -> None:
        """Take the result of a task. A `Failure` is not handed here: it stops the run."""
        if isinstance(result, MeasureResult):
            assert isinstance(task, MeasureTask)
            for (take, epoch, index), measured in zip(task.samples, result.results, strict=True):
                self._lanes[take % self._recipe.lanes].supply(task.source, take, epoch, index, measured)
        elif isinstance(result, RenderResult):
            assert isinstance(task, RenderTask)
            job = self._jobs.pop(task.id)
            if self._planner.finish(job, task, result):
                self._ready[job.index] = job.header

    def on_split(self, task: Task, parts: list[Task]) -> None:
        """A task was taken apart after it killed its worker: the parts stand in for it."""
        for part in parts:
            part.id = next(self._ids)
        if isinstance(task, RenderTask):
            job = self._jobs.pop(task.id)
            job.remaining += len(parts) - 1
            self._jobs.update((part.id, job) for part in parts)

    def on_consumed(self, delivered: int) -> None:
        """The consumer took microbatches; `delivered` counts all of them."""
        self._consumed = delivered

    def on_released(self, slab: int) -> None:
        """No tensor refers to a slab any more."""
        self._slabs.release(slab)

    def slab(self, number: int) -> Slab:
        return self._slabs.slabs[number]

    def patches(self, slab: int, phase: int) -> NDArray[np.uint8]:
        """The pixel patches of a slab, as it is laid out in a phase."""
        return self._planner.fields(self.slab(slab), phase)["pixel_patches"]

    def locate(self, source: int, index: int) -> tuple[str, str]:
        """(shard, key) of a sample."""
        return self._sources[source].locate(index)

    def end(self) -> Ended:
        """The last message: what lanes passed over after their last sequences."""
        for lane in self._closed:
            self._account_skips(lane, self._lanes[lane].closed, self._lanes[lane].take_skips())
        return Ended(self._filtered, self._events)

    @property
    def idle(self) -> bool:
        """Whether everything planned was delivered."""
        return self._delivered == self._planned

    @property
    def starved(self) -> bool:
        """Everything delivered was taken, nothing is being made, and no slab is free to go on."""
        return self._planned == self._consumed and self._slabs.in_use >= self._slabs.limit and not self.ended

    # --- measuring ------------------------------------------------------------------------------------------------

    def _request(self, lane: Lane, priority: int) -> None:
        """Ask for what a lane will need: enough documents for two sequences, more while it has few open ones."""
        again = lane.restore_requests()
        for source, group in itertools.groupby(again, key=lambda request: request[0]):
            self._submit_measure(source, [take for _, take in group], priority)
        missing = 0 if lane.closed else self._recipe.packing.open_sequences
        tokens = lane.seq_len * (2 + missing)
        for source in range(len(self._sources)):
            expected = lane.expected_documents(source, tokens)
            ahead = min(_MOST_AHEAD, int(expected) + 2) if expected else _FIRST_REQUEST
            if lane.waiting(source) <= ahead // 2:
                takes = [lane.take(source, k) for k in lane.request(source, ahead)]
                self._submit_measure(source, takes, priority)

    def _measure_priority(self, microbatch: int) -> int:
        """Of what a microbatch waits for: right before the rendering of one half a prefetch earlier. After a start all
        lanes are empty: what the first waits for comes first, and what later ones wait for only after its rendering."""
        return 2 * max(microbatch - self._prefetch // 2, min(microbatch, 1)) - 1

    def _submit_measure(self, source: int, takes: list[int], priority: int) -> None:
        if not takes:
            return
        samples = [self._sample_of(source, take) for take in takes]
        for first in range(0, len(samples), _MEASURE_CHUNK):
            task = MeasureTask(next(self._ids), source, samples[first : first + _MEASURE_CHUNK])
            self._executor.submit(task, priority)

    def _sample_of(self, source: int, take: int) -> tuple[int, int, int]:
        """(take, epoch, index); computed for many takes of a lane at a time, as one costs nearly as much as all."""
        lanes = self._recipe.lanes
        lane, k = take % lanes, take // lanes
        block, place = divmod(k, _ORDER_BLOCK)
        known = self._known_order.get((source, lane))
        if known is None or known[0] != block:
            takes = lane + lanes * np.arange(block * _ORDER_BLOCK, (block + 1) * _ORDER_BLOCK, dtype=np.int64)
            known = (block, *self._orders[source].indices(takes))
            self._known_order[source, lane] = known
        return take, int(known[1][place]), int(known[2][place])

    # --- lanes ----------------------------------------------------------------------------------------------------

    def _make_lanes(self, pipeline: Pipeline, lanes: Iterable[int]) -> dict[int, Lane]:
        counts = [len(source) for source in self._sources]
        phases = [_lane_phase(pipeline, phase) for phase in self._schedule.phases]
        return {lane: Lane(lane, self._recipe.lanes, counts, phases, self._recipe.repeat) for lane in lanes}

    def _upcoming_lanes(self) -> dict[int, int]:
        """The lanes of the microbatches up to the prefetch distance, the most urgent first, each with the first
        microbatch that needs it."""
        if self._upcoming[0] != self._planned:
            lanes: dict[int, int] = {}
            for ahead in range(self._prefetch + 1):
                for slot in self._agenda.peek(ahead).slots:
                    if slot != EMPTY:
                        lanes.setdefault(slot % self._recipe.lanes, self._planned + ahead)
            self._upcoming = (self._planned, lanes)
        return self._upcoming[1]

    def _advance(self, lane_number: int, microbatch: int, sequences: int = 1) -> bool:
        """Whether a lane has `sequences` closed sequences waiting, or has ended; moves it on as far as it can go, for
        the `microbatch` that needs it next."""
        lane, closed = self._lanes[lane_number], self._closed[lane_number]
        while len(closed) < sequences and not lane.ended:
            sequence = lane.advance()
            self._request(lane, self._measure_priority(microbatch))
            if sequence is not None:
                self._account(sequence)
                step = self._schedule.step_of(sequence.number)
                if step >= self._first_step and not self._schedule.skipped(step):
                    closed.append(sequence)
            elif not lane.ended:
                self._limit.check_fruitless(lane)
                return False
        return True

    def _account(self, sequence: ClosedSequence) -> None:
        """What happened in a lane on the way to a sequence: used, filtered and bad samples."""
        for source, count in sequence.used:
            self._samples[source] += count
            self._limit.good(source, count)
        self._account_skips(sequence.lane, sequence.number, sequence.skips)

    def _account_skips(self, lane: int, number: int, skips: list[SkipEvent]) -> None:
        """Filtered and bad samples on the way to sequence `number` of a lane."""
        step = self._schedule.step_of(number)
        for event in skips:
            if not event.skipped.reason:
                self._filtered += 1
                continue
            shard, key = event.skipped.shard, event.skipped.key
            if not shard:
                shard, key = self.locate(event.source, event.index)
            name = self._recipe.sources[event.source].name
            record = BadRecord(name, shard, key, event.skipped.reason, "measure", lane, step)
            self._events.append(record)
            self._limit.bad(event.source, record)

    # --- microbatches ---------------------------------------------------------------------------------------------

    def _plan_next(self) -> bool:
        """Plan one microbatch if its sequences, a slab and the prefetch distance allow it."""
        if self.ended or self._planned - self._consumed > self._prefetch:
            return False
        turn = self._agenda.peek()
        if not self._sequences_ready(turn) or self.ended:
            return False
        slab = self._slabs.acquire()
        if slab is None:
            return False
        job = self._planner.plan(
            index=self._planned,
            turn=turn,
            slab=slab,
            sequences=[self._pop(slot) for slot in turn.slots],
        )
        self._agenda.pop()
        job.header.bad, self._events = self._events, []
        job.header.filtered, self._filtered = self._filtered, 0
        job.header.samples, self._samples = self._samples, [0] * len(self._sources)
        self._submit(job)
        self._planned += 1
        return True

    def _sequences_ready(self, turn: Turn) -> bool:
        """Whether the lanes of a turn have what it takes; sets `ended` where the data ends before its step."""
        step = turn.step
        lanes = [slot % self._recipe.lanes for slot in turn.slots if slot != EMPTY]
        # Each lane is moved on, not only those up to the first that lacks something: each asks for what it needs.
        ready = [self._advance(lane, self._planned, lanes.count(lane)) for lane in dict.fromkeys(lanes)]
        # A step that was begun before a resume is finished, whatever its lanes still have.
        begun = self._resumed_inside and step == self._first_step
        if turn.microbatch == 0 and not begun and not self._recipe.repeat:
            ready += [self._reaches(lane, step) for lane in self._lanes]
            self.ended = all(ready) and not any(self._has_sequence(lane, step) for lane in self._lanes)
        return all(ready)

    def _reaches(self, lane_number: int, step: int) -> bool:
        """Whether a lane is known to have a sequence for a step, or to have none; moves it on as far as it can go."""
        if lane_number in self._closed:
            return self._advance(lane_number, self._planned)
        lane = self._lanes[lane_number]
        while not lane.ended and not self._has_sequence(lane_number, step):
            sequence = lane.advance()
            self._request(lane, self._measure_priority(self._planned))
            if sequence is None and not lane.ended:
                self._limit.check_fruitless(lane)
                return False
        return True

    def _has_sequence(self, lane: int, step: int) -> bool:
        if lane in self._closed:
            return bool(self._closed[lane])
        return self._lanes[lane].closed > self._schedule.first_number(step)

    def _pop(self, slot: int) -> ClosedSequence | None:
        if slot == EMPTY or not self._closed[slot % self._recipe.lanes]:
            return None
        return self._closed[slot % self._recipe.lanes].popleft()

    def _submit(self, job: MicrobatchJob) -> None:
        tasks = self._planner.tasks(job)
        job.remaining = len(tasks)
        for task in tasks:
            task.id = next(self._ids)
            self._jobs[task.id] = job
            self._executor.submit(task, 2 * job.index)

    def _deliver_ready(self) -> None:
        while (header := self._ready.pop(self._delivered, None)) is not None:
            for record in header.bad:
                if record.stage == "render":
                    self._limit.bad(self._source_number(record.source), record)
            self._delivered += 1
            self._deliver(header)

    def _source_number(self, name: str) -> int:
        return next(i for i, source in enumerate(self._recipe.sources) if source.name == name)


def _lane_phase(pipeline: Pipeline, phase: Phase) -> LanePhase:
    recipe = phase.recipe
    weights = tuple(source.weight for source in recipe.sources)
    return LanePhase(
        phase.first_number,
        weights,
        recipe.seq_len,
        mixer=functools.partial(pipeline.mixer, recipe, weights),
        packer=functools.partial(pipeline.packer, recipe),
    )


def build_engine(start: Start, executor: Executor, deliver: Callable[[BatchHeader], None]) -> Engine:
    """The engine of a rank, as its first message says."""
    setup = start.setup
    return Engine(
        setup,
        open_sources(setup.recipe, setup.sources),
        topologies_of(setup.recipe, start.dp_size, start.dp_rank, start.microbatch_size),
        prefetch=start.prefetch,
        slabs=SlabPool(max(BatchLayout(layout).size for layout in setup.layouts), start.slabs),
        executor=executor,
        deliver=deliver,
        states=start.states,
        start_step=start.start_step,
        done=frozenset(start.done),
        microbatch=start.microbatch,
    )
