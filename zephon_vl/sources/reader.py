"""A source opened in one process: true random access by sample index."""

from __future__ import annotations

import posixpath
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from zephon_vl.contracts import File, Span
from zephon_vl.errors import StorageError
from zephon_vl.sources.compressed import GzipBytes, ZstdBytes
from zephon_vl.sources.handles import ShardHandle, SourceHandle
from zephon_vl.sources.images import ImageFinder
from zephon_vl.sources.indexfile import ShardIndex, UnusableIndex, load_index
from zephon_vl.sources.jsonl import JsonlShard
from zephon_vl.sources.parquet import ParquetShard
from zephon_vl.sources.records import Shard
from zephon_vl.sources.schemas import Schema
from zephon_vl.sources.storage import Storage, local_path
from zephon_vl.sources.tar import TarShard

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from zephon_vl.contracts import Sample
    from zephon_vl.recipe import Recipe, SourceConfig


_BLOCK = 1024
"""Samples of a block, about, where the format has no parts of its own."""


class Source:
    """Implements `SourceReader`. For one thread. Shards are opened when first needed."""

    def __init__(self, recipe: Recipe, source: SourceConfig, handle: SourceHandle, storage: Storage) -> None:
        self.name = source.name
        self.handle = handle
        self._storage = storage
        self._schema = Schema(source)
        self._wanted = self._schema.names.every()
        self._overrides = frozenset(source.fields.values())
        self._has_operators = bool(source.operators or recipe.operators)
        root = handle.root if source.image_root is None else local_path(recipe.resolve(source.image_root))
        self._image_root = root.rstrip("/")
        self._own_root = source.image_root is not None
        self._ends = list(accumulate(shard.count for shard in handle.shards))
        self._shards: list[tuple[Shard, ImageFinder] | None] = [None] * len(handle.shards)

    def __len__(self) -> int:
        return self._ends[-1]

    def blocks(self) -> NDArray[np.int64]:
        """int64, strictly increasing from 0 to `len(self)`: row groups of Parquet, else about 1024 samples each."""
        bounds = [0]
        start = 0
        for shard in self.handle.shards:
            bounds += [start + bound for bound in self._shard_blocks(shard)]
            start += shard.count
        return np.unique(np.array(bounds, np.int64))

    def locate(self, index: int) -> tuple[str, str]:
        number, i = self._place(index)
        return self.handle.shards[number].name, self._open(number)[0].key(i)

    def sample(self, index: int) -> Sample:
        number, i = self._place(index)
        shard, images = self._open(number)
        return self._schema.sample(shard.record(i), self.handle.shards[number].name, images)

    def image_bytes(self, where: Span | File, limit: int | None = None) -> bytes:
        if isinstance(where, Span):
            size = where.size if limit is None else min(limit, where.size)
            return self._storage.read(self.handle.shards[where.shard].path, where.offset, size)
        return self._storage.read_file(f"{self._image_root}/{where.path}", limit)

    def fingerprint(self) -> list[tuple[str, int, int, str]]:
        """(name, bytes, samples, SHA-256 or "") of each shard."""
        return self.handle.fingerprint()

    def _place(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"source {self.name!r} has {len(self)} samples, there is no sample {index}")
        number = bisect_right(self._ends, index)
        return number, index - (self._ends[number - 1] if number else 0)

    def _open(self, number: int) -> tuple[Shard, ImageFinder]:
        opened = self._shards[number]
        if opened is None:
            handle = self.handle.shards[number]
            directory = "" if self._own_root else posixpath.dirname(handle.name)
            images = ImageFinder(directory, paths=self._own_root or self.handle.format != "tar")
            opened = self._open_shard(number, handle), images
            self._shards[number] = opened
        return opened

    def _shard_blocks(self, handle: ShardHandle) -> list[int]:
        if handle.kind == "parquet":
            return self._load_index(handle).arrays["group_ends"].tolist()
        blocks = max(1, round(handle.count / _BLOCK))
        return [handle.count * (i + 1) // blocks for i in range(blocks)]

    def _open_shard(self, number: int, handle: ShardHandle) -> Shard:
        storage, path = self._storage, handle.path
        if storage.stat(path) != handle.stat:
            raise StorageError(
                f"source {self.name!r}: shard {handle.name} has changed since the run started (size and time were "
                f"{handle.stat.size}, {handle.stat.stamp}); start again so that it is indexed anew"
            )
        index = self._load_index(handle)
        if handle.kind == "tar":
            return TarShard(storage, path, number, index, self._overrides)
        if handle.kind == "parquet":
            return ParquetShard(storage, path, handle.stat, index, self._wanted, self._has_operators)
        if handle.kind == "jsonl.gz":
            return JsonlShard(GzipBytes(storage, path, handle.stat, index).read, index)
        if handle.kind == "jsonl.zst":
            return JsonlShard(ZstdBytes(storage, path, handle.stat, index).read, index)
        return JsonlShard(lambda offset, size: storage.read(path, offset, size), index)

    def _load_index(self, handle: ShardHandle) -> ShardIndex:
        try:
            return load_index(handle.index, handle.kind, handle.stat, check=False)
        except UnusableIndex as error:
            raise StorageError(
                f"source {self.name!r}: the index {handle.index} {error}; start again so that it is built anew"
            ) from error


def open_source(recipe: Recipe, source: SourceConfig, handle: SourceHandle, storage: Storage | None = None) -> Source:
    """Open a source whose indexes are built; cheap, in any process.

    Raises:
        RecipeError: `source.fields` does not fit the schema.
    """
    return Source(recipe, source, handle, storage or Storage())


def open_sources(recipe: Recipe, handles: Sequence[SourceHandle]) -> list[Source]:
    """All sources of a recipe, in its order; see `open_source`."""
    return [open_source(recipe, config, handle) for config, handle in zip(recipe.sources, handles, strict=True)]
