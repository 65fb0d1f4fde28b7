"""SHA-256 of whole shards, for recipes that identify their data by contents: computed once for each version of a shard,
kept like its index."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

from zephon_vl.errors import SourceError
from zephon_vl.sources.handles import ShardHandle
from zephon_vl.sources.indexfile import ShardIndex, UnusableIndex, index_paths, load_index, save_index, shard_lock
from zephon_vl.sources.jsonl import plain_chunks
from zephon_vl.sources.storage import Storage

_KIND = "sha256"


def with_contents(shards: Iterable[ShardHandle], workers: int) -> list[ShardHandle]:
    """The same handles with their `sha256`.

    Raises:
        SourceError: a shard that changes while it is read, a digest that cannot be kept.
        StorageError
    """
    with ThreadPoolExecutor(workers, "zephon-vl-sha256") as pool:  # hashing lets other threads run
        return list(pool.map(_with_digest, shards))


def _with_digest(shard: ShardHandle) -> ShardHandle:
    digest = _known(shard)
    if digest is None:
        with shard_lock(f"{shard.path}.{_KIND}"):
            digest = _known(shard) or _compute(shard)
    return msgspec.structs.replace(shard, sha256=digest)


def _paths(shard: ShardHandle) -> list[str]:
    return index_paths(f"{shard.path}.{_KIND}")


def _known(shard: ShardHandle) -> str | None:
    for path in _paths(shard):
        try:
            return load_index(path, _KIND, shard.stat, check=True).arrays[_KIND].tobytes().hex()
        except UnusableIndex:
            continue
    return None


def _compute(shard: ShardHandle) -> str:
    storage, digest = Storage(), hashlib.sha256()
    for chunk in plain_chunks(storage, shard.path, shard.stat.size):
        digest.update(chunk)
    if storage.stat(shard.path) != shard.stat:
        raise SourceError(f"{shard.path} changed while it was read; wait until it is written, then start again")
    found = ShardIndex(shard.count, {_KIND: np.frombuffer(digest.digest(), np.uint8)})
    failures: list[str] = []
    for path in _paths(shard):
        try:
            save_index(path, _KIND, shard.stat, found)
        except OSError as error:
            failures.append(f"{path}: {os.strerror(error.errno or 0)}")
            continue
        return digest.hexdigest()
    raise SourceError(
        f"the SHA-256 of {shard.path} cannot be written ({'; '.join(failures)}); set ZEPHON_VL_CACHE to a directory "
        "that can be written"
    )
