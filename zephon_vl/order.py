"""Order within a source: a keyed permutation that can be computed at any position, without a buffer or state.

Samples of a source are numbered by *takes* over all lanes and epochs: take `t` of a source with `n` samples is position
`t % n` of epoch `t // n`. Lane `l` of `L` takes `l, l + L, l + 2L, ...`, so within an epoch every sample is used
exactly once over all lanes, whatever the topology.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from zephon_vl.rng import derive_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from zephon_vl.contracts import SourceReader
    from zephon_vl.recipe import Order, Recipe

_SMALL = 1 << 14
"""Samples up to which an epoch's order is kept as a table: 8 MB for all that are remembered."""
_ROUNDS = 8
"""Luby and Rackoff: four rounds of a random function make a strong pseudorandom permutation; ours is only a mixer."""


class Permutation:
    """A keyed permutation of `range(size)`: a Feistel network over a rectangle of just over `size` cells, with the few
    values out of range sent through again (cycle walking)."""

    def __init__(self, size: int, key: int) -> None:
        self.size = size
        rows = math.isqrt(max(size - 1, 0)) + 1
        self._rows, self._columns = np.uint64(rows), np.uint64(max(1, -(-size // rows)))
        self._keys = [np.uint64(derive_key(key, i) & 0xFFFF_FFFF_FFFF_FFFF) for i in range(_ROUNDS)]

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Images of `positions` (int64, at least one axis, each in `range(size)`)."""
        values = self._pass(positions.astype(np.uint64))
        while (outside := values >= np.uint64(self.size)).any():
            values[outside] = self._pass(values[outside])
        return values.astype(np.int64)

    def _pass(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        row, column = np.divmod(values, self._columns)
        for i, key in enumerate(self._keys):
            if i % 2 == 0:
                row = (row + _mix(column + key) % self._rows) % self._rows
            else:
                column = (column + _mix(row + key) % self._columns) % self._columns
        return row * self._columns + column


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class SourceOrder:
    """Which sample of a source a take is.

    Args:
        seed: of the recipe.
        name: of the source.
        blocks: cumulative sample counts of its blocks, from 0; int64.
        order: `global`, `blocks` or `none`.
        window: blocks over which `blocks` permutes samples.
    """

    def __init__(self, seed: int, name: str, blocks: NDArray[np.int64], order: Order, window: int) -> None:
        self.count = int(blocks[-1])
        self._blocks = blocks
        self._order = order
        self._window = window
        self._identity = (seed, name)
        self._permutation = lru_cache(maxsize=64)(self._make_permutation)
        self._windows = lru_cache(maxsize=4)(self._make_windows)
        self._table = lru_cache(maxsize=64)(self._make_table)

    def indices(self, takes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(epochs, sample indices) of `takes`, int64, of the same length."""
        epochs, positions = np.divmod(takes, self.count)
        if self._order == "none":
            return epochs, positions
        samples = np.empty_like(positions)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            samples[chosen] = self._of_epoch(int(epoch), positions[chosen])
        return epochs, samples

    def _of_epoch(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._order == "global":
            if self.count <= _SMALL:
                return self._table(epoch)[positions]
            return self._permutation(epoch, -1, self.count)(positions)
        blocks, starts = self._windows(epoch)
        edges = starts[:: self._window]
        edges = edges if edges[-1] == self.count else np.append(edges, self.count)
        windows = np.searchsorted(edges, positions, side="right") - 1
        shuffled = np.empty_like(positions)
        for window in np.unique(windows):
            chosen = windows == window
            low, high = int(edges[window]), int(edges[window + 1])
            shuffled[chosen] = low + self._permutation(epoch, int(window), high - low)(positions[chosen] - low)
        place = np.searchsorted(starts, shuffled, side="right") - 1
        return self._blocks[blocks[place]] + shuffled - starts[place]

    def _make_permutation(self, epoch: int, window: int, size: int) -> Permutation:
        return Permutation(size, derive_key(*self._identity, epoch, window))

    def _make_table(self, epoch: int) -> NDArray[np.int64]:
        """A whole epoch of a small source: its lanes are soon in many epochs, and all ask for the same ones."""
        return self._permutation(epoch, -1, self.count)(np.arange(self.count))

    def _make_windows(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The non-empty blocks in this epoch's order, and their cumulative starts in it (one more than blocks)."""
        sizes = np.diff(self._blocks)
        filled = np.flatnonzero(sizes)
        order = Permutation(len(filled), derive_key(*self._identity, epoch, "blocks"))
        blocks = filled[order(np.arange(len(filled)))]
        return blocks, np.concatenate([[0], np.cumsum(sizes[blocks])])


def orders_of(recipe: Recipe, sources: Sequence[SourceReader]) -> list[SourceOrder]:
    """The order of every source of a recipe; `sources` are opened, in the recipe's order."""
    return [
        SourceOrder(recipe.seed, config.name, source.blocks(), config.order, config.block_window)
        for config, source in zip(recipe.sources, sources, strict=True)
    ]
