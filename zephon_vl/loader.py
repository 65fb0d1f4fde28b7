"""The loader: what a training job iterates."""

from __future__ import annotations

import functools
import logging
import os
import time
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from zephon_vl.backend import Backend, CoordinatorDied, InlineBackend, ProcessBackend
from zephon_vl.batch import Batch, batch_over
from zephon_vl.errors import RecipeError, StateError, WorkerError, ZephonError
from zephon_vl.identity import Identity, check_identity, identity_of
from zephon_vl.image_code import identity as image_identity
from zephon_vl.layout import BatchLayout
from zephon_vl.messages import BadRecord, BatchHeader, Ended, Start, Starved
from zephon_vl.operators.registry import operators_identity
from zephon_vl.prepare import count_buffers, make_setup
from zephon_vl.presets import resolve_vision
from zephon_vl.recipe import Recipe, load_recipe
from zephon_vl.schedule import Schedule
from zephon_vl.sources import Source, open_sources
from zephon_vl.state import decode_entries, encode_entry, lane_key
from zephon_vl.stats import LoaderStats
from zephon_vl.topology import Topology, topologies_of

if TYPE_CHECKING:
    from zephon_vl.ledger.writer import LedgerWriter

_log = logging.getLogger("zephon_vl")
_WARNINGS = 10
"""Bad samples of a source that are logged one by one."""
_MOST = {"workers": 1 << 12, "prefetch": 1 << 16, "start_step": 1 << 40}
"""Far beyond any run; a slip of the keyboard would only look like a hang."""
_DEAD_COORDINATORS = 3
"""Coordinators that may die in a row without delivering anything."""


class Loader:
    """Iterates the microbatches of one data-parallel rank, for ever or until the data of a recipe without repeats ends.

    The global batch of every step depends on the recipe and the data alone; all arguments but `recipe` may differ from
    one run to the next.

    Args:
        recipe: a recipe, or the path of a recipe file.
        dp_rank: this data-parallel rank.
        dp_size: number of data-parallel ranks, from 1 to the recipe's lanes.
        microbatch_size: sequences per microbatch.
        workers: processes that read, decode and tokenize. 0 does everything in the calling process, for debugging.
        prefetch: microbatches to have ready or on their way beyond the one in use.
        memory_limit: most bytes of buffers. None: as much as all microbatches of a step and the prefetch take.
        start_step: first step to deliver; the steps before are planned only, which reads headers but decodes nothing.
        ledger: a directory, shared by all ranks, where every rank records what it delivers: the digest of each slot and
            the samples in it. See `zephon-vl ledger`. None: no record.

    Raises:
        RecipeError: for a recipe or an argument that would break a guarantee.
        SourceError, StorageError: for data that cannot be opened, a ledger that cannot be written.
        MissingExtra: for a ledger without pyarrow.
    """

    def __init__(
        self,
        recipe: Recipe | str | Path,
        *,
        dp_rank: int = 0,
        dp_size: int = 1,
        microbatch_size: int = 1,
        workers: int = 2,
        prefetch: int = 4,
        memory_limit: int | None = None,
        start_step: int = 0,
        ledger: str | Path | None = None,
    ) -> None:
        self._backend: Backend | None = None
        self.recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
        self.recipe.validate()
        for name, value in (("workers", workers), ("prefetch", prefetch), ("start_step", start_step)):
            if type(value) is not int or not 0 <= value <= _MOST[name]:
                raise RecipeError(f"{name} is {value!r}, but must be an integer from 0 to {_MOST[name]:,}")
        self.schedule = Schedule(self.recipe)
        self._topologies = topologies_of(self.recipe, dp_size, dp_rank, microbatch_size)
        self.rules = resolve_vision(self.recipe.vision) if self.recipe.vision else None
        self.setup = make_setup(self.recipe, microbatch_size)
        self._layouts = [BatchLayout(spec) for spec in self.setup.layouts]
        self._buffer_size = max(layout.size for layout in self._layouts)
        self._workers, self._prefetch = workers, prefetch
        self._slabs = count_buffers(self._topologies, self._buffer_size, prefetch, memory_limit)
        self._states: dict[int, bytes] = {}
        self._step, self._microbatch = start_step, 0
        self._done: frozenset[int] = frozenset()
        self._taken = self._dead_coordinators = self._restarts = 0
        self._ended = self._closed = False
        self._owner = os.getpid()
        self._held: set[int] = set()
        self._warned: Counter[str] = Counter()
        self.stats = LoaderStats(tuple(source.name for source in self.recipe.sources))
        self._ledger = self._open_ledger(ledger) if ledger is not None else None

    # --- iteration ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        self._check_owner()
        if self._ended:
            raise StopIteration
        before = time.monotonic()
        header = self._receive()
        if header is None:
            self._ended = True
            if self._ledger is not None:
                self._ledger.flush()
            raise StopIteration
        return self._take(header, time.monotonic() - before)

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise ZephonError(
                f"this loader belongs to process {self._owner}, but is used in its fork {os.getpid()}: they would take "
                "each other's microbatches. Make a loader in the process that iterates it"
            )

    def start(self) -> None:
        """Start the processes now, rather than with the first microbatch."""
        self._check_owner()
        if self._closed:
            raise ZephonError("the loader is closed: make a new one")
        if self._backend is not None:
            return
        topology = self.topology
        start = Start(
            setup=self.setup,
            dp_rank=topology.dp_rank,
            dp_size=topology.dp_size,
            microbatch_size=topology.microbatch_size,
            workers=self._workers,
            prefetch=self._prefetch,
            slabs=self._slabs,
            states=self._states,
            start_step=self._step,
            done=sorted(self._done),
            microbatch=self._microbatch,
        )
        self._backend = ProcessBackend(start) if self._workers else InlineBackend(start)
        self._taken = 0
        self._finalizer = weakref.finalize(self, self._backend.close)

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state right after the last microbatch delivered, whatever was prefetched; also in the middle of a step.

        Returns:
            `identity`: bytes, what must be the same on restore; `lanes`: one entry of bytes per lane of this rank.
            Merge the `lanes` of all ranks, as `torch.distributed.checkpoint` does, to restore on any number of them.
        """
        if self._ledger is not None:
            self._ledger.flush()  # a run that goes on from here finds all before it on record
        done = self._done_in_step()
        slots = self.topology.global_batch_size
        return {
            "identity": self.identity.encode(),
            "lanes": {
                lane_key(lane): encode_entry(self._states.get(lane, b""), self._step, done, slots)
                for lane in self.topology.owned
            },
        }

    def load_state_dict(self, state: Mapping[str, Any], allow: Collection[str] = ()) -> None:
        """Go on from a saved state, on any number of ranks.

        Args:
            state: from `state_dict`, with the entries of at least the lanes that this rank owns now. Phases, skipped
                steps and sources of the recipe that only matter after it may be new.
            allow: parts of the identity that may differ: `image_code`, `operators`, `tokenizer`, `data`, `recipe`.

        Raises:
            StateError: naming what is wrong or what differs. The loader stays as it was.
            StorageError: if the ledger cannot be written. The loader stays as it was.
        """
        kinds = {"identity": (bytes, bytearray, memoryview), "lanes": Mapping}
        for key, kind in kinds.items():
            if not isinstance(state, Mapping) or not isinstance(state.get(key), kind):
                raise StateError(f"the state has no {key!r}: it is not a state of this library, or not a whole one")
        saved = bytes(state["identity"])
        try:
            position = decode_entries(state["lanes"], self.topology.owned, self.recipe.lanes)
        except StateError:
            check_identity(saved, self.identity, 0, allow)  # another recipe is the better reason
            raise
        check_identity(saved, self.identity, position.untouched, allow)
        if self._ledger is not None:
            self._ledger.begin(position.step, position.done)
        self._stop_backend()
        self._states, self._step, self._done, self._microbatch = position.states, position.step, position.done, 0
        self._ended = self._closed

    @functools.cached_property
    def identity(self) -> Identity:
        """What must be the same for a checkpoint to go on exactly."""
        image_code = image_identity() if self.rules else {}
        return identity_of(
            self.recipe,
            self.open_sources(),
            self.setup.vocabulary.fingerprint,
            image_code,
            operators_identity(self.recipe),
        )

    def _receive(self) -> BatchHeader | None:
        """The next header; None at the end of the data."""
        while True:
            self.start()
            assert self._backend is not None
            try:
                message = self._backend.receive()
            except CoordinatorDied:
                self._restart()
                continue
            except ZephonError:
                self.close()
                raise
            if isinstance(message, BatchHeader):
                return message
            if isinstance(message, Ended):
                self.stats.count_skips(message.filtered, message.bad)
                self._log_bad(message.bad)
                return None
            self._check_held(message)

    def _take(self, header: BatchHeader, waited: float) -> Batch:
        backend = self._backend
        assert backend is not None
        self._taken += 1
        self._dead_coordinators = 0
        backend.consumed(self._taken)
        self._states.update(header.states)
        self._step, self._microbatch = (header.step + 1, 0) if header.last else (header.step, header.microbatch + 1)
        if header.last:
            self._done = frozenset()
        layout = self._layouts[header.phase]
        self.stats.count(header, layout.spec.seq_len, waited)
        self.stats.worker_restarts = self._restarts + backend.worker_restarts
        self._log_bad(header.bad)
        slab = header.slab
        self._held.add(slab)
        batch = batch_over(header, backend.slab(slab), layout, self.rules, _Release(backend, self._held, slab))
        if self._ledger is not None:
            self._ledger.append(batch, self._topologies[header.phase].global_batch_size)
        return batch

    def _log_bad(self, bad: Sequence[BadRecord]) -> None:
        """Warn of the first bad samples of each source one by one; the rest is counted in `stats`."""
        for record in bad:
            self._warned[record.source] += 1
            if self._warned[record.source] <= _WARNINGS:
                _log.warning("bad sample: %s", record)
            if self._warned[record.source] == _WARNINGS:
                _log.warning("further bad samples of source %r are only counted in Loader.stats", record.source)

    def _check_held(self, starved: Starved) -> None:
        """All buffers are in use: an error if the consumer still holds them, else the next one is on its way."""
        if len(self._held) < starved.held:
            return
        size = self._buffer_size
        raise ZephonError(
            f"all {starved.held} buffers are still referenced by microbatches that you keep; the loader would wait for "
            f"ever. Let some of them go (a step has {self.topology.microbatches_per_step} microbatches), or raise "
            f"memory_limit from {starved.held * size} to at least {(starved.held + 1) * size} bytes"
        )

    def _restart(self) -> None:
        """The coordinator was killed: go on with a new one, right after the last microbatch delivered."""
        self._dead_coordinators += 1
        if self._dead_coordinators > _DEAD_COORDINATORS:
            self.close()
            raise WorkerError(
                f"the coordinator process, or the one that it forks workers from, died {self._dead_coordinators} times "
                "in a row without delivering anything. "
                "Run with workers = 0 to see the reason in this process"
            )
        _log.warning(
            "the coordinator process, or the one that it forks workers from, died; "
            "going on after step %d, microbatch %d",
            self._step,
            self._microbatch,
        )
        self._stop_backend()

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop all processes. Batches that you still hold stay valid. Called by `with`, on collection, and at exit."""
        self._closed = self._ended = True
        self._stop_backend()
        if self._ledger is not None:
            self._close_ledger()

    def _stop_backend(self) -> None:
        if self._backend is not None:
            self._restarts += self._backend.worker_restarts
            self._finalizer.detach()
            self._backend.close()
            self._backend = None
            self._held = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_ledger(self, path: str | Path) -> LedgerWriter:
        from zephon_vl.ledger.writer import LedgerWriter

        topology = self.topology
        writer = LedgerWriter(
            path,
            recipe=self.recipe,
            sources=self.open_sources(),
            identity=self.identity.encode(),
            dp_rank=topology.dp_rank,
            dp_size=topology.dp_size,
        )
        writer.begin(self._step)
        self._close_ledger = weakref.finalize(self, writer.close)
        return writer

    # --- what it decides at the start -----------------------------------------------------------------------------

    def open_sources(self) -> list[Source]:
        """The sources, opened in this process: to look up what a `DocumentRef` stands for."""
        return open_sources(self.recipe, self.setup.sources)

    @property
    def next_step(self) -> int:
        """The step that the next microbatch belongs to."""
        return self.schedule.from_step(self._step)

    @property
    def topology(self) -> Topology:
        """Lanes, ranks and microbatches in the step that the next microbatch belongs to."""
        return self._topologies[self.schedule.phase_of(self.next_step)]

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers that run now; one that has just been forked is not among them yet."""
        return self._backend.worker_pids if self._backend else []

    @property
    def coordinator_pid(self) -> int:
        """Process id of the coordinator; 0 where there is none."""
        return self._backend.pid if self._backend else 0

    @property
    def buffer_bytes(self) -> int:
        """Most bytes that all buffers of this rank can take."""
        return self._slabs * self._buffer_size

    def _done_in_step(self) -> frozenset[int]:
        return self.topology.delivered(self._microbatch, self._done)


class _Release:
    """Gives a slab back when its last tensor is gone. Holds no reference to the loader, so that it can be collected."""

    def __init__(self, backend: Backend, held: set[int], slab: int) -> None:
        self._backend, self._held, self._slab = backend, held, slab

    def __call__(self) -> None:
        self._held.discard(self._slab)
        self._backend.release(self._slab)
