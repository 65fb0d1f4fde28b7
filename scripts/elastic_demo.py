"""The promise across restarts: a run of 16 ranks, each a process, is saved and goes on on other numbers of ranks.

The first run is never interrupted. It is saved on its way, and every other one goes on from there; the SHA-256 of each
global batch must be that of the first run. With --kill ranks are killed at random moments, all are ended and started
again from the last checkpoint, perhaps on another number of ranks. Ends with PASS and status 0, or with the first
difference and 1.

    python scripts/elastic_demo.py --data sample_data --quick
    python scripts/elastic_demo.py --data sample_data --kill
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import tyro
from elastic.job import Job, RankDied
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from zephon_vl.errors import RecipeError, ZephonError
from zephon_vl.recipe import Recipe, load_recipe

_KILLS = 3
_SHOWN = 12
"""Steps of the live table; the last ones."""


@dataclass(frozen=True)
class Arguments:
    """Options of the demo."""

    data: Path = Path("sample_data")
    """A directory with recipe.toml, e.g. made by scripts/make_sample_data.py."""
    quick: bool = False
    """A small size: a minute or two on two processors."""
    ranks: int = 16
    """Ranks of the run that is never interrupted."""
    resume: tuple[int, ...] | None = None
    """Ranks to go on on; more than there are lanes are refused. Default: 8 32 64 12 7 100, quick: 12 7 32."""
    steps: int | None = None
    """Optimizer steps of the whole run. Default: 160, quick: 6."""
    save_at: int | None = None
    """Step before which the run is saved. Default: 150, quick: 3."""
    lanes: int | None = None
    """Lanes of the recipe, the most ranks that it can use. Default: 64, quick: as in the recipe."""
    workers: int = 0
    """Worker processes of each rank."""
    kill: bool = False
    """Kill ranks at random moments."""
    save_every: int = 2
    """Steps between the checkpoints of the run whose ranks are killed."""
    seed: int = 0
    """Of the moments and ranks that --kill chooses."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is done."""

    steps: int
    save_at: int
    lanes: int | None
    resume: tuple[int, ...]

    @classmethod
    def of(cls, arguments: Arguments) -> Size:
        """The chosen size with what was given by hand. Raises `ZephonError`."""
        usual = _QUICK if arguments.quick else _FULL
        given = {name: getattr(arguments, name) for name in ("steps", "save_at", "lanes", "resume")}
        size = replace(usual, **{name: value for name, value in given.items() if value is not None})
        if not 0 < size.save_at < size.steps:
            raise ZephonError(f"--save-at is {size.save_at}, but must be from 1 to {size.steps - 1} (below --steps)")
        if arguments.save_every < 1:
            raise ZephonError(f"--save-every is {arguments.save_every}, but must be at least 1")
        return size


_QUICK = Size(steps=6, save_at=3, lanes=None, resume=(12, 7, 32))
_FULL = Size(steps=160, save_at=150, lanes=64, resume=(8, 32, 64, 12, 7, 100))


@dataclass
class Run:
    """One run, or one life of a run, and what it gave so far."""

    title: str
    first: int = 0
    digests: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    outcome: str = ""
    column: bool = True
    """Whether the table of digests shows it."""


class Different(Exception):
    """The first difference, in words."""


class Demo:
    """Runs a recipe on processes and shows what comes out as it comes."""

    def __init__(self, recipe: Recipe, size: Size, arguments: Arguments, show: Callable[[Group], None]) -> None:
        self._recipe, self._size, self._arguments, self._show = recipe, size, arguments, show
        self._whole = Run(f"{arguments.ranks} ranks")
        self._runs = [self._whole]

    def run(self) -> None:
        """All runs, one after the other. Raises `Different` at the first difference."""
        with tempfile.TemporaryDirectory(prefix="zephon-vl-elastic-") as directory:
            saved, latest = Path(directory, "saved"), Path(directory, "latest")
            self._uninterrupted(saved)
            for ranks in self._size.resume:
                self._resumed(ranks, saved)
            if self._arguments.kill:
                self._killed(latest)

    def tables(self) -> Group:
        """Digests of the last steps, and a line for each run."""
        return Group(self._digests(), self._lines())

    # --- runs -----------------------------------------------------------------------------------------------------

    def _uninterrupted(self, saved: Path) -> None:
        with self._job(self._arguments.ranks, None) as job:
            self._take(job, self._whole, self._size.save_at)
            job.save(saved)
            self._take(job, self._whole, self._size.steps)
        self._end(self._whole, f"saved before step {self._size.save_at}, went on")

    def _resumed(self, ranks: int, saved: Path) -> None:
        run = Run(f"{ranks} ranks", self._size.save_at)
        self._runs.append(run)
        try:
            with self._job(ranks, saved) as job:
                self._take(job, run, self._size.steps)
                filled = f", {job.empty_rows} empty rows a step" if job.empty_rows else ""
        except RecipeError as error:
            if ranks <= self._recipe.lanes:
                raise
            run.column = False
            self._end(run, f"refused: {error}")
            return
        self._end(run, f"the same{filled}")

    def _killed(self, latest: Path) -> None:
        """One run in several lives: in all but the last one a rank is killed somewhere inside it."""
        chance = random.Random(self._arguments.seed)
        choices = [self._arguments.ranks, *(ranks for ranks in self._size.resume if ranks <= self._recipe.lanes)]
        ranks = self._arguments.ranks
        for kills_left in reversed(range(_KILLS + 1)):
            run = Run(f"life {_KILLS - kills_left + 1}: {ranks} ranks", column=False)
            self._runs.append(run)
            # A message tells of about one sequence; early enough that every life comes to pass.
            steps = max(self._arguments.save_every + 1, self._size.steps // (_KILLS + 1))
            moment = ranks + chance.randint(1, steps * self._recipe.global_batch_size)
            kill = (moment, chance.randrange(ranks)) if kills_left else None
            if self._live(run, ranks, latest, kill):
                return
            ranks = chance.choice(choices)

    def _live(self, run: Run, ranks: int, latest: Path, kill: tuple[int, int] | None) -> bool:
        """Go on from the last checkpoint, if there is one; whether the end was reached."""
        try:
            with self._job(ranks, latest if latest.exists() else None, kill) as job:
                run.first = job.next_step
                while job.next_step < self._size.steps:
                    self._take(job, run, min(self._size.steps, job.next_step + self._arguments.save_every))
                    job.save(latest)
        except RankDied as death:
            if kill is None:
                raise
            self._end(run, f"rank {death.rank} was killed, all were ended; the steps before are the same")
            return False
        self._end(run, "the same, to the end")
        return True

    def _job(self, ranks: int, checkpoint: Path | None, kill: tuple[int, int] | None = None) -> Job:
        self._show(self.tables())
        return Job(self._recipe, ranks, checkpoint=checkpoint, kill=kill, workers=self._arguments.workers, prefetch=1)

    def _take(self, job: Job, run: Run, until: int) -> None:
        begin = time.perf_counter()
        while job.next_step < until:
            step, digest = job.step()
            run.digests[step] = digest
            there = self._whole.digests[step]
            if digest != there:
                raise Different(f"step {step} is {digest} in {run.title}, but {there} in the first run")
            self._show(self.tables())
        run.seconds += time.perf_counter() - begin

    def _end(self, run: Run, outcome: str) -> None:
        run.outcome = outcome
        self._show(self.tables())

    # --- tables ---------------------------------------------------------------------------------------------------

    def _digests(self) -> Table:
        shown = [run for run in self._runs if run.column]
        steps = sorted(self._whole.digests)
        current = max(max(self._runs[-1].digests, default=0), self._size.save_at + 1)
        window = [step for step in steps if current - _SHOWN < step <= max(current, _SHOWN)][-_SHOWN:]
        table = Table("step", *(run.title for run in shown), "", title="SHA-256 of each global batch")
        for step in window:
            found = [run.digests.get(step, "") for run in shown]
            tick = "[bold green]✓[/]" if len(set(found) - {""}) == 1 else "[bold red]✗[/]"
            table.add_row(str(step), *(digest[:8] for digest in found), tick)
        return table

    def _lines(self) -> Table:
        table = Table("run", "steps", "seconds", "outcome")
        for run in self._runs:
            steps = f"{min(run.digests)} to {max(run.digests)}" if run.digests else ""
            table.add_row(run.title, steps, f"{run.seconds:.1f}" if run.seconds else "", run.outcome or "…")
        return table


def sized(recipe: Recipe, lanes: int | None) -> Recipe:
    """The recipe with other lanes, and the global batch rounded up to a multiple of them. Raises `RecipeError`."""
    if lanes is not None:
        size = -(-recipe.global_batch_size // lanes) * lanes if lanes > 0 else recipe.global_batch_size
        recipe = msgspec.structs.replace(recipe, lanes=lanes, global_batch_size=size)
    recipe.validate()
    return recipe


def main() -> None:
    arguments = tyro.cli(Arguments, description=__doc__)
    console = Console()
    difference = None
    try:
        size = Size.of(arguments)
        recipe = sized(load_recipe(arguments.data / "recipe.toml"), size.lanes)
        with Live(console=console, refresh_per_second=4) as live:
            try:
                Demo(recipe, size, arguments, live.update).run()
            except Different as found:
                difference = found
        if not console.is_terminal:
            console.print()  # there, what is live ends without a line break
    except (ZephonError, RankDied) as error:
        sys.exit(f"elastic demo: {error}")
    except KeyboardInterrupt:
        sys.exit("elastic demo: interrupted")
    if difference:
        console.print(f"[bold red]FAIL[/]: {difference}", soft_wrap=True)
        sys.exit(1)
    console.print(f"[bold green]PASS[/]: {size.steps} global batches are the same bytes on every number of ranks")


if __name__ == "__main__":
    main()
