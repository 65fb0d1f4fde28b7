"""What a checkpoint holds of a lane, and how it is read back."""

from __future__ import annotations

from typing import Annotated

import msgspec

from zephon_vl.contracts import DocumentRef
from zephon_vl.errors import StateError

STATE_VERSION = 2

_Count = Annotated[int, msgspec.Meta(ge=0)]


class LaneState(msgspec.Struct, array_like=True, frozen=True):
    """What a lane needs to go on: a few hundred bytes."""

    version: int
    lane: _Count
    lanes: _Count
    closed: _Count
    """Sequences closed since the start of the run."""
    taken: list[_Count]
    """Samples of each source that this lane has used or skipped."""
    spent: list[_Count]
    """Tokens (or samples) of each source, the account of the mixture."""
    open: list[list[DocumentRef]]
    carry: list[DocumentRef]
    """Pieces that are placed before any new document."""


def decode_state(encoded: bytes) -> LaneState:
    """Decode and check a lane's state. Raises `StateError`."""
    try:
        state = msgspec.msgpack.decode(encoded, type=LaneState)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise StateError(f"a lane's state is damaged or not a state of this library: {error}") from error
    if state.version != STATE_VERSION:
        raise StateError(f"a lane's state has schema version {state.version}, this library reads {STATE_VERSION}")
    return state


def refs_of(state: LaneState) -> list[DocumentRef]:
    """Every document that a state names, pieces of the same one each by itself."""
    return [ref for refs in (*state.open, state.carry) for ref in refs]
