"""Every epoch uses every sample once, in an order that anyone can compute anywhere."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_vl.order import Permutation, SourceOrder

Order = Literal["global", "blocks", "none"]
ORDERS: tuple[Order, ...] = ("global", "blocks", "none")
block_sizes = st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(any)


def source(sizes: list[int], order: Order, window: int = 3, seed: int = 7, name: str = "web") -> SourceOrder:
    blocks = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return SourceOrder(seed, name, blocks, order, window)


def epoch_of(order: SourceOrder, epoch: int) -> list[int]:
    epochs, samples = order.indices(np.arange(order.count, dtype=np.int64) + epoch * order.count)
    assert (epochs == epoch).all()
    return samples.tolist()


@pytest.mark.parametrize("power", range(1, 18))
def test_permutations_around_powers_of_two_are_bijections(power: int) -> None:
    for size in (2**power - 1, 2**power, 2**power + 1):
        images = Permutation(size, key=power)(np.arange(size))
        assert images.dtype == np.int64
        np.testing.assert_array_equal(np.sort(images), np.arange(size))


@given(size=st.integers(1, 3000), key=st.integers(0, 2**128 - 1))
def test_permutations_are_bijections(size: int, key: int) -> None:
    np.testing.assert_array_equal(np.sort(Permutation(size, key)(np.arange(size))), np.arange(size))


@given(size=st.integers(2**20, 2**62), key=st.integers(0, 2**64), start=st.integers(0, 2**60))
def test_large_permutations_stay_in_range_without_collisions(size: int, key: int, start: int) -> None:
    positions = np.arange(start % (size - 500), start % (size - 500) + 500, dtype=np.int64)
    images = Permutation(size, key)(positions)
    assert len(set(images.tolist())) == 500
    assert ((images >= 0) & (images < size)).all()


def test_all_permutations_of_three_are_about_equally_likely() -> None:
    seen = Counter(tuple(Permutation(3, key)(np.arange(3)).tolist()) for key in range(1200))
    assert len(seen) == 6
    assert max(seen.values()) < 1.5 * min(seen.values())


def test_keys_give_unrelated_permutations() -> None:
    one, other = (Permutation(10_007, key)(np.arange(10_007)) for key in (1, 2))
    assert np.count_nonzero(one == other) < 10
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.05
    assert abs(np.corrcoef(one, np.arange(10_007))[0, 1]) < 0.05
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.05


def test_a_permutation_leaves_its_input() -> None:
    positions = np.arange(9)
    Permutation(9, 1)(positions)
    assert positions.tolist() == list(range(9))


@given(sizes=block_sizes, order=st.sampled_from(ORDERS), window=st.integers(1, 9), epoch=st.integers(0, 10**6))
def test_each_epoch_covers_each_sample_once(sizes: list[int], order: Order, window: int, epoch: int) -> None:
    assert sorted(epoch_of(source(sizes, order, window), epoch)) == list(range(sum(sizes)))


@given(sizes=block_sizes, order=st.sampled_from(ORDERS), lanes=st.integers(1, 20))
def test_lanes_partition_the_epochs(sizes: list[int], order: Order, lanes: int) -> None:
    whole, epochs = source(sizes, order), 3
    seen: Counter[tuple[int, int]] = Counter()
    for lane in range(lanes):
        takes = np.arange(lane, whole.count * epochs, lanes, dtype=np.int64)
        seen.update(zip(*(values.tolist() for values in whole.indices(takes)), strict=True))
    assert seen == Counter((epoch, sample) for epoch in range(epochs) for sample in range(whole.count))


@given(sizes=block_sizes, order=st.sampled_from(ORDERS), window=st.integers(1, 5), data=st.data())
def test_many_takes_at_once_equal_them_one_by_one(
    sizes: list[int], order: Order, window: int, data: st.DataObject
) -> None:
    takes = data.draw(st.lists(st.integers(0, sum(sizes) * 5 - 1), max_size=40))
    together = source(sizes, order, window).indices(np.array(takes, dtype=np.int64))
    alone = [source(sizes, order, window).indices(np.array([take])) for take in takes]
    assert together[0].tolist() == [epochs[0] for epochs, _ in alone]
    assert together[1].tolist() == [samples[0] for _, samples in alone]


@given(sizes=block_sizes, window=st.integers(1, 9), epoch=st.integers(0, 50))
def test_blocks_are_read_a_window_at_a_time(sizes: list[int], window: int, epoch: int) -> None:
    order = source(sizes, "blocks", window)
    block_of = np.repeat(np.arange(len(sizes)), sizes)
    blocks = block_of[epoch_of(order, epoch)].tolist()
    start = 0
    while start < len(blocks):
        # A window is whole once as many samples came as its blocks hold together.
        members: set[int] = set()
        stop = start
        while not members or stop < start + sum(sizes[block] for block in members):
            members.add(blocks[stop])
            stop += 1
        assert len(members) <= window
        assert Counter(blocks[start:stop]) == {block: sizes[block] for block in members}
        start = stop


def test_none_is_the_stored_order() -> None:
    assert epoch_of(source([3, 0, 4], "none"), 5) == list(range(7))


@pytest.mark.parametrize("order", ["global", "blocks"])
def test_epochs_seeds_and_names_differ(order: Order) -> None:
    sizes = [50] * 20
    first = epoch_of(source(sizes, order), 0)
    others = [
        epoch_of(source(sizes, order), 1),
        epoch_of(source(sizes, order, seed=8), 0),
        epoch_of(source(sizes, order, name="books"), 0),
    ]
    assert all(np.count_nonzero(np.array(first) == other) < 100 for other in others)
    assert first == epoch_of(source(sizes, order), 0)


def test_one_sample_is_its_own_order() -> None:
    for order in ORDERS:
        epochs, samples = source([0, 1, 0], order).indices(np.arange(4))
        assert epochs.tolist() == [0, 1, 2, 3]
        assert samples.tolist() == [0, 0, 0, 0]


@settings(max_examples=20, deadline=None)
@given(epoch=st.integers(0, 2**20), count=st.integers(2**31, 2**40))
def test_huge_sources_need_no_memory(epoch: int, count: int) -> None:
    order = SourceOrder(1, "huge", np.array([0, count // 2, count]), "global", 8)
    epochs, samples = order.indices(np.arange(epoch * count, epoch * count + 100))
    assert (epochs == epoch).all()
    assert len(set(samples.tolist())) == 100


def test_the_order_is_pinned() -> None:
    """A change here changes the batches of every run: it needs a new major version."""
    assert epoch_of(source([4, 0, 3, 5], "global", seed=42), 0) == [0, 9, 6, 5, 10, 8, 7, 11, 1, 3, 2, 4]
    assert epoch_of(source([4, 0, 3, 5], "blocks", window=2, seed=42), 1) == [9, 5, 6, 7, 10, 11, 4, 8, 3, 0, 2, 1]
    large = Permutation(10**12, 2**100 + 1)(np.array([0, 1, 10**12 - 1]))
    assert large.tolist() == [921683898325, 27320874625, 845554346903]
