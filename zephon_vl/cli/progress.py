"""Bars of progress. They stand on standard error, so that standard output holds results alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from zephon_vl.recipe import Recipe
    from zephon_vl.sources import SourceHandle
    from zephon_vl.sources.build import IndexProgress


def bar_of(*columns: ProgressColumn, visible: bool = True) -> Progress:
    """A bar that vanishes when it is done, and shows nothing where nobody looks."""
    console = Console(stderr=True)
    # Rich would send what is printed meanwhile to the bar's console, and so results to standard error.
    return Progress(
        *columns, console=console, transient=True, redirect_stdout=False, disable=not (visible and console.is_terminal)
    )


def index_with_bar(recipe: Recipe, workers: int | None = None) -> list[SourceHandle]:
    """Build what indexes are missing. Raises as `build_indexes`."""
    from zephon_vl.sources.build import build_indexes

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with bar_of(*columns) as progress:
        bar = progress.add_task("indexing", total=None)

        def show(now: IndexProgress) -> None:
            progress.update(
                bar,
                description=f"indexing {now.source}, {now.done} of {now.total} shards",
                total=now.bytes_total,
                completed=now.bytes_done,
            )

        return build_indexes(recipe, workers, show)
