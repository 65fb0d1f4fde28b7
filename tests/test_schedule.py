"""Phases and steps that are left out: checked against counting step by step."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_vl.agenda import Agenda
from zephon_vl.errors import RecipeError
from zephon_vl.recipe import PhaseConfig, Recipe, SourceConfig, TokenizerConfig
from zephon_vl.schedule import Schedule
from zephon_vl.topology import EMPTY, topologies_of

LANES = 4


def recipe_of(phases: tuple[PhaseConfig, ...] = (), skips: tuple[tuple[int, int], ...] = ()) -> Recipe:
    return Recipe(
        lanes=LANES,
        global_batch_size=8,
        seq_len=64,
        tokenizer=TokenizerConfig(path="."),
        sources=(
            SourceConfig(name="a", path="a.jsonl", schema="text", weight=2.0),
            SourceConfig(name="b", path="b.jsonl", schema="text", weight=0.0),
        ),
        phases=phases,
        skip_steps=skips,
    )


@dataclass(frozen=True)
class Plan:
    recipe: Recipe
    sizes: tuple[int, ...]
    """Global batch size of each step."""
    skipped: frozenset[int]


@st.composite
def plans(draw: st.DrawFn, steps: int = 40) -> Plan:
    starts = sorted(draw(st.sets(st.integers(1, steps), max_size=4)))
    phases = tuple(PhaseConfig(from_step=s, global_batch_size=draw(st.sampled_from([4, 8, 12]))) for s in starts)
    edges = sorted(draw(st.sets(st.integers(0, steps), max_size=6)))
    skips = tuple(zip(edges[::2], edges[1::2], strict=False))
    sizes = []
    for step in range(2 * steps):
        holds = [phase.global_batch_size for phase in phases if phase.from_step <= step]
        sizes.append(holds[-1] or 0 if holds else 8)
    skipped = frozenset(step for first, stop in skips for step in range(first, stop))
    recipe = recipe_of(phases, skips)
    recipe.validate()
    return Plan(recipe, tuple(sizes), skipped)


@given(plan=plans())
def test_sequences_and_steps_are_counted(plan: Plan) -> None:
    schedule = Schedule(plan.recipe)
    number = 0
    for step, size in enumerate(plan.sizes):
        assert schedule.first_number(step) == number
        for _ in range(size // LANES):
            assert schedule.step_of(number) == step
            number += 1
        assert schedule.recipe_of(step).global_batch_size == size
        assert schedule.skipped(step) == (step in plan.skipped)
        expected = next(s for s in range(step, step + 100) if s not in plan.skipped)
        assert schedule.from_step(step) == expected


@settings(max_examples=60, deadline=None)
@given(
    plan=plans(steps=12),
    first=st.integers(0, 14),
    ranks=st.integers(1, LANES),
    microbatch_size=st.integers(1, 5),
    data=st.data(),
)
def test_all_ranks_together_deliver_each_slot_of_each_step_once(
    plan: Plan, first: int, ranks: int, microbatch_size: int, data: st.DataObject
) -> None:
    schedule = Schedule(plan.recipe)
    start = schedule.from_step(first)
    done = data.draw(st.frozensets(st.integers(0, plan.sizes[start] - 1), max_size=plan.sizes[start] - 1))
    agendas = [
        Agenda(schedule, topologies_of(plan.recipe, ranks, rank, microbatch_size), first, done) for rank in range(ranks)
    ]
    ahead = [agendas[0].peek(i).slots for i in range(5)]
    assert [agendas[0].peek(i).slots for i in range(5)] == ahead
    for step in [s for s in range(start, start + 8) if s not in plan.skipped]:
        slots = set(done) if step == start else set[int]()
        last = False
        while not last:
            turns = [agenda.pop() for agenda in agendas]
            assert {(turn.step, turn.last, turn.phase) for turn in turns} == {
                (step, turns[0].last, schedule.phase_of(step))
            }
            for slot in (slot for turn in turns for slot in turn.slots if slot != EMPTY):
                assert slot not in slots
                slots.add(slot)
            last = turns[0].last
        assert slots == set(range(plan.sizes[step]))


def test_phases_build_on_each_other() -> None:
    phases = (
        PhaseConfig(from_step=3, seq_len=128, weights={"b": 1.0}),
        PhaseConfig(from_step=9, global_batch_size=16),
        PhaseConfig(from_step=10, weights={"a": 0.0}),
    )
    recipes = recipe_of(phases).of_phases()
    assert [r.seq_len for r in recipes] == [64, 128, 128, 128]
    assert [r.global_batch_size for r in recipes] == [8, 8, 16, 16]
    assert [[s.weight for s in r.sources] for r in recipes] == [[2, 0], [2, 1], [2, 1], [0, 1]]
    assert all(not r.phases for r in recipes)


@pytest.mark.parametrize(
    ("phases", "skips", "said"),
    [
        ([PhaseConfig(from_step=0, seq_len=8)], [], r"phases\[0\].from_step is 0, but must be from 1 to"),
        (
            [PhaseConfig(from_step=5, seq_len=8), PhaseConfig(from_step=5, seq_len=9)],
            [],
            r"phases\[1\].from_step is 5, but must be from 6 to",
        ),
        ([PhaseConfig(from_step=5)], [], r"phases\[0\] is 'empty', but must be a change of weights, seq_len or global"),
        (
            [PhaseConfig(from_step=5, weights={"c": 1.0})],
            [],
            r"phases\[0\].weights is 'c', but must be the name of a source: a, b",
        ),
        ([PhaseConfig(from_step=5, weights={"a": 0.0})], [], r"phases\[0\]: sources is 'all weights 0'"),
        ([PhaseConfig(from_step=5, weights={"a": -1.0})], [], r"phases\[0\]: sources\[0\].weight is -1.0"),
        (
            [PhaseConfig(from_step=5, global_batch_size=9)],
            [],
            r"phases\[0\]: global_batch_size is 9, but must be a mul",
        ),
        ([], [(3, 3)], r"skip_steps\[0\] is \[3, 3\], but must be \[first, stop\] with 0 <= first < stop"),
        ([], [(3, 5), (4, 8)], r"skip_steps\[1\] is \[4, 8\], but must be \[first, stop\] with 5 <= first < stop"),
    ],
)
def test_what_cannot_be_is_refused(phases: list[PhaseConfig], skips: list[tuple[int, int]], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        recipe_of(tuple(phases), tuple(skips)).validate()


def test_without_repeats_no_source_comes_or_goes() -> None:
    comes, goes = {"b": 1.0}, {"a": 0.0, "b": 1.0}
    for weights, said in (
        (comes, "weights.b is 1.0, but must be 0 as before"),
        (goes, "weights.a is 0.0, but must be"),
    ):
        recipe = recipe_of((PhaseConfig(from_step=2, weights=weights),))
        with pytest.raises(RecipeError, match=said):
            msgspec.structs.replace(recipe, repeat=False).validate()
