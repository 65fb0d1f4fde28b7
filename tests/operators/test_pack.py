"""Packing never cuts an image, never loses a token that it may not lose, and never makes a sequence too long."""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_vl.contracts import DocumentRef, ImageSlot, OpenSequence, Piece
from zephon_vl.operators.pack import DUMMY_TOKENS, SequencePacker

Algorithm = Literal["best_fit", "first_fit", "concat"]
ALGORITHMS: tuple[Algorithm, ...] = ("best_fit", "first_fit", "concat")
SEQ_LEN = 24

parts = st.lists(st.one_of(st.integers(1, 70), st.integers(-(SEQ_LEN - 2), -1)), min_size=1, max_size=12)
"""Documents as their parts: n tokens of text, or an image of -n tokens."""
packers = st.builds(
    SequencePacker,
    seq_len=st.just(SEQ_LEN),
    algorithm=st.sampled_from(ALGORITHMS),
    open_sequences=st.integers(1, 5),
    overlong=st.sampled_from(["truncate", "split", "drop"]),
    reserve=st.sampled_from([0, DUMMY_TOKENS]),
)


def document(take: int, parts: list[int], delimited: bool) -> Piece:
    images: list[ImageSlot] = []
    length = 0
    for part in parts:
        if part > 0:
            length += part
            continue
        offset = length + delimited
        grid = (1, 2, -2 * part)
        images.append(ImageSlot(offset, -part, grid, len(images), None, (8, 8), (8, 8), 64))
        length = offset - part + delimited
    return Piece(DocumentRef(0, take, 0, length), np.arange(length, dtype=np.int32), images)


def pack(packer: SequencePacker, documents: list[Piece]) -> tuple[dict[int, Piece], list[OpenSequence]]:
    """(admitted documents by their take, closed sequences), driven as a lane does."""
    admitted: dict[int, Piece] = {}
    closed: list[OpenSequence] = []
    for whole in documents:
        piece = packer.admit(whole)
        if piece is None:
            continue
        admitted[whole.ref.take] = piece
        rounds = 0
        while piece is not None:
            packer.carry = None
            sequence = packer.place(piece)
            closed += [sequence] if sequence else []
            piece = packer.carry
            rounds += 1
            assert rounds <= 2 * len(whole), "placing comes to an end"
            assert len(packer.open) <= (1 if packer.algorithm == "concat" else packer.open_sequences)
    while (sequence := packer.flush()) is not None:
        closed.append(sequence)
    return admitted, closed


def check_sequence(packer: SequencePacker, sequence: OpenSequence) -> None:
    images = sum(len(piece.inside) for piece in sequence.pieces)
    assert sequence.used == sum(len(piece) for piece in sequence.pieces)
    assert sequence.images == images
    assert all(len(piece) > 0 for piece in sequence.pieces)
    assert 0 < sequence.used <= packer.seq_len - (0 if images else packer.reserve)


def check_document(admitted: Piece, pieces: list[Piece], delimited: bool) -> None:
    """The pieces are the document, each token once and in order; no cut is inside an image."""
    pieces = sorted(pieces, key=lambda piece: piece.ref.start)
    edges = [piece.ref.start for piece in pieces] + [pieces[-1].ref.stop]
    assert edges[0] == admitted.ref.start
    assert all(piece.ref.stop == start for piece, start in zip(pieces, edges[1:], strict=True))
    assert admitted.ref.stop - edges[-1] in (0, 1), "only a last single token may go"
    for image in admitted.images:
        first, last = image.offset - delimited, image.offset + image.tokens + delimited
        assert not any(first < edge < last for edge in edges)
    assert [image for piece in pieces for image in piece.inside] == [
        image for image in admitted.images if image.offset < edges[-1]
    ]
    assert all(piece.tokens is admitted.tokens and piece.sample == admitted.sample for piece in pieces)


@settings(max_examples=400, deadline=None)
@given(packer=packers, layouts=st.lists(parts, max_size=15), delimited=st.booleans())
def test_every_token_of_an_admitted_document_is_packed_once(
    packer: SequencePacker, layouts: list[list[int]], delimited: bool
) -> None:
    documents = [document(take, layout, delimited) for take, layout in enumerate(layouts)]
    admitted, closed = pack(packer, documents)
    pieces: dict[int, list[Piece]] = {take: [] for take in admitted}
    for sequence in closed:
        check_sequence(packer, sequence)
        for piece in sequence.pieces:
            pieces[piece.ref.take].append(piece)
    for take, piece in admitted.items():
        check_document(piece, pieces[take], delimited)
    assert packer.open == [] and packer.carry is None


@given(packer=packers, layout=parts, delimited=st.booleans())
def test_admission_follows_the_recipe(packer: SequencePacker, layout: list[int], delimited: bool) -> None:
    whole = document(0, layout, delimited)
    admitted = packer.admit(whole)
    fits = len(whole) <= SEQ_LEN - (0 if whole.images else packer.reserve)
    if fits or packer.overlong == "split":
        assert admitted is whole
    elif packer.overlong == "drop":
        assert admitted is None or len(whole) - 1 <= SEQ_LEN, "one token over is cut, not dropped"
    else:
        assert admitted is not None and admitted.ref.start == 0
        assert len(admitted) <= SEQ_LEN or admitted is whole


@settings(max_examples=300, deadline=None)
@given(
    documents=st.lists(st.tuples(st.integers(1, SEQ_LEN - 5), st.booleans()), max_size=60),
    open_sequences=st.integers(1, 6),
    reserve=st.sampled_from([0, DUMMY_TOKENS]),
    algorithm=st.sampled_from(["best_fit", "first_fit"]),
)
def test_fitting_equals_a_plain_reference(
    documents: list[tuple[int, bool]], open_sequences: int, reserve: int, algorithm: Literal["best_fit", "first_fit"]
) -> None:
    def left(members: list[int]) -> int:
        has_image = any(documents[i][1] for i in members)
        return SEQ_LEN - sum(sizes[i] for i in members) - (0 if has_image else reserve)

    layouts = [[-1, size] if image else [size] for size, image in documents]
    wholes = [document(take, layout, delimited=True) for take, layout in enumerate(layouts)]
    sizes = [len(whole) for whole in wholes]
    opened: list[list[int]] = []
    expected: list[list[int]] = []
    for i in range(len(documents)):
        candidates = [members for members in opened if left([*members, i]) >= 0]
        if candidates:
            chosen = candidates[0] if algorithm == "first_fit" else min(candidates, key=lambda m: left([*m, i]))
        elif left([i]) < 2:
            expected.append([i])
            continue
        else:
            if len(opened) == open_sequences:
                fullest = max(opened, key=lambda members: sum(sizes[j] for j in members))
                out = fullest if algorithm == "best_fit" else opened[0]
                expected.append(out)
                opened = [members for members in opened if members is not out]
            chosen = []
            opened.append(chosen)
        chosen.append(i)
        if left(chosen) < 2:
            expected.append(chosen)
            opened = [members for members in opened if members is not chosen]
    packer = SequencePacker(
        seq_len=SEQ_LEN, algorithm=algorithm, open_sequences=open_sequences, overlong="split", reserve=reserve
    )
    _, closed = pack(packer, wholes)
    assert [[piece.ref.take for piece in sequence.pieces] for sequence in closed] == expected + opened


@pytest.mark.parametrize("overlong", ["truncate", "split"])
def test_best_fit_fills_realistic_lengths(overlong: Literal["truncate", "split"]) -> None:
    rng = random.Random(3)
    packer = SequencePacker(seq_len=2048, algorithm="best_fit", open_sequences=8, overlong=overlong, reserve=3)
    layouts: list[list[int]] = []
    for _ in range(6000):
        text = int(rng.lognormvariate(5.5, 1.3)) + 5
        layouts.append([text] if rng.random() < 0.3 else [-rng.randint(64, 196), max(8, text // 8)])
    _, closed = pack(packer, [document(take, layout, True) for take, layout in enumerate(layouts)])
    closed = closed[:-8]
    assert sum(sequence.used for sequence in closed) > 0.97 * 2048 * len(closed)


def test_concat_wastes_nothing_on_text() -> None:
    packer = SequencePacker(seq_len=SEQ_LEN, algorithm="concat", open_sequences=8, overlong="split", reserve=3)
    _, closed = pack(packer, [document(take, [7], False) for take in range(100)])
    assert all(sequence.used >= SEQ_LEN - 3 - 1 for sequence in closed[:-1])
    _, closed = pack(packer, [document(take, [-1, 5] if take % 2 else [40], True) for take in range(50)])
    assert all(sequence.used >= SEQ_LEN - 1 for sequence in closed[:-1] if sequence.images)


def test_images_side_by_side_without_delimiters_are_parted_only_where_they_must_be() -> None:
    packer = SequencePacker(seq_len=SEQ_LEN, algorithm="best_fit", open_sequences=2, overlong="split")
    _, closed = pack(packer, [document(0, [-10, -10, -10, 5], delimited=False)])
    places = sorted((piece.ref.start, piece.ref.stop) for sequence in closed for piece in sequence.pieces)
    assert places == [(0, 10), (10, 34)]
