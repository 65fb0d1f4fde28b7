"""Weights hold at any time, not only in the end."""

from __future__ import annotations

import random
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from zephon_vl.operators.mix import DeficitMixer

weights_and_sizes = st.lists(
    st.tuples(st.floats(0.01, 100), st.lists(st.integers(1, 5000), min_size=1, max_size=7)), min_size=1, max_size=6
)


def run(mixer: DeficitMixer, sizes: list[list[int]], documents: int) -> list[int]:
    """The sources chosen; each source repeats its sizes."""
    at = [0] * len(sizes)
    chosen: list[int] = []
    for _ in range(documents):
        heads: list[int | None] = [own[at[s] % len(own)] for s, own in enumerate(sizes)]
        source = mixer.choose(heads)
        size = heads[source]
        assert size is not None
        mixer.charge(source, size)
        at[source] += 1
        chosen.append(source)
    return chosen


@given(recipe=weights_and_sizes, documents=st.integers(1, 300), by=st.sampled_from(["tokens", "samples"]))
def test_accounts_stay_within_documents_of_their_share(
    recipe: list[tuple[float, list[int]]], documents: int, by: Literal["tokens", "samples"]
) -> None:
    weights, sizes = [weight for weight, _ in recipe], [own for _, own in recipe]
    mixer = DeficitMixer(weights, by)
    longest = [max(own) if by == "tokens" else 1 for own in sizes]
    for _ in range(documents):
        # All sources stand within half a document of a common level, times their weight: so each is within half of
        # its longest document, and its share of half of all longest documents, of its exact share.
        run(mixer, sizes, 1)
        total = sum(mixer.spent)
        for weight, spent, most in zip(weights, mixer.spent, longest, strict=True):
            share = weight / sum(weights)
            assert abs(spent - share * total) <= most / 2 + share * sum(longest) / 2 + 1e-6 * total


@given(recipe=weights_and_sizes)
def test_samples_of_equal_weight_take_turns(recipe: list[tuple[float, list[int]]]) -> None:
    sizes = [own for _, own in recipe]
    chosen = run(DeficitMixer([1.0] * len(sizes), "samples"), sizes, 3 * len(sizes))
    assert chosen == list(range(len(sizes))) * 3


def test_shares_of_heavy_tails_converge() -> None:
    rng = random.Random(5)
    sizes = [[int(rng.lognormvariate(mu, 1.2)) + 1 for _ in range(997)] for mu in (3.0, 6.0, 5.0)]
    weights = [3.0, 1.0, 0.5]
    mixer = DeficitMixer(weights)
    run(mixer, sizes, 20_000)
    for weight, spent in zip(weights, mixer.spent, strict=True):
        assert abs(spent / sum(mixer.spent) - weight / 4.5) < 0.005 * weight / 4.5


@given(recipe=weights_and_sizes, before=st.integers(0, 50))
def test_the_account_is_the_whole_state(recipe: list[tuple[float, list[int]]], before: int) -> None:
    weights, sizes = [weight for weight, _ in recipe], [own for _, own in recipe]
    mixer = DeficitMixer(weights)
    run(mixer, sizes, before)
    again = DeficitMixer(weights, spent=list(mixer.spent))
    assert run(mixer, sizes, 50) == run(again, sizes, 50)
    assert mixer.spent == again.spent


def test_ended_sources_are_passed_over_and_ties_go_to_the_first() -> None:
    mixer = DeficitMixer([1.0, 1.0, 8.0])
    assert mixer.choose([10, 10, 80]) == 0
    assert mixer.choose([None, 10, 80]) == 1
    assert mixer.choose([None, None, 10_000]) == 2
    mixer.charge(2, 10_000)
    assert mixer.choose([None, None, 1]) == 2


def test_a_source_of_weight_zero_is_never_chosen() -> None:
    mixer = DeficitMixer([0.0, 1.0])
    assert [mixer.choose([5, 5_000_000]) for _ in range(3)] == [1, 1, 1]


def test_weights_of_the_smallest_numbers_still_choose() -> None:
    assert DeficitMixer([5e-324, 5e-324]).choose([None, 7]) == 1


def test_a_scaled_recipe_chooses_alike() -> None:
    rng = random.Random(1)
    sizes = [[rng.randint(1, 300) for _ in range(50)] for _ in range(3)]
    one, other = DeficitMixer([3.0, 1.0, 2.0]), DeficitMixer([12.0, 4.0, 8.0])
    assert run(one, sizes, 500) == run(other, sizes, 500)
