"""Bytes that say what they are, of which version, and whether they are whole: what a checkpoint is made of."""

from __future__ import annotations

import hashlib

from zephon_vl.errors import StateError

_CHECK = 8


def seal(magic: bytes, version: int, payload: bytes) -> bytes:
    """`payload` behind its kind (4 bytes), a checksum and its version (0 to 255)."""
    body = bytes([version]) + payload
    return magic + _checksum(body) + body


def unseal(magic: bytes, version: int, data: object, what: str) -> bytes:
    """The payload.

    Args:
        what: it is, for messages.

    Raises:
        StateError: for bytes that are foreign, damaged, or of another version.
    """
    data = bytes(data) if isinstance(data, bytearray | memoryview) else data
    head = len(magic) + _CHECK
    if not isinstance(data, bytes) or data[: len(magic)] != magic:
        raise StateError(f"{what} is not a state of this library")
    body = data[head:]
    if data[len(magic) : head] != _checksum(body):
        raise StateError(f"{what} is damaged: its checksum does not match. Load another checkpoint")
    if body[0] != version:
        raise StateError(
            f"{what} has schema version {body[0]}, this library reads {version}. "
            "Use the version of the library that saved it"
        )
    return body[1:]


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECK).digest()
