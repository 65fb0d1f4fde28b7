"""Packing for loaders that bring none that fits: best-fit bins, and rows of arrays made of them.

The same as the other side packs: as many open sequences, a document whole in one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from bench.corpus_paths import SEQ_LEN
from bench.work import IGNORE, PIXELS, Sample, Settings

Row = list[Sample]


class BestFit:
    """Places samples in open rows; what does not fit closes the fullest one."""

    def __init__(self, seq_len: int, bins: int) -> None:
        self.seq_len, self.bins = seq_len, bins
        self.open: list[tuple[int, Row]] = []

    def add(self, sample: Sample) -> Row | None:
        """The row that this closed, if any."""
        size = len(sample["input_ids"])
        if size > self.seq_len:
            sample = {name: field if name in PIXELS else field[: self.seq_len] for name, field in sample.items()}
            sample["labels"] = np.append(sample["labels"][:-1], IGNORE)
            size = self.seq_len
        best, least = -1, self.seq_len + 1
        for i, (used, _) in enumerate(self.open):
            if 0 <= self.seq_len - used - size < least:
                best, least = i, self.seq_len - used - size
        if best >= 0:
            used, row = self.open[best]
            row.append(sample)
            self.open[best] = (used + size, row)
            return self.open.pop(best)[1] if least < 2 else None
        closed = None
        if len(self.open) >= self.bins:
            closed = self.open.pop(max(range(len(self.open)), key=lambda i: self.open[i][0]))[1]
        self.open.append((size, [sample]))
        return closed


def pack(samples: Iterable[Sample], settings: Settings) -> Iterator[Sample]:
    """Batches of `settings.rows` packed rows."""
    packer = BestFit(SEQ_LEN, settings.bins)
    rows: list[Row] = []
    for sample in samples:
        if (row := packer.add(sample)) is not None:
            rows.append(row)
            if len(rows) == settings.rows:
                yield collate(rows)
                rows = []


def collate(rows: list[Row]) -> dict[str, Any]:
    """Arrays of a batch: token fields (rows, seq_len, ...), `positions`, `document_ids` (-1: padding); fields of images
    one after the other, with `image_rows`."""
    shape = (len(rows), SEQ_LEN)
    batch: dict[str, Any] = {
        "input_ids": np.zeros(shape, np.int64),
        "labels": np.full(shape, IGNORE, np.int64),
        "positions": np.empty(shape, np.int64),
        "document_ids": np.full(shape, -1, np.int32),
    }
    if "mrope_positions" in rows[0][0]:
        batch["mrope_positions"] = np.empty((*shape, 3), np.int64)
    for r, row in enumerate(rows):
        start = 0
        for number, sample in enumerate(row):
            stop = start + len(sample["input_ids"])
            for name in ("input_ids", "labels", "mrope_positions"):
                if name in sample:
                    batch[name][r, start:stop] = sample[name]
            batch["positions"][r, start:stop] = np.arange(stop - start)
            batch["document_ids"][r, start:stop] = number
            start = stop
        batch["positions"][r, start:] = np.arange(SEQ_LEN - start)
        if "mrope_positions" in batch:
            batch["mrope_positions"][r, start:] = batch["positions"][r, start:, None]
    for name in PIXELS:
        if name in rows[0][0]:
            batch[name] = np.concatenate([sample[name] for row in rows for sample in row])
    if "grid_thw" in batch:
        batch["image_rows"] = np.repeat(np.arange(len(rows), dtype=np.int32), [len(row) for row in rows])
    return batch
