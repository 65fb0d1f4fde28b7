"""Batch: write packed sequences to their rows. Text is written here; pixels are written by the image operators."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from zephon_vl.contracts import IGNORE, RowPlan
from zephon_vl.operators.mrope import mrope_positions

PADDING = -1
"""`document_ids` of padding."""


class PackedRowWriter:
    """Writes rows of token fields.

    Args:
        pad: id that fills the rest of a row.
        merge: patches along one side of an image token, for `mrope_positions`.
    """

    def __init__(self, pad: int, merge: int) -> None:
        self.pad, self.merge = pad, merge

    def write(self, fields: Mapping[str, NDArray], plan: RowPlan) -> int:
        """Fill row `plan.row` of `input_ids, labels, positions, document_ids` and `mrope_positions` if it is there.

        Labels are shifted within each piece; its last position, and every position whose next token is not trained on,
        is `IGNORE`. Padding is one run of positions from 0, with document id `PADDING`.

        Returns:
            the number of labels that count.
        """
        row = plan.row
        ids, labels = fields["input_ids"][row], fields["labels"][row]
        positions, documents = fields["positions"][row], fields["document_ids"][row]
        mrope = fields["mrope_positions"][row] if "mrope_positions" in fields else None
        start = valid = 0
        for number, piece in enumerate(plan.pieces):
            coded = np.frombuffer(piece.tokens, dtype="<i4")
            stop = start + len(coded)
            np.maximum(coded, ~coded, out=ids[start:stop], casting="safe")
            target = labels[start : stop - 1]
            target[:] = coded[1:]
            masked = target < 0
            target[masked] = IGNORE
            labels[stop - 1] = IGNORE
            valid += len(target) - int(np.count_nonzero(masked))
            positions[start:stop] = _RANGE.upto(len(coded))
            documents[start:stop] = number
            if mrope is not None:
                mrope_positions(len(coded), piece.images, self.merge, out=mrope[start:stop])
            start = stop
        rest = len(ids) - start
        ids[start:] = self.pad
        labels[start:] = IGNORE
        positions[start:] = _RANGE.upto(rest)
        documents[start:] = PADDING
        if mrope is not None:
            mrope[start:] = positions[start:, None]
        return valid


class _Range:
    """0, 1, 2, ... kept from one call to the next."""

    def __init__(self) -> None:
        self._values = np.arange(0)

    def upto(self, length: int) -> NDArray[np.int64]:
        if length > len(self._values):
            self._values = np.arange(length, dtype=np.int64)
        return self._values[:length]


_RANGE = _Range()
