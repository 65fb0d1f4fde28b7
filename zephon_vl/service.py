"""The main of a coordinator process. It forks the template before all else: both get ready at the same time."""

from __future__ import annotations

import socket

from zephon_vl.channel import Channel, ChannelClosed
from zephon_vl.messages import start_decoder
from zephon_vl.template import Template


def main(fd: int, parent: int, notes: int) -> None:
    """Serve the training process `parent` over the channel `fd` and the pipe `notes` until either is gone."""
    channel = Channel(socket.socket(fileno=fd), descriptors=False)
    try:
        start = start_decoder.decode(channel.receive())
        template = Template(start.setup, (fd, notes))
        from zephon_vl.coordinator import Coordinator, TrainerGone  # the template needs nothing of it
    except ChannelClosed:
        return
    try:
        Coordinator(channel, parent, notes, start, template).serve()
    except TrainerGone:
        return
