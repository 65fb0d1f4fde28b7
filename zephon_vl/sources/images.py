"""From what a record says of an image to an `ImagePart`: bytes, base64, a member of the tar, or a relative path."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from zephon_vl.contracts import File, ImagePart
from zephon_vl.errors import BadSample
from zephon_vl.sources.records import Member, Record

_MAGICS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
_LONGEST_PATH = 4096
_SHOWN = 80


class ImageFinder:
    """Resolves the images of one shard."""

    def __init__(self, directory: str, *, paths: bool) -> None:
        """
        Args:
            directory: of the shard, relative to the source's image root; "" where they are the same.
            paths: whether images may be files outside the shard.
        """
        self._directory = directory
        self._paths = paths

    def part(self, record: Record, value: Any, at: str) -> ImagePart:
        """The image that `value`, found in field `at`, stands for. Raises `BadSample`."""
        if isinstance(value, Member):
            return ImagePart(where=value.span, name=value.name)
        if isinstance(value, bytes):
            return ImagePart(data=value, name=at)
        if isinstance(value, str):
            return self._from_text(record, value, at)
        if isinstance(value, dict):
            return self._from_dict(record, value, at)
        raise BadSample(
            f"{at} is {kind(value)}, but must be image bytes, base64, a data: URL, a path, or an object "
            f"with bytes or path"
        )

    def _from_dict(self, record: Record, value: dict[str, Any], at: str) -> ImagePart:
        inside, path = value.get("bytes"), value.get("path")
        if inside is not None:
            part = self.part(record, inside, f"{at}.bytes") if isinstance(inside, bytes) else _encoded(inside, at)
            if isinstance(path, str):
                part.name = _short(path)
            return part
        if isinstance(path, str):
            return self._from_text(record, path, f"{at}.path")
        raise BadSample(f"{at} has neither bytes nor a path, only {', '.join(value) or 'nothing'}")

    def _from_text(self, record: Record, text: str, at: str) -> ImagePart:
        if text.startswith("data:"):
            return ImagePart(data=_data_url(text, at), name=at)
        if record.member is not None and len(text) <= _LONGEST_PATH:
            span = record.member(text)
            if span is not None:
                return ImagePart(where=span, name=text)
        data = _sniff_base64(text)
        if data is not None:
            return ImagePart(data=data, name=at)
        return ImagePart(where=self._file(record, text, at), name=_short(text))

    def _file(self, record: Record, text: str, at: str) -> File:
        if "://" in text:
            raise BadSample(f"{at} is the address {_short(text)!r}; only images that lie beside the data are loaded")
        if not text or len(text) > _LONGEST_PATH or "\0" in text:
            raise BadSample(f"{at} is neither base64 of an image nor a path: {_short(text)!r}")
        if text.startswith("/"):
            raise BadSample(f"{at} is the absolute path {_short(text)!r}; it must be relative to the image root")
        if ".." in text.split("/"):
            raise BadSample(f"{at} is the path {_short(text)!r}, which leaves the image root with '..'")
        if not self._paths:
            raise BadSample(
                f"{at} names {_short(text)!r}, but the tar has no such member, and the source no image_root"
            )
        return File(f"{self._directory}/{text}" if self._directory else text)


def kind(value: Any) -> str:
    """What a value is, in words for messages."""
    names = {str: "a string", dict: "an object", list: "a list", bool: "a boolean", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _encoded(text: Any, at: str) -> ImagePart:
    if not isinstance(text, str):
        raise BadSample(f"{at}.bytes is {kind(text)}, but must be bytes or base64")
    return ImagePart(data=_base64(text, f"{at}.bytes"), name=at)


def _data_url(text: str, at: str) -> bytes:
    head, comma, body = text.partition(",")
    if not comma or not head.endswith(";base64"):
        raise BadSample(f"{at} is a data: URL without base64: {_short(head)!r}")
    return _base64(body, at)


def _base64(text: str, at: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadSample(f"{at} is not valid base64: {error}") from error


def _sniff_base64(text: str) -> bytes | None:
    """A file name can be valid base64 too (a hash, say): only what starts like an image counts."""
    if len(text) < 16:
        return None
    try:
        if not base64.b64decode(text[:16], validate=True).startswith(_MAGICS):
            return None
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
