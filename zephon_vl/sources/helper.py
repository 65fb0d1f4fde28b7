"""The main of a process that builds indexes."""

from __future__ import annotations

import signal
import socket

import msgspec

from zephon_vl.channel import Channel, ChannelClosed
from zephon_vl.errors import ZephonError
from zephon_vl.parents import die_with_parent
from zephon_vl.sources.build import JobDone, JobFailure, ensure_index, job_decoder
from zephon_vl.sources.storage import Storage


def main(fd: int, parent: int) -> None:
    """Index the shards that come over the channel on descriptor `fd` until it closes."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=fd))
    storage = Storage()
    try:
        while True:
            job = job_decoder.decode(channel.receive())
            try:
                answer = JobDone(ensure_index(job, storage))
            except ZephonError as error:
                answer = JobFailure(type(error).__name__, str(error))
            channel.send(msgspec.msgpack.encode(answer))
            channel.flush(block=True)
    except ChannelClosed:
        return
