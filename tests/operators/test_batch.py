"""Rows equal what a reader of the documentation would write, position by position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from zephon_vl.contracts import IGNORE, RowPiece, RowPlan
from zephon_vl.operators.batch import PADDING, PackedRowWriter
from zephon_vl.operators.mrope import mrope_positions

IMAGE_TOKEN, PAD = 7, 3
Coded = list[int]
"""Token ids as they travel: `~id` where not trained on."""


@st.composite
def row_pieces(draw: st.DrawFn) -> tuple[Coded, list[tuple[int, tuple[int, int, int]]]]:
    coded: Coded = []
    images: list[tuple[int, tuple[int, int, int]]] = []
    ids = st.integers(0, 2**31 - 1)
    for text in draw(st.lists(st.lists(st.one_of(ids, ids.map(lambda i: ~i)), min_size=1, max_size=9), max_size=4)):
        coded += text
        if draw(st.booleans()):
            grid = (1, 2 * draw(st.integers(1, 3)), 2 * draw(st.integers(1, 3)))
            images.append((len(coded), grid))
            coded += [~IMAGE_TOKEN] * (grid[1] * grid[2] // 4)
    return coded or [draw(ids)], images


def fields(rows: int, length: int, mrope: bool) -> dict[str, NDArray]:
    """A slab that still holds something else."""
    shape = (rows, length)
    out: dict[str, NDArray] = {name: np.full(shape, 99, np.int64) for name in ("input_ids", "labels", "positions")}
    out["document_ids"] = np.full(shape, 99, np.int32)
    if mrope:
        out["mrope_positions"] = np.full((*shape, 3), 99, np.int64)
    return out


@given(pieces=st.lists(row_pieces(), max_size=6), padding=st.integers(0, 12), mrope=st.booleans())
def test_a_row_equals_the_plain_reference(
    pieces: list[tuple[Coded, list[tuple[int, tuple[int, int, int]]]]], padding: int, mrope: bool
) -> None:
    length = sum(len(coded) for coded, _ in pieces) + padding
    out = fields(3, length, mrope)
    plan = RowPlan(1, [RowPiece(np.array(coded, "<i4").tobytes(), images) for coded, images in pieces])
    valid = PackedRowWriter(PAD, 2).write(out, plan)

    ids: list[int] = []
    labels: list[int] = []
    positions: list[int] = []
    documents: list[int] = []
    axes: list[list[int]] = []
    for number, (coded, images) in enumerate(pieces):
        ids += [token if token >= 0 else ~token for token in coded]
        labels += [token if token >= 0 else IGNORE for token in coded[1:]] + [IGNORE]
        positions += range(len(coded))
        documents += [number] * len(coded)
        axes += mrope_positions(len(coded), images, 2).tolist()
    ids += [PAD] * padding
    labels += [IGNORE] * padding
    positions += range(padding)
    documents += [PADDING] * padding
    axes += [[i, i, i] for i in range(padding)]

    assert out["input_ids"][1].tolist() == ids
    assert out["labels"][1].tolist() == labels
    assert out["positions"][1].tolist() == positions
    assert out["document_ids"][1].tolist() == documents
    assert valid == sum(label != IGNORE for label in labels)
    if mrope:
        assert out["mrope_positions"][1].tolist() == axes
    assert all((values[[0, 2]] == 99).all() for values in out.values()), "other rows are left alone"


def test_an_empty_row_is_padding() -> None:
    out = fields(1, 5, mrope=True)
    assert PackedRowWriter(PAD, 2).write(out, RowPlan(0, [])) == 0
    assert out["input_ids"][0].tolist() == [PAD] * 5
    assert out["labels"][0].tolist() == [IGNORE] * 5
    assert out["mrope_positions"][0, :, 2].tolist() == [0, 1, 2, 3, 4]


def test_nothing_is_predicted_across_documents_or_of_images() -> None:
    out = fields(1, 8, mrope=False)
    one = RowPiece(np.array([10, ~IMAGE_TOKEN, 11], "<i4").tobytes(), [(1, (1, 2, 2))])
    other = RowPiece(np.array([20, 21], "<i4").tobytes(), [])
    assert PackedRowWriter(PAD, 2).write(out, RowPlan(0, [one, other])) == 2
    assert out["labels"][0].tolist() == [IGNORE, 11, IGNORE, 21, IGNORE, IGNORE, IGNORE, IGNORE]


def test_a_row_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError):
        PackedRowWriter(PAD, 2).write(fields(1, 3, False), RowPlan(0, [RowPiece(bytes(16), [])]))
