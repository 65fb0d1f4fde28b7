"""Lanes and ranks: who owns which lane, and in what order a rank delivers its slots. Pure functions only.

A step has `global_batch_size` slots; slot `j * lanes + lane` is sequence `j` of that lane in the step. Each rank owns a
contiguous, balanced share of lanes. Where shares differ, or the microbatch does not divide them, ranks are filled up
with empty rows, so that every rank yields the same number of microbatches.
"""

from __future__ import annotations

from dataclasses import dataclass

from zephon_vl.errors import RecipeError
from zephon_vl.recipe import Recipe

_MOST_ROWS = 1024
"""Largest microbatch where the global batch is smaller; its other rows are empty."""
EMPTY = -1
"""Slot of a row that only fills a microbatch up."""


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Everything about lanes, ranks and microbatches.

    Raises:
        RecipeError: if a number cannot be served, with both values and the remedy.
    """

    lanes: int
    global_batch_size: int
    dp_size: int
    dp_rank: int
    microbatch_size: int

    def __post_init__(self) -> None:
        if not 1 <= self.dp_size <= self.lanes:
            raise RecipeError(
                f"dp_size is {self.dp_size}, but the recipe has {self.lanes} lanes: each rank needs at least one. "
                "Use fewer data-parallel ranks, or start a new run with more lanes"
            )
        if not 0 <= self.dp_rank < self.dp_size:
            raise RecipeError(f"dp_rank is {self.dp_rank}, but must be in 0..{self.dp_size - 1} (dp_size)")
        most = max(self.global_batch_size, _MOST_ROWS)
        if not 1 <= self.microbatch_size <= most:
            raise RecipeError(f"microbatch_size is {self.microbatch_size}, but must be from 1 to {most}")

    @property
    def owned(self) -> range:
        """The lanes of this rank."""
        return lanes_of(self.dp_rank, self.lanes, self.dp_size)

    @property
    def per_lane(self) -> int:
        """Sequences that a lane gives to each step."""
        return self.global_batch_size // self.lanes

    @property
    def microbatches_per_step(self) -> int:
        """Microbatches that every rank delivers in each step."""
        largest = -(-self.lanes // self.dp_size)
        return -(-largest * self.per_lane // self.microbatch_size)

    @property
    def filled_batch_size(self) -> int:
        """Rows that all ranks together deliver in a step, empty ones included."""
        return self.microbatches_per_step * self.microbatch_size * self.dp_size

    def step_rows(self, done: frozenset[int] = frozenset()) -> list[list[int]]:
        """The microbatches of a step, each a list of slots, `EMPTY` where there is none.

        Args:
            done: slots that were delivered before, by any rank, when a run goes on in the middle of a step. The rest is
                dealt out so that all ranks again yield the same number of microbatches.
        """
        rest = [[slot for slot in self._slots(rank) if slot not in done] for rank in range(self.dp_size)]
        size = self.microbatch_size
        count = max(-(-len(slots) // size) for slots in rest)
        mine = rest[self.dp_rank]
        mine += [EMPTY] * (count * size - len(mine))
        return [mine[first : first + size] for first in range(0, count * size, size)]

    def delivered(self, microbatches: int, done: frozenset[int] = frozenset()) -> frozenset[int]:
        """Slots that all ranks together have delivered after `microbatches` microbatches of a step, and `done`."""
        most = microbatches * self.microbatch_size
        ranks = ([slot for slot in self._slots(rank) if slot not in done] for rank in range(self.dp_size))
        return done.union(*(slots[:most] for slots in ranks))

    def _slots(self, rank: int) -> list[int]:
        """All slots of a rank in a step, in the order of delivery."""
        owned = lanes_of(rank, self.lanes, self.dp_size)
        return [j * self.lanes + lane for j in range(self.per_lane) for lane in owned]


def topologies_of(recipe: Recipe, dp_size: int, dp_rank: int, microbatch_size: int) -> list[Topology]:
    """The topology of every phase of a recipe. Raises `RecipeError`."""
    return [
        Topology(
            lanes=recipe.lanes,
            global_batch_size=of_phase.global_batch_size,
            dp_size=dp_size,
            dp_rank=dp_rank,
            microbatch_size=microbatch_size,
        )
        for of_phase in recipe.of_phases()
    ]


def lanes_of(rank: int, lanes: int, ranks: int) -> range:
    """The contiguous, balanced share of a rank: shares differ by at most one lane and cover each lane once."""
    return range(rank * lanes // ranks, (rank + 1) * lanes // ranks)
