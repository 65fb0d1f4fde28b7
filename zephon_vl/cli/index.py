"""`zephon-vl index`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from zephon_vl.cli.options import RecipePath, bytes_text, require_at_least
from zephon_vl.cli.progress import index_with_bar
from zephon_vl.recipe import load_recipe


@dataclass(frozen=True)
class Index:
    """Build the indexes of all shards, beside them or in the cache directory; those that still fit are kept."""

    recipe: RecipePath
    workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Shards to index at the same time; default: as many as there are processors."""

    def run(self) -> int:
        require_at_least("--workers", self.workers, 1)
        handles = index_with_bar(load_recipe(self.recipe), self.workers)
        table = Table("source", "format", title="indexes")
        for name in ("shards", "samples", "bytes"):
            table.add_column(name, justify="right")
        for handle in handles:
            counts = (f"{len(handle.shards):,}", f"{handle.samples:,}", bytes_text(handle.size))
            table.add_row(handle.name, handle.format, *counts)
        Console().print(table)
        return 0
