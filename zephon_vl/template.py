"""The template of the workers: a process that has imported what they need and read the vocabulary, and forks them.

A vocabulary of 150,000 tokens takes half a second and 100 MB. Workers that are forked share both, and one that takes
the place of a dead one works at once. Nothing of the training process is forked, and the template itself is safe to
fork: no thread of it is left, it opens no data and builds no operators.

Workers are its grandchildren. The process in between ends at once and the coordinator adopts them, so that the
coordinator sees how each of them ends, and they end with it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import NoReturn

from zephon_vl.allocator import in_own_arena
from zephon_vl.channel import Channel, ChannelClosed
from zephon_vl.contracts import Preloads
from zephon_vl.errors import RecipeError, ZephonError
from zephon_vl.image_code import prepare_worker
from zephon_vl.parents import adopt_orphans, die_with_parent, end_of
from zephon_vl.runner import TaskRunner, load_pipeline
from zephon_vl.tasks import Failure, Setup, encode, failure_decoder
from zephon_vl.worker import serve

_ADOPTION = 0.0002
"""Seconds between two looks at who the parent is."""


class Template:
    """The coordinator's side. Make it while the process has no threads and little memory.

    Args:
        setup: what the workers are to do.
        foreign: descriptors of this process that are closed in the template and in all workers.
    """

    def __init__(self, setup: Setup, foreign: Sequence[int]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        adopt_orphans()
        coordinator = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            _run(Channel(theirs), setup, coordinator, (ours.detach(), *foreign))
        theirs.close()
        self.channel = Channel(ours, descriptors=False)
        """Readable when it has failed, with a `Failure`, or died; writable for `flush` when it is `pending`."""
        self._unsent: list[socket.socket] = []

    def fork_worker(self) -> Channel:
        """Our side of the channel to a new worker, which first sends `Ready`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._unsent.append(theirs)
        with contextlib.suppress(ChannelClosed):  # noticed when it is read
            self.channel.send(b"", (theirs.fileno(),))
        self.flush()
        return Channel(ours, descriptors=False)

    def flush(self) -> None:
        """Send what the channel did not take at once: the template reads nothing until it is ready."""
        with contextlib.suppress(ChannelClosed):  # noticed when it is read, and what it said before comes first
            self.channel.flush()
        if not self.channel.pending:
            for sent in self._unsent:
                sent.close()
            self._unsent.clear()

    def failure(self) -> Failure:
        """Why it failed, once its channel is readable. Raises `ChannelClosed` if it was killed."""
        return failure_decoder.decode(self.channel.receive())

    def close(self) -> None:
        """End it. Workers that it was still asked for end when the coordinator does."""
        self.channel.close()
        os.kill(self.pid, signal.SIGKILL)
        end_of(self.pid)


def _run(channel: Channel, setup: Setup, coordinator: int, foreign: Sequence[int]) -> NoReturn:
    """All that happens in the template and in the workers: nothing returns to the code that was forked."""
    try:
        for fd in foreign:
            os.close(fd)
        die_with_parent(coordinator)
        try:
            _prepare(setup)
            worker = _fork_workers(channel, coordinator)
        except ZephonError as error:
            _fail(channel, type(error).__name__, str(error))
        except ChannelClosed:
            os._exit(0)
        except BaseException:  # a bug, sys.exit, or no process to be had: the run stops with this traceback
            _fail(channel, "WorkerError", f"the process that forks the workers failed:\n{traceback.format_exc()}")
        else:
            serve(worker, TaskRunner(setup))
    except ChannelClosed:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _prepare(setup: Setup) -> None:
    prepare_worker()
    pipeline = load_pipeline(setup.pipeline)
    if isinstance(pipeline, Preloads):
        in_own_arena(lambda: pipeline.preload(setup.recipe, setup.vocabulary))
    # What waits in them would be written again by each worker.
    sys.stdout.flush()
    sys.stderr.flush()
    if threading.active_count() > 1:
        names = ", ".join(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
        raise RecipeError(
            f"pipeline {setup.pipeline!r} started threads when it was imported or preloaded ({names}): they would be "
            "missing in the workers, which are forked. Start them in the constructor of an operator"
        )
    gc.freeze()  # a collection in a worker would copy the pages of all that is shared


def _fork_workers(channel: Channel, coordinator: int) -> Channel:
    """Fork a worker for each descriptor that comes in. Returns in workers only, with the channel to the coordinator."""
    while True:
        channel.receive()
        fd = channel.take_fd()
        if _fork_adopted(coordinator):
            channel.close()
            if (numpy_random := sys.modules.get("numpy.random")) is not None:
                numpy_random.seed()  # else all workers draw the same; the standard library's does so by itself
            return Channel(socket.socket(fileno=fd))
        os.close(fd)


def _fork_adopted(parent: int) -> bool:
    """Fork a child of `parent`, which adopts orphans. Returns whether this is the child. Raises `OSError`."""
    between = os.fork()
    if between:
        status = end_of(between)
        if status:
            raise OSError(status, f"a worker could not be forked: {os.strerror(status)}")
        return False
    between = os.getpid()
    try:
        if os.fork():
            os._exit(0)
    except OSError as error:
        os._exit(error.errno or 1)
    while os.getppid() == between:
        time.sleep(_ADOPTION)
    die_with_parent(parent)
    return True


def _fail(channel: Channel, kind: str, text: str) -> None:
    channel.send(encode(Failure(-1, kind, text)))
    channel.flush(block=True)
