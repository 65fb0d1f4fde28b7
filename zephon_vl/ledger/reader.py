"""Reads a ledger: the segments of all ranks and restarts, merged into steps, with bounded memory."""

from __future__ import annotations

import heapq
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zephon_vl.digest import step_digest
from zephon_vl.errors import LedgerError
from zephon_vl.ledger.format import (
    METADATA_KEY,
    SUFFIX,
    Header,
    LedgerDocument,
    decode_header,
    require_pyarrow,
    schema,
)
from zephon_vl.ledger.sessions import NOTHING, Place, valid_rows
from zephon_vl.sources.storage import local_path

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_READERS = 16
"""Threads that look at footers: on network storage that is waiting, not work."""
_DIGESTS = ["step", "slot", "microbatch", "global_batch_size", "digest", "valid_tokens", "used_tokens"]


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a ledger."""

    path: Path
    header: Header


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A slot as a rank delivered it."""

    step: int
    slot: int
    microbatch: int
    global_batch_size: int
    digest: bytes
    """SHA-256 of its bytes."""
    valid_tokens: int
    """Labels that count."""
    used_tokens: int
    """Tokens of documents; the rest is padding, or a dummy image."""
    documents: tuple[LedgerDocument, ...]
    """In order; empty where they were not asked for."""
    segment: Segment


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two rows that count, for one slot, and are not the same."""

    first: LedgerRow
    second: LedgerRow

    def __str__(self) -> str:
        a, b = self.first, self.second
        where = f"step {a.step}, slot {a.slot}"
        files = f"{a.segment.path} and {b.segment.path}"
        if a.global_batch_size != b.global_batch_size:
            return f"{where}: global_batch_size is {a.global_batch_size} and {b.global_batch_size}, in {files}"
        return f"{where}: SHA-256 is {a.digest.hex()} and {b.digest.hex()}, in {files}"


@dataclass(slots=True)
class LedgerStep:
    """What all ranks delivered of a step."""

    number: int
    rows: dict[int, LedgerRow] = field(default_factory=dict)
    """By slot, in order."""
    contradictions: list[Contradiction] = field(default_factory=list)
    redone: int = 0
    """Rows that were delivered before a restart, and again after it."""
    changed: int = 0
    """Those of them that had another digest."""

    @property
    def global_batch_size(self) -> int:
        return next(iter(self.rows.values())).global_batch_size

    @property
    def whole(self) -> bool:
        """Whether every slot of the global batch is there."""
        return list(self.rows) == list(range(self.global_batch_size))

    @property
    def digest(self) -> str | None:
        """SHA-256 of the step, in hexadecimal; None where it is not whole."""
        if not self.whole:
            return None
        return step_digest({slot: row.digest.hex() for slot, row in self.rows.items()}, self.global_batch_size)

    @property
    def latest(self) -> Segment:
        """A segment of the session that started last, of those that delivered the step."""
        return max((row.segment for row in self.rows.values()), key=lambda segment: segment.header.order)


class Ledger:
    """A ledger, opened: the footers of its segments are read, not their rows.

    Args:
        path: the directory given to `Loader(ledger=...)`.

    Raises:
        LedgerError: if there is none, or a segment is damaged, foreign, or of a newer version.
        MissingExtra: without pyarrow.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        require_pyarrow("reading a ledger")
        self.path = Path(local_path(os.fspath(path)))
        self.sessions = _sessions(_segments(self.path))
        """The segments of each session, in order; sessions in the order of their start."""
        headers = [segments[0].header for segments in self.sessions]
        last_steps = [segments[-1].header.last_step for segments in self.sessions]
        self._valid = valid_rows(headers, last_steps, self._delivered)

    @property
    def missing(self) -> list[str]:
        """A sentence for each session that has lost segments before its last one."""
        return [
            f"{segments[-1].path} is segment {segments[-1].header.segment} of its session, but "
            f"{segments[-1].header.segment + 1 - len(segments)} of those before it are missing"
            for segments in self.sessions
            if segments[-1].header.segment + 1 != len(segments)
        ]

    @property
    def identities(self) -> set[str]:
        """SHA-256 of the identities of its sessions."""
        return {segments[0].header.identity for segments in self.sessions}

    def steps(self, first: int = 0, last: int | None = None, documents: bool = False) -> Iterator[LedgerStep]:
        """The steps from `first` to `last`, in order, whole or not; steps without any row are left out.

        Args:
            documents: read the documents of the rows too.

        Raises:
            LedgerError: for a segment that cannot be read.
        """
        streams = [
            _Stream(chosen, valid, first, last, documents)
            for segments, valid in zip(self.sessions, self._valid, strict=True)
            if (chosen := _within(segments, first, last))
        ]
        for number, found in _by_step(streams):
            if (step := _merge(number, found)).rows:
                yield step

    def step(self, number: int) -> LedgerStep:
        """A step with its documents. Raises `LedgerError` for one that is not there, with the range that is."""
        for step in self.steps(number, number, documents=True):
            return step
        raise LedgerError(
            f"the ledger {self.path} holds no step {number}: it goes from step {self._bound(min)} to step "
            f"{self._bound(max)}, without those that the recipe's skip_steps leaves out"
        )

    def _delivered(self, sessions: Sequence[int], step: int) -> tuple[set[int], int]:
        segments = [segment for i in sessions for segment in _within(self.sessions[i], step, step)]
        rows = [row for segment in segments for row in _rows_of(segment, documents=False) if row.step == step]
        # Sessions that left the step out have none of its slots, however many it has.
        return {row.slot for row in rows}, max((row.global_batch_size for row in rows), default=1)

    def _bound(self, of: Callable[[Iterator[int]], int]) -> int:
        """The first or last step with a row that counts, about: where a session ends inside a step that was redone."""
        return of(
            min(step, valid.step)
            for segments, valid in zip(self.sessions, self._valid, strict=True)
            if valid != NOTHING
            for step in (segments[0].header.first_step, segments[-1].header.last_step)
        )


def merged(path: str | os.PathLike[str], documents: bool = False) -> Iterator[LedgerStep]:
    """The steps of a ledger, in order; see `Ledger.steps`."""
    return Ledger(path).steps(documents=documents)


# --- segments ------------------------------------------------------------------------------------------------------


def _segments(directory: Path) -> list[Segment]:
    try:
        # Hidden files are segments that a killed writer did not finish.
        paths = sorted(path for path in directory.iterdir() if path.suffix == SUFFIX and not path.name.startswith("."))
    except OSError as error:
        raise LedgerError(f"there is no ledger at {directory}: {error.strerror}") from error
    if not paths:
        raise LedgerError(f"there is no ledger at {directory}: the directory holds no {SUFFIX} file")
    with ThreadPoolExecutor(min(_READERS, len(paths)), "zephon-vl-ledger") as pool:
        return list(pool.map(_look, paths))


def _look(path: Path) -> Segment:
    with _open(path) as file:
        header = (file.metadata.metadata or {}).get(METADATA_KEY)
        if header is None or file.schema_arrow.names != schema().names:
            raise LedgerError(f"{path} is no segment of a ledger of this library. Keep other files elsewhere")
        return Segment(path, decode_header(header, str(path)))


def _open(path: Path) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise LedgerError(f"{path} is no Parquet file, or a damaged one: {error}") from error


def _sessions(segments: Sequence[Segment]) -> list[list[Segment]]:
    found: dict[str, list[Segment]] = defaultdict(list)
    for segment in segments:
        found[segment.header.session].append(segment)
    for session in found.values():
        session.sort(key=lambda segment: segment.header.segment)
    return sorted(found.values(), key=lambda session: session[0].header.order)


def _within(segments: Sequence[Segment], first: int, last: int | None) -> list[Segment]:
    """Those with rows between two steps."""
    return [s for s in segments if s.header.last_step >= first and (last is None or s.header.first_step <= last)]


# --- merging -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stream:
    """The rows of a session in a range of steps."""

    segments: list[Segment]
    valid: Place
    first: int
    last: int | None
    documents: bool

    def __iter__(self) -> Iterator[tuple[int, list[tuple[LedgerRow, bool]]]]:
        """(step, its rows, each with whether it counts), in order."""
        rows = (row for segment in self.segments for row in _rows_of(segment, self.documents))
        for step, group in groupby(rows, key=lambda row: row.step):
            if self.last is not None and step > self.last:
                return
            if step >= self.first:
                yield step, [(row, self.valid.holds(step, row.slot)) for row in group]


def _by_step(streams: Sequence[_Stream]) -> Iterator[tuple[int, list[tuple[LedgerRow, bool]]]]:
    """(step, the rows of all sessions, the latest session last). A session is read from the first of its steps on."""
    later = sorted(range(len(streams)), key=lambda i: -streams[i].segments[0].header.first_step)
    active: list[tuple[int, int, list[tuple[LedgerRow, bool]], Iterator[Any]]] = []

    def advance(number: int, iterator: Iterator[tuple[int, list[tuple[LedgerRow, bool]]]]) -> None:
        for step, rows in iterator:
            heapq.heappush(active, (step, number, rows, iterator))
            return

    while later or active:
        # A step starts once no session that could hold it is still closed.
        while later and (not active or streams[later[-1]].segments[0].header.first_step <= active[0][0]):
            number = later.pop()
            advance(number, iter(streams[number]))
        if not active:
            continue
        step, found = active[0][0], []
        while active and active[0][0] == step:
            _, number, rows, iterator = heapq.heappop(active)
            found += rows
            advance(number, iterator)
        yield step, found


def _rows_of(segment: Segment, documents: bool) -> Iterator[LedgerRow]:
    """The rows of a segment, one row group in memory at a time; the file is open only while it is read."""
    import pyarrow as pa

    columns = [*_DIGESTS, "documents"] if documents else _DIGESTS
    group, groups = 0, 1
    while group < groups:
        with _open(segment.path) as file:
            groups = file.metadata.num_row_groups
            try:
                table = file.read_row_group(group, columns=columns, use_threads=False)
            except (pa.ArrowException, OSError) as error:
                raise LedgerError(f"{segment.path} is damaged: {error}. Restore it from a copy") from error
        group += 1
        lists = [table.column(name).to_pylist() for name in _DIGESTS]
        inside: Iterator[tuple[LedgerDocument, ...]] = (
            (tuple(LedgerDocument(**document) for document in row) for row in table.column("documents").to_pylist())
            if documents
            else iter([()] * table.num_rows)
        )
        for values, row in zip(zip(*lists, strict=True), inside, strict=True):
            yield LedgerRow(*values, documents=row, segment=segment)


def _merge(number: int, found: Sequence[tuple[LedgerRow, bool]]) -> LedgerStep:
    step = LedgerStep(number)
    rows: dict[int, LedgerRow] = {}
    for row, _ in (pair for pair in found if pair[1]):
        before = rows.get(row.slot)
        if before is not None and before.digest != row.digest:
            step.contradictions.append(Contradiction(before, row))
        rows[row.slot] = row
    step.rows = dict(sorted(rows.items()))
    sizes = {row.global_batch_size: row for row in step.rows.values()}
    if len(sizes) > 1:
        step.contradictions.append(Contradiction(*list(sizes.values())[:2]))
    for row, counts in found:
        if not counts and (again := rows.get(row.slot)) is not None:
            step.redone += 1
            step.changed += again.digest != row.digest
    return step
