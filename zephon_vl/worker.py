"""The main of a worker process: light (no torch, no transformers), alone with its channel, dead with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import traceback

from zephon_vl.channel import Channel, ChannelClosed
from zephon_vl.errors import ZephonError

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, in whatever way.

    Only for children of a coordinator, whose main thread lives as long as it: the kernel sends the signal when the
    *thread* ends that started the process.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def main(fd: int, parent: int) -> None:
    """Serve tasks from the channel on descriptor `fd` until it closes."""
    die_with_parent(parent)
    channel = Channel(socket.socket(fileno=fd))
    try:
        _serve(channel)
    except ChannelClosed:
        return


def _serve(channel: Channel) -> None:
    from zephon_vl.image_code import prepare_worker
    from zephon_vl.runner import TaskRunner
    from zephon_vl.slabs import Slab
    from zephon_vl.tasks import Failure, Ready, Setup, SlabGiven, encode, to_worker_decoder

    prepare_worker()
    runner: TaskRunner | None = None
    while True:
        message = to_worker_decoder.decode(channel.receive())
        if isinstance(message, Setup):
            runner = TaskRunner(message)
            channel.send(encode(Ready()))
            channel.flush(block=True)
            continue
        assert runner is not None
        if isinstance(message, SlabGiven):
            runner.attach(Slab.attach(message.number, channel.take_fd(), message.size))
            continue
        try:
            result = runner.run(message)
        except ZephonError as error:
            result = Failure(message.id, type(error).__name__, str(error))
        except Exception:  # a bug: not hidden, the run stops with this traceback
            result = Failure(message.id, "WorkerError", f"a worker failed on a task:\n{traceback.format_exc()}")
        channel.send(encode(result))
        channel.flush(block=True)
