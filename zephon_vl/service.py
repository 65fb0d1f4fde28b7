"""The main of a coordinator process. It forks the template before all else: both get ready at the same time."""

from __future__ import annotations

import socket

from zephon_vl.channel import Channel, ChannelClosed
from zephon_vl.messages import Stopped, start_decoder
from zephon_vl.tasks import encode
from zephon_vl.template import Template


def main(fd: int, parent: int, notes: int) -> None:
    """Serve the training process `parent` over the channel `fd` and the pipe `notes` until either is gone."""
    channel = Channel(socket.socket(fileno=fd), descriptors=False)
    try:
        start = start_decoder.decode(channel.receive())
        try:
            template = Template(start.setup, (fd, notes))
        except OSError as error:
            text = f"the process that forks the workers cannot be made: {type(error).__name__}: {error}"
            channel.send(encode(Stopped("WorkerError", text)))
            channel.flush(block=True)
            return
    except ChannelClosed:
        return
    from zephon_vl.coordinator import Coordinator, TrainerGone  # the template needs nothing of it

    try:
        Coordinator(channel, parent, notes, start, template).serve()
    except TrainerGone:
        return
