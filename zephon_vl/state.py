"""The loader's checkpoint: one entry per lane, so that a distributed checkpoint reshards it by itself.

An entry holds the lane's state, the position of the whole run at the moment of saving, and a checksum. Any rank can go
on from the entries of the lanes that it owns now: what all ranks had delivered of an unfinished step is in each.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from zephon_vl.errors import StateError
from zephon_vl.lane_state import decode_state
from zephon_vl.sealed import seal, unseal

ENTRY_VERSION = 1
_MAGIC = b"zvln"


class LaneEntry(msgspec.Struct, array_like=True, frozen=True):
    """What a checkpoint holds of one lane."""

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

    @property
    def untouched(self) -> int:
        """The first step that nothing was delivered of."""
        return self.step + bool(self.done)


def lane_key(lane: int) -> str:
    """The key of a lane's entry."""
    return f"lane_{lane:05d}"


def encode_entry(state: bytes, step: int, done: frozenset[int], slots: int) -> bytes:
    """An entry with its checksum."""
    bits = bytearray(-(-slots // 8) if done else 0)
    for slot in done:
        bits[slot // 8] |= 1 << slot % 8
    return seal(_MAGIC, ENTRY_VERSION, msgspec.msgpack.encode(LaneEntry(state, step, bytes(bits))))


def decode_entries(entries: Mapping[str, bytes], lanes: range, total: int) -> Position:
    """The position of a run from the entries of `lanes`.

    Args:
        total: lanes of the recipe.

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
    decoded = {lane: _decode_entry(lane, total, entries[lane_key(lane)]) for lane in lanes}
    first = decoded[lanes[0]]
    for lane, entry in decoded.items():
        if (entry.step, entry.done) != (first.step, first.done):
            raise StateError(
                f"the entries are of different moments: lane {lanes[0]} of step {first.step}, lane {lane} of step "
                f"{entry.step}. Load one checkpoint, not parts of several"
            )
    done = frozenset(slot for slot in range(len(first.done) * 8) if first.done[slot // 8] >> slot % 8 & 1)
    return Position(first.step, done, {lane: entry.state for lane, entry in decoded.items() if entry.state})


def _decode_entry(lane: int, total: int, data: object) -> LaneEntry:
    where = f"the state of lane {lane}"
    entry = msgspec.msgpack.decode(unseal(_MAGIC, ENTRY_VERSION, data, where), type=LaneEntry)
    if not entry.state:
        return entry
    state = decode_state(entry.state)
    if state.lane != lane:
        raise StateError(f"{where} is that of lane {state.lane}: the entries were exchanged")
    if state.lanes != total:
        raise StateError(
            f"{where} is of a run with {state.lanes} lanes, but the recipe has {total}: lanes are fixed for a run"
        )
    return entry
