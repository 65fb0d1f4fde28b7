"""`zephon-vl index`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from zephon_vl.cli.options import bytes_text
from zephon_vl.recipe import load_recipe
from zephon_vl.sources import IndexProgress, build_indexes


@dataclass(frozen=True)
class Index:
    """Build the indexes of all shards, beside them or in the cache directory; done ones are kept."""

    recipe: tyro.conf.Positional[Path]
    workers: int | None = None
    """Processes or threads; default: as many as there are processors."""

    def run(self) -> int:
        recipe = load_recipe(self.recipe)
        console = Console()
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("indexing", total=None)

            def show(done: IndexProgress) -> None:
                progress.update(
                    bar, description=f"{done.source}: {done.shard}", total=done.bytes_total, completed=done.bytes_done
                )

            handles = build_indexes(recipe, self.workers, show)
        table = Table("source", "shards", "samples", "bytes", title="indexed")
        for handle in handles:
            table.add_row(handle.name, str(len(handle.shards)), f"{handle.samples:,}", bytes_text(handle.size))
        console.print(table)
        return 0
