"""A job of many ranks, each a real process: what an elastic agent and a collective would do around them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from elastic.rank import Answer, Command, Microbatch, Ready, State, Stopped, serve
from zephon_vl.errors import ZephonError
from zephon_vl.recipe import Recipe
from zephon_vl.schedule import Schedule
from zephon_vl.topology import topologies_of
from zephon_vl.verify import Checkpoint, StepSlots

_A = TypeVar("_A", Ready, Microbatch, State)
_V = TypeVar("_V")
_PRELOAD = ["zephon_vl.verify", "rich.live", "tyro"]
"""Imported once, in a process without threads or loaders that the ranks are forked from."""


class RankDied(Exception):
    """A rank is gone without a word."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"rank {rank} died")
        self.rank = rank


class Job:
    """The processes of all ranks, from the start of the run or from a checkpoint.

    Args:
        recipe: of the run.
        ranks: number of processes.
        checkpoint: directory to go on from, whatever number of ranks saved it.
        kill: (messages, rank): when so many messages have come from all ranks together, this one is killed.
        options: further arguments of every `Loader`.

    Raises:
        ZephonError: here, in `step` and in `save`, with the words of the first rank whose loader stopped.
        RankDied: as well.
    """

    def __init__(
        self,
        recipe: Recipe,
        ranks: int,
        *,
        checkpoint: Path | None = None,
        kill: tuple[int, int] | None = None,
        **options: Any,
    ) -> None:
        self.empty_rows = 0
        """Rows of the last step that only filled microbatches up."""
        topologies_of(recipe, ranks, 0, options.get("microbatch_size", 1))  # refuses before a process starts
        self._schedule, self._kill, self._messages = Schedule(recipe), kill, 0
        saved = Checkpoint.read(checkpoint) if checkpoint else None
        self._slots = StepSlots(saved.slots if saved else None)
        self._pipes: list[Connection] = []
        self._processes = []
        os.environ["PYTHONSAFEPATH"] = "1"  # the processes find this library where it is installed, not where we stand
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        try:
            for rank in range(ranks):
                ours, theirs = context.Pipe()
                arguments = (theirs, recipe, {**options, "dp_rank": rank, "dp_size": ranks})
                state = saved.state_dict() if saved else None
                process = context.Process(target=serve, args=(*arguments, state), daemon=True)
                self._pipes.append(ours)
                self._processes.append(process)
                process.start()
                theirs.close()
            self.next_step = self._agreed({answer.next_step for _, answer in self._gather(Ready)})
        except BaseException:
            self.close()
            raise

    def step(self) -> tuple[int, str]:
        """(number, digest) of the next whole step, put together from all ranks; raises if they do not fit together."""
        self._tell("step")
        places: list[list[tuple[int, int, bool]]] = [[] for _ in self._pipes]
        self.empty_rows = 0
        for rank, batch in self._gather(Microbatch):
            places[rank].append((batch.step, batch.microbatch, batch.last))
            self._slots.add(batch.step, batch.digests)
            self.empty_rows += batch.empty
            self.next_step = batch.next_step
        step, _, _ = self._agreed({tuple(place) for place in places})[-1]
        return step, self._slots.finish(step, self._schedule.recipe_of(step).global_batch_size)

    def save(self, directory: Path) -> None:
        """Write the merged state of all ranks: whole, or not at all."""
        self._tell("save")
        states = dict(self._gather(State))
        Checkpoint.merge([states[rank].state for rank in range(len(states))], self._slots.found).write(directory)

    def close(self) -> None:
        """End all processes at once, as an agent does when one of them has died."""
        for process in self._processes:
            if process.pid is not None:
                process.kill()
                process.join()
        for pipe in self._pipes:
            pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell(self, command: Command) -> None:
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send(command)
            except ConnectionError as error:
                raise RankDied(rank) from error

    def _gather(self, kind: type[_A]) -> Iterator[tuple[int, _A]]:
        """(rank, answer) as they come, until each rank has given its last one."""
        waiting = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        while waiting:
            for pipe in wait(list(waiting)):
                assert isinstance(pipe, Connection)
                rank = waiting[pipe]
                try:
                    answer: Answer = pipe.recv()
                except (EOFError, ConnectionError) as error:
                    raise RankDied(rank) from error
                self._count()
                if isinstance(answer, Stopped):
                    raise ZephonError(answer.text)
                assert isinstance(answer, kind)
                if not isinstance(answer, Microbatch) or answer.last:
                    del waiting[pipe]
                yield rank, answer

    def _count(self) -> None:
        self._messages += 1
        if self._kill is not None and self._messages == self._kill[0]:
            self._processes[self._kill[1]].kill()

    def _agreed(self, values: set[_V]) -> _V:
        if len(values) > 1:
            raise ZephonError(f"the ranks are not at the same place: {sorted(map(str, values))}")
        return values.pop()
