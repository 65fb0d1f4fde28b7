"""Parquet shards: row groups are read as a whole and kept for a while."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from zephon_vl.errors import BadSample, MissingExtra, SourceError
from zephon_vl.sources import cache
from zephon_vl.sources.indexfile import ShardIndex
from zephon_vl.sources.records import Record

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from zephon_vl.sources.storage import Stat, Storage


def index_parquet(storage: Storage, path: str) -> ShardIndex:
    """Rows of each row group.

    Raises:
        SourceError: no Parquet file, or a damaged one.
        MissingExtra
    """
    metadata = _open(storage, path).metadata
    rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    return ShardIndex(sum(rows), {"group_ends": np.cumsum(rows, dtype=np.int64)})


class ParquetShard:
    """Reads rows of one shard: the columns wanted, and for a user's operators all that hold no binary data."""

    def __init__(
        self, storage: Storage, path: str, stat: Stat, index: ShardIndex, wanted: Iterable[str], small_columns: bool
    ) -> None:
        self._storage, self._path, self._version = storage, path, (path, stat)
        self._wanted, self._small_columns = frozenset(wanted), small_columns
        self._ends = index.arrays["group_ends"]
        self._columns: list[str] = []
        self._names: tuple[str, ...] = ()

    def key(self, i: int) -> str:
        return f"row {i + 1}"

    def record(self, i: int) -> Record:
        group = int(np.searchsorted(self._ends, i, side="right"))
        table: pa.Table = cache.decoded.get(
            (self._version, group, self._wanted, self._small_columns), lambda: self._read_group(group)
        )
        row = i - (int(self._ends[group - 1]) if group else 0)
        try:
            fields = {name: table.column(k)[row].as_py() for k, name in enumerate(table.column_names)}
        except UnicodeDecodeError as error:
            raise BadSample(f"a text column is not UTF-8: {error}") from error
        return Record(self.key(i), fields, self._names)

    def blocks(self) -> list[int]:
        return self._ends.tolist()

    def _read_group(self, group: int) -> tuple[Any, int]:
        import pyarrow as pa

        file: pq.ParquetFile = cache.decoded.get((self._version, "file"), self._open_cached)
        self._choose_columns(file.schema_arrow)
        try:
            table = file.read_row_group(group, columns=self._columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise SourceError(
                f"{self._path}: row group {group} cannot be read: {error}. Write the file anew"
            ) from error
        return table, table.nbytes

    def _open_cached(self) -> tuple[Any, int]:
        file = _open(self._storage, self._path)
        return file, file.metadata.serialized_size + (1 << 16)

    def _choose_columns(self, schema: pa.Schema) -> None:
        self._names = tuple(schema.names)
        self._columns = [
            column.name
            for column in schema
            if column.name in self._wanted or (self._small_columns and not _holds_binary(column.type))
        ]


def _holds_binary(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return True
    return any(_holds_binary(kind.field(i).type) for i in range(kind.num_fields))


def _open(storage: Storage, path: str) -> pq.ParquetFile:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra("pyarrow", "parquet", "reading Parquet") from error
    try:
        return pq.ParquetFile(storage.open(path))
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path} is no Parquet file or damaged: {error}. Write it anew") from error
