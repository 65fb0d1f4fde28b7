"""Pictures of results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.measure import middle

if TYPE_CHECKING:
    from bench.run_vl import Results

_TITLES = {
    "same": "The same decode, resize and tokenize calls",
    "box": "As a user gets it",
    "sleep": "A stage that sleeps",
}


def plot_table(results: Results, path: Path) -> None:
    """Bars of one table."""
    plot_tables([results], path)


def plot_tables(tables: list[Results], path: Path) -> None:
    """Bars of several tables side by side: medians, with the spread of the rounds."""
    import matplotlib  # pyright: ignore[reportMissingImports]

    matplotlib.use("Agg")
    from matplotlib import pyplot  # pyright: ignore[reportMissingImports]

    height = 0.42 * max(len(table.entries) for table in tables) + 1.4
    figure, axes = pyplot.subplots(1, len(tables), figsize=(5.6 * len(tables), height), squeeze=False)
    for axis, table in zip(axes[0], tables, strict=True):
        _bars(axis, table)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _bars(axis: Any, table: Results) -> None:
    lines = sorted(((middle([m.rate for m in rounds]), title) for title, rounds in table.entries.items()), reverse=True)
    medians = [median for (median, _, _), _ in lines]
    spread = [[m - least for (m, least, _), _ in lines], [most - m for (m, _, most), _ in lines]]
    colours = [_colour(title) for _, title in lines]
    axis.barh(range(len(lines)), medians, xerr=spread, color=colours, error_kw={"lw": 0.8, "ecolor": "#444"})
    axis.set_yticks(range(len(lines)), [title for _, title in lines])
    axis.invert_yaxis()
    axis.set_xlabel("samples a second")
    axis.set_title(f"{_TITLES[table.table]}, {table.workers} workers", fontsize=10)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _colour(title: str) -> str:
    if title.startswith("zephon_vl"):
        return "#c8553d"
    return "#bbbbbb" if title.startswith("ceiling") else "#4f6d7a"
