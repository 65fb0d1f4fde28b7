"""What the training process and its coordinator tell each other."""

from __future__ import annotations

import struct

import msgspec

from zephon_vl.contracts import DocumentRef
from zephon_vl.tasks import Setup

NOTE = struct.Struct("<ii")
"""(kind, value) from the training process, small enough that a pipe takes it whole or not at all."""
CONSUMED, RELEASED = 0, 1


class Start(msgspec.Struct, kw_only=True):
    """The first message to a coordinator: what to deliver, from where, and with what."""

    setup: Setup
    dp_rank: int
    dp_size: int
    microbatch_size: int
    workers: int
    prefetch: int
    slabs: int
    """Most buffers."""
    states: dict[int, bytes]
    """Lane states to go on from."""
    start_step: int
    done: list[int]
    """Slots of `start_step` that were delivered before a resume, by any rank."""
    microbatch: int
    """Of `start_step` to begin with: those before it were delivered since, by a coordinator that died."""


class BadRecord(msgspec.Struct, array_like=True, frozen=True):
    """A sample that was skipped, or an image that is grey."""

    source: str
    shard: str
    key: str
    reason: str
    stage: str
    """`measure`: the sample was skipped. `render`: its image is grey and its labels are masked."""
    lane: int
    step: int

    def __str__(self) -> str:
        return (
            f"{self.source}: {self.shard}: {self.key}: {self.reason} ({self.stage}, lane {self.lane}, step {self.step})"
        )


class BatchHeader(msgspec.Struct, tag="batch", array_like=True):
    """Everything of a microbatch that is not in its slab."""

    step: int
    phase: int
    microbatch: int
    last: bool
    """Whether it ends its step."""
    slab: int
    slots: list[int]
    """Slot of each row, -1 for an empty row."""
    images: int
    patches: int
    valid: list[int]
    """Labels that count, for each row."""
    documents: list[list[DocumentRef]]
    """The pieces of each row, in order."""
    states: list[tuple[int, bytes]]
    """(lane, state) right after this microbatch, for the lanes that it moved."""
    samples: list[int]
    """Samples taken from each source since the microbatch before."""
    tokens: list[int]
    """Tokens placed from each source, in this microbatch."""
    filtered: int
    bad: list[BadRecord]


class SlabOpened(msgspec.Struct, tag="slab", array_like=True):
    """A slab that later batches refer to; its descriptor comes along."""

    number: int
    size: int


class Starved(msgspec.Struct, tag="starved", array_like=True):
    """No buffer is free, and none is being filled: the consumer holds them all."""

    held: int


class Ended(msgspec.Struct, tag="end", array_like=True):
    """The data of a recipe without repeats is used up."""

    filtered: int
    """Samples that filters dropped after the last sequences."""
    bad: list[BadRecord]
    """Samples skipped after the last sequences."""


class Stopped(msgspec.Struct, tag="stopped", array_like=True):
    """The run cannot go on."""

    kind: str
    text: str


class Health(msgspec.Struct, tag="health", array_like=True):
    """Which workers run; sent when that changes."""

    pids: list[int]
    restarts: int


Message = BatchHeader | SlabOpened | Starved | Ended | Stopped | Health
start_decoder = msgspec.msgpack.Decoder(Start)
message_decoder = msgspec.msgpack.Decoder(Message)
