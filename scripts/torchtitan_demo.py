"""The promise in TorchTitan: its real Trainer, saved on four ranks, goes on on two, one and three.

A tiny VLM and a tiny text model train on the sample corpus, on a CPU with gloo. Every run writes a ledger; the SHA-256
of each global batch must be that of the first run, and the losses must agree but for the order of floating-point sums.
The same with tensor parallelism; without the loader's state, which the loader must say loudly; and with TorchTitan's
own loader, to see what happens there. Ends with PASS and status 0, or with the first difference and 1.

    python scripts/torchtitan_demo.py --data build/torchtitan_data --plot loss_curves.png
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from torchtitan_demo import jobs, observe
from torchtitan_demo.corpus import make_corpus
from torchtitan_demo.jobs import JobFailed
from torchtitan_demo.plot import plot
from torchtitan_demo.runs import (
    SAVED,
    STEPS,
    TEXT,
    VLM,
    Experiment,
    Run,
    advance,
    elastic,
    stock,
    tensor_parallel,
    without_state,
)

TOLERANCE = 1e-4
"""Relative; sums of other numbers of ranks are taken in another order."""
_WARMUP = 3
"""Steps after which waiting is looked at."""


@dataclass(frozen=True)
class Arguments:
    """Options of the demo."""

    data: Path = Path("build/torchtitan_data")
    """Directory of the corpus with a small vocabulary; made where it is missing."""
    plot: Path = Path("loss_curves.png")
    """File of the loss curves."""
    keep: Path | None = None
    """Directory for checkpoints, ledgers and logs; default: a temporary one."""
    quick: bool = False
    """The VLM only."""


class Demo:
    """All runs, and what is to be seen of them."""

    def __init__(self, arguments: Arguments, work: Path) -> None:
        self._data, self._work = arguments.data, work
        vlm = elastic("VLM", VLM)
        self.experiments = [vlm]
        self.alone: tuple[Run, ...] = (without_state(vlm.first),)
        self.stock: tuple[Run, ...] = ()
        if not arguments.quick:
            self.experiments += [elastic("text", TEXT), tensor_parallel(TEXT)]
            text = work / "stock"
            text.mkdir()
            shutil.copy(arguments.data / "web" / "000.jsonl", text)
            self.stock = stock(text)

    @property
    def runs(self) -> list[Run]:
        return [*(run for experiment in self.experiments for run in experiment.runs), *self.alone, *self.stock]

    def run(self, live: Live) -> None:
        """Run everything. Raises `JobFailed`."""
        read: set[str] = set()
        going = True
        try:
            while going:
                going = advance(self.runs, self._data, self._work)
                for run in self.runs:
                    if run.done and run.title not in read:
                        run.finish()
                        read.add(run.title)
                live.update(self.view())
                time.sleep(0.2)
        finally:
            for run in self.runs:
                if run.job is not None:
                    run.job.kill()

    def view(self) -> Group:
        """All tables as they stand."""
        return Group(*(_table(experiment) for experiment in self.experiments), self._notes())

    def _notes(self) -> Table:
        table = Table("run", "what happened", title="Without the loader's state, and TorchTitan's own loader")
        for run in (*self.alone, *self.stock):
            table.add_row(run.title, _outcome(run))
        return table

    def differences(self) -> Iterator[str]:
        """In words, the first one first."""
        for experiment in self.experiments:
            for run in experiment.runs[1:]:
                yield from _differences(experiment.first, run)
        excluded, vlm = self.alone[0], self.experiments[0].first
        if not _warning(excluded) or excluded.digests.get(1) != vlm.digests[1]:
            yield f"{excluded.title}: the data did not start with step 0, or the log does not say so loudly"

    def waiting(self) -> float:
        """Percent of the time that the VLM's trainer on four ranks waited for data, after the first steps."""
        job = self.experiments[0].first.job
        trace = observe.trace(job.folder) if job else {}
        return statistics.mean(values["data/waiting(%)"] for step, values in trace.items() if step > _WARMUP)


def _differences(first: Run, run: Run) -> Iterator[str]:
    if sorted(run.digests) != list(range(SAVED + 1, STEPS + 1)):
        yield f"{run.title}: the ledger has steps {sorted(run.digests)}, not {SAVED + 1} to {STEPS}"
    for step, digest in run.digests.items():
        if digest != first.digests.get(step):
            yield f"{run.title}: step {step} is {digest}, but {first.digests.get(step)} in {first.title}"
    for step, loss in run.losses.items():
        there = first.losses[step]
        if not abs(loss - there) <= TOLERANCE * abs(there):
            yield f"{run.title}: the loss of step {step} is {loss}, but {there} in {first.title}"


def _table(experiment: Experiment) -> Table:
    first, *others = experiment.runs
    table = Table("step", "SHA-256", *(f"loss\n{run.title}" for run in experiment.runs), "", title=experiment.title)
    losses = [run.losses for run in experiment.runs]
    for step in range(1, STEPS + 1):
        cells = [f"{of_run[step]:.6f}" if step in of_run else "" for of_run in losses]
        digests = {run.digests[step] for run in experiment.runs if step in run.digests}
        complete = step > SAVED and all(step in run.digests for run in others)
        tick = "[bold red]✗[/]" if len(digests) > 1 else "[bold green]✓[/]" if complete else ""
        table.add_row(str(step), first.digests.get(step, "")[:12], *cells, tick)
    return table


def _outcome(run: Run) -> str:
    if run.job is None:
        return ""
    if run.done and run.fails:
        return run.error or "[red]it did not fail, as it used to[/]"
    losses = [f"{loss:.4f}" for step, loss in run.losses.items() if step > SAVED]
    return "\n".join(filter(None, (_warning(run), "loss " + " ".join(losses) if losses else "")))


def _warning(run: Run) -> str:
    lines = run.job.log().splitlines() if run.job else []
    return next((line[line.index("THE DATA") :] for line in lines if "THE DATA STARTS" in line), "")


def _panels(demo: Demo) -> list[tuple[str, Sequence[Run], str]]:
    panels: list[tuple[str, Sequence[Run], str]] = [
        (f"{experiment.title}: this loader", experiment.runs, "") for experiment in demo.experiments[:2]
    ]
    if demo.stock:
        whole, failed, excluded = demo.stock
        panels.append(("text: TorchTitan's own loader", (whole, excluded), f"on 2 ranks: {failed.error[:160]}"))
    return panels


def main() -> None:
    arguments = tyro.cli(Arguments, description=__doc__)
    console = Console()
    started = time.monotonic()
    jobs.prepare()
    with console.status("making the sample corpus with a small vocabulary"):
        make_corpus(arguments.data)
    with tempfile.TemporaryDirectory(prefix="zephon-vl-torchtitan-") as temporary:
        work = arguments.keep or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        demo = Demo(arguments, work)
        try:
            with Live(console=console, refresh_per_second=4) as live:
                demo.run(live)
        except JobFailed as error:
            console.print(f"[bold red]FAIL[/]: {error}", soft_wrap=True, highlight=False)
            sys.exit(1)
        if not console.is_terminal:
            console.print()  # there, what is live ends without a line break
        plot(_panels(demo), arguments.plot)
        waiting, difference = demo.waiting(), next(demo.differences(), None)
    console.print(f"loss curves: {arguments.plot}; the trainer waited for data {waiting:.2f} % of the time")
    if difference:
        console.print(f"[bold red]FAIL[/]: {difference}", soft_wrap=True)
        sys.exit(1)
    console.print(
        f"[bold green]PASS[/]: in {time.monotonic() - started:.0f} s, all runs took the same bytes at each step, with "
        f"losses within {TOLERANCE:g}"
    )


if __name__ == "__main__":
    main()
