"""Everything in one run: all tables, then docs/benchmarks.md and its picture.

    python bench/report.py --data bench_data --peers bench_peers        # about 50 minutes on two cores
    python bench/report.py --only text restore                          # these tables anew, the others as they are
    python bench/report.py --no-run                                     # write the page again from the results

Results lie as JSON in `--results`, written after each table; the page is made of them alone. Loaders are compared
within a table only, so a table may be measured anew without the others. Sections of other scripts, between marks in
the page (`<!-- section: NAME -->` to `<!-- end: NAME -->`), are kept.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import tyro
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import run_resume, run_text, run_vl
from bench.corpus import ensure_corpus
from bench.page import Everything, page
from bench.plots import plot_tables

_ROOT = Path(__file__).resolve().parent.parent
Part = Literal["same", "box", "scaling", "sleep", "text", "restore"]
OTHERS = re.compile(r"<!-- section: (?P<name>[\w-]+) -->.*?<!-- end: (?P=name) -->", re.DOTALL)
"""What other scripts write into the page."""


@dataclass(frozen=True)
class Arguments:
    """Options of the report."""

    data: Path = Path("bench_data")
    images: int = 1000
    peers: Path = Path("bench_peers")
    """Directory of what users of other loaders have and this environment need not: plain Pillow and torchvision;
    installed there with pip where it is not."""
    results: Path = _ROOT / "bench" / "results.json"
    page: Path = _ROOT / "docs" / "benchmarks.md"
    picture: Path = _ROOT / "docs" / "benchmarks.png"
    run: bool = True
    """Measure; else only write the page from the results."""
    only: tuple[Part, ...] = ()
    """The tables to measure; default all. The others are kept from the results."""
    seconds: float = 3.0
    repeat: int = 5
    scaling: tuple[int, ...] = (1, 4)
    """Numbers of workers besides 2."""
    sleeping: tuple[int, ...] = (8, 32)
    """Numbers of workers that sleep; with `--only sleep` others are kept."""
    step: int = 300
    """Batches before the restore."""
    quick: bool = False
    """One short round of each: to try the command."""


def main() -> None:
    arguments = tyro.cli(Arguments, description=__doc__)
    console = Console()
    if arguments.quick:
        arguments = dataclasses.replace(arguments, seconds=2.0, repeat=1, scaling=(), sleeping=(8,), step=20)
    if arguments.run:
        measure(arguments, console)
    everything = _saved(arguments.results)
    old = arguments.page.read_text() if arguments.page.is_file() else ""
    arguments.page.write_text(page(everything, [found.group(0) for found in OTHERS.finditer(old)]))
    plot_tables([table for table in (everything.same, everything.box) if table], arguments.picture)
    console.print(f"written: {arguments.page}, {arguments.picture}", highlight=False)


def measure(arguments: Arguments, console: Console) -> None:
    """Measure the tables, one after the other; results are written after each."""
    _install_peers(arguments.peers)
    about, on = ensure_corpus(arguments.data, arguments.images).about, machine()
    kept = arguments.only and arguments.results.is_file()
    found = _saved(arguments.results) if kept else Everything(about=about, machine=on)
    if (found.about, found.machine) != (about, on):
        sys.exit(
            f"{arguments.results} was measured with {found.about}, {found.machine}; here it is {about}, {on}. "
            "Tables of one page must come from one machine: leave --only out to measure all, or give another --results."
        )
    measures: list[tuple[Part, str, Callable[[], None]]] = [
        ("same", "", lambda: setattr(found, "same", _table(_base(arguments), console))),
        ("box", "", lambda: setattr(found, "box", _table(dataclasses.replace(_base(arguments), table="box"), console))),
        ("scaling", "", lambda: setattr(found, "scaling", _scaling(arguments, console))),
        *(
            ("sleep", f" {n}", lambda n=n: found.sleeping.update({str(n): _sleeping(arguments, n, console)}))
            for n in arguments.sleeping
        ),
        ("text", "", lambda: setattr(found, "text", _text(arguments, console))),
        ("restore", "", lambda: setattr(found, "resume", _restore(arguments, console))),
    ]
    for part, which, measure_part in measures:
        if arguments.only and part not in arguments.only:
            continue
        console.rule(part + which)
        begin = time.monotonic()
        measure_part()
        found.minutes[part + which] = (time.monotonic() - begin) / 60
        # Where the corpus lies on this machine is nothing that a reader of the results needs.
        encoded = msgspec.json.encode(found)
        if arguments.data.is_absolute():
            encoded = encoded.replace(str(arguments.data).encode(), b"bench_data")
        arguments.results.write_bytes(msgspec.json.format(encoded, indent=1))


def _saved(path: Path) -> Everything:
    return msgspec.json.decode(path.read_bytes(), type=Everything)


def _base(arguments: Arguments) -> run_vl.Arguments:
    return run_vl.Arguments(
        data=arguments.data,
        images=arguments.images,
        seconds=arguments.seconds,
        repeat=arguments.repeat,
        peers=str(arguments.peers.absolute()),
        tune=not arguments.quick,
    )


def _table(arguments: run_vl.Arguments, console: Console) -> run_vl.Results:
    results = run_vl.measure_table(arguments, console)
    run_vl.show(results, console)
    return results


def _scaling(arguments: Arguments, console: Console) -> dict[str, run_vl.Results]:
    fewer = dataclasses.replace(_base(arguments), repeat=min(2, arguments.repeat), check=False)
    few = ("zephon_vl", "ceiling", "grain_loader")
    counts = arguments.scaling
    return {str(n): _table(dataclasses.replace(fewer, workers=n, loaders=few), console) for n in counts}


def _sleeping(arguments: Arguments, workers: int, console: Console) -> run_vl.Results:
    base = dataclasses.replace(_base(arguments), table="sleep", tune=False)
    # As many batches ahead as there are workers, so that every worker has its work.
    return _table(dataclasses.replace(base, workers=workers, prefetch=max(4, workers)), console)


def _text(arguments: Arguments, console: Console) -> run_vl.Results:
    results = run_vl.measure_table(dataclasses.replace(_base(arguments), table="text"), console)
    run_text.show_tokens(results, console)
    return results


def _restore(arguments: Arguments, console: Console) -> run_resume.Results:
    results = run_resume.measure_resume(
        run_resume.Arguments(
            data=arguments.data, images=arguments.images, step=arguments.step, repeat=arguments.repeat
        ),
        console,
    )
    run_resume.show(results, console)
    return results


def _install_peers(directory: Path) -> None:
    """What `pip install` gives, beside whatever Pillow and torch are installed here; without dependencies, so that
    neither is replaced."""
    minor = int(importlib.metadata.version("torch").split(".")[1])
    # torchvision 0.28 is the one for torch 2.13, and so on.
    for name, version in (("pillow", "pillow"), ("torchvision", f"torchvision==0.{minor + 15}.*")):
        if not (directory / name).is_dir():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", directory / name]
            subprocess.run([*command, version], check=True)


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    found = {
        "processor": model.group(1) if model else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "Python": platform.python_version(),
    }
    names = ("torch", "pillow-simd", "simplejpeg", "tokenizers", "grain", "webdataset", "torchtitan", "zephon")
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


if __name__ == "__main__":
    main()
