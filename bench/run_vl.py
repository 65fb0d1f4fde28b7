"""Images and text: how many samples a second each loader delivers, packed, in the consumer's process.

    python bench/run_vl.py --table same                       # one code for all, so that only the loaders differ
    python bench/run_vl.py --table box --peers DIRECTORY      # each as its user gets it
    python bench/run_vl.py --table sleep --workers 32         # a stage that sleeps: what the loaders themselves cost

Each measurement is a process of its own; loaders take turns, round by round. What they deliver is compared first. A
loader's settings are tuned over its own small grid, and the best are taken.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import tyro
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.corpus import ensure_corpus
from bench.entries import Entry, entries_of
from bench.loaders.protocol import load, missing
from bench.measure import Failed, Measured, middle, run, run_module
from bench.same_work import Compared
from bench.work import Settings

_SETTLE = {"sleep": 64, "text": 64}
"""Batches before the window where the work is done before packing: two sequences each, so twice what 8 lanes of 8 open
sequences hold. Until then a loader fills them, and gives less than it does; or closes many at once, and gives more."""
_MOST_FAILURES = 2
"""Of an entry; then it is left out."""


class Results(msgspec.Struct, kw_only=True):
    """What a run of one table found."""

    table: str
    workers: int
    seconds: float
    entries: dict[str, list[Measured]] = {}
    """By the entry's title, one of each round."""
    tuning: dict[str, dict[str, float]] = {}
    """Samples a second of each setting tried."""
    compared: dict[str, Compared] = {}
    failed: dict[str, str] = {}


@dataclass(frozen=True)
class Arguments:
    """Options of this benchmark."""

    table: Literal["same", "box", "sleep", "text"] = "same"
    loaders: tuple[str, ...] = ()
    """Modules of bench/loaders; default all that can."""
    data: Path = Path("bench_data")
    images: int = 1000
    """Pictures of the corpus, which is made in `data` if it is not there."""
    workers: int = 2
    seconds: float = 5.0
    """Length of a window."""
    repeat: int = 5
    """Rounds."""
    prefetch: int = 4
    sleep: float = 0.005
    peers: str = ""
    """Directory with folders `pillow` and `torchvision` (pip install --no-deps --target), for table "box" where
    pillow-simd is installed or torchvision is not."""
    json: Path | None = None
    """Where the results go."""
    plot: Path | None = None
    """Where the picture goes."""
    check: bool = True
    """Compare what loaders deliver."""
    tune: bool = True
    """Try each loader's grid; else the first of it."""


def main() -> None:
    arguments = tyro.cli(Arguments, description=__doc__)
    results = measure_table(arguments, Console())
    show(results, Console(width=140))
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
    if arguments.plot:
        from bench.plots import plot_table

        plot_table(results, arguments.plot)


def measure_table(arguments: Arguments, console: Console) -> Results:
    """All rounds of one table. A loader is tuned at its first entry; its others run with the same."""
    paths = ensure_corpus(arguments.data, arguments.images)
    settings = Settings(
        data=str(paths.root),
        workers=arguments.workers,
        prefetch=arguments.prefetch,
        settle=_SETTLE.get(arguments.table, 0),
        sleep=arguments.sleep,
    )
    results = Results(table=arguments.table, workers=arguments.workers, seconds=arguments.seconds)
    entries = entries_of(arguments.table, arguments.workers)
    entries = [entry for entry in entries if not arguments.loaders or entry.loader in arguments.loaders]
    ready: dict[str, Settings] = {}
    tuned: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if lacks := missing(entry.loader, entry.path(arguments.peers)):
            results.failed[entry.title] = f"not installed: {', '.join(lacks)}"
            continue
        try:
            own = entry.settings(settings)
            if entry.tuned and entry.loader not in tuned:
                best = _tune(entry, own, arguments, results, console) if arguments.tune else None
                tuned[entry.loader] = best or entry.tuning(own)
            tuning = tuned[entry.loader] if entry.tuned else entry.fixed
            ready[entry.title] = msgspec.structs.replace(own, tuning=tuning)
            if arguments.check and entry.checked:
                results.compared[entry.title] = _compare(entry, ready[entry.title], arguments)
        except Failed as error:
            results.failed[entry.title] = str(error)
            console.print(f"[red]{entry.title}: {error}", highlight=False)
    failures: Counter[str] = Counter()
    for number in range(arguments.repeat):
        for entry in entries:
            if entry.title not in ready or number >= entry.most_rounds or failures[entry.title] >= _MOST_FAILURES:
                continue
            try:
                found = run(entry.loader, ready[entry.title], arguments.seconds, entry.path(arguments.peers))
            except Failed as error:
                failures[entry.title] += 1
                results.failed[entry.title] = f"{failures[entry.title]} of {number + 1} rounds: {error}"
                console.print(f"[red]{entry.title}: {error}", highlight=False)
                continue
            results.entries.setdefault(entry.title, []).append(found)
            console.print(
                f"round {number + 1}  {entry.title:28} {found.rate:8.1f}/s  {found.cpu * 1e3:6.2f} ms CPU",
                highlight=False,
            )
    return results


def _tune(entry: Entry, settings: Settings, arguments: Arguments, results: Results, console: Console) -> dict | None:
    """The best of a loader's own settings, by one short measurement of each."""
    grid = load(entry.loader).grid(settings.workers)
    if len(grid) < 2:
        return None
    tried = results.tuning.setdefault(entry.title, {})
    best, best_rate, failure = None, 0.0, ""
    for tuning in grid:
        name = ", ".join(f"{key} {value}" for key, value in tuning.items())
        try:
            found = run(
                entry.loader,
                msgspec.structs.replace(settings, tuning=tuning),
                arguments.seconds / 2,
                entry.path(arguments.peers),
            )
        except Failed as error:
            failure = str(error)
            continue
        tried[name] = found.rate
        console.print(f"tuning   {entry.title:28} {found.rate:8.1f}/s  {name}", highlight=False)
        if found.rate > best_rate:
            best, best_rate = tuning, found.rate
    if best is None:
        raise Failed(failure)
    return best


def _compare(entry: Entry, settings: Settings, arguments: Arguments) -> Compared:
    command = [sys.executable, "-m", "bench.same_work", entry.loader, msgspec.json.encode(settings).decode()]
    return msgspec.json.decode(run_module(command, entry.path(arguments.peers)).splitlines()[-1], type=Compared)


def rates_of(results: Results) -> dict[str, tuple[float, float, float]]:
    """(median, least, most) samples a second of each entry, by its title."""
    return {title: middle([one.rate for one in rounds]) for title, rounds in results.entries.items()}


def best_grain(rates: Mapping[str, tuple[float, float, float]]) -> float | None:
    """The best median of Grain's entries: they may differ in settings or stage."""
    return max((rate for title, (rate, _, _) in rates.items() if title.startswith("Grain")), default=None)


def show(results: Results, console: Console) -> None:
    """Print the medians."""
    table = Table(
        "loader", "samples/s", "spread", "of ceiling", "of Grain", "CPU, ms", "consumer, us", "first, s", "PSS, MB"
    )
    rates = rates_of(results)
    ceiling = next((rates[t][0] for t in rates if t.startswith("ceiling, tuned")), None)
    grain = best_grain(rates)
    for title, rounds in results.entries.items():
        rate, least, most = rates[title]
        table.add_row(
            title,
            f"{rate:.0f}",
            f"{least:.0f} to {most:.0f}",
            f"{rate / ceiling:.2f}" if ceiling else "",
            f"{rate / grain:.2f}" if grain else "",
            f"{middle([m.cpu for m in rounds])[0] * 1e3:.2f}",
            f"{middle([m.consumer_cpu for m in rounds])[0] * 1e6:.0f}",
            f"{middle([m.first_batch for m in rounds])[0]:.2f}",
            f"{middle([m.pss for m in rounds])[0] / 1e6:.0f}",
        )
    console.print(table)
    for title, found in results.compared.items():
        pixels = f", pixels differ in {found.images_differ} of {found.images} images" if found.images else ""
        console.print(
            f"{title}: {'same tokens' if found.same else f'DIFFERS {found.fields}, {found.unknown} unknown'}{pixels}"
        )
    for title, why in results.failed.items():
        console.print(f"{title}: {why.splitlines()[-1]}", highlight=False)


if __name__ == "__main__":
    main()
