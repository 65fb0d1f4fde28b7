"""What a worker does: one task after the other, as they come over its channel."""

from __future__ import annotations

import os
import traceback

from zephon_vl.channel import Channel
from zephon_vl.errors import ZephonError
from zephon_vl.runner import TaskRunner
from zephon_vl.slabs import Slab
from zephon_vl.tasks import Failure, Ready, SlabGiven, encode, to_worker_decoder


def serve(channel: Channel, runner: TaskRunner) -> None:
    """Serve tasks until the channel closes, which raises `ChannelClosed`."""
    channel.send(encode(Ready(os.getpid())))
    while True:
        message = to_worker_decoder.decode(channel.receive())
        if isinstance(message, SlabGiven):
            runner.attach(Slab.attach(message.number, channel.take_fd(), message.size))
            continue
        try:
            result = runner.run(message)
        except ZephonError as error:
            result = Failure(message.id, type(error).__name__, str(error))
        except (Exception, SystemExit):  # a bug: not hidden, the run stops with this traceback
            result = Failure(message.id, "WorkerError", f"a worker failed on a task:\n{traceback.format_exc()}")
        channel.send(encode(result))
        channel.flush(block=True)
