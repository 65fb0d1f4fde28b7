"""`zephon-vl run`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from zephon_vl.cli.options import bytes_text, parse_bytes

if TYPE_CHECKING:
    from zephon_vl.loader import Loader
    from zephon_vl.stats import LoaderStats

_EXAMPLES = 5


@dataclass(frozen=True)
class Run:
    """Iterate a recipe as a training job would, with a live line of progress and a closing summary."""

    recipe: tyro.conf.Positional[Path]
    steps: int = 20
    """Optimizer steps to run."""
    ranks: int = 1
    """Data-parallel ranks that the job has."""
    rank: int = 0
    """The rank to play."""
    microbatch_size: int = 1
    workers: int = 2
    prefetch: int = 4
    memory_limit: str | None = None
    """Most memory for buffers, e.g. 4GB."""

    def run(self) -> int:
        from zephon_vl.loader import Loader

        console = Console()
        begin = time.monotonic()
        first: float | None = None
        with Loader(
            self.recipe,
            dp_rank=self.rank,
            dp_size=self.ranks,
            microbatch_size=self.microbatch_size,
            workers=self.workers,
            prefetch=self.prefetch,
            memory_limit=parse_bytes(self.memory_limit),
        ) as loader:
            with Live(console=console, refresh_per_second=8, transient=True) as live:
                for batch in loader:
                    first = first or time.monotonic() - begin
                    live.update(_line(loader.stats, self.steps))
                    if batch.last and loader.stats.steps >= self.steps:
                        break
            _summarise(console, loader, first)
        return 0


def _line(stats: LoaderStats, steps: int) -> Text:
    bad = stats.bad.total()
    return Text(
        f"step {stats.steps}/{steps}  {stats.images_per_second:,.0f} images/s  "
        f"{stats.tokens_per_second:,.0f} tokens/s  fill {stats.fill:.1%}  waiting {stats.waiting_share:.0%}  bad {bad}",
        no_wrap=True,
    )


def _summarise(console: Console, loader: Loader, first: float | None) -> None:
    stats, recipe = loader.stats, loader.recipe
    table = Table("source", "samples", "tokens", "share", "weight", title=f"{stats.steps} steps")
    total = sum(source.weight for source in recipe.sources)
    shares = stats.shares()
    for source in recipe.sources:
        table.add_row(
            source.name,
            f"{stats.samples[source.name]:,}",
            f"{stats.tokens[source.name]:,}",
            f"{shares[source.name]:.2%}",
            f"{source.weight / total:.2%}",
        )
    console.print(table)
    console.print(
        f"{stats.images:,} images at {stats.images_per_second:,.0f}/s, {stats.tokens.total():,} tokens at "
        f"{stats.tokens_per_second:,.0f}/s, {stats.samples_per_second:,.0f} samples/s\n"
        f"sequences {stats.fill:.2%} full; {stats.valid_tokens:,} labels count\n"
        f"first microbatch after {first or 0:.2f} s; waited {stats.waiting_share:.0%} of the time; buffers at most "
        f"{bytes_text(loader.buffer_bytes)}; {stats.worker_restarts} workers replaced",
        highlight=False,
    )
    if stats.filtered:
        console.print(f"{stats.filtered:,} samples dropped by filters")
    if not stats.bad:
        console.print("no bad samples")
        return
    bad = Table("source", "bad samples", "reason", title="bad samples")
    for (source, reason), count in stats.bad.most_common(20):
        bad.add_row(source, f"{count:,}", Text(reason))
    console.print(bad)
    for record in list(stats.records)[:_EXAMPLES]:
        console.print(f"  {record}", markup=False, highlight=False)
