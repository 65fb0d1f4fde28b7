"""Random-access reads of local files and, through fsspec, of URLs, with retries."""

from __future__ import annotations

import errno
import io
import os
import sys
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from zephon_vl.errors import BadSample, StorageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")

_NO_SUCH_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_NO_SUCH_NAME = frozenset((errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL))
# Errors of storage clients that are not OSErrors; a module that was never imported has raised nothing.
_CLIENT_ERRORS = (
    ("aiohttp", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("azure.core.exceptions", "AzureError"),
)


class Stat(msgspec.Struct, frozen=True, array_like=True):
    """What tells one version of a file from another."""

    size: int
    """Bytes."""
    stamp: str
    """Time of the last change, or what the storage has instead."""


def is_url(path: str) -> bool:
    """Whether fsspec reads it; `file://` is local."""
    return "://" in path and not path.startswith("file://")


def local_path(path: str) -> str:
    return path.removeprefix("file://")


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL (its annotations are not to be relied on) and the path inside it."""
    import fsspec  # slow to import, and most workers need it never

    return fsspec.core.url_to_fs(url)


class Storage:
    """Reads by path, offset and size. For one thread; open one in each.

    Transient failures are tried again with growing delays: by default 6 attempts over 8 seconds.
    """

    def __init__(
        self,
        *,
        attempts: int = 6,
        first_delay: float = 0.25,
        sleep: Callable[[float], None] = time.sleep,
        max_open: int = 128,
    ) -> None:
        self._attempts = attempts
        self._first_delay = first_delay
        self._sleep = sleep
        self._max_open = max_open
        self._descriptors: OrderedDict[str, int] = OrderedDict()
        weakref.finalize(self, _close_all, self._descriptors)

    def stat(self, path: str) -> Stat:
        """Size and stamp of a file. Raises `StorageError`."""
        return self._retry(path, lambda: _stat(path))

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`. Raises `StorageError`, also where the file ends before."""
        if is_url(path):
            return self._retry(path, lambda: _read_remote(path, offset, size))
        return self._retry(path, lambda: self._read_local(path, offset, size))

    def read_file(self, path: str, limit: int | None = None) -> bytes:
        """A whole file, or its first `limit` bytes. Raises `StorageError`, and `BadSample` if there is no such file."""
        read = _read_whole_remote if is_url(path) else _read_whole_local
        try:
            return self._retry(path, lambda: read(path, limit), pass_missing=True)
        except FileNotFoundError as error:
            raise BadSample(f"part is missing: there is no file {path}") from error

    def open(self, path: str, buffer: int = 1 << 20) -> io.BufferedReader:
        """A seekable file object over `read`. Raises `StorageError`."""
        return io.BufferedReader(_StorageFile(self, path, self.stat(path).size), buffer)

    def close(self) -> None:
        """Close the files; the next read opens them again."""
        _close_all(self._descriptors)

    def _read_local(self, path: str, offset: int, size: int) -> bytes:
        fd = self._descriptor(path)
        try:
            data = os.pread(fd, size, offset)
            while len(data) < size:  # the kernel gives at most 2 GiB at once
                more = os.pread(fd, size - len(data), offset + len(data))
                if not more:
                    raise _short(path, offset, size, len(data))
                data += more
        except OSError:
            os.close(self._descriptors.pop(path))  # a network file system may want it opened anew
            raise
        return data

    def _descriptor(self, path: str) -> int:
        fd = self._descriptors.get(path)
        if fd is None:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if len(self._descriptors) >= self._max_open:
                os.close(self._descriptors.popitem(last=False)[1])
            self._descriptors[path] = fd
        else:
            self._descriptors.move_to_end(path)
        return fd

    def _retry(self, path: str, operation: Callable[[], T], pass_missing: bool = False) -> T:
        delay = self._first_delay
        for attempt in range(1, self._attempts + 1):
            try:
                return operation()
            except _transient_errors() as error:
                if isinstance(error, _NO_SUCH_FILE) or getattr(error, "errno", None) in _NO_SUCH_NAME:
                    missing = FileNotFoundError if pass_missing else StorageError
                    raise missing(f"{path} is gone or no file: {error}") from error
                if isinstance(error, PermissionError):
                    raise StorageError(f"{path} may not be read: {error}") from error
                if attempt == self._attempts:
                    raise StorageError(f"{path} cannot be read, tried {attempt} times, at last: {error!r}") from error
            self._sleep(delay)
            delay *= 2
        raise AssertionError("unreachable: the last attempt returns or raises")


class _StorageFile(io.RawIOBase):
    def __init__(self, storage: Storage, path: str, size: int) -> None:
        self._storage, self._path, self._size, self._position = storage, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)
        size = min(len(view), max(0, self._size - self._position))
        if size:
            view[:size] = self._storage.read(self._path, self._position, size)
            self._position += size
        return size


def _close_all(descriptors: OrderedDict[str, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


def _stat(path: str) -> Stat:
    if not is_url(path):
        found = os.stat(local_path(path))
        return Stat(found.st_size, str(found.st_mtime_ns))
    fs, inside = filesystem(path)
    info = fs.info(inside)
    stamps = (info.get(key) for key in ("mtime", "LastModified", "last_modified", "updated", "created", "ETag", "etag"))
    return Stat(int(info["size"]), str(next((stamp for stamp in stamps if stamp is not None), "")))


def _read_remote(path: str, offset: int, size: int) -> bytes:
    fs, inside = filesystem(path)
    data = fs.cat_file(inside, start=offset, end=offset + size) if size else b""
    if len(data) != size:
        if fs.info(inside)["size"] < offset + size:
            raise _short(path, offset, size, len(data))
        raise ConnectionError(f"{len(data)} of {size} bytes arrived")
    return data


def _read_whole_local(path: str, limit: int | None) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall() if limit is None else file.read(limit) or b""


def _read_whole_remote(path: str, limit: int | None) -> bytes:
    fs, inside = filesystem(path)
    return fs.cat_file(inside) if limit is None else fs.cat_file(inside, start=0, end=limit)


def _short(path: str, offset: int, size: int, got: int) -> StorageError:
    return StorageError(
        f"{path} ends too early: {size} bytes were expected at {offset}, only {got} are there. The shard has changed "
        f"since it was indexed; restore it, or start again so that it is indexed anew"
    )


def _transient_errors() -> tuple[type[BaseException], ...]:
    classes = (getattr(sys.modules.get(module), name, None) for module, name in _CLIENT_ERRORS)
    return (OSError, EOFError, *(found for found in classes if found is not None))
