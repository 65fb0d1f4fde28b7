"""Generators are keyed by what they are for, on any machine, and leave the caller's alone."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zephon_vl.rng import derive_key, sample_generator

parts = st.lists(st.one_of(st.integers(), st.text(st.characters(codec="utf-8", exclude_characters="\x1f"))), max_size=5)


@given(one=parts, other=parts)
def test_other_parts_give_another_key(one: list[int | str], other: list[int | str]) -> None:
    assert (derive_key(*one) == derive_key(*other)) == (one == other)
    assert 0 <= derive_key(*one) < 2**128


def test_parts_are_told_apart_by_type_and_place() -> None:
    keys = [derive_key(*parts) for parts in ((), ("",), (1,), ("1",), (1, 2), (12,), (2, 1), ("a", "b"))]
    assert len(set(keys)) == len(keys)


def test_keys_are_pinned_and_free_of_the_hash_seed() -> None:
    code = (
        "from zephon_vl.rng import *; print(derive_key(42, 'web', -1), sample_generator(1, 'w', 2, 3).integers(99**9))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1")
    }
    assert outputs == {"305603346332303121979329272046926344016 804739141048174851\n"}


@given(seed=st.integers(0, 2**63 - 1), source=st.text(), epoch=st.integers(0, 9), index=st.integers(0, 9))
def test_samples_draw_alike_anywhere_and_unlike_each_other(seed: int, source: str, epoch: int, index: int) -> None:
    drawn = sample_generator(seed, source, epoch, index).integers(2**62, size=2).tolist()
    assert drawn == sample_generator(seed, source, epoch, index).integers(2**62, size=2).tolist()
    for other in (
        sample_generator(seed + 1, source, epoch, index),
        sample_generator(seed, source + "x", epoch, index),
        sample_generator(seed, source, epoch + 1, index),
        sample_generator(seed, source, epoch, index + 1),
        sample_generator(seed, source, epoch, index, 0),
    ):
        assert other.integers(2**62, size=2).tolist() != drawn


def test_the_generators_of_the_caller_stay_where_they_are() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    sample_generator(1, "web", 0, 0).normal(size=100)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]
