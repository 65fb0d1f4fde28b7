"""The promise on one machine: a corpus on 4, 2 and 3 simulated ranks, and a resume on other ranks inside a step.

Every run is made of real loaders, one per rank, with other numbers of workers and other microbatches. The SHA-256 of
each global batch must be the same in all of them. Ends with PASS and status 0, or with the first difference and 1.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import tyro
from rich.console import Console
from rich.live import Live
from rich.table import Table

from zephon_vl.errors import ZephonError
from zephon_vl.recipe import Recipe, load_recipe
from zephon_vl.verify import Ranks


@dataclass(frozen=True)
class Arguments:
    """Options of the demo."""

    data: Path = Path("sample_data")
    """A directory with recipe.toml, e.g. made by scripts/make_sample_data.py."""
    steps: int = 6
    """Optimizer steps of each run."""


@dataclass
class Outcome:
    """What one run gave so far."""

    title: str
    digests: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    images: int = 0
    tokens: int = 0

    def speed(self) -> str:
        """What was measured, for a cell of the table."""
        if not self.seconds:
            return ""
        return f"{self.images / self.seconds:,.0f} images/s\n{self.tokens / self.seconds:,.0f} tok/s"


class Demo:
    """Runs a recipe in several ways and shows what came out as it comes."""

    def __init__(self, recipe: Recipe, steps: int, live: Live) -> None:
        self._recipe, self._steps, self._live = recipe, steps, live
        self._ways: list[tuple[Outcome, Callable[[Outcome], None]]] = [
            (Outcome("4 ranks\n1 worker each"), lambda to: self._whole(to, 4, workers=1)),
            (Outcome("2 ranks\n2 workers each"), lambda to: self._whole(to, 2, 2, workers=2)),
            (Outcome("3 ranks\nno workers"), lambda to: self._whole(to, 3, 3, workers=0)),
            (Outcome("4 to 3 ranks\nsaved mid-step"), self._resumed),
        ]
        self._outcomes = [outcome for outcome, _ in self._ways]

    def run(self) -> str | None:
        """The first difference, in words; None if there is none."""
        for outcome, way in self._ways:
            way(outcome)
            for step in range(self._steps):
                here, there = outcome.digests.get(step), self._outcomes[0].digests[step]
                if here != there:
                    names = [" ".join(each.title.split("\n")) for each in (outcome, self._outcomes[0])]
                    return f"step {step} is {here} on {names[0]}, but {there} on {names[1]}"
        return None

    def table(self) -> Table:
        """Digests of all steps and runs so far, with a tick where all agree."""
        table = Table("step", *(outcome.title for outcome in self._outcomes), "", title="SHA-256 of each global batch")
        for step in range(self._steps):
            found = [outcome.digests.get(step, "") for outcome in self._outcomes]
            same = len(set(found) - {""}) == 1
            tick = "" if "" in found and same else "[bold green]✓[/]" if same else "[bold red]✗[/]"
            table.add_row(str(step), *(digest[:12] for digest in found), tick if any(found) else "")
        table.add_section()
        table.add_row("speed", *(outcome.speed() for outcome in self._outcomes), "")
        return table

    def _whole(self, outcome: Outcome, ranks: int, microbatch_size: int = 1, *, workers: int) -> None:
        with closing(Ranks(self._recipe, ranks, microbatch_size=microbatch_size, workers=workers)) as job:
            self._take(outcome, job, self._steps)

    def _resumed(self, outcome: Outcome) -> None:
        """Start on 4 ranks, save in the middle of a step, go on on 3."""
        with tempfile.TemporaryDirectory(prefix="zephon-vl-demo-") as directory:
            with closing(Ranks(self._recipe, 4, workers=0)) as job:
                self._take(outcome, job, self._steps // 2)
                for _ in range(job.loaders[0].topology.microbatches_per_step // 2):
                    job.round()
                job.save(Path(directory))
            with closing(Ranks(self._recipe, 3, microbatch_size=2, workers=1)) as job:
                job.load(Path(directory))
                self._take(outcome, job, self._steps)

    def _take(self, outcome: Outcome, job: Ranks, until: int) -> None:
        """Take steps and count what they held; the first one is not timed, as it holds the start of the processes."""
        begin, before = 0.0, (0, 0)
        while job.next_step < until:
            if (done := job.step()) is None:
                raise ZephonError(f"the data ends before step {job.next_step}; ask for fewer --steps")
            outcome.digests[done[0]] = done[1]
            if begin:
                images, tokens = _counts(job)
                now = time.perf_counter()
                outcome.seconds += now - begin
                outcome.images += images - before[0]
                outcome.tokens += tokens - before[1]
            begin, before = time.perf_counter(), _counts(job)
            self._live.update(self.table())


def _counts(job: Ranks) -> tuple[int, int]:
    """(images, tokens) that all ranks have delivered."""
    images = sum(loader.stats.images for loader in job.loaders)
    return images, sum(loader.stats.tokens.total() for loader in job.loaders)


def main() -> None:
    arguments = tyro.cli(Arguments, description=__doc__)
    console = Console()
    try:
        if arguments.steps < 1:
            raise ZephonError(f"--steps is {arguments.steps}, but must be at least 1")
        recipe = load_recipe(arguments.data / "recipe.toml")
        with Live(console=console, refresh_per_second=4) as live:
            demo = Demo(recipe, arguments.steps, live)
            live.update(demo.table())
            difference = demo.run()
        if not console.is_terminal:
            console.print()  # there, what is live ends without a line break
    except ZephonError as error:
        sys.exit(f"demo: {error}")
    if difference:
        console.print(f"[bold red]FAIL[/]: {difference}", soft_wrap=True)
        sys.exit(1)
    console.print(f"[bold green]PASS[/]: {arguments.steps} global batches are the same bytes in every run")


if __name__ == "__main__":
    main()
