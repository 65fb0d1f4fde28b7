"""The loader's checkpoint: one entry per lane, so that a distributed checkpoint reshards it by itself.

An entry holds the lane's state, the position of the whole run at the moment of saving, and a checksum. Any rank can go
on from the entries of the lanes that it owns now: what all ranks had delivered of an unfinished step is in each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from zephon_vl.errors import StateError
from zephon_vl.lane import decode_state

ENTRY_VERSION = 1
_MAGIC = b"zvl1"
_CHECK = 8


class LaneEntry(msgspec.Struct, array_like=True, frozen=True):
    """What a checkpoint holds of one lane."""

    version: int
    state: bytes
    """Encoded `LaneState`; empty for a lane that has not closed a sequence yet."""
    step: int
    """The step to go on with."""
    done: bytes
    """Bit map of the slots of that step that were delivered, by any rank; empty between steps."""


class Position(msgspec.Struct, frozen=True):
    """Where a run stands."""

    step: int
    done: frozenset[int]
    states: dict[int, bytes]


def lane_key(lane: int) -> str:
    """The key of a lane's entry."""
    return f"lane_{lane:05d}"


def encode_entry(state: bytes, step: int, done: frozenset[int], slots: int) -> bytes:
    """An entry with its checksum."""
    bits = bytearray(-(-slots // 8) if done else 0)
    for slot in done:
        bits[slot // 8] |= 1 << slot % 8
    payload = msgspec.msgpack.encode(LaneEntry(ENTRY_VERSION, state, step, bytes(bits)))
    return _MAGIC + _checksum(payload) + payload


def decode_entries(entries: Mapping[str, bytes], lanes: range, total: int) -> Position:
    """The position of a run from the entries of `lanes`.

    Args:
        total: lanes of the recipe, for messages.

    Raises:
        StateError: for a missing, damaged, foreign or newer entry, or entries of different moments.
    """
    missing = [lane for lane in lanes if lane_key(lane) not in entries]
    if missing:
        raise StateError(
            f"the state has no entry for lane {missing[0]} ({len(missing)} of the {len(lanes)} lanes of this rank are "
            f"missing; the run has {total}). Load the entries of all ranks that saved, e.g. with "
            "torch.distributed.checkpoint, which finds them by itself"
        )
    decoded = {lane: _decode_entry(lane, entries[lane_key(lane)]) for lane in lanes}
    first = decoded[lanes[0]]
    for lane, entry in decoded.items():
        if (entry.step, entry.done) != (first.step, first.done):
            raise StateError(
                f"the entries are of different moments: lane {lanes[0]} of step {first.step}, lane {lane} of step "
                f"{entry.step}. Load one checkpoint, not parts of several"
            )
    done = frozenset(slot for slot in range(len(first.done) * 8) if first.done[slot // 8] >> slot % 8 & 1)
    return Position(first.step, done, {lane: entry.state for lane, entry in decoded.items() if entry.state})


def _decode_entry(lane: int, data: bytes) -> LaneEntry:
    where = f"the state of lane {lane}"
    head = len(_MAGIC) + _CHECK
    data = bytes(data) if isinstance(data, bytearray | memoryview) else data
    if not isinstance(data, bytes) or data[: len(_MAGIC)] != _MAGIC:
        raise StateError(f"{where} is not a state of this library")
    payload = data[head:]
    if data[len(_MAGIC) : head] != _checksum(payload):
        raise StateError(f"{where} is damaged: its checksum does not match. Load another checkpoint")
    version = msgspec.msgpack.decode(payload)[0]
    if version != ENTRY_VERSION:
        raise StateError(
            f"{where} has schema version {version}, this library reads {ENTRY_VERSION}. "
            "Use the version of the library that saved it, or a newer one"
        )
    entry = msgspec.msgpack.decode(payload, type=LaneEntry)
    if entry.state and (owner := decode_state(entry.state).lane) != lane:
        raise StateError(f"{where} is that of lane {owner}: the entries were exchanged")
    return entry


def _checksum(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_CHECK).digest()
