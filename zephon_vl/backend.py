"""Where microbatches come from: a coordinator process with workers, or the engine inline."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from typing import Protocol

from zephon_vl import errors
from zephon_vl.channel import ChannelClosed
from zephon_vl.launch import start as start_process
from zephon_vl.messages import (
    CONSUMED,
    NOTE,
    RELEASED,
    BatchHeader,
    Ended,
    Health,
    SlabOpened,
    Start,
    Starved,
    Stopped,
    message_decoder,
)
from zephon_vl.slabs import Slab
from zephon_vl.tasks import Task, TaskQueue, encode

_PATIENCE = 5.0
"""Seconds that a coordinator has to end by itself once its channel is closed."""


class CoordinatorDied(Exception):
    """The coordinator process is gone; the loader starts another from the last microbatch delivered."""


class Backend(Protocol):
    """Gives headers and slabs, takes them back."""

    def receive(self) -> BatchHeader | Ended | Starved:
        """The next message; blocks. Raises `ZephonError` where the run stops, `CoordinatorDied`."""
        ...

    def slab(self, number: int) -> Slab: ...

    def consumed(self, count: int) -> None:
        """`count` microbatches were taken so far."""
        ...

    def release(self, slab: int) -> None:
        """Nothing refers to a slab any more. Safe in any thread, also inside garbage collection."""
        ...

    @property
    def pid(self) -> int:
        """Of the coordinator; 0 where there is none."""
        ...

    @property
    def worker_pids(self) -> list[int]: ...

    @property
    def worker_restarts(self) -> int: ...

    def close(self) -> None: ...


class ProcessBackend:
    """A coordinator process with its workers."""

    def __init__(self, start: Start) -> None:
        read, self._notes = os.pipe()
        try:
            self._process, self._channel = start_process("zephon_vl.service", read, receives=True)
        finally:
            os.close(read)
        self._slabs: dict[int, Slab] = {}
        self._pending: deque[bytes] = deque()
        self._health = Health([], 0)
        self._owner = os.getpid()
        self._channel.send(encode(start))
        self._channel.flush(block=True)

    def receive(self) -> BatchHeader | Ended | Starved:
        while True:
            try:
                if self._pending and not self._channel.poll():
                    self._send_notes()
                message = message_decoder.decode(self._channel.receive())
            except ChannelClosed as error:
                raise CoordinatorDied from error
            if isinstance(message, SlabOpened):
                self._slabs[message.number] = Slab.attach(message.number, self._channel.take_fd(), message.size)
            elif isinstance(message, Health):
                self._health = message
            elif isinstance(message, Stopped):
                raise error_of(message)
            else:
                return message

    def slab(self, number: int) -> Slab:
        return self._slabs[number]

    def consumed(self, count: int) -> None:
        self._pending.append(NOTE.pack(CONSUMED, count))
        self._send_notes()

    def release(self, slab: int) -> None:
        # Told with the next microbatch that is taken, or before waiting for one: the coordinator is woken once.
        self._pending.append(NOTE.pack(RELEASED, slab))

    @property
    def pid(self) -> int:
        """Of the coordinator."""
        return self._process.pid

    @property
    def worker_pids(self) -> list[int]:
        return self._health.pids

    @property
    def worker_restarts(self) -> int:
        return self._health.restarts

    def close(self) -> None:
        if self._notes < 0:
            return
        notes, self._notes = self._notes, -1
        os.close(notes)
        if os.getpid() != self._owner:  # a fork of the training process: the coordinator is not its child
            self._channel.close()
            return
        # Closing alone would not reach the coordinator while a fork of this process holds the descriptors too.
        self._channel.shut_down()
        self._channel.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send_notes(self) -> None:
        if self._notes < 0 or os.getpid() != self._owner:
            return
        notes = b"".join([self._pending.popleft() for _ in range(len(self._pending))])
        try:
            os.write(self._notes, notes)
        except BrokenPipeError:
            return  # the coordinator is gone; `receive` says so


class InlineBackend:
    """The engine and its tasks in the calling process (`workers = 0`), for debugging: the same code, all in turn."""

    pid = 0
    worker_pids: list[int] = []  # noqa: RUF012 - there are none, ever
    worker_restarts = 0

    def __init__(self, start: Start) -> None:
        # Imported here: otherwise the training process needs neither.
        from zephon_vl.engine import build_engine
        from zephon_vl.runner import TaskRunner

        self._waiting = TaskQueue()
        self._ready: deque[BatchHeader] = deque()
        self._released: deque[int] = deque()
        self._runner = TaskRunner(start.setup)
        self._known_slabs: set[int] = set()
        self._limit = start.slabs
        self._engine = build_engine(start, self, self._ready.append)

    def submit(self, task: Task, priority: int) -> None:
        """Executor of the engine."""
        self._waiting.push(task, priority)

    def receive(self) -> BatchHeader | Ended | Starved:
        while not self._ready:
            while self._released:
                self._engine.on_released(self._released.popleft())
            self._engine.pump()
            if self._ready:
                break
            if self._waiting:
                task = self._waiting.pop()
                self._attach(task)
                self._engine.on_result(task, self._runner.run(task))
            elif self._engine.ended:
                return self._engine.end()
            elif self._engine.starved:
                return Starved(self._limit)
            else:
                raise errors.WorkerError("the engine has nothing to do and nothing to deliver: a bug in this library")
        return self._ready.popleft()

    def slab(self, number: int) -> Slab:
        return self._engine.slab(number)

    def consumed(self, count: int) -> None:
        self._engine.on_consumed(count)

    def release(self, slab: int) -> None:
        self._released.append(slab)

    def close(self) -> None:
        self._waiting = TaskQueue()

    def _attach(self, task: Task) -> None:
        slab = getattr(task, "slab", None)
        if slab is not None and slab not in self._known_slabs:
            self._known_slabs.add(slab)
            self._runner.attach(self._engine.slab(slab))


def error_of(message: Stopped) -> errors.ZephonError:
    """The error that stopped a run, as its own class where this library knows it."""
    kind = getattr(errors, message.kind, errors.WorkerError)
    if isinstance(kind, type) and issubclass(kind, errors.ZephonError) and kind is not errors.MissingExtra:
        return kind(message.text)
    return errors.ZephonError(message.text)
