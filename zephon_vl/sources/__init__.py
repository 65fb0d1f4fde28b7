"""Sources: shards of image-text data with true random access, and the schemas that turn records into samples."""

from zephon_vl.sources.build import IndexProgress, build_indexes
from zephon_vl.sources.handles import ShardHandle, SourceHandle
from zephon_vl.sources.patterns import ShardSet, find_shards
from zephon_vl.sources.reader import Source, open_source, open_sources
from zephon_vl.sources.storage import Storage

__all__ = [
    "IndexProgress",
    "ShardHandle",
    "ShardSet",
    "Source",
    "SourceHandle",
    "Storage",
    "build_indexes",
    "find_shards",
    "open_source",
    "open_sources",
]
