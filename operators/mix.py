"""Mix: which source the next document comes from.

A lane takes next from the source that is furthest behind its share, so weights hold exactly, by tokens or by samples,
without a pass that estimates lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from zephon_vl.recipe import WeightBy


@dataclass(slots=True)
class DeficitMixer:
    """Takes from the source whose account, at the *middle* of its next document, is lowest relative to its weight.

    The middle makes the error of every account symmetric: without it a source of long documents is ahead of its share
    by half a document on average, in every lane alike.
    """

    weights: Sequence[float]
    weight_by: WeightBy = "tokens"
    spent: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.spent:
            self.spent = [0] * len(self.weights)

    def choose(self, sizes: Sequence[int | None]) -> int:
        """Index of the source to take from; `sizes` are the tokens of the next documents, None where a source ended.

        Ties go to the source that stands first; one of weight 0 is never chosen. At least one other must have a size.
        """
        by_tokens = self.weight_by == "tokens"
        best, lowest = -1, 0.0
        for source, size in enumerate(sizes):
            if size is None or self.weights[source] <= 0:
                continue
            account = (self.spent[source] + (size if by_tokens else 1) / 2) / self.weights[source]
            if best < 0 or account < lowest:
                best, lowest = source, account
        return best

    def charge(self, source: int, tokens: int) -> None:
        """Account a document of `tokens` tokens that was taken."""
        self.spent[source] += tokens if self.weight_by == "tokens" else 1
