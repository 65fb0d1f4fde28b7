"""What the formats hand to the schemas."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from zephon_vl.contracts import Span
from zephon_vl.errors import BadSample

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")


class Member(msgspec.Struct, frozen=True, gc=False):
    """An image member of a tar: its name and where it lies."""

    name: str
    span: Span


@dataclass(slots=True)
class Record:
    """One raw record."""

    key: str
    fields: dict[str, Any]
    names: tuple[str, ...] | None = None
    """What the record has, for messages; None: the names of `fields`."""
    member: Callable[[str], Span | None] | None = None
    """Where a member of the same tar lies, by its name. None in other formats."""

    def describe(self) -> str:
        names = list(self.fields) if self.names is None else self.names
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        return f"the record has {shown}" if names else "the record is empty"


class Shard(Protocol):
    """One shard, opened."""

    def key(self, i: int) -> str:
        """The key of a sample, without reading it."""
        ...

    def record(self, i: int) -> Record:
        """Raises `BadSample` or `StorageError`."""
        ...


def decode_json(data: bytes, what: str) -> Any:
    """Raises `BadSample` that says what is wrong with `what`."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        if b"NaN" in data or b"Infinity" in data:
            return _decode_lenient(data, what)
        raise BadSample(f"{what} is not valid JSON: {error}") from error
    except RecursionError as error:
        raise BadSample(f"{what} is JSON that is nested too deeply") from error


def decode_text(data: bytes, what: str) -> str:
    """Raises `BadSample` for what is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadSample(f"{what} is not UTF-8: byte {error.start} is {data[error.start]:#04x}") from error


def _decode_lenient(data: bytes, what: str) -> Any:
    """With the NaN and Infinity that Python's and pandas' writers leave behind."""
    try:
        value = json.loads(data)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate cannot be tokenized
    except (ValueError, RecursionError) as error:
        raise BadSample(f"{what} is not valid JSON: {error}") from error
    return value
