"""Size and orientation of an encoded image from its first bytes, without decoding: JPEG, PNG and WebP.

What cannot be told from the usual structure of these formats is left to Pillow: `read_header` returns None then.
"""

from __future__ import annotations

import struct
import zlib
from typing import Literal, NamedTuple


class Header(NamedTuple):
    """What the header says."""

    format: Literal["JPEG", "PNG", "WEBP"]
    size: tuple[int, int]
    """(width, height) as stored, before the orientation is applied."""
    orientation: int
    """EXIF orientation, 1 to 8."""
    channels: int = 3
    """JPEG: number of components."""


class NeedMore(Exception):
    """The header goes on beyond the bytes given."""


def read_header(data: bytes) -> Header | None:
    """The header of an encoded image; None where Pillow must look.

    Orientation is what stands before the pixels (JPEG, PNG) or in the EXIF chunk (WebP); XMP is not looked at, as in
    web browsers.

    Raises:
        NeedMore: when `data` ends too early.
    """
    try:
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return _png(data)
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp(data)
    except (struct.error, IndexError):
        raise NeedMore from None
    return None


_U16, _U32, _LE32 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct("<I")
_USUAL_FRAMES = (0xC0, 0xC1, 0xC2)
"""Baseline, extended and progressive Huffman coding."""
_STANDALONE = (0x01, *range(0xD0, 0xD8))


def _jpeg(data: bytes) -> Header | None:
    at, frame, orientation = 2, None, 0
    while True:
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if marker in _STANDALONE:
            at += 2
            continue
        length = _U16.unpack_from(data, at + 2)[0]
        body = at + 4
        if marker == 0xDA:
            break
        if length < 2 or marker == 0xD9:
            return None
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            if frame is not None or marker not in _USUAL_FRAMES or data[body] != 8:
                return None
            height, width = struct.unpack_from(">HH", data, body + 1)
            frame = (width, height, data[body + 5])
        elif marker == 0xE1 and not orientation and data[body : body + 6] == b"Exif\0\0":
            if len(data) < at + 2 + length:
                raise NeedMore
            orientation = exif_orientation(data[body : at + 2 + length])
        at += 2 + length
    if frame is None or frame[2] not in (1, 3, 4):
        return None
    return Header("JPEG", frame[:2], orientation or 1, frame[2])


_PLAIN_CHUNKS = frozenset((b"PLTE", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"pHYs", b"sBIT", b"bKGD", b"tIME", b"eXIf"))
"""Chunks before the pixels that are short and stored as they are; others may be compressed, and Pillow limits them."""


def _png(data: bytes) -> Header | None:
    at, size, orientation = 8, None, 1
    while True:
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IDAT":
            break
        end = at + 8 + length
        if size is None:
            if kind != b"IHDR" or length != 13:
                return None
        elif kind not in _PLAIN_CHUNKS:
            return None
        if _U32.unpack_from(data, end)[0] != zlib.crc32(data[at + 4 : end]):
            return None
        body = data[at + 8 : end]
        if kind == b"IHDR":
            size = struct.unpack_from(">II", body)
            if body[10:12] != b"\0\0" or body[12] > 1:
                return None
        elif kind == b"eXIf":
            orientation = exif_orientation(body)
        at = end + 4
    return None if size is None else Header("PNG", size, orientation)


def _webp(data: bytes) -> Header | None:
    if len(data) < 30:
        raise NeedMore
    kind = data[12:16]
    if kind == b"VP8 ":
        if data[23:26] != b"\x9d\x01\x2a":
            return None
        width, height = struct.unpack_from("<HH", data, 26)
        return Header("WEBP", (width & 0x3FFF, height & 0x3FFF), 1)
    if kind == b"VP8L":
        if data[20] != 0x2F:
            return None
        bits = _LE32.unpack_from(data, 21)[0]
        return Header("WEBP", ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1), 1)
    if kind != b"VP8X":
        return None
    flags = data[20]
    width, height = _LE32.unpack(data[24:27] + b"\0")[0] + 1, _LE32.unpack(data[27:30] + b"\0")[0] + 1
    orientation = 1
    if flags & 0x08:
        orientation = _webp_exif(data, 8 + _LE32.unpack_from(data, 4)[0])
    return Header("WEBP", (width, height), orientation)


def _webp_exif(data: bytes, end: int) -> int:
    """Orientation in the EXIF chunk, which stands after the pixels."""
    at = 12
    while at + 8 <= end:
        kind, length = struct.unpack_from("<4sI", data, at)
        if kind == b"EXIF":
            if len(data) < at + 8 + length:
                raise NeedMore
            return exif_orientation(data[at + 8 : at + 8 + length])
        at += 8 + length + (length & 1)
    return 1


def exif_orientation(exif: bytes) -> int:
    """Orientation, 1 to 8, in the first directory of EXIF data; 1 where it is missing or damaged."""
    tiff = exif.removeprefix(b"Exif\0\0")
    try:
        order = {b"II": "<", b"MM": ">"}[tiff[:2]]
        (first,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, first)
        for entry in range(first + 2, first + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(order + "HH", tiff, entry)
            if tag == 0x0112:
                (value,) = struct.unpack_from(order + {3: "H", 4: "I"}[kind], tiff, entry + 8)
                return value if 1 <= value <= 8 else 1
    except (KeyError, struct.error):
        pass
    return 1
