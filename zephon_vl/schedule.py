"""Which phase a step belongs to, which sequences of a lane it takes, and which steps are left out. Pure functions.

Every lane gives the same number of sequences to a step, so the position of a step in a lane is the same in all lanes,
on any number of ranks. Steps that are left out take their sequences like all others: what comes after does not shift.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from zephon_vl.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps with the same sources, weights, sequence length and global batch size."""

    first_step: int
    first_number: int
    """Of the first sequence that each lane closes in this phase."""
    recipe: Recipe
    """What holds in this phase; it has no phases itself."""

    @property
    def per_lane(self) -> int:
        """Sequences that a lane gives to each step."""
        return self.recipe.global_batch_size // self.recipe.lanes


class Schedule:
    """The steps of a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        first, *changed = recipe.of_phases()
        phases = [Phase(0, 0, first)]
        for config, of_phase in zip(recipe.phases, changed, strict=True):
            last = phases[-1]
            number = last.first_number + (config.from_step - last.first_step) * last.per_lane
            phases.append(Phase(config.from_step, number, of_phase))
        self.phases = tuple(phases)
        self._first_steps = [phase.first_step for phase in phases]
        self._first_numbers = [phase.first_number for phase in phases]
        self._skips = recipe.skip_steps
        self._skip_starts = [first for first, _ in recipe.skip_steps]

    def phase_of(self, step: int) -> int:
        """Index of the phase that a step belongs to."""
        return bisect_right(self._first_steps, step) - 1

    def recipe_of(self, step: int) -> Recipe:
        """What holds in a step."""
        return self.phases[self.phase_of(step)].recipe

    def first_number(self, step: int) -> int:
        """Of the first sequence that each lane gives to a step."""
        phase = self.phases[self.phase_of(step)]
        return phase.first_number + (step - phase.first_step) * phase.per_lane

    def step_of(self, number: int) -> int:
        """The step that sequence `number` of a lane belongs to."""
        phase = self.phases[bisect_right(self._first_numbers, number) - 1]
        return phase.first_step + (number - phase.first_number) // phase.per_lane

    def skipped(self, step: int) -> bool:
        """Whether a step is left out."""
        return self.from_step(step) != step

    def from_step(self, step: int) -> int:
        """The first step from `step` on that is not left out."""
        i = bisect_right(self._skip_starts, step) - 1
        while 0 <= i < len(self._skips) and self._skips[i][0] <= step < self._skips[i][1]:
            step = self._skips[i][1]
            i += 1
        return step
