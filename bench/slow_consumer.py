"""Memory over time with a consumer that is slower than the loader: it must be flat.

    python bench/slow_consumer.py sample_data/recipe.toml --minutes 10

Prints the proportional set size of all processes together (PSS: shared pages count once) and ends with the growth from
the second quarter of the run to the last; the first one fills buffers and caches. Exit status 1 if that is over the
limit.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import tyro
from rich.console import Console

from zephon_vl import Loader


@dataclass(frozen=True)
class Arguments:
    """Options of this measurement."""

    recipe: tyro.conf.Positional[Path]
    minutes: float = 10.0
    pause: float = 0.1
    """Seconds that the consumer sleeps after each microbatch."""
    workers: int = 2
    microbatch_size: int = 1
    every: float = 5.0
    """Seconds between two readings."""
    limit: float = 0.02
    """Most growth that counts as flat, as a share."""


def memory() -> int:
    """PSS of this process and all below it, in bytes."""
    me = psutil.Process()
    total = 0
    for process in [me, *me.children(recursive=True)]:
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # ended between the listing and the reading
    return total


def main() -> None:
    arguments = tyro.cli(Arguments, description=__doc__)
    console = Console()
    readings: list[int] = []
    begin = last = time.monotonic()
    with Loader(arguments.recipe, workers=arguments.workers, microbatch_size=arguments.microbatch_size) as loader:
        for _ in loader:
            time.sleep(arguments.pause)
            now = time.monotonic()
            if now - last >= arguments.every:
                last = now
                readings.append(memory())
                console.print(f"{now - begin:6.0f} s  step {loader.stats.steps:5d}  {readings[-1] / 1e6:8.1f} MB")
            if now - begin >= arguments.minutes * 60:
                break
    quarter = len(readings) // 4
    if quarter == 0:
        console.print("too short to say anything: fewer than four readings")
        sys.exit(1)
    early = statistics.median(readings[quarter : 2 * quarter])
    late = statistics.median(readings[-quarter:])
    growth = late / early - 1
    flat = growth <= arguments.limit
    console.print(f"{'FLAT' if flat else 'GROWING'}: {early / 1e6:.1f} MB, then {late / 1e6:.1f} MB ({growth:+.2%})")
    sys.exit(0 if flat else 1)


if __name__ == "__main__":
    main()
