"""Which rows of a ledger count: a job that was killed and restarted delivers again what came after its checkpoint.

A *job* is what all ranks deliver from one start: sessions that follow each other in time and start at the same place
with the same number of ranks; of a rank with several of them the last one counts. The *story* is read backwards: the
last job counts as a whole; before its start counts the job that it went on from; and so on. That is the latest one
that had got to this place: an attempt that was given up before it is no part of the story. Nothing else counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from zephon_vl.ledger.format import Header

Delivered = Callable[[Sequence[int], int], tuple[set[int], int]]
"""The slots of a step that sessions, given by their numbers, delivered, and how many the step has."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a run: before it lie the steps below `step`, and of `step` the slots in `done`."""

    step: int
    done: frozenset[int] = frozenset()

    def holds(self, step: int, slot: int) -> bool:
        """Whether a row lies before it."""
        return step < self.step or (step == self.step and slot in self.done)

    def after(self, other: Place) -> bool:
        """Whether there is something between the two."""
        return self.step > other.step or (self.step == other.step and self.done > other.done)


NOTHING = Place(-1)
EVERYTHING = Place(2**63)


def valid_rows(sessions: Sequence[Header], last_steps: Sequence[int], delivered: Delivered) -> list[Place]:
    """For each session the place up to which its rows count.

    Args:
        sessions: the header of any segment of each, in the order of their start.
        last_steps: of each session.
        delivered: reads what headers do not say; asked only where a story branches.
    """
    valid = [NOTHING] * len(sessions)
    starts = [_start(session) for session in sessions]
    jobs = _Jobs(sessions)
    job, end = len(sessions), EVERYTHING
    while job:
        for session in jobs.members(job):
            valid[session] = end
        end = starts[job - 1]
        job = _parent(jobs, job, starts, last_steps, end, delivered)
    return valid


class _Jobs:
    """The jobs of a ledger, each named by its end: it holds no session of this number or above."""

    def __init__(self, sessions: Sequence[Header]) -> None:
        self._ranks = [session.dp_rank for session in sessions]
        self._first: list[int] = []
        """For each session the first one of the same start and number of ranks in a row."""
        self._again: list[bool] = []
        """Whether an earlier one of these is of the same rank: a job may have ended before it."""
        keys = [(session.dp_size, _start(session)) for session in sessions]
        first, seen = 0, set[int]()
        for i, key in enumerate(keys):
            if key != keys[first]:
                first, seen = i, set()
            self._first.append(first)
            self._again.append(self._ranks[i] in seen)
            seen.add(self._ranks[i])

    def members(self, end: int) -> list[int]:
        """Its sessions: the last one of each rank."""
        return list({self._ranks[i]: i for i in range(self._first[end - 1], end)}.values())

    def before(self, end: int) -> Iterator[int]:
        """The jobs that may have ended before session `end` started, the latest first."""
        for i in range(end, 0, -1):
            if i == len(self._first) or self._first[i] == i or self._again[i]:
                yield i


def _parent(
    jobs: _Jobs, job: int, starts: Sequence[Place], last_steps: Sequence[int], end: Place, delivered: Delivered
) -> int:
    """The latest job before `job` that had got to `end`, 0 if there is none: it has all of the last step before it."""
    last = end.step if end.done else end.step - 1
    reach = {i: min(last_steps[i], last) for i in range(job) if end.after(starts[i])}
    if not reach:
        return 0
    furthest = max(reach.values())
    reaching = {i for i, step in reach.items() if step == furthest}
    most, parent = -1, 0
    for candidate in jobs.before(job):
        members = jobs.members(candidate)
        if reaching.isdisjoint(members):
            continue
        if most < 0 and reaching.issubset(members):
            return candidate  # no other one got there
        slots, size = delivered(members, furthest)
        start = starts[candidate - 1]
        covered = (slots | start.done if start.step == furthest else slots) & (end.done or set(range(size)))
        if len(covered) > most:
            most, parent = len(covered), candidate
        if len(covered) == len(end.done or range(size)):
            return candidate
    return parent


def _start(session: Header) -> Place:
    return Place(session.step, frozenset(session.done))
