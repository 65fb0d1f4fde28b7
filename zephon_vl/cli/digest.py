"""`zephon-vl digest`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from zephon_vl.cli.options import parse_steps
from zephon_vl.errors import ZephonError
from zephon_vl.recipe import load_recipe


@dataclass(frozen=True)
class Digest:
    """Print the SHA-256 of whole steps, from real loaders, one per rank. The lines depend on recipe and data alone."""

    recipe: tyro.conf.Positional[Path]
    steps: str = "0:5"
    """A:B, or B for 0:B."""
    ranks: int = 1
    workers: int = 0
    """Worker processes of each rank; 0 does everything in this process."""
    microbatch_size: int = 1
    save_at: int | None = None
    """Write a checkpoint of all ranks before this step."""
    checkpoint: Path | None = None
    """Directory to write it to."""
    resume: Path | None = None
    """Directory of a checkpoint to go on from, on any number of ranks."""

    def run(self) -> int:
        steps = parse_steps(self.steps)
        if (self.save_at is None) != (self.checkpoint is None):
            raise ZephonError("--save-at and --checkpoint go together: when to save, and where to")
        if self.save_at is not None and not steps.start <= self.save_at <= steps.stop:
            raise ZephonError(f"--save-at is {self.save_at}, outside of --steps {self.steps}: nothing would be saved")
        recipe = load_recipe(self.recipe)
        from zephon_vl.verify import digests

        for step, digest in digests(
            recipe,
            steps,
            ranks=self.ranks,
            workers=self.workers,
            microbatch_size=self.microbatch_size,
            save_at=self.save_at,
            checkpoint=self.checkpoint,
            resume=self.resume,
        ):
            sys.stdout.write(f"{step} {digest}\n")
            sys.stdout.flush()
        return 0
