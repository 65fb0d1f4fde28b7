"""Compares two ledgers step by step, or checks one by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from zephon_vl.ledger.reader import Contradiction, Ledger, LedgerStep

_SHOWN = 5


@dataclass(slots=True)
class Steps:
    """Numbers of steps, counted; the first ranges of them are kept to be shown."""

    count: int = 0
    _ranges: list[list[int]] = field(default_factory=list)

    def add(self, step: int) -> None:
        """Steps come in order."""
        self.count += 1
        if self._ranges and self._ranges[-1][1] == step - 1:
            self._ranges[-1][1] = step
        elif len(self._ranges) <= _SHOWN:
            self._ranges.append([step, step])

    def __str__(self) -> str:
        texts = [str(first) if first == last else f"{first} to {last}" for first, last in self._ranges[:_SHOWN]]
        if len(self._ranges) > _SHOWN:
            texts.append("...")
        return f"{self.count:,} ({', '.join(texts)})" if self.count else "0"


@dataclass(slots=True)
class Contents:
    """What was met in one ledger."""

    whole: Steps = field(default_factory=Steps)
    incomplete: Steps = field(default_factory=Steps)
    """Of whose slots some are missing."""
    holes: Steps = field(default_factory=Steps)
    """Incomplete steps with a whole one after them: rows were lost, while a killed run only lacks the last ones."""
    redone: int = 0
    """Rows delivered again after a restart."""
    changed: int = 0
    """Those of them that had another digest."""
    contradictions: int = 0
    first_contradiction: Contradiction | None = None
    _recent: list[int] = field(default_factory=list)

    def add(self, step: LedgerStep) -> None:
        """Steps come in order."""
        self.redone += step.redone
        self.changed += step.changed
        if step.contradictions:
            self.contradictions += len(step.contradictions)
            self.first_contradiction = self.first_contradiction or step.contradictions[0]
        if not step.whole:
            self.incomplete.add(step.number)
            self._recent.append(step.number)
            return
        self.whole.add(step.number)
        for number in self._recent:
            self.holes.add(number)
        self._recent = []


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two ledgers differ."""

    step: int
    slot: int | None
    """None where the steps have different numbers of slots."""


@dataclass(slots=True)
class Comparison:
    """What two ledgers have in common."""

    a: Contents = field(default_factory=Contents)
    b: Contents = field(default_factory=Contents)
    compared: int = 0
    """Steps that are whole in both."""
    equal: int = 0
    different: Steps = field(default_factory=Steps)
    """Steps of which a slot, or the number of slots, differs; whole or not."""
    only_a: Steps = field(default_factory=Steps)
    only_b: Steps = field(default_factory=Steps)
    first: Difference | None = None


def check(ledger: Ledger) -> Contents:
    """Read a whole ledger. Raises `LedgerError`."""
    contents = Contents()
    for step in ledger.steps():
        contents.add(step)
    return contents


def compare(a: Ledger, b: Ledger) -> Comparison:
    """Compare the steps that both hold; of incomplete ones the slots that both hold. Raises `LedgerError`."""
    result = Comparison()
    for in_a, in_b in _paired(a.steps(), b.steps()):
        if in_a is not None:
            result.a.add(in_a)
        if in_b is not None:
            result.b.add(in_b)
        if in_a is None or in_b is None:
            only = result.only_a if in_b is None else result.only_b
            only.add((in_a or in_b).number)  # type: ignore[union-attr]
            continue
        difference = _difference(in_a, in_b)
        whole = in_a.whole and in_b.whole
        result.compared += whole
        if difference is None:
            result.equal += whole
        else:
            result.different.add(difference.step)
            result.first = result.first or difference
    return result


def _paired(a: Iterator[LedgerStep], b: Iterator[LedgerStep]) -> Iterator[tuple[LedgerStep | None, LedgerStep | None]]:
    """Steps of the same number side by side, in order."""
    left, right = next(a, None), next(b, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left.number < right.number):
            yield left, None
            left = next(a, None)
        elif left is None or right.number < left.number:
            yield None, right
            right = next(b, None)
        else:
            yield left, right
            left, right = next(a, None), next(b, None)


def _difference(a: LedgerStep, b: LedgerStep) -> Difference | None:
    for slot, row in a.rows.items():
        if slot in b.rows and b.rows[slot].digest != row.digest:
            return Difference(a.number, slot)
    return Difference(a.number, None) if a.global_batch_size != b.global_batch_size else None
