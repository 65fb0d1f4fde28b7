"""The promise on one machine: the sample corpus on 4, 2 and 3 simulated ranks, and a resume in the middle of a step.

Every run is made of real loaders, one per rank, with other numbers of workers and other microbatches. The SHA-256 of
each global batch must be the same in all of them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import tyro
from rich.console import Console
from rich.live import Live
from rich.table import Table

from zephon_vl.recipe import Recipe, load_recipe
from zephon_vl.verify import Ranks


@dataclass(frozen=True)
class Arguments:
    """Options of the demo."""

    data: Path = Path("sample_data")
    steps: int = 4


@dataclass
class Outcome:
    """What one run gave."""

    name: str
    digests: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    images: int = 0
    tokens: int = 0


def run(outcome: Outcome, job: Ranks, until: int) -> None:
    """Take steps until `until` and count what they held."""
    job.round()  # what the start takes is not speed
    begin = time.perf_counter()
    images, tokens = _counts(job)
    while job.loaders[0].next_step < until:
        outcome.digests.update(job.steps(1))
    outcome.seconds += time.perf_counter() - begin
    now_images, now_tokens = _counts(job)
    outcome.images += now_images - images
    outcome.tokens += now_tokens - tokens


def _counts(job: Ranks) -> tuple[int, int]:
    """(images, tokens) that all ranks have delivered."""
    images = sum(loader.stats.images for loader in job.loaders)
    return images, sum(loader.stats.tokens.total() for loader in job.loaders)


def run_whole(recipe: Recipe, outcome: Outcome, steps: int, ranks: int, **options: int) -> None:
    with closing(Ranks(recipe, ranks, **options)) as job:
        run(outcome, job, steps)


def run_resumed(recipe: Recipe, outcome: Outcome, steps: int) -> None:
    """Start on 4 ranks, save in the middle of a step, go on on 3."""
    with tempfile.TemporaryDirectory(prefix="zephon-vl-demo-") as directory:
        with closing(Ranks(recipe, 4, workers=1)) as job:
            run(outcome, job, steps // 2)
            for _ in range(3):
                job.round()
            job.save(Path(directory))
        with closing(Ranks(recipe, 3, workers=1, microbatch_size=2)) as job:
            job.load(Path(directory))
            run(outcome, job, steps)


def table_of(outcomes: list[Outcome], steps: int) -> Table:
    table = Table("step", *(outcome.name for outcome in outcomes), title="SHA-256 of each global batch")
    first = outcomes[0].digests
    for step in range(steps):
        cells = []
        for outcome in outcomes:
            digest = outcome.digests.get(step)
            colour = "green" if digest == first.get(step) else "red"
            cells.append(f"[{colour}]{digest[:12]}[/]" if digest else "")
        table.add_row(str(step), *cells)
    speeds = [
        f"{o.images / o.seconds:,.0f} images/s\n{o.tokens / o.seconds:,.0f} tokens/s" if o.seconds else ""
        for o in outcomes
    ]
    table.add_section()
    table.add_row("", *speeds)
    return table


def main() -> None:
    arguments = tyro.cli(Arguments, description=__doc__)
    recipe, steps = load_recipe(arguments.data / "recipe.toml"), arguments.steps
    four = Outcome("4 ranks\n1 worker each")
    two = Outcome("2 ranks\n2 workers each")
    three = Outcome("3 ranks, inline\nmicrobatches of 3")
    resumed = Outcome("4 ranks, then 3\nsaved inside a step")
    outcomes = [four, two, three, resumed]
    console = Console()
    with Live(table_of(outcomes, steps), console=console, refresh_per_second=2) as live:
        for outcome, start in (
            (four, lambda: run_whole(recipe, four, steps, 4, workers=1)),
            (two, lambda: run_whole(recipe, two, steps, 2, workers=2, microbatch_size=2)),
            (three, lambda: run_whole(recipe, three, steps, 3, workers=0, microbatch_size=3)),
            (resumed, lambda: run_resumed(recipe, resumed, steps)),
        ):
            start()
            live.update(table_of(outcomes, steps))
            if differing := [step for step in range(steps) if outcome.digests[step] != four.digests[step]]:
                live.stop()
                console.print(f"[bold red]FAIL[/]: {outcome.name!r} differs from {four.name!r} at step {differing[0]}")
                sys.exit(1)
    console.print(f"[bold green]PASS[/]: {steps} global batches are the same bytes in every run")


if __name__ == "__main__":
    main()
