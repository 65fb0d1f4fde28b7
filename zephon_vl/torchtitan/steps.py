"""Keeps the trainer's optimizer steps and the recipe's together.

TorchTitan does not tell a loader its global batch size, but how many microbatches it takes per step can be seen: its
step counter moves on between them. So the first step, at the latest the first microbatch of the second, shows a
global batch size that is not the recipe's, and no checkpoint of it is ever written.
"""

from __future__ import annotations

from zephon_vl.errors import RecipeError
from zephon_vl.recipe import Recipe
from zephon_vl.topology import Topology


class StepWatch:
    """Follows which microbatches belong to which step of the trainer."""

    def __init__(self) -> None:
        self._trainer_step: int | None = None
        self._taken = 0
        """Microbatches taken in the trainer's step."""
        self._whole = True
        """Whether the last one ended a step of the recipe."""

    def before(self, trainer_step: int | None, recipe: Recipe, topology: Topology) -> None:
        """Called before each microbatch. Raises `RecipeError` where steps do not begin together."""
        if trainer_step is None:
            return
        begins = trainer_step != self._trainer_step
        if begins and not self._whole:
            raise _other_batch(recipe, topology, f"{self._taken} of", self._taken)
        if not begins and self._whole:
            raise _other_batch(recipe, topology, "more than the", None)
        if begins:
            self._trainer_step, self._taken = trainer_step, 0

    def after(self, last: bool) -> None:
        """Called with each microbatch: whether it ends a step of the recipe."""
        self._taken += 1
        self._whole = last

    def check_save(self, recipe: Recipe, topology: Topology) -> None:
        """Called before a checkpoint. Raises `RecipeError` in the middle of a step."""
        if not self._whole and self._trainer_step is not None:
            raise _other_batch(recipe, topology, f"{self._taken} of", self._taken)


def _other_batch(recipe: Recipe, topology: Topology, takes: str, taken: int | None) -> RecipeError:
    ranks, rows, needed = topology.dp_size, topology.microbatch_size, topology.microbatches_per_step
    filled = topology.filled_batch_size
    is_now = f"{taken * rows * ranks}" if taken else f"over {filled}"
    why = f"the recipe's global_batch_size, {recipe.global_batch_size}"
    if filled != recipe.global_batch_size:
        why += (
            f", filled up with empty sequences, since {recipe.lanes} lanes and microbatches of {rows} do not come out "
            f"even on {ranks} data-parallel ranks"
        )
    return RecipeError(
        f"TorchTitan takes {takes} {needed} microbatches of {rows} that a step has on each rank: "
        f"training.global_batch_size is {is_now}, but must be {filled}: {why}. Set training.global_batch_size to "
        f"{filled}"
    )
