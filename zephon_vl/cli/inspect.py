"""`zephon-vl inspect`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from zephon_vl.cli.options import bytes_text


@dataclass(frozen=True)
class Inspect:
    """Write a page that shows the packed sequences of a step: documents in colours, images in place, masks dimmed."""

    recipe: tyro.conf.Positional[Path]
    step: int = 0
    out: Path | None = None
    """The HTML file; default: step-N.html here."""
    max_sequences: int | None = None
    """Show only the first ones."""
    workers: int = 2

    def run(self) -> int:
        from zephon_vl.digest import step_digest
        from zephon_vl.inspect import page, sequences_of
        from zephon_vl.loader import Loader

        out = self.out or Path(f"step-{self.step}.html")
        with Loader(self.recipe, workers=self.workers, start_step=self.step) as loader:
            batches = [next(loader) for _ in range(loader.topology.microbatches_per_step)]
            sequences = list(sequences_of(batches, loader.setup, loader.open_sources()))
        slots = {slot: digest for batch in batches for slot, digest in batch.digests().items()}
        shown = sequences[: self.max_sequences]
        used = sum(sequence.used for sequence in sequences) / sum(sequence.seq_len for sequence in sequences)
        facts = [
            ("recipe", str(self.recipe)),
            ("sequences", f"{len(shown)} of {len(sequences)} shown, {used:.2%} full"),
            ("SHA-256", step_digest(slots, loader.recipe.global_batch_size)),
        ]
        bad = [record for batch in batches for record in batch.bad]
        html = page(f"step {self.step}", facts, shown, bad)
        out.write_text(html)
        Console().print(f"{out} ({bytes_text(len(html))})", highlight=False)
        return 0
