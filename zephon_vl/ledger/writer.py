"""Writes what one rank delivers: slot digests and the samples of each sequence, in segments that are there whole or not
at all. Ranks share nothing but the directory."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from zephon_vl.errors import StorageError
from zephon_vl.files import write_atomically
from zephon_vl.ledger.format import METADATA_KEY, Header, require_pyarrow, schema, text_of
from zephon_vl.order import orders_of
from zephon_vl.sources.storage import is_url, local_path
from zephon_vl.topology import EMPTY

if TYPE_CHECKING:
    import pyarrow as pa

    from zephon_vl.batch import Batch
    from zephon_vl.contracts import DocumentRef, SourceReader
    from zephon_vl.recipe import Recipe

_MOST_ROWS, _MOST_DOCUMENTS, _MOST_STEPS = 4096, 65536, 1000
"""Of a segment; a few megabytes of memory."""
_ROW_GROUP = 512
"""Rows that a reader holds at once of each rank."""
_REPEATING = ("step", "microbatch", "global_batch_size", *(f"documents.list.element.{n}" for n in ("source", "shard")))


class _Row(NamedTuple):
    step: int
    slot: int
    microbatch: int
    global_batch_size: int
    digest: bytes
    valid_tokens: int
    documents: tuple[DocumentRef, ...]


class LedgerWriter:
    """Appends the rows of one rank to a ledger.

    Samples are looked up and segments written by a thread of its own. At most two segments are in memory.

    Args:
        path: a directory, shared by all ranks; made where it is missing.
        sources: opened, in the recipe's order, and used by nobody else: the thread reads their indexes.
        identity: of the run, as in its checkpoints.

    Raises:
        MissingExtra: without pyarrow.
        StorageError: for a directory that cannot be written. So do all methods, and what was not written is kept.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        recipe: Recipe,
        sources: Sequence[SourceReader],
        identity: bytes,
        dp_rank: int,
        dp_size: int,
    ) -> None:
        require_pyarrow("writing a ledger")
        self._directory = _make_directory(os.fspath(path))
        self._sources, self._orders = sources, orders_of(recipe, sources)
        self._run = {
            "dp_rank": dp_rank,
            "dp_size": dp_size,
            "lanes": recipe.lanes,
            "global_batch_size": recipe.global_batch_size,
            "identity": hashlib.sha256(identity).hexdigest(),
            "recipe": msgspec.Raw(msgspec.json.encode(recipe)),
        }
        self._thread, self._owner = ThreadPoolExecutor(1, "zephon-vl-ledger"), os.getpid()
        self._session: Header | None = None
        self._rows: list[_Row] = []
        self._documents = 0
        self._writing: tuple[Future[None], list[_Row]] | None = None

    def begin(self, step: int, done: Collection[int] = ()) -> None:
        """Start a session: before the first batch, and again after a restore.

        Args:
            step: that the run goes on with, though `skip_steps` may leave it out; all before it was delivered.
            done: slots of it that were delivered before, by any rank.
        """
        self.flush()
        self._session = Header(
            **self._run,
            session=secrets.token_hex(8),
            start_ns=time.time_ns(),
            step=step,
            done=sorted(done),
            segment=0,
            rows=0,
            first_step=step,
            last_step=step,
        )

    def append(self, batch: Batch, global_batch_size: int) -> None:
        """Take the rows of a delivered microbatch. What it costs is the digest of its bytes.

        Args:
            global_batch_size: of the batch's step.
        """
        valid = batch.valid_tokens.tolist()
        digests = batch.digests()
        for row, slot in enumerate(batch.slots):
            if slot != EMPTY:
                digest = bytes.fromhex(digests[slot])
                self._rows.append(
                    _Row(
                        batch.step, slot, batch.microbatch, global_batch_size, digest, valid[row], batch.documents[row]
                    )
                )
                self._documents += len(batch.documents[row])
        if self._rows and (
            len(self._rows) >= _MOST_ROWS
            or self._documents >= _MOST_DOCUMENTS
            or batch.step - self._rows[0].step >= _MOST_STEPS
        ):
            self._hand_over()

    def flush(self) -> None:
        """Return when all that was appended is on disk."""
        self._hand_over()
        self._wait()

    def close(self) -> None:
        """Write what is left, and end the thread. Also at exit, where no thread takes work any more."""
        if os.getpid() != self._owner:
            return  # a fork that ends: the rows are those of its parent, which will write them
        self._wait()
        self._thread.shutdown()
        if (segment := self._take_rows()) is not None:
            self._write(*segment)

    def _hand_over(self) -> None:
        """Give the rows to the thread, once it is done with those before."""
        self._wait()
        if (segment := self._take_rows()) is not None:
            self._writing = self._thread.submit(self._write, *segment), segment[1]

    def _take_rows(self) -> tuple[Header, list[_Row]] | None:
        """The rows that are not written yet, as a segment."""
        if not self._rows:
            return None
        if self._session is None:
            raise RuntimeError("LedgerWriter.begin must be called before append")
        rows, self._rows, self._documents = self._rows, [], 0
        header = msgspec.structs.replace(
            self._session, rows=len(rows), first_step=rows[0].step, last_step=rows[-1].step
        )
        return header, rows

    def _wait(self) -> None:
        if self._writing is None:
            return
        (future, rows), self._writing = self._writing, None
        assert self._session is not None
        try:
            future.result()
        except BaseException:
            # They go into a segment of the same number, hence of the same name: never twice.
            self._rows[:0] = rows
            self._documents += sum(len(row.documents) for row in rows)
            raise
        self._session = msgspec.structs.replace(self._session, segment=self._session.segment + 1)

    def _write(self, header: Header, rows: list[_Row]) -> None:
        segment = self._encode(header, rows)
        try:
            write_atomically(self._directory / header.file_name, segment)
        except OSError as error:
            raise StorageError(f"the ledger {self._directory} cannot be written: {error.strerror}") from error

    def _encode(self, header: Header, rows: list[_Row]) -> memoryview:
        """A segment as a Parquet file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {name: [getattr(row, name) for row in rows] for name in _Row._fields if name != "documents"}
        columns["used_tokens"] = [sum(ref.stop - ref.start for ref in row.documents) for row in rows]
        columns["documents"] = self._document_column([row.documents for row in rows])
        sink = pa.BufferOutputStream()
        writing = pq.ParquetWriter(
            sink,
            schema(),
            compression="zstd",
            use_dictionary=list(_REPEATING),  # pyright: ignore[reportArgumentType] - or names of columns
            write_page_checksum=True,
        )
        with writing as writer:
            writer.write_table(pa.table(columns, schema()), _ROW_GROUP)
            writer.add_key_value_metadata({METADATA_KEY: msgspec.json.encode(header)})
        return memoryview(sink.getvalue())

    def _document_column(self, rows: list[tuple[DocumentRef, ...]]) -> pa.ListArray:
        """What the references stand for; the order of each source is computed for all of its takes at once."""
        import pyarrow as pa

        refs = [ref for row in rows for ref in row]
        table = np.array([(ref.source, ref.take, ref.start, ref.stop) for ref in refs], np.int64).reshape(-1, 4)
        source, take, start, stop = table.T
        epoch, index = np.empty_like(take), np.empty_like(take)
        for number in np.unique(source):
            chosen = source == number
            epoch[chosen], index[chosen] = self._orders[number].indices(take[chosen])
        found = [self._sources[s].locate(i) for s, i in zip(source.tolist(), index.tolist(), strict=True)]
        fields = {
            "source": [self._sources[number].name for number in source.tolist()],
            "shard": [text_of(shard) for shard, _ in found],
            "key": [text_of(key) for _, key in found],
            "epoch": epoch,
            "index": index,
            "take": take,
            "start": start,
            "stop": stop,
        }
        kind = schema().field("documents").type
        ends = np.cumsum([0, *map(len, rows)], dtype=np.int32)
        arrays = [pa.array(fields[field.name], field.type) for field in kind.value_type]
        structs = pa.StructArray.from_arrays(arrays, fields=list(kind.value_type))
        return pa.ListArray.from_arrays(pa.array(ends), structs, type=kind)


def _make_directory(path: str) -> Path:
    if is_url(path):
        raise StorageError(f"the ledger is {path!r}, but must be a directory; mount the storage, or name another place")
    directory = Path(local_path(path)).absolute()  # the job may change its working directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"the ledger {directory} cannot be made: {error.strerror}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise StorageError(f"the ledger {directory} cannot be written: permission denied")
    return directory
