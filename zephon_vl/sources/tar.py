"""WebDataset tar shards: members with the same path up to the first dot of the file name are one sample."""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
from typing import TYPE_CHECKING, Any

import numpy as np

from zephon_vl.contracts import Span
from zephon_vl.errors import SourceError
from zephon_vl.sources.indexfile import ShardIndex
from zephon_vl.sources.records import IMAGE_SUFFIXES, Member, Record, decode_json, decode_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from zephon_vl.sources.storage import Storage

_BLOCK = 512
_TAIL = 1 << 20
"""Bytes looked at behind the end of an archive; what writers pad with is shorter."""


def index_tar(storage: Storage, path: str, size: int) -> ShardIndex:
    """List the members and group them.

    Raises:
        SourceError: the archive is truncated or broken, naming the offset.
        StorageError
    """
    names: list[bytes] = []
    offsets: list[int] = []
    sizes: list[int] = []
    for info in _members(storage, path, size):
        if not info.isreg():
            continue
        if info.sparse is not None:
            raise SourceError(f"{path}: member {info.name!r} is sparse, which is not supported; write the tar anew")
        names.append(info.name.removeprefix("./").encode("utf-8", "surrogateescape"))
        offsets.append(info.offset_data)
        sizes.append(info.size)
    samples, codes, suffixes = _group(names)
    order = np.argsort(samples, kind="stable")  # members outside all samples come first: they are found by name only
    loose = int(np.searchsorted(samples[order], 0))
    count = int(samples.max(initial=-1)) + 1
    starts = loose + np.concatenate([[0], np.cumsum(np.bincount(samples[samples >= 0], minlength=count))])
    ordered = [names[i] for i in order]
    hashes = np.fromiter(map(_hash, ordered), np.uint64, len(ordered))
    by_hash = np.argsort(hashes, kind="stable")
    return ShardIndex(
        count,
        {
            "starts": starts.astype(np.int64),
            "offsets": np.array(offsets, np.int64)[order],
            "sizes": np.array(sizes, np.int64)[order],
            "codes": codes[order],
            "names": np.frombuffer(b"".join(ordered), np.uint8),
            "name_ends": np.cumsum([len(name) for name in ordered], dtype=np.int64),
            "hashes": hashes[by_hash],
            "hash_members": by_hash.astype(np.int64),
        },
        {"suffixes": suffixes},
    )


class TarShard:
    """Reads samples of one shard. Image members are not read: they become `Member`s."""

    def __init__(self, storage: Storage, path: str, number: int, index: ShardIndex, wanted: Iterable[str]) -> None:
        """`number`: of the shard in its source; `wanted`: suffixes of members that matter besides the usual ones."""
        arrays = index.arrays
        self._storage, self._path, self._number = storage, path, number
        self._starts, self._offsets, self._sizes = arrays["starts"], arrays["offsets"], arrays["sizes"]
        self._codes, self._names, self._name_ends = (
            arrays["codes"],
            memoryview(arrays["names"].data),
            arrays["name_ends"],
        )
        self._hashes, self._hash_members = arrays["hashes"], arrays["hash_members"]
        self._suffixes: list[str] = index.meta["suffixes"]
        read = {"txt", "json", *wanted}
        self._kinds = [_kind(suffix, read) for suffix in self._suffixes]

    def key(self, i: int) -> str:
        return split_name(self._name(int(self._starts[i])))[0].decode("utf-8", "backslashreplace")

    def record(self, i: int) -> Record:
        first, end = self._starts[i : i + 2].tolist()
        key = split_name(self._name(first))[0].decode("utf-8", "backslashreplace")
        fields: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        seen: list[str] = []
        for code, offset, size in zip(
            self._codes[first:end].tolist(),
            self._offsets[first:end].tolist(),
            self._sizes[first:end].tolist(),
            strict=True,
        ):
            suffix, kind = self._suffixes[code], self._kinds[code]
            seen.append(suffix)
            if kind == "image":
                fields[suffix] = Member(f"{key}.{suffix}", Span(self._number, offset, size))
            elif kind == "text":
                fields[suffix] = decode_text(self._storage.read(self._path, offset, size), f"member {suffix!r}")
            elif kind == "json":
                value = decode_json(self._storage.read(self._path, offset, size), f"member {suffix!r}")
                if suffix == "json" and isinstance(value, dict):
                    merged = value
                else:
                    fields[suffix] = value
        return Record(key, {**merged, **fields}, (*seen, *merged), _Finder(self, key))

    def find(self, name: str) -> Span | None:
        """Where the member of this name lies; of several the last one, as when a tar is unpacked."""
        wanted = name.removeprefix("./").encode("utf-8", "surrogateescape")
        code = np.uint64(_hash(wanted))
        place = int(np.searchsorted(self._hashes, code, side="right"))
        best: int | None = None
        while place > 0 and self._hashes[place - 1] == code:
            place -= 1
            member = int(self._hash_members[place])
            if self._name(member) == wanted and (best is None or self._offsets[member] > self._offsets[best]):
                best = member
        return None if best is None else Span(self._number, int(self._offsets[best]), int(self._sizes[best]))

    def _name(self, member: int) -> bytes:
        start = int(self._name_ends[member - 1]) if member else 0
        return bytes(self._names[start : int(self._name_ends[member])])


class _Finder:
    """Looks for members as written, then in the directory of the sample."""

    __slots__ = ("_key", "_shard")

    def __init__(self, shard: TarShard, key: str) -> None:
        self._shard, self._key = shard, key

    def __call__(self, name: str) -> Span | None:
        found = self._shard.find(name)
        if found is None and "/" in self._key:
            found = self._shard.find(f"{posixpath.dirname(self._key)}/{name}")
        return found


def split_name(name: bytes) -> tuple[bytes, bytes]:
    """Key and suffix (lower case, without its dot) of a member's name; both empty if it belongs to no sample."""
    base = name.rfind(b"/") + 1
    dot = name.find(b".", base)
    if dot <= base:
        return b"", b""
    return name[:dot], name[dot + 1 :].lower()


def _kind(suffix: str, read: set[str]) -> str:
    last = suffix.rpartition(".")[2]
    if last in IMAGE_SUFFIXES and (suffix in IMAGE_SUFFIXES or suffix in read):
        return "image"
    if suffix not in read:
        return ""
    return "json" if last == "json" else "text"


def _group(names: list[bytes]) -> tuple[NDArray[np.int64], NDArray[np.uint32], list[str]]:
    """Sample of each member (-1: none), code of its suffix, and the suffixes.

    Members of a sample need not be neighbours. A suffix that the sample already has starts a new sample of that key,
    so that archives written one behind the other lose nothing.
    """
    samples = np.full(len(names), -1, np.int64)
    codes = np.zeros(len(names), np.uint32)
    suffixes: dict[bytes, int] = {}
    current: dict[bytes, tuple[int, set[int]]] = {}
    count = 0
    for i, name in enumerate(names):
        key, suffix = split_name(name)
        if not suffix:
            continue
        code = suffixes.setdefault(suffix, len(suffixes))
        sample, has = current.get(key, (-1, set()))
        if sample < 0 or code in has:
            sample, has = count, set()
            current[key] = (sample, has)
            count += 1
        has.add(code)
        samples[i], codes[i] = sample, code
    return samples, codes, [suffix.decode("utf-8", "backslashreplace") for suffix in suffixes]


def _members(storage: Storage, path: str, size: int) -> Iterator[tarfile.TarInfo]:
    with storage.open(path) as file:
        try:
            archive = tarfile.TarFile(fileobj=file, errors="surrogateescape")
            while (info := archive.next()) is not None:
                yield info
                archive.members = []  # type: ignore[attr-defined]  # they are kept for nothing
        except (tarfile.TarError, EOFError) as error:
            raise SourceError(
                f"{path} is truncated or no tar: {error} at offset {file.tell()} of {size} bytes. Copy or write it anew"
            ) from error
    _check_end(storage, path, size, archive.offset)


def _check_end(storage: Storage, path: str, size: int, offset: int) -> None:
    """tarfile stops in silence at anything that is no header; only zeros are the end."""
    block = storage.read(path, offset, min(_BLOCK, max(0, size - offset)))
    if len(block) < _BLOCK:
        raise SourceError(
            f"{path} is truncated: no end-of-archive mark at offset {offset} of {size} bytes. Copy or write it anew; "
            f"if it is known to be complete, add the mark: head -c 1024 /dev/zero >> SHARD"
        )
    if any(block):
        raise SourceError(f"{path} is damaged: no member header at offset {offset} of {size} bytes. Write it anew")
    tail = storage.read(path, offset, min(_TAIL, size - offset))
    if tail.count(0) != len(tail):
        raise SourceError(
            f"{path} goes on behind its end-of-archive mark at offset {offset} (of {size} bytes): archives written one "
            f"behind the other. Join them with: tar --concatenate --file FIRST SECOND"
        )


def _hash(name: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")
