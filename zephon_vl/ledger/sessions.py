"""Which rows of a ledger count: a job that was killed and restarted delivers again what came after its checkpoint.

A session voids the rows at or after its start position of every session that started earlier, unless the two are
different ranks of one job: those start at the same position with the same number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zephon_vl.ledger.format import Header

_Position = tuple[int, int, frozenset[int]]
"""(dp_size, step, slots done in it)."""


@dataclass(frozen=True, slots=True)
class Valid:
    """The rows of a session that count: those before `step`, and of `step` the slots in `done`. `step` None: all."""

    step: int | None = None
    done: frozenset[int] = frozenset()

    def holds(self, step: int, slot: int) -> bool:
        return self.step is None or step < self.step or (step == self.step and slot in self.done)


def valid_rows(sessions: Sequence[Header]) -> list[Valid]:
    """The rows that count, for each session.

    Args:
        sessions: the header of any segment of each.
    """
    positions = [(s.dp_size, s.step, frozenset(s.done)) for s in sessions]
    latest: dict[_Position, tuple[int, str]] = {}
    latest_of_rank: dict[tuple[_Position, int], tuple[int, str]] = {}
    for session, position in zip(sessions, positions, strict=True):
        latest[position] = max(latest.get(position, session.order), session.order)
        rank = position, session.dp_rank
        latest_of_rank[rank] = max(latest_of_rank.get(rank, session.order), session.order)
    return [
        _before([other for other in latest if _voids(other, session, position, latest, latest_of_rank)])
        for session, position in zip(sessions, positions, strict=True)
    ]


def _voids(
    other: _Position,
    session: Header,
    position: _Position,
    latest: dict[_Position, tuple[int, str]],
    latest_of_rank: dict[tuple[_Position, int], tuple[int, str]],
) -> bool:
    """Whether a later session from position `other` voids rows of `session`."""
    if other == position:
        return latest_of_rank[position, session.dp_rank] > session.order
    return latest[other] > session.order


def _before(starts: Sequence[_Position]) -> Valid:
    """What lies before all of these positions."""
    if not starts:
        return Valid()
    step = min(start[1] for start in starts)
    return Valid(step, frozenset.intersection(*(start[2] for start in starts if start[1] == step)))
