"""Whether a loader does the work: what it delivers, document by document, against the work done here from the files.

    python -m bench.same_work LOADER SETTINGS [DOCUMENTS]

A document is told by its token ids (each caption has its sample's number). Token ids, labels, positions and grids must
be equal; patches equal, or their difference is reported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from bench.corpus_paths import SEQ_LEN
from bench.loaders.protocol import Delivered, OpenLoader, load
from bench.records import Records
from bench.work import IGNORE, PIXELS, Sample, Settings, tools

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TOKEN_FIELDS = ("labels", "positions", "mrope_positions")


class Compared(msgspec.Struct, kw_only=True):
    """What was found."""

    loader: str
    stage: str
    documents: int = 0
    distinct: int = 0
    unknown: int = 0
    """Documents whose token ids are those of no sample."""
    fields: dict[str, int] = {}
    """Documents in which a token field or the grid differs."""
    images: int = 0
    images_differ: int = 0
    largest: float = 0.0
    """Largest difference of a pixel, of 255."""
    mean: float = 0.0
    """Mean absolute difference of the pixels, of 255."""

    @property
    def same(self) -> bool:
        """Whether tokens and everything but pixels are equal."""
        return self.documents > 0 and not self.unknown and not any(self.fields.values())


def compare(name: str, settings: Settings, documents: int = 60) -> Compared:
    """Take batches until `documents` were seen, and compare each with the work done in this process."""
    loader = load(name).open(settings)
    try:
        return compare_open(name, loader, settings, documents)
    finally:
        loader.close()


def compare_open(name: str, loader: OpenLoader, settings: Settings, documents: int) -> Compared:
    """As `compare`, for a loader that is open."""
    # What this library delivers is of its own functions, also where the others use Pillow.
    reference = msgspec.structs.replace(settings, stage="same") if name == "zephon_vl" and settings.vision else settings
    records = Records(reference)
    known = _by_tokens(reference, records)
    found = Compared(loader=name, stage=settings.stage)
    seen: set[int] = set()
    total = 0.0
    while found.documents < documents:
        for got in documents_of(next(loader)):
            found.documents += 1
            number = known.get(got["input_ids"].tobytes())
            if number is None:
                found.unknown += 1
                continue
            seen.add(number)
            total += _compare_one(found, got, records[number])
    found.distinct, found.mean = len(seen), total / max(1, found.images)
    return found


def _compare_one(found: Compared, got: Sample, want: Sample) -> float:
    """Count the differences of one document; the mean difference of its pixels."""
    if len(want["input_ids"]) > SEQ_LEN:  # only texts are
        want = {name: field[:SEQ_LEN].copy() for name, field in want.items()}
        want["labels"][-1] = IGNORE
    want = want | {"positions": np.arange(len(want["input_ids"]))}
    for field in (*_TOKEN_FIELDS, "grid_thw"):
        if field in got and field in want and not np.array_equal(got[field], want[field]):
            found.fields[field] = found.fields.get(field, 0) + 1
    pixels = next((field for field in PIXELS[:2] if field in want), None)
    if pixels is None:
        return 0.0
    found.images += 1
    difference = _difference(got, want, pixels)
    found.images_differ += bool(difference.any())
    found.largest = max(found.largest, float(difference.max(initial=0)))
    return float(difference.mean())


def _difference(got: Sample, want: Sample, pixels: str) -> NDArray[Any]:
    """Absolute differences, of 255."""
    if got.get(pixels) is None or got[pixels].shape != want[pixels].shape:
        return np.array([255.0])
    scale = 127.5 if pixels == "pixel_values" else 1.0  # normalised with mean and standard deviation 0.5
    return np.abs(got[pixels].astype(np.float32) - want[pixels]) * scale


def _by_tokens(settings: Settings, records: Records) -> dict[bytes, int]:
    """The number of each sample by its token ids; the grid comes from the header, nothing is decoded."""
    mine = tools(settings)
    if not settings.vision:
        return {mine.text(text)["input_ids"][:SEQ_LEN].tobytes(): number for number, text in enumerate(records.texts)}
    return {mine.measured(*records.read(number)).tobytes(): number for number in range(len(records))}


def documents_of(batch: Delivered) -> Iterator[Sample]:
    """The documents of a batch with their images."""
    fields = {name: tensor.numpy() for name, tensor in batch.tensors.items()}
    documents = fields["document_ids"]
    at = first = 0
    for row in range(len(documents)):
        for number in range(int(documents[row].max(initial=-1)) + 1):
            where = documents[row] == number
            got: Sample = {name: fields[name][row][where] for name in ("input_ids", *_TOKEN_FIELDS) if name in fields}
            if "grid_thw" in fields:
                got["grid_thw"] = fields["grid_thw"][at : at + 1]
                last = first + int(got["grid_thw"].prod())
                got |= {name: fields[name][first:last] for name in PIXELS[:2] if name in fields}
                at, first = at + 1, last
            yield got


def main() -> None:
    name, settings, *rest = sys.argv[1:]
    found = compare(name, msgspec.json.decode(settings, type=Settings), *map(int, rest))
    print(msgspec.json.encode(found).decode(), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
