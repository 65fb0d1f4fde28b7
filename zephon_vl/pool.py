"""The worker pool: bounded, restarted when workers die, with every task done exactly once.

A worker has at most two tasks, the one it works on and the next. When it dies, both are given out again; if the one it
worked on holds several samples or images, it is taken apart first, so that the one that kills is found. What crashes
its worker twice while it is alone is given up, on record. Order does not matter here: the engine puts results together
by what they belong to.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from zephon_vl.channel import Channel, ChannelClosed
from zephon_vl.errors import WorkerError
from zephon_vl.parents import end_of, ended_child
from zephon_vl.slabs import Slab
from zephon_vl.tasks import (
    MeasureTask,
    Ready,
    RenderTask,
    Result,
    SlabGiven,
    Task,
    TaskQueue,
    encode,
    from_worker_decoder,
)
from zephon_vl.template import Template

_AT_ONCE = 2
_FATAL_CRASHES = 2
"""Times that a worker may crash on a single sample or image before that is given up."""
_FATAL_KILLS = 5
"""The same for workers that were killed: for want of memory, or by somebody from outside, whom no sample is to blame
for. More often, since giving up a good sample would change the data."""
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)
_FRUITLESS_STARTS = 5
"""Starts per worker without one result after which the pool gives up."""


@dataclass(slots=True)
class _Worker:
    channel: Channel
    tasks: deque[Task] = field(default_factory=deque)
    slabs: set[int] = field(default_factory=set)
    pid: int = 0
    """Once it has started, and so may work on its first task."""
    dead: bool = False
    """Whether it is known to have ended, with this `status`."""
    status: int | None = None

    def kill(self) -> None:
        """Close its channel and kill it. One that has not started ends when it finds its channel closed."""
        self.channel.close()
        if self.pid and not self.dead:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int | None:
        """How it ended: an exit status, or minus a signal; None if it had not started."""
        if self.pid and not self.dead:
            self.dead, self.status = True, end_of(self.pid)
        return self.status


class Pool:
    """Workers and the tasks that wait for them.

    Args:
        template: what workers are forked from.
        size: number of workers.
        slab: finds a slab by its number.
        split: told when a task was taken apart: (old, new ones).
        give_up: makes the outcome of a task that kills its worker each time.
        watch, unwatch: told which channels to wait on.
    """

    def __init__(
        self,
        template: Template,
        size: int,
        *,
        slab: Callable[[int], Slab],
        split: Callable[[Task, list[Task]], None],
        give_up: Callable[[Task], Result],
        watch: Callable[[Channel], None],
        unwatch: Callable[[Channel], None],
    ) -> None:
        self._template = template
        self._size = size
        self._slab, self._split, self._give_up = slab, split, give_up
        self._watch, self._unwatch = watch, unwatch
        self._workers: dict[int, _Worker] = {}
        self._waiting = TaskQueue()
        self._crashes: dict[int, int] = {}
        self._fruitless = 0
        self.restarts = 0
        for _ in range(size):
            self._start()

    def submit(self, task: Task, priority: int) -> None:
        """Queue a task; lower priorities first, then in order."""
        self._waiting.push(task, priority)

    def dispatch(self) -> None:
        """Hand waiting tasks to workers that have room, the idlest first."""
        while self._waiting:
            worker = min(self._workers.values(), key=lambda w: len(w.tasks))
            if len(worker.tasks) >= _AT_ONCE:
                return
            self._give(worker, self._waiting.pop())

    def readable(self, fd: int) -> list[tuple[Task, Result]]:
        """Results that arrived on a channel; a dead worker is replaced."""
        worker = self._workers.get(fd)
        if worker is None:
            return []
        try:
            worker.channel.flush()
            messages = worker.channel.receive_ready()
        except ChannelClosed:
            return self._replace(fd)
        done: list[tuple[Task, Result]] = []
        for message in messages:
            result = from_worker_decoder.decode(message)
            if isinstance(result, Ready):
                worker.pid = result.pid
                continue
            self._fruitless = 0
            task = worker.tasks.popleft()
            self._crashes.pop(task.id, None)
            done.append((task, result))
        return done

    def reap(self) -> list[tuple[Task, Result]]:
        """Wait for the children that have ended. Dead workers are replaced, though a process that one started may
        still hold its channel open; their orphans, which came to this process, are let go."""
        done: list[tuple[Task, Result]] = []
        while (pid := ended_child()) is not None and pid != self._template.pid:
            fd = next((fd for fd, worker in self._workers.items() if worker.pid == pid), None)
            if fd is not None:
                self._workers[fd].wait()
                done += self.readable(fd)
                if fd in self._workers:
                    done += self._replace(fd)
            elif all(worker.pid for worker in self._workers.values()):
                end_of(pid)
            else:
                break  # it may be a worker that has not said yet who it is
        return done

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that have started."""
        return [worker.pid for worker in self._workers.values() if worker.pid]

    @property
    def channels(self) -> list[Channel]:
        return [worker.channel for worker in self._workers.values()]

    def close(self) -> None:
        """End all workers now. They hold nothing that needs an orderly end."""
        for worker in self._workers.values():
            self._unwatch(worker.channel)
            worker.kill()
        for worker in self._workers.values():
            worker.wait()
        self._workers.clear()

    def _start(self) -> None:
        channel = self._template.fork_worker()
        self._workers[channel.fileno()] = _Worker(channel)
        self._watch(channel)

    def _give(self, worker: _Worker, task: Task) -> None:
        worker.tasks.append(task)
        try:
            if isinstance(task, RenderTask) and task.slab not in worker.slabs:
                slab = self._slab(task.slab)
                worker.channel.send(encode(SlabGiven(slab.number, slab.array.nbytes)), (slab.fd,))
                worker.slabs.add(task.slab)
            worker.channel.send(encode(task))
        except ChannelClosed:
            return  # its death is noticed, and the task given out again, when its channel is read

    def _replace(self, fd: int) -> list[tuple[Task, Result]]:
        """A worker died: give its tasks out again, start another."""
        worker = self._workers.pop(fd)
        self._unwatch(worker.channel)
        worker.kill()
        status = worker.wait()
        self.restarts += 1
        self._fruitless += 1
        if self._fruitless > _FRUITLESS_STARTS * self._size:
            raise WorkerError(
                f"workers die before they finish anything: {self._fruitless} in a row, the last {_meaning(status)}. "
                "Run with workers = 0 to see the reason in this process"
            )
        given_up = self._blame(worker.tasks.popleft(), status) if worker.pid and worker.tasks else []
        for task in worker.tasks:
            self.submit(task, -(2**31))
        self._start()
        return given_up

    def _blame(self, task: Task, status: int | None) -> list[tuple[Task, Result]]:
        """The task that a dead worker worked on: take it apart, or count against it."""
        parts = _parts(task)
        if len(parts) > 1:
            self._split(task, parts)
        else:
            parts = [task]
            self._crashes[task.id] = self._crashes.get(task.id, 0) + 1
            if self._crashes[task.id] >= (_FATAL_KILLS if status in _KILLED else _FATAL_CRASHES):
                del self._crashes[task.id]
                return [(task, self._give_up(task))]
        for part in parts:
            self.submit(part, -(2**31))
        return []


def _parts(task: Task) -> list[Task]:
    """The task in pieces of one sample or image; ids are set by the owner of the tasks."""
    if isinstance(task, MeasureTask):
        return [MeasureTask(-1, task.source, [sample]) for sample in task.samples]
    rows: list[Task] = [RenderTask(-1, task.slab, task.phase, task.rows, [])] if task.rows else []
    return rows + [RenderTask(-1, task.slab, task.phase, [], [image]) for image in task.images]


def _meaning(status: int | None) -> str:
    if status is None:
        return "before it had started"
    return f"killed by signal {-status}" if status < 0 else f"with exit status {status}"
