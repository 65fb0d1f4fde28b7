"""Random access to gzip (through seek points) and zstd (by frame)."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from zephon_vl.errors import MissingExtra, SourceError, StorageError
from zephon_vl.sources import cache
from zephon_vl.sources.indexfile import ShardIndex
from zephon_vl.sources.jsonl import index_lines

if TYPE_CHECKING:
    from zephon_vl.sources.storage import Stat, Storage

_CHUNK = 1 << 22
_SPACING = 1 << 20
"""Decompressed bytes between seek points; each costs 32 KiB of index."""
_PURPOSE = "reading compressed JSON lines"
MAX_FRAME = 256 << 20
"""Decompressed bytes of a zstd frame: it is read as a whole for any of its records."""


def index_gzip(storage: Storage, path: str) -> ShardIndex:
    """Lines and seek points; any number of gzip members.

    Raises:
        SourceError: the file is damaged or truncated.
        MissingExtra
    """
    lines = index_lines(_gzip_chunks(storage, path))
    # A second pass: zran checks neither the checksum nor a truncated end.
    points = io.BytesIO()
    reader = _zran(storage, path, b"")
    reader.build_full_index()
    reader.export_index(fileobj=points)
    return ShardIndex(lines.count, {**lines.arrays, "points": np.frombuffer(points.getvalue(), np.uint8)})


class GzipBytes:
    """Decompressed bytes of a gzip file."""

    def __init__(self, storage: Storage, path: str, stat: Stat, index: ShardIndex) -> None:
        self._storage, self._path, self._version = storage, path, (path, stat)
        self._points = index.arrays["points"]

    def read(self, offset: int, size: int) -> bytes:
        try:
            data = cache.decoded.get(self._version, self._open).pread(size, offset)
        except OSError as error:  # all that zran raises, also when reading the file failed
            raise StorageError(f"{self._path} cannot be unpacked at {offset}: {error}") from error
        if len(data) != size:
            raise StorageError(f"{self._path} ends too early: it has changed since it was indexed")
        return data

    def _open(self) -> tuple[object, int]:
        points = self._points.tobytes()
        return _zran(self._storage, self._path, points), len(points)


def index_zstd(storage: Storage, path: str, size: int) -> ShardIndex:
    """Lines and frames.

    Raises:
        SourceError: the file is damaged or truncated, or a frame is over 256 MiB.
        MissingExtra
    """
    frames: list[tuple[int, int, int]] = []
    lines = index_lines(_zstd_chunks(storage, path, size, frames))
    table = np.array(frames, np.int64).reshape(-1, 3)
    return ShardIndex(
        lines.count,
        {
            **lines.arrays,
            "frame_offsets": table[:, 0],
            "frame_sizes": table[:, 1],
            "frame_ends": np.cumsum(table[:, 2]),
        },
    )


class ZstdBytes:
    """Decompressed bytes of a zstd file of frames."""

    def __init__(self, storage: Storage, path: str, stat: Stat, index: ShardIndex) -> None:
        self._storage, self._path, self._version = storage, path, (path, stat)
        self._offsets, self._sizes = index.arrays["frame_offsets"], index.arrays["frame_sizes"]
        self._ends = index.arrays["frame_ends"]

    def read(self, offset: int, size: int) -> bytes:
        parts: list[bytes] = []
        frame = int(np.searchsorted(self._ends, offset, side="right"))
        while size > 0:
            data: bytes = cache.decoded.get((self._version, frame), lambda number=frame: self._frame(number))
            start = offset - (int(self._ends[frame - 1]) if frame else 0)
            parts.append(data[start : start + size])
            offset += len(parts[-1])
            size -= len(parts[-1])
            frame += 1
        return b"".join(parts)

    def _frame(self, number: int) -> tuple[bytes, int]:
        import zstandard

        packed = self._storage.read(self._path, int(self._offsets[number]), int(self._sizes[number]))
        expected = int(self._ends[number]) - (int(self._ends[number - 1]) if number else 0)
        try:
            data = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
        except zstandard.ZstdError as error:
            raise StorageError(f"{self._path}: frame {number} is damaged: {error}") from error
        if len(data) != expected:
            raise StorageError(f"{self._path}: frame {number} has {len(data)} bytes, but had {expected} when indexed")
        return data, len(data)


def _gzip_chunks(storage: Storage, path: str) -> Iterator[bytes]:
    with storage.open(path) as file, gzip.GzipFile(fileobj=file) as unpacked:
        try:
            while chunk := unpacked.read(_CHUNK):
                yield chunk
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise SourceError(
                f"{path} is damaged: {error} (near offset {file.tell()}). Copy or compress it anew"
            ) from error


def _zran(storage: Storage, path: str, points: bytes) -> Any:
    try:
        import indexed_gzip
    except ImportError as error:
        raise MissingExtra("indexed_gzip", "compressed", _PURPOSE) from error
    file = storage.open(path, buffer=1 << 16)
    reader = indexed_gzip.IndexedGzipFile(
        fileobj=file, spacing=_SPACING, readbuf_size=1 << 16, buffer_size=1 << 16, skip_crc_check=True
    )
    if points:
        reader.import_index(fileobj=io.BytesIO(points))
    return reader


def _zstd_chunks(storage: Storage, path: str, size: int, frames: list[tuple[int, int, int]]) -> Iterator[bytes]:
    """Decompressed pieces; appends (offset, size, decompressed size) of each frame that holds data."""
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtra("zstandard", "compressed", _PURPOSE) from error
    start = position = produced = 0
    decoder = zstandard.ZstdDecompressor().decompressobj()
    waiting = b""
    while waiting or position < size:
        if not waiting:
            waiting = storage.read(path, position, min(1 << 16, size - position))
            position += len(waiting)
        try:
            chunk = decoder.decompress(waiting)
        except zstandard.ZstdError as error:
            raise SourceError(f"{path} is damaged in the frame at offset {start}: {error}. Compress it anew") from error
        produced += len(chunk)
        if produced > MAX_FRAME:
            raise SourceError(
                f"{path} has a zstd frame of over {MAX_FRAME >> 20} MiB at offset {start}, too long to be read for one "
                f"record. Compress it in frames, e.g. with pzstd: zstd -dc SHARD | pzstd -o NEW"
            )
        if chunk:
            yield chunk
        waiting = b""
        if decoder.eof:
            waiting = decoder.unused_data
            end = position - len(waiting)
            if produced:
                frames.append((start, end - start, produced))
            start, produced = end, 0
            decoder = zstandard.ZstdDecompressor().decompressobj()
    if start != size:
        raise SourceError(f"{path} is truncated in the zstd frame at offset {start}. Copy or compress it anew")
