"""`zephon-vl inspect`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from zephon_vl.cli.options import RecipePath, Workers, require_at_least
from zephon_vl.cli.pages import MaxSequences, PageOut, page_path, write_page
from zephon_vl.cli.progress import bar_of, index_with_bar
from zephon_vl.errors import ZephonError
from zephon_vl.recipe import load_recipe
from zephon_vl.schedule import Schedule

if TYPE_CHECKING:
    from zephon_vl.batch import Batch
    from zephon_vl.loader import Loader


@dataclass(frozen=True)
class Inspect:
    """Write a page that shows the packed sequences of a step: documents in colours, images in place, masks dimmed."""

    recipe: RecipePath
    step: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """The step to show."""
    out: PageOut = None
    max_sequences: MaxSequences = None
    workers: Workers = 2

    def run(self) -> int:
        require_at_least("--step", self.step, 0)
        require_at_least("--max-sequences", self.max_sequences, 1)
        out = page_path(self.out, self.step)
        recipe = load_recipe(self.recipe)
        if Schedule(recipe).skipped(self.step):
            raise ZephonError(f"--step is {self.step}, which skip_steps leaves out: there is nothing to show")
        index_with_bar(recipe)
        from zephon_vl.loader import Loader

        with Loader(recipe, workers=self.workers, start_step=self.step) as loader:
            html = self._page(loader, self._batches(loader))
        write_page(out, html)
        return 0

    def _batches(self, loader: Loader) -> list[Batch]:
        """All microbatches of the step."""
        batches: list[Batch] = []
        total = loader.topology.microbatches_per_step
        with bar_of(TextColumn(f"step {self.step}"), BarColumn(), MofNCompleteColumn()) as progress:
            for batch in progress.track(islice(loader, total), total=total):
                batches.append(batch)
        if len(batches) < total:
            raise ZephonError(
                f"the data ends before step {self.step} is whole, since the recipe has repeat = false; ask for an "
                "earlier step"
            )
        return batches

    def _page(self, loader: Loader, batches: list[Batch]) -> str:
        from zephon_vl.digest import step_digest
        from zephon_vl.inspect import page, sequences_of

        recipe = loader.schedule.recipe_of(self.step)
        slots = {slot: digest for batch in batches for slot, digest in batch.digests().items()}
        shown = list(islice(sequences_of(batches, loader.setup, loader.open_sources()), self.max_sequences))
        fill = loader.stats.fill
        facts = [
            ("recipe", str(self.recipe)),
            (
                "sequences",
                f"{len(shown)} of {recipe.global_batch_size} shown, {fill:.2%} full, from {recipe.lanes} lanes",
            ),
            ("images", f"{loader.stats.images:,}"),
            ("SHA-256", step_digest(slots, recipe.global_batch_size)),
        ]
        return page(f"step {self.step}", facts, shown, [record for batch in batches for record in batch.bad])
