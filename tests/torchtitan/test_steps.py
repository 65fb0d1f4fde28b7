"""A global batch size that is not the recipe's is seen in the first step, whatever the ranks and microbatches."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_vl.errors import RecipeError
from zephon_vl.recipe import Recipe, SourceConfig, TokenizerConfig
from zephon_vl.topology import Topology
from zephon_vl.torchtitan.steps import StepWatch


def _recipe(lanes: int, size: int) -> Recipe:
    source = SourceConfig(name="a", path="a.jsonl", schema="text")
    return Recipe(
        lanes=lanes, global_batch_size=size, seq_len=8, tokenizer=TokenizerConfig(path="t"), sources=(source,)
    )


def _train(lanes: int, size: int, ranks: int, rows: int, of_trainer: int, steps: int = 3) -> int:
    """Take the microbatches of some steps as a trainer with the global batch size `of_trainer` does; returns how many
    it took."""
    recipe, watch = _recipe(lanes, size), StepWatch()
    topology = Topology(lanes=lanes, global_batch_size=size, dp_size=ranks, dp_rank=0, microbatch_size=rows)
    taken = 0
    for step in range(1, steps + 1):
        for _ in range(of_trainer // (rows * ranks)):
            watch.before(step, recipe, topology)
            taken += 1
            watch.after(taken % topology.microbatches_per_step == 0)
        watch.check_save(recipe, topology)
    return taken


_topologies = st.integers(1, 24).flatmap(
    lambda lanes: st.tuples(st.just(lanes), st.integers(1, 3), st.integers(1, lanes), st.integers(1, 6))
)


@given(_topologies)
def test_the_filled_batch_size_is_served(case: tuple[int, int, int, int]) -> None:
    lanes, per_lane, ranks, rows = case
    topology = Topology(lanes=lanes, global_batch_size=lanes * per_lane, dp_size=ranks, dp_rank=0, microbatch_size=rows)
    taken = _train(lanes, lanes * per_lane, ranks, rows, topology.filled_batch_size)
    assert taken == 3 * topology.microbatches_per_step


@given(_topologies, st.integers(1, 12))
def test_any_other_is_refused_in_the_first_step(case: tuple[int, int, int, int], microbatches: int) -> None:
    lanes, per_lane, ranks, rows = case
    size = lanes * per_lane
    topology = Topology(lanes=lanes, global_batch_size=size, dp_size=ranks, dp_rank=0, microbatch_size=rows)
    other = microbatches * rows * ranks
    if other == topology.filled_batch_size:
        return
    with pytest.raises(RecipeError) as error:
        _train(lanes, size, ranks, rows, other, steps=1)
    remedy = re.search(r"Set training.global_batch_size to (\d+)", str(error.value))
    assert remedy is not None and int(remedy.group(1)) == topology.filled_batch_size


def test_sixteen_lanes_on_three_ranks_want_eighteen() -> None:
    assert _train(16, 16, 3, 1, 18) == 18
    with pytest.raises(RecipeError) as error:
        _train(16, 16, 3, 1, 15)
    text = str(error.value)
    assert "training.global_batch_size is 15, but must be 18" in text
    assert "the recipe's global_batch_size, 16, filled up with empty sequences" in text
    assert "16 lanes" in text and "3 data-parallel ranks" in text
