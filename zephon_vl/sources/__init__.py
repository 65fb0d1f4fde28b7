"""Sources: shards of image-text data with true random access, and the schemas that turn records into samples.

Indexes are built by `zephon_vl.sources.build`, which workers need not import.
"""

from zephon_vl.sources.handles import ShardHandle, SourceHandle
from zephon_vl.sources.patterns import ShardSet, find_shards
from zephon_vl.sources.reader import Source, open_source, open_sources
from zephon_vl.sources.storage import Storage

__all__ = [
    "ShardHandle",
    "ShardSet",
    "Source",
    "SourceHandle",
    "Storage",
    "find_shards",
    "open_source",
    "open_sources",
]
