"""What a process needs to open a source: small, and travels as MessagePack."""

from __future__ import annotations

import msgspec

from zephon_vl.sources.storage import Stat


class ShardHandle(msgspec.Struct, frozen=True, array_like=True):
    """One shard and its index."""

    name: str
    """Relative to the source's root."""
    path: str
    kind: str
    stat: Stat
    index: str
    """Path of the index file."""
    count: int
    """Samples."""
    sha256: str = ""
    """Of its bytes, in hexadecimal; empty where the recipe does not ask for it."""


class SourceHandle(msgspec.Struct, frozen=True, array_like=True):
    """A source whose indexes are built."""

    name: str
    root: str
    """Directory or URL that contains all shards."""
    format: str
    """"tar", "jsonl" or "parquet"."""
    shards: list[ShardHandle]
    """Sorted by name."""

    @property
    def samples(self) -> int:
        return sum(shard.count for shard in self.shards)

    @property
    def size(self) -> int:
        """Bytes of all shards as stored."""
        return sum(shard.stat.size for shard in self.shards)

    def fingerprint(self) -> list[tuple[str, int, int, str]]:
        """(name, bytes, samples, SHA-256 or "") of each shard: tells one version of the data from another, wherever it
        lies."""
        return [(shard.name, shard.stat.size, shard.count, shard.sha256) for shard in self.shards]
