"""JSON lines: one object on each line; blank lines are ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from zephon_vl.errors import BadSample
from zephon_vl.sources.indexfile import ShardIndex
from zephon_vl.sources.records import Record, decode_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from zephon_vl.sources.storage import Storage

_CHUNK = 1 << 22
_NEWLINE = 10
_BLANK = np.frombuffer(b" \t\r\n\v\f", np.uint8)
_BOM = b"\xef\xbb\xbf"


def plain_chunks(storage: Storage, path: str, size: int) -> Iterator[bytes]:
    """An uncompressed shard in pieces."""
    for offset in range(0, size, _CHUNK):
        yield storage.read(path, offset, min(_CHUNK, size - offset))


def index_lines(chunks: Iterable[bytes]) -> ShardIndex:
    """Where the lines lie that are not blank, in (decompressed) bytes."""
    starts: list[NDArray[np.int64]] = []
    stops: list[NDArray[np.int64]] = []
    numbers: list[NDArray[np.int64]] = []
    base = lines = 0
    rest = b""
    for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        if not end:
            rest += chunk
            continue
        block = b"".join((rest, memoryview(chunk)[:end]))
        lines += _scan(block, base, lines, starts, stops, numbers)
        base += len(block)
        rest = chunk[end:]
    if rest:
        _scan(rest + b"\n", base, lines, starts, stops, numbers)
    empty = [np.zeros(0, np.int64)]
    start, stop = np.concatenate(starts or empty), np.concatenate(stops or empty)
    number = np.concatenate(numbers or empty)
    arrays = {"starts": start, "stops": stop}
    if len(number) and number[-1] != len(number):  # blank lines, else the number is known
        arrays["numbers"] = number
    return ShardIndex(len(start), arrays)


class JsonlShard:
    """Reads records of one shard."""

    def __init__(self, read: Callable[[int, int], bytes], index: ShardIndex) -> None:
        """`read(offset, size)` gives (decompressed) bytes."""
        self._read = read
        self._starts, self._stops = index.arrays["starts"], index.arrays["stops"]
        self._numbers = index.arrays.get("numbers")

    def key(self, i: int) -> str:
        return f"line {i + 1 if self._numbers is None else self._numbers[i]}"

    def record(self, i: int) -> Record:
        start = int(self._starts[i])
        value = decode_json(self._read(start, int(self._stops[i]) - start), "the line")
        if not isinstance(value, dict):
            raise BadSample(f"the line is a JSON {type(value).__name__}, but must be an object")
        return Record(_own_key(value) or self.key(i), value)


def _own_key(record: dict[str, object]) -> str | None:
    for name in ("id", "key"):
        value = record.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return None


def _scan(
    block: bytes,
    base: int,
    lines: int,
    starts: list[NDArray[np.int64]],
    stops: list[NDArray[np.int64]],
    numbers: list[NDArray[np.int64]],
) -> int:
    """Add the lines of a block that ends in a newline; return how many it has."""
    data = np.frombuffer(block, np.uint8)
    stop = np.flatnonzero(data == _NEWLINE)
    start = np.concatenate([[0], stop[:-1] + 1])
    if base == 0 and block.startswith(_BOM):
        start[0] = len(_BOM)
    keep = np.ones(len(stop), bool)
    for i in np.flatnonzero(np.isin(data[start], _BLANK)):
        keep[i] = bool(block[start[i] : stop[i]].strip())
    starts.append((start + base)[keep])
    stops.append((stop + base)[keep])
    numbers.append((np.flatnonzero(keep) + lines + 1).astype(np.int64))
    return len(stop)
