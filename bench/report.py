"""Everything in one run: all tables, then docs/benchmarks.md and its picture.

    python bench/report.py --data bench_data --peers bench_peers        # about 20 minutes on two cores
    python bench/report.py --no-run                                     # write the page again from the results

Results lie as JSON in `--results`; the page is made of them alone. Sections of other scripts, between marks in the
page (`<!-- section: NAME -->` to `<!-- end: NAME -->`), are kept.
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
from dataclasses import dataclass
from pathlib import Path

import msgspec
import tyro
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import run_resume, run_text, run_vl
from bench.corpus import ensure_corpus
from bench.page import Everything, page
from bench.plots import plot_tables

_ROOT = Path(__file__).resolve().parent.parent
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
    seconds: float = 3.0
    repeat: int = 5
    scaling: tuple[int, ...] = (1, 4)
    """Numbers of workers besides 2."""
    step: int = 300
    """Batches before the restore."""
    quick: bool = False
    """One short round of each: to try the command."""


def main() -> None:
    arguments = tyro.cli(Arguments, description=__doc__)
    console = Console()
    if arguments.quick:
        arguments = dataclasses.replace(arguments, seconds=2.0, repeat=1, scaling=(), step=20)
    if arguments.run:
        everything = measure(arguments, console)
        arguments.results.write_bytes(msgspec.json.format(msgspec.json.encode(everything), indent=1))
    everything = msgspec.json.decode(arguments.results.read_bytes(), type=Everything)
    old = arguments.page.read_text() if arguments.page.is_file() else ""
    arguments.page.write_text(page(everything, [found.group(0) for found in OTHERS.finditer(old)]))
    plot_tables([everything.same, everything.box], arguments.picture)
    console.print(f"written: {arguments.page}, {arguments.picture}", highlight=False)


def measure(arguments: Arguments, console: Console) -> Everything:
    """Run all tables, one after the other."""
    begin = time.monotonic()
    _install_peers(arguments.peers)
    paths = ensure_corpus(arguments.data, arguments.images)
    base = run_vl.Arguments(
        data=arguments.data,
        images=arguments.images,
        seconds=arguments.seconds,
        repeat=arguments.repeat,
        peers=str(arguments.peers.absolute()),
        tune=not arguments.quick,
    )
    console.rule("same code")
    same = run_vl.measure_table(base, console)
    run_vl.show(same, console)
    console.rule("out of the box")
    box = run_vl.measure_table(dataclasses.replace(base, table="box"), console)
    run_vl.show(box, console)
    fewer = dataclasses.replace(base, repeat=min(2, arguments.repeat), tune=False, check=False)
    few = ("zephon_vl", "ceiling", "grain_loader")
    scaling = {}
    for workers in arguments.scaling:
        console.rule(f"{workers} workers")
        more = dataclasses.replace(fewer, workers=workers, loaders=few, tune=not arguments.quick)
        scaling[str(workers)] = run_vl.measure_table(more, console)
    sleeping = {}
    for workers in (8, 32):
        console.rule(f"sleep, {workers} workers")
        asleep = dataclasses.replace(fewer, table="sleep", workers=workers, prefetch=max(4, workers), repeat=1)
        sleeping[str(workers)] = run_vl.measure_table(asleep, console)
    console.rule("text")
    text = run_vl.measure_table(dataclasses.replace(base, table="text", tune=False), console)
    run_text.show_tokens(text, console)
    console.rule("restore")
    resume = run_resume.measure_resume(
        run_resume.Arguments(
            data=arguments.data, images=arguments.images, step=arguments.step, repeat=min(3, arguments.repeat)
        ),
        console,
    )
    run_resume.show(resume, console)
    return Everything(
        about=paths.about,
        machine=machine(),
        minutes=(time.monotonic() - begin) / 60,
        same=same,
        box=box,
        scaling=scaling,
        sleeping=sleeping,
        text=text,
        resume=resume,
    )


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
