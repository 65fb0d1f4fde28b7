"""The microbatches of a rank in order: over steps, phases and steps that are left out, from wherever a run goes on."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zephon_vl.schedule import Schedule
from zephon_vl.topology import Topology


@dataclass(frozen=True, slots=True)
class Turn:
    """A microbatch to come."""

    step: int
    phase: int
    microbatch: int
    """Index inside the step."""
    last: bool
    """Whether it ends the step."""
    slots: list[int]
    """Slot of each row, `EMPTY` where there is none."""


class Agenda:
    """What a rank delivers next, and after that.

    Args:
        topologies: of each phase, all of the same rank.
        first_step: to begin with; one that is left out stands for the first after it that is not.
        done: slots of that step that were delivered before, by any rank.
        microbatch: of the rest of that step to begin with.
    """

    def __init__(
        self,
        schedule: Schedule,
        topologies: Sequence[Topology],
        first_step: int,
        done: frozenset[int] = frozenset(),
        microbatch: int = 0,
    ) -> None:
        self._schedule, self._topologies = schedule, topologies
        self._rows = [topology.step_rows() for topology in topologies]
        self._turns = itertools.islice(self._all(schedule.from_step(first_step), done), microbatch, None)
        self._known: deque[Turn] = deque()

    def peek(self, ahead: int = 0) -> Turn:
        """The turn after `ahead` others."""
        while len(self._known) <= ahead:
            self._known.append(next(self._turns))
        return self._known[ahead]

    def pop(self) -> Turn:
        """The next turn, which is then done."""
        turn = self.peek()
        self._known.popleft()
        return turn

    def _all(self, step: int, done: frozenset[int]) -> Iterator[Turn]:
        while True:
            phase = self._schedule.phase_of(step)
            rows = self._topologies[phase].step_rows(done) if done else self._rows[phase]
            for microbatch, slots in enumerate(rows):
                yield Turn(step, phase, microbatch, microbatch == len(rows) - 1, slots)
            step, done = self._schedule.from_step(step + 1), frozenset()
