"""`zephon-vl digest`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from zephon_vl.cli.options import LedgerPath, MicrobatchSize, Ranks, RecipePath, Workers, parse_steps
from zephon_vl.cli.progress import bar_of, index_with_bar
from zephon_vl.errors import ZephonError
from zephon_vl.recipe import load_recipe


@dataclass(frozen=True)
class Digest:
    """Print the SHA-256 of whole steps, from real loaders, one per rank. The lines depend on recipe and data alone."""

    recipe: RecipePath
    steps: Annotated[str, tyro.conf.arg(metavar="A:B")] = "0:5"
    """Steps A to B - 1; B alone is 0:B."""
    ranks: Ranks = 1
    workers: Workers = 0
    microbatch_size: MicrobatchSize = 1
    save_at: Annotated[int | None, tyro.conf.arg(metavar="K")] = None
    """Write a checkpoint of all ranks before step K, and go on."""
    checkpoint: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Directory for that checkpoint."""
    resume: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Go on from the checkpoint in DIR, whatever number of ranks saved it."""
    ledger: LedgerPath = None

    def run(self) -> int:
        steps = parse_steps(self.steps)
        if (self.save_at is None) != (self.checkpoint is None):
            raise ZephonError("--save-at and --checkpoint go together: when to save, and where to")
        if self.save_at is not None and not steps.start <= self.save_at <= steps.stop:
            raise ZephonError(f"--save-at is {self.save_at}, outside of --steps {self.steps}: nothing would be saved")
        recipe = load_recipe(self.recipe)
        index_with_bar(recipe)
        from zephon_vl.verify import digests

        columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        # Where the lines are on the screen they are the progress.
        with bar_of(*columns, visible=not sys.stdout.isatty()) as progress:
            bar = progress.add_task("steps", total=len(steps))
            for step, digest in digests(
                recipe,
                steps,
                ranks=self.ranks,
                workers=self.workers,
                microbatch_size=self.microbatch_size,
                save_at=self.save_at,
                checkpoint=self.checkpoint,
                resume=self.resume,
                ledger=self.ledger,
            ):
                sys.stdout.write(f"{step} {digest}\n")
                sys.stdout.flush()
                progress.update(bar, completed=step + 1 - steps.start)
        return 0
