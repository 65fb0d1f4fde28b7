"""The loss curves of all runs, and beside them those of TorchTitan's own loader."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtitan_demo.runs import SAVED, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES: Sequence[dict[str, Any]] = (
    {"linewidth": 9, "alpha": 0.35, "color": "tab:blue"},
    {"linewidth": 5, "alpha": 0.7, "color": "tab:orange"},
    {"linewidth": 1.8, "color": "tab:green"},
    {"linestyle": "", "marker": "o", "markersize": 4, "color": "black"},
)
"""Thinner and thinner, so that curves on top of each other are all seen."""


def plot(panels: Sequence[tuple[str, Sequence[Run], str]], path: Path) -> None:
    """Draw one panel beside the other: title, runs and a note for each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(6 * len(panels), 4.5), squeeze=False)
    for axis, (title, runs, note) in zip(axes[0], panels, strict=True):
        _panel(axis, title, runs, note)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panel(axis: Axes, title: str, runs: Sequence[Run], note: str) -> None:
    for run, style in zip(runs, _STYLES, strict=False):
        losses = run.losses
        if losses:
            axis.plot(list(losses), list(losses.values()), label=run.title, **style)
    axis.axvline(SAVED + 0.5, color="grey", linestyle=":", linewidth=1)
    axis.set(title=title, ylabel="loss", xlabel="\n".join(["optimizer step", *textwrap.wrap(note, 70)]))
    axis.legend(fontsize=8)
