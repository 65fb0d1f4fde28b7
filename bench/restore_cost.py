"""What a checkpoint costs: its size, the time to take it, and the time from loading it to the first batch.

    python bench/restore_cost.py sample_data/recipe.toml

Compared in alternating rounds, each from a loader that is made but not started to its first batch: a cold start, a
restore after a few steps and after many, and two loaders that *replay* for contrast: one plans its way to the step
(`start_step`), one loads all batches before it and throws them away. States of many steps come from the real engine,
which plans all these steps; documents are measured once and remembered, nothing is rendered. So the recipe may have no
operators that depend on chance.

On a machine that others use too, `--workers 0` says more: everything is done in one process, and its CPU time counts.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tyro
from plan_only import PlanOnly
from rich.console import Console
from rich.table import Table

from zephon_vl import Loader
from zephon_vl.contracts import Measured, Skipped
from zephon_vl.recipe import Recipe, load_recipe
from zephon_vl.runner import TaskRunner
from zephon_vl.state import encode_entry, lane_key
from zephon_vl.tasks import MeasureResult, MeasureTask

_TIMES = 20
"""How often a checkpoint is taken."""


@dataclass(frozen=True)
class Arguments:
    """Options of this benchmark."""

    recipe: tyro.conf.Positional[Path]
    lanes: int = 64
    ranks: int = 8
    """The first of so many ranks is measured; it owns its share of the lanes."""
    near: int = 20
    """Steps before the first checkpoint."""
    far: int = 20_000
    """Steps before the second one; planned only."""
    rounds: int = 5
    workers: int = 2
    """Worker processes. 0: all in this process, whose CPU time is measured instead of the time that passes."""
    json: Path | None = None
    """A file for the figures."""
    markdown: bool = False
    """Print a section of docs/benchmarks.md instead of tables."""


class Figures(msgspec.Struct, kw_only=True):
    """What was measured. Seconds, bytes."""

    lanes: int
    sources: int
    open_sequences: int
    ranks: int
    owned: int
    """Lanes of the rank that was measured."""
    near: int
    far: int
    workers: int
    bytes_per_lane: dict[int, float]
    """Mean bytes of an entry, by step."""
    largest_entry: int
    identity_bytes: int
    take_first: float
    """`state_dict` of all lanes in a run that has not taken one yet: it looks at the shards' indexes."""
    take_again: list[float]
    """Every further one."""
    first_batch: dict[str, list[float]]
    """Seconds to the first batch in each round, by way."""

    def ratios(self, way: str) -> list[float]:
        """To the cold start of the same round."""
        return [this / cold for this, cold in zip(self.first_batch[way], self.first_batch["cold start"], strict=True)]


class Benchmark:
    """One recipe, one rank, several ways to its first batch."""

    def __init__(self, recipe: Recipe, arguments: Arguments) -> None:
        self._recipe, self._arguments = recipe, arguments
        self._known: dict[tuple[int, int], Measured | Skipped] = {}
        self._clock = time.perf_counter if arguments.workers else time.process_time

    def run(self, tell: Callable[[str], None]) -> Figures:
        arguments = self._arguments
        near, far, ranks = arguments.near, arguments.far, arguments.ranks
        with self._loader() as loader:
            self._runner = TaskRunner(loader.setup)
            states = {}
            for steps in (near, far):
                tell(f"planning {steps:,} steps of {len(loader.topology.owned)} lanes")
                states[steps] = self._state_after(steps, loader)
            owned = len(loader.topology.owned)
        tell("taking checkpoints")
        first, again = self._time_to_take()
        ways: dict[str, Callable[[], float]] = {
            "cold start": lambda: self._to_first_batch(self._loader()),
            f"restore at step {near:,}": lambda: self._to_first_batch(self._loader(), states[near]),
            f"restore at step {far:,}": lambda: self._to_first_batch(self._loader(), states[far]),
            f"replay {near} steps: plan them": lambda: self._to_first_batch(self._loader(start_step=near)),
            f"replay {near} steps: load them": lambda: self._to_first_batch(self._loader(), throw_away=near),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for number, (way, measure) in itertools.product(range(arguments.rounds), ways.items()):
            tell(f"round {number + 1} of {arguments.rounds}: {way}")
            seconds[way].append(measure())
        sizes = {step: [len(entry) for entry in state["lanes"].values()] for step, state in states.items()}
        return Figures(
            lanes=self._recipe.lanes,
            sources=len(self._recipe.sources),
            open_sequences=self._recipe.packing.open_sequences,
            ranks=ranks,
            owned=owned,
            near=near,
            far=far,
            workers=arguments.workers,
            bytes_per_lane={step: statistics.mean(found) for step, found in sizes.items()},
            largest_entry=max(max(found) for found in sizes.values()),
            identity_bytes=len(states[near]["identity"]),
            take_first=first,
            take_again=again,
            first_batch=seconds,
        )

    def _loader(self, ranks: int | None = None, **options: Any) -> Loader:
        return Loader(self._recipe, dp_size=ranks or self._arguments.ranks, workers=self._arguments.workers, **options)

    def _to_first_batch(self, loader: Loader, state: dict[str, Any] | None = None, throw_away: int = 0) -> float:
        with loader:
            begin = self._clock()
            if state is not None:
                loader.load_state_dict(state)
            batch = next(loader)
            while batch.step < throw_away:
                batch = next(loader)
            return self._clock() - begin

    def _time_to_take(self) -> tuple[float, list[float]]:
        """Seconds of `state_dict` of all lanes on one rank: the first one, and further ones."""
        with self._loader(ranks=1) as loader:
            state = self._state_after(self._arguments.near, loader)
        with self._loader(ranks=1) as fresh:
            begin = time.perf_counter()
            fresh.state_dict()
            first = time.perf_counter() - begin
            fresh.load_state_dict(state)
            again: list[float] = []
            for _ in range(_TIMES):
                begin = time.perf_counter()
                taken = fresh.state_dict()
                again.append(time.perf_counter() - begin)
                assert taken == state, "a state that was loaded is not the one that is taken"
        return first, again

    def _state_after(self, steps: int, loader: Loader) -> dict[str, Any]:
        """The checkpoint of a rank right after `steps` steps, all planned by the engine."""
        topology = loader.topology
        planned = PlanOnly(loader.setup, topology.dp_rank, topology.dp_size, self._measure, steps - 1)
        lanes: dict[int, bytes] = {}
        for header in planned.headers():
            lanes.update(header.states)
            if header.last:
                break
        slots = topology.global_batch_size
        entries = {lane_key(lane): encode_entry(lanes[lane], steps, frozenset(), slots) for lane in topology.owned}
        return {"identity": loader.identity.encode(), "lanes": entries}

    def _measure(self, task: MeasureTask) -> MeasureResult:
        unknown = [sample for sample in task.samples if (task.source, sample[2]) not in self._known]
        if unknown:
            measured = self._runner.run(MeasureTask(task.id, task.source, unknown))
            assert isinstance(measured, MeasureResult)
            for (_, _, index), result in zip(unknown, measured.results, strict=True):
                self._known[task.source, index] = result
        return MeasureResult(task.id, [self._known[task.source, index] for _, _, index in task.samples])


# --- reports -------------------------------------------------------------------------------------------------------


def checkpoint_rows(figures: Figures) -> list[tuple[str, str]]:
    """(what, value) of the checkpoint itself."""
    sizes = ", ".join(f"{size:,.0f} after {step:,} steps" for step, size in figures.bytes_per_lane.items())
    again = [1e3 * seconds for seconds in figures.take_again]
    return [
        ("bytes per lane, mean", sizes),
        ("largest lane, bytes", f"{figures.largest_entry:,}"),
        ("identity, bytes, once", f"{figures.identity_bytes:,}"),
        ("first `state_dict` of all lanes, ms", f"{1e3 * figures.take_first:.1f}"),
        (
            "further ones, ms",
            f"{statistics.median(again):.2f} ({min(again):.2f} to {max(again):.2f})",
        ),
    ]


def restore_rows(figures: Figures) -> list[tuple[str, str, str]]:
    """(way, seconds, ratio to the cold start); medians and spread."""
    rows = []
    for way, seconds in figures.first_batch.items():
        ratios = figures.ratios(way)
        rows.append((way, _spread(seconds), _spread(ratios)))
    cold = statistics.median(figures.first_batch["cold start"])
    for way in list(figures.first_batch)[3:]:
        per_step = (statistics.median(figures.first_batch[way]) - cold) / figures.near
        total = cold + per_step * figures.far
        far = way.replace(f"{figures.near} steps", f"{figures.far:,} steps")
        rows.append((f"{far} (extrapolated)", f"{total:,.0f}", f"{total / cold:,.0f}"))
    return rows


def setting(figures: Figures) -> str:
    """What was measured, in a sentence."""
    clock = f"with {figures.workers} workers" if figures.workers else "all in one process, whose CPU time counts"
    return (
        f"{figures.lanes} lanes, {figures.sources} sources, {figures.open_sequences} open sequences per lane; one rank "
        f"of {figures.ranks}, which owns {figures.owned} lanes, {clock}. Medians of "
        f"{len(figures.first_batch['cold start'])} alternating rounds, in brackets the extremes."
    )


def markdown(figures: Figures) -> str:
    """A section of docs/benchmarks.md."""
    lines = ["## What a checkpoint costs", "", setting(figures), "", "| checkpoint | |", "| --- | --- |"]
    lines += [f"| {what} | {value} |" for what, value in checkpoint_rows(figures)]
    lines += ["", "| to the first batch | seconds | to a cold start |", "| --- | --- | --- |"]
    lines += [f"| {way} | {seconds} | {ratio} |" for way, seconds, ratio in restore_rows(figures)]
    lines += [
        "",
        "The clock runs from a loader that is made but not started. A restore measures the documents of open sequences "
        "again, and nothing else; a loader that replays takes longer with every step. Steps before a checkpoint were "
        "planned by the real engine from remembered measurements.",
    ]
    return "\n".join(lines)


def tables(figures: Figures) -> tuple[Table, Table]:
    """The same for a terminal."""
    checkpoint = Table("checkpoint", "", title="What a checkpoint costs")
    for row in checkpoint_rows(figures):
        checkpoint.add_row(*row)
    restore = Table("to the first batch", "seconds", "to a cold start")
    for row in restore_rows(figures):
        restore.add_row(*row)
    return checkpoint, restore


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    arguments = tyro.cli(Arguments, description=__doc__)
    recipe = msgspec.structs.replace(
        load_recipe(arguments.recipe), lanes=arguments.lanes, global_batch_size=arguments.lanes
    )
    with Console(stderr=True).status("starting") as status:
        figures = Benchmark(recipe, arguments).run(status.update)
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
    if arguments.markdown:
        print(markdown(figures))
        return
    console = Console()
    console.print(*tables(figures), setting(figures), sep="\n")


if __name__ == "__main__":
    main()
