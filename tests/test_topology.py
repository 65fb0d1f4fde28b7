"""Any number of ranks delivers every slot exactly once, also where it goes on in the middle of a step."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_vl.errors import RecipeError
from zephon_vl.topology import EMPTY, Topology, lanes_of


def ranks_of(lanes: int, per_lane: int, dp_size: int, microbatch_size: int) -> list[Topology]:
    return [
        Topology(
            lanes=lanes,
            global_batch_size=lanes * per_lane,
            dp_size=dp_size,
            dp_rank=rank,
            microbatch_size=microbatch_size,
        )
        for rank in range(dp_size)
    ]


def deliver(ranks: list[Topology], microbatches: int | None, done: frozenset[int] = frozenset()) -> list[int]:
    """Slots that all ranks deliver in their first microbatches of a step (None: all), checked on the way."""
    steps = [rank.step_rows(done) for rank in ranks]
    assert len({len(step) for step in steps}) == 1, "every rank yields the same number of microbatches"
    delivered: list[int] = []
    for rank, step in zip(ranks, steps, strict=True):
        assert all(len(rows) == rank.microbatch_size for rows in step)
        slots = [slot for rows in step for slot in rows]
        kept = [slot for slot in slots if slot != EMPTY]
        assert slots == kept + [EMPTY] * (len(slots) - len(kept)), "empty rows come last"
        assert kept == sorted(kept)
        assert {slot % rank.lanes for slot in kept} <= set(rank.owned)
        delivered += [slot for rows in step[:microbatches] for slot in rows if slot != EMPTY]
    # A microbatch with nothing but empty rows on every rank would be waste.
    assert not steps[0] or any(step[-1][0] != EMPTY for step in steps)
    return delivered


@st.composite
def layouts(draw: st.DrawFn, lanes: int, per_lane: int) -> list[Topology]:
    return ranks_of(lanes, per_lane, draw(st.integers(1, lanes)), draw(st.integers(1, lanes * per_lane + 2)))


@given(ranks=st.integers(1, 5000), more=st.integers(0, 5000))
@settings(max_examples=60, deadline=None)
def test_shares_are_contiguous_balanced_and_whole(ranks: int, more: int) -> None:
    lanes = ranks + more
    shares = [lanes_of(rank, lanes, ranks) for rank in range(ranks)]
    assert [lane for share in shares for lane in share] == list(range(lanes))
    assert {len(share) for share in shares} <= {lanes // ranks, -(-lanes // ranks)}


def test_every_number_of_ranks_up_to_the_lanes_works() -> None:
    for lanes in (1, 2, 3, 16, 60, 97):
        for dp_size in range(1, lanes + 1):
            assert sorted(deliver(ranks_of(lanes, 1, dp_size, 1), None)) == list(range(lanes))


@given(lanes=st.integers(1, 40), per_lane=st.integers(1, 5), data=st.data())
def test_a_step_delivers_every_slot_once(lanes: int, per_lane: int, data: st.DataObject) -> None:
    ranks = data.draw(layouts(lanes, per_lane))
    assert sorted(deliver(ranks, None)) == list(range(lanes * per_lane))
    steps = [rank.step_rows() for rank in ranks]
    assert {rank.microbatches_per_step for rank in ranks} == {len(step) for step in steps}
    assert ranks[0].filled_batch_size == sum(len(rows) for step in steps for rows in step)


@given(lanes=st.integers(1, 24), per_lane=st.integers(1, 5), data=st.data())
def test_a_step_goes_on_on_any_other_topology_again_and_again(lanes: int, per_lane: int, data: st.DataObject) -> None:
    done: frozenset[int] = frozenset()
    counts: Counter[int] = Counter()
    for _ in range(3):
        ranks = data.draw(layouts(lanes, per_lane))
        microbatches = data.draw(st.integers(0, len(ranks[0].step_rows(done))))
        counts.update(deliver(ranks, microbatches, done))
        afterwards = {rank.delivered(microbatches, done) for rank in ranks}
        assert afterwards == {frozenset(counts)}, "each rank knows what all have delivered"
        done = afterwards.pop()
        for lane in range(lanes):
            of_lane = [j for j in range(per_lane) if j * lanes + lane in done]
            assert of_lane == list(range(len(of_lane))), "a lane's state stands right after its delivered sequences"
    counts.update(deliver(data.draw(layouts(lanes, per_lane)), None, done))
    assert counts == Counter(range(lanes * per_lane))


def test_slots_follow_lanes() -> None:
    third = ranks_of(lanes=7, per_lane=2, dp_size=3, microbatch_size=4)[2]
    assert third.owned == range(4, 7)
    assert third.step_rows() == [[4, 5, 6, 11], [12, 13, EMPTY, EMPTY]]
    assert third.step_rows(frozenset(range(12))) == [[12, 13, EMPTY, EMPTY]]
    assert third.step_rows(frozenset(range(14))) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"dp_size": 17}, "dp_size is 17, but the recipe has 16 lanes: each rank needs at least one. Use fewer"),
        ({"dp_size": 0}, "dp_size is 0, but"),
        ({"dp_rank": 4}, "dp_rank is 4, but must be in 0..3 (dp_size)"),
        ({"dp_rank": -1}, "dp_rank is -1, but must be in 0..3 (dp_size)"),
        ({"microbatch_size": 0}, "microbatch_size is 0, but must be from 1 to 1024"),
    ],
)
def test_errors_name_the_field_and_the_values(changes: dict[str, int], text: str) -> None:
    good = {"lanes": 16, "global_batch_size": 32, "dp_size": 4, "dp_rank": 0, "microbatch_size": 1}
    with pytest.raises(RecipeError) as caught:
        Topology(**{**good, **changes})
    assert str(caught.value).startswith(text)
