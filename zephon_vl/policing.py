"""How many bad samples a run tolerates, and what it says when there are more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from zephon_vl.contracts import SourceReader
from zephon_vl.errors import TooManyBadSamples
from zephon_vl.lane import Lane
from zephon_vl.messages import BadRecord
from zephon_vl.recipe import Recipe

_LOOK_FROM = 100
"""Samples of a source before its share of bad ones says anything."""
_EXAMPLES = 3


class BadSampleLimit:
    """Counts good and bad samples of each source on one rank and stops the run over the recipe's limit."""

    def __init__(self, recipe: Recipe, sources: Sequence[SourceReader]) -> None:
        self._recipe, self._sources = recipe, sources
        self._good = [0] * len(sources)
        self._bad = [0] * len(sources)
        self._reasons: list[Counter[str]] = [Counter() for _ in sources]
        self._shards: list[Counter[str]] = [Counter() for _ in sources]
        self._examples: list[list[BadRecord]] = [[] for _ in sources]

    def good(self, source: int, count: int) -> None:
        self._good[source] += count

    def bad(self, source: int, record: BadRecord) -> None:
        """Count a bad sample. Raises `TooManyBadSamples`."""
        self._bad[source] += 1
        self._reasons[source][record.reason] += 1
        self._shards[source][record.shard] += 1
        if len(self._examples[source]) < _EXAMPLES:
            self._examples[source].append(record)
        total = self._bad[source] + self._good[source]
        if total >= _LOOK_FROM and self._bad[source] / total > self._recipe.max_bad_share:
            raise TooManyBadSamples(self._report(source, total))

    def check_fruitless(self, lane: Lane) -> None:
        """Stop where a source gives nothing at all, instead of searching it for ever. Raises `TooManyBadSamples`."""
        source, passed = lane.fruitless
        if passed <= 2 * len(self._sources[source]) + _LOOK_FROM:
            return
        name = self._recipe.sources[source].name
        # Those on the way to the next sequence are not counted yet.
        self._reasons[source].update(skip.reason for skip in lane.passed_over(source) if skip.reason)
        raise TooManyBadSamples(
            f"source {name!r} gives no usable sample: lane {lane.lane} passed over {passed} in a row, the source has "
            f"{len(self._sources[source])}. {self._reasons_of(source) or 'All were dropped by a filter'}. "
            "Repair the source, loosen its filter, or set its weight to 0"
        )

    def _report(self, source: int, total: int) -> str:
        name, bad = self._recipe.sources[source].name, self._bad[source]
        shards = ", ".join(f"{shard} ({count})" for shard, count in self._shards[source].most_common(3))
        examples = "\n".join(f"  {record}" for record in self._examples[source])
        return (
            f"source {name!r}: {bad} of {total} samples are bad ({bad / total:.1%}), max_bad_share allows "
            f"{self._recipe.max_bad_share:.1%}. {self._reasons_of(source)}. Worst shards: {shards}. First ones:\n"
            f"{examples}\nRepair them, or raise max_bad_share in the recipe"
        )

    def _reasons_of(self, source: int) -> str:
        reasons = self._reasons[source].most_common(3)
        return "Reasons: " + "; ".join(f"{reason} ({count})" for reason, count in reasons) if reasons else ""
