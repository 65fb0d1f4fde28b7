"""Index files: a MessagePack header and aligned arrays, memory-mapped, written atomically, noticed when stale.

Layout: `ZVLINDEX`, uint32 length of the header, header, zeros up to a multiple of 64, the arrays each from a multiple
of 64. The header says for which version of the shard the index holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import posixpath
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from zephon_vl.errors import SourceError
from zephon_vl.files import write_atomically
from zephon_vl.sources.patterns import INDEX_SUFFIX
from zephon_vl.sources.storage import Stat, is_url, local_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

VERSION = 1
_MAGIC = b"ZVLINDEX"
_ALIGN = 64


class UnusableIndex(Exception):
    """An index file that is missing, damaged, or made for another version of the shard."""


class _Array(msgspec.Struct, array_like=True):
    dtype: str
    length: int
    offset: int
    """From the end of the header, which is padded."""


class _Header(msgspec.Struct):
    version: int
    kind: str
    shard: Stat
    count: int
    arrays: dict[str, _Array]
    body_size: int
    checksum: int
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """What is known of one shard."""

    count: int
    """Samples."""
    arrays: Mapping[str, NDArray[Any]]
    """One-dimensional."""
    meta: Mapping[str, Any] = field(default_factory=dict)


def index_paths(shard: str) -> list[str]:
    """Where the index of a shard may lie, in order of preference: beside it, then in the cache directory."""
    name = f"{posixpath.basename(shard)}.{_digest(shard)}{INDEX_SUFFIX}"
    cached = os.path.join(cache_directory(), "index", name)
    return [cached] if is_url(shard) else [local_path(shard) + INDEX_SUFFIX, cached]


def cache_directory() -> str:
    return os.environ.get("ZEPHON_VL_CACHE") or os.path.expanduser("~/.cache/zephon-vl")


def load_index(path: str, kind: str, shard: Stat, *, check: bool) -> ShardIndex:
    """Map an index file.

    Args:
        check: read all of it and compare the checksum.

    Raises:
        UnusableIndex
    """
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise UnusableIndex(f"cannot be opened: {error}") from error
    header, start = _read_header(mapped)
    if header.version != VERSION or header.kind != kind:
        raise UnusableIndex(f"is of version {header.version} for {header.kind}, needed is {VERSION} for {kind}")
    if header.shard != shard:
        raise UnusableIndex(f"was made for size and time {header.shard}, but the shard has {shard}")
    if len(mapped) != start + header.body_size:
        raise UnusableIndex(f"has {len(mapped)} bytes, but should have {start + header.body_size}")
    if check and zlib.crc32(memoryview(mapped)[start:]) != header.checksum:
        raise UnusableIndex("does not match its checksum")
    arrays = {
        name: np.frombuffer(mapped, array.dtype, array.length, start + array.offset)
        for name, array in header.arrays.items()
    }
    return ShardIndex(header.count, arrays, header.meta)


def save_index(path: str, kind: str, shard: Stat, index: ShardIndex) -> None:
    """Write an index file in one step: another process sees the old file, none, or all of the new one.

    Raises:
        OSError
    """
    body, arrays = _pack(index.arrays)
    header = _Header(VERSION, kind, shard, index.count, arrays, len(body), zlib.crc32(body), dict(index.meta))
    encoded = msgspec.msgpack.encode(header)
    head = _MAGIC + len(encoded).to_bytes(4, "little") + encoded
    write_atomically(path, head, bytes(-len(head) % _ALIGN), body)


@contextlib.contextmanager
def shard_lock(shard: str) -> Iterator[None]:
    """Held by one process (and thread) of this node at a time; ends with the process. Leaves no file behind.

    Raises:
        SourceError: there is no directory for the lock.
    """
    fd, path = _acquire(f"{_digest(shard)}.lock")
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.close(fd)


def _acquire(name: str) -> tuple[int, str]:
    failures: list[str] = []
    for directory in (os.path.join(cache_directory(), "locks"), _temporary_directory()):
        path = os.path.join(directory, name)
        try:
            os.makedirs(directory, exist_ok=True)
            return _lock_file(path), path
        except OSError as error:
            failures.append(str(error))
    raise SourceError(
        f"no lock can be taken for building indexes ({'; '.join(failures)}); set ZEPHON_VL_CACHE to a directory that "
        f"can be written"
    )


def _lock_file(path: str) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_ino == os.stat(path).st_ino:
                return fd
        except FileNotFoundError:  # the holder before removed it after this process had opened it
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _temporary_directory() -> str:
    return os.path.join(tempfile.gettempdir(), f"zephon-vl-{os.getuid()}")


def _digest(shard: str) -> str:
    return hashlib.sha256(shard.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _read_header(mapped: mmap.mmap) -> tuple[_Header, int]:
    if mapped[: len(_MAGIC)] != _MAGIC:
        raise UnusableIndex("is not an index file")
    start = len(_MAGIC) + 4
    size = int.from_bytes(mapped[len(_MAGIC) : start], "little")
    try:
        header = msgspec.msgpack.decode(mapped[start : start + size], type=_Header)
    except msgspec.MsgspecError as error:
        raise UnusableIndex(f"has a damaged header: {error}") from error
    end = start + size
    return header, end + -end % _ALIGN


def _pack(arrays: Mapping[str, NDArray[Any]]) -> tuple[bytes, dict[str, _Array]]:
    body = bytearray()
    places: dict[str, _Array] = {}
    for name, array in arrays.items():
        body += bytes(-len(body) % _ALIGN)
        places[name] = _Array(array.dtype.str, len(array), len(body))
        body += np.ascontiguousarray(array).tobytes()
    return bytes(body), places
