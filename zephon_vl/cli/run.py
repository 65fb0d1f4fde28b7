"""`zephon-vl run`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from zephon_vl.cli.options import (
    LedgerPath,
    MemoryLimit,
    MicrobatchSize,
    Prefetch,
    Ranks,
    RecipePath,
    Workers,
    bytes_text,
    parse_bytes,
    require_at_least,
)
from zephon_vl.cli.progress import index_with_bar
from zephon_vl.recipe import load_recipe

if TYPE_CHECKING:
    from zephon_vl.loader import Loader
    from zephon_vl.stats import LoaderStats

_EXAMPLES, _REASONS = 5, 20


@dataclass(frozen=True)
class Run:
    """Iterate a recipe as a training job would, with a live line of progress and a closing summary."""

    recipe: RecipePath
    steps: Annotated[int, tyro.conf.arg(metavar="N")] = 20
    """Optimizer steps to run."""
    ranks: Ranks = 1
    rank: Annotated[int, tyro.conf.arg(metavar="R")] = 0
    """The rank to play."""
    microbatch_size: MicrobatchSize = 1
    workers: Workers = 2
    prefetch: Prefetch = 4
    memory_limit: MemoryLimit = None
    ledger: LedgerPath = None

    def run(self) -> int:
        require_at_least("--steps", self.steps, 1)
        memory_limit = parse_bytes(self.memory_limit)
        recipe = load_recipe(self.recipe)
        index_with_bar(recipe)
        from zephon_vl.loader import Loader

        with Loader(
            recipe,
            dp_rank=self.rank,
            dp_size=self.ranks,
            microbatch_size=self.microbatch_size,
            workers=self.workers,
            prefetch=self.prefetch,
            memory_limit=memory_limit,
            ledger=self.ledger,
        ) as loader:
            _Watched(loader, self.steps).run(Console())
        return 0


class _Watched:
    """A loader that is iterated and looked at."""

    def __init__(self, loader: Loader, steps: int) -> None:
        self._loader, self._steps = loader, steps
        self._begin = time.monotonic()
        self._first: float | None = None
        """When the first microbatch came. Rates count from there: what the start takes says nothing of a long run."""
        self._images = self._tokens = self._samples = 0
        self._waited = 0.0

    def run(self, console: Console) -> None:
        """Iterate, then sum up, also after Ctrl-C."""
        try:
            with Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._line):
                self._iterate()
        except KeyboardInterrupt:
            self._summarise(console)
            raise
        self._summarise(console)
        if self._stats.steps < self._steps:
            console.print(
                f"the data ended after {self._stats.steps} of {self._steps} steps, since the recipe has repeat = false"
            )

    def _iterate(self) -> None:
        for batch in self._loader:
            if self._first is None:
                self._first = time.monotonic()
                stats = self._stats
                self._images, self._tokens, self._samples = stats.images, stats.tokens.total(), stats.samples.total()
                self._waited = stats.waited
            if batch.last and self._stats.steps == self._steps:
                return

    @property
    def _stats(self) -> LoaderStats:
        return self._loader.stats

    def _line(self) -> Text:
        stats = self._stats
        if self._first is None:
            return Text(f"starting, {time.monotonic() - self._begin:.0f} s")
        images, tokens, _, waiting = self._rates()
        return Text(
            f"step {stats.steps}/{self._steps}  {images:,.0f} images/s  {tokens:,.0f} tokens/s  fill {stats.fill:.1%}  "
            f"waiting {waiting:.0%}  bad {stats.bad.total():,}",
            no_wrap=True,
        )

    def _rates(self) -> tuple[float, float, float, float]:
        """(images, tokens, samples) per second and the share of waiting, all since the first microbatch."""
        stats = self._stats
        seconds = max(time.monotonic() - (self._first or self._begin), 1e-9)
        return (
            (stats.images - self._images) / seconds,
            (stats.tokens.total() - self._tokens) / seconds,
            (stats.samples.total() - self._samples) / seconds,
            (stats.waited - self._waited) / seconds,
        )

    def _summarise(self, console: Console) -> None:
        stats = self._stats
        images, tokens, samples, waiting = self._rates()
        console.print(_shares(self._loader))
        first = f"first microbatch after {self._first - self._begin:.2f} s" if self._first else "no microbatch came"
        lines = (
            f"{stats.images:,} images, {stats.tokens.total():,} tokens, {stats.samples.total():,} samples; "
            f"sequences are {stats.fill:.2%} full; {stats.valid_tokens:,} labels count",
            f"{first}, then {images:,.0f} images/s, {tokens:,.0f} tokens/s, {samples:,.0f} samples/s, "
            f"{waiting:.0%} of the time spent waiting",
            f"buffers take at most {bytes_text(self._loader.buffer_bytes)}; workers replaced: {stats.worker_restarts}",
        )
        for line in lines:
            console.print(line, highlight=False, soft_wrap=True)
        if stats.filtered:
            console.print(f"samples dropped by filters: {stats.filtered:,}", highlight=False)
        if stats.bad:
            _show_bad(console, stats)
        else:
            console.print("no bad samples")


def _shares(loader: Loader) -> Table:
    """What each source gave, against its weight. Shares near the weights need some steps: see docs/recipe.md."""
    stats, recipe = loader.stats, loader.recipe
    by_samples = recipe.weight_by == "samples"
    table = Table("source", title=f"{stats.steps} steps of rank {loader.topology.dp_rank} of {loader.topology.dp_size}")
    for name in ("samples", "tokens", f"share of {recipe.weight_by}", "weight"):
        table.add_column(name, justify="right")
    total = sum(source.weight for source in recipe.sources)
    counts = stats.samples if by_samples else stats.tokens
    for source in recipe.sources:
        share = counts[source.name] / max(counts.total(), 1)
        table.add_row(
            source.name,
            f"{stats.samples[source.name]:,}",
            f"{stats.tokens[source.name]:,}",
            f"{share:.2%}",
            f"{source.weight / total:.2%}",
        )
    return table


def _show_bad(console: Console, stats: LoaderStats) -> None:
    table = Table("source", title=f"{stats.bad.total():,} bad samples")
    table.add_column("samples", justify="right")
    table.add_column("reason")
    for (source, reason), count in stats.bad.most_common(_REASONS):
        table.add_row(Text(source), f"{count:,}", Text(reason))
    if len(stats.bad) > _REASONS:
        table.caption = f"and {len(stats.bad) - _REASONS} more reasons"
    console.print(table)
    console.print("for example")
    seen: set[tuple[str, str]] = set()
    for record in stats.records:
        if (record.source, record.reason) not in seen and len(seen) < _EXAMPLES:
            seen.add((record.source, record.reason))
            console.print(f"  {record}", markup=False, highlight=False)
