"""The coordinator: one light process per rank that runs the engine and owns the workers.

It stands between the training process and the pool, so that planning never competes with the training loop for the
GIL: the training process reads one small message per microbatch, and writes eight bytes when it takes one or lets a
buffer go.
"""

from __future__ import annotations

import os
import selectors
import signal
import traceback
from typing import NoReturn

from zephon_vl.channel import Channel, ChannelClosed
from zephon_vl.contracts import Skipped
from zephon_vl.engine import build_engine
from zephon_vl.errors import ZephonError
from zephon_vl.messages import CONSUMED, NOTE, BatchHeader, Health, Message, SlabOpened, Start, Starved, Stopped
from zephon_vl.pool import Pool
from zephon_vl.runner import GREY
from zephon_vl.tasks import Failure, ImageFailure, MeasureResult, MeasureTask, RenderResult, Result, Task, encode
from zephon_vl.template import Template

_KILLS = "kills the worker that reads it"


class TrainerGone(Exception):
    """The training process ended or closed the loader."""


class Coordinator:
    """Joins the engine, the pool and the channel to the training process in one event loop.

    Args:
        channel: to the training process.
        parent: process id of the training process.
        notes: pipe that it writes `NOTE`s to.
        start: what to deliver.
        template: what workers are forked from.
    """

    def __init__(self, channel: Channel, parent: int, notes: int, start: Start, template: Template) -> None:
        self._channel, self._notes, self._template = channel, notes, template
        self._told_slabs: set[int] = set()
        self._told_starved = self._told_ended = False
        self._told_pids: list[int] = []
        self._writing: set[int] = set()
        self._selector = selectors.EpollSelector()
        self._selector.register(channel, selectors.EVENT_READ, channel)
        os.set_blocking(notes, False)
        self._selector.register(notes, selectors.EVENT_READ, notes)
        # Not the kernel's parent-death signal: that one is sent when the *thread* ends that built the loader.
        self._selector.register(_pidfd(parent), selectors.EVENT_READ, None)
        self._selector.register(template.channel, selectors.EVENT_READ, template)
        # The end of a worker may show nowhere else: what it started may hold its channel open.
        self._deaths = _death_notices()
        self._selector.register(self._deaths, selectors.EVENT_READ, self._deaths)
        self._start = start

    def serve(self) -> None:
        """Run until the training process is gone; an error that stops the run is told to it first."""
        pool: Pool | None = None
        try:
            self._engine = build_engine(self._start, self, self._deliver)
            self._pool = pool = Pool(
                self._template,
                self._start.workers,
                slab=self._engine.slab,
                split=self._engine.on_split,
                give_up=self._give_up,
                watch=self._watch,
                unwatch=self._unwatch,
            )
            while True:
                self._engine.pump()
                self._pool.dispatch()
                self._report()
                self._wait()
        except ZephonError as error:
            self._stop(error.kind if isinstance(error, _Fatal) else type(error).__name__, str(error))
        except (TrainerGone, ChannelClosed):
            return  # or the template was killed: the training process starts another coordinator
        except Exception:  # a bug: told to the training process, which raises it
            self._stop("WorkerError", f"the coordinator failed:\n{traceback.format_exc()}")
        finally:
            self._template.close()
            if pool is not None:
                pool.close()

    def submit(self, task: Task, priority: int) -> None:
        """Executor of the engine."""
        self._pool.submit(task, priority)

    def _deliver(self, header: BatchHeader) -> None:
        if header.slab not in self._told_slabs:
            slab = self._engine.slab(header.slab)
            self._told_slabs.add(header.slab)
            self._channel.send(encode(SlabOpened(slab.number, slab.array.nbytes)), (slab.fd,))
        self._tell(header)

    def _tell(self, message: Message) -> None:
        self._channel.send(encode(message))

    def _report(self) -> None:
        """Tell the training process what it may have to act on, once."""
        if self._engine.ended and self._engine.idle and not self._told_ended:
            self._told_ended = True
            self._tell(self._engine.end())
        starved = self._engine.starved
        if starved and not self._told_starved:
            self._tell(Starved(self._start.slabs))
        self._told_starved = starved
        if (pids := self._pool.pids) != self._told_pids:
            self._told_pids = pids
            self._tell(Health(pids, self._pool.restarts))

    def _wait(self) -> None:
        for channel in (self._channel, self._template.channel, *self._pool.channels):
            self._watch_writing(channel)
        for key, events in self._selector.select():
            if key.data is None:
                raise TrainerGone
            if key.data is self._channel:
                self._channel.flush()
                self._channel.receive_ready()  # it sends nothing; this raises once it has closed
            elif key.data is self._template:
                self._template.flush()
                if events & selectors.EVENT_READ:
                    self._fail(self._template.failure())
            elif key.data == self._notes:
                self._read_notes()
            elif key.data == self._deaths:
                os.read(self._deaths, 4096)
                self._take(self._pool.reap())
            else:
                self._take(self._pool.readable(key.fd))

    def _watch(self, channel: Channel) -> None:
        self._selector.register(channel, selectors.EVENT_READ, channel)

    def _unwatch(self, channel: Channel) -> None:
        self._writing.discard(channel.fileno())
        self._selector.unregister(channel)

    def _watch_writing(self, channel: Channel) -> None:
        """Wake up when a channel that could not take everything can take more."""
        fd = channel.fileno()
        if channel.pending == (fd in self._writing):
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.pending else 0)
        self._selector.modify(channel, events, self._selector.get_key(channel).data)
        (self._writing.add if channel.pending else self._writing.discard)(fd)

    def _take(self, done: list[tuple[Task, Result]]) -> None:
        for task, result in done:
            if isinstance(result, Failure):
                self._fail(result)
            self._engine.on_result(task, result)

    def _fail(self, failure: Failure) -> NoReturn:
        raise _Fatal(failure.kind, failure.text)

    def _read_notes(self) -> None:
        data = os.read(self._notes, NOTE.size * 4096)
        if not data:
            raise TrainerGone
        for kind, value in NOTE.iter_unpack(data):
            if kind == CONSUMED:
                self._engine.on_consumed(value)
            else:
                self._engine.on_released(value)

    def _stop(self, kind: str, text: str) -> None:
        try:
            self._tell(Stopped(kind, text))
            self._channel.flush(block=True)
        except ChannelClosed:
            return

    def _give_up(self, task: Task) -> Result:
        """The outcome of a sample or image that kills each worker it is given to."""
        if isinstance(task, MeasureTask):
            _, _, index = task.samples[0]
            shard, key = self._engine.locate(task.source, index)
            return MeasureResult(task.id, [Skipped(_KILLS, shard, key)])
        if not task.images:
            return Failure(task.id, "WorkerError", "packing rows kills the worker: run with workers = 0 to see why")
        image = task.images[0]
        self._engine.patches(task.slab, task.phase)[image.place] = GREY
        failure = ImageFailure(image.first_patch, _KILLS, *self._engine.locate(image.source, image.index))
        return RenderResult(task.id, [], [failure])


class _Fatal(ZephonError):
    """An error of a worker on its way to the training process."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def _death_notices() -> int:
    """A descriptor that becomes readable when a child ends."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing is written
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def _pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; an already gone one raises `TrainerGone`."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise TrainerGone from error
