"""The whole loader against the raw ceiling of the machine, in one alternating run.

The ceiling: bare processes that read, decode, resize and patchify *the same images* that the loader delivered, with
the same calls, and throw them away. They tokenize nothing, pack nothing and hand nothing over. Reported is the ratio of
images per second, the median over rounds; absolute figures of one machine say little about another.

    python bench/loader_ceiling.py sample_data/recipe.toml --steps 20 --rounds 5
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from zephon_vl import Loader
from zephon_vl.contracts import Context, ImageJob, ImagePart
from zephon_vl.image_code import prepare_worker
from zephon_vl.order import orders_of
from zephon_vl.prepare import make_setup
from zephon_vl.recipe import Recipe, load_recipe
from zephon_vl.runner import TaskRunner

_WARM_UP = 2
"""Steps before the clock starts: slabs are touched, the pipeline is full."""


@dataclass(frozen=True)
class Arguments:
    """Options of this benchmark."""

    recipe: tyro.conf.Positional[Path]
    steps: int = 20
    """Steps that are timed in each round."""
    rounds: int = 5
    workers: int = 2
    microbatch_size: int = 1


Found = tuple[int, int, int, int]
"""(source, epoch, index, ordinal) of an image."""


def run_loader(recipe: Recipe, arguments: Arguments) -> tuple[float, int, list[Found]]:
    """(seconds, images without dummies, which) of the timed steps."""
    images: list[Found] = []
    with Loader(recipe, workers=arguments.workers, microbatch_size=arguments.microbatch_size) as loader:
        per_step = loader.topology.microbatches_per_step
        for _ in range(_WARM_UP * per_step):
            next(loader)
        documents = []
        begin = time.perf_counter()
        for _ in range(arguments.steps * per_step):
            documents.extend(next(loader).documents)
        seconds = time.perf_counter() - begin
        orders = orders_of(recipe, loader.open_sources())
    runner = TaskRunner(make_setup(recipe, arguments.microbatch_size))
    for row in documents:
        for ref in row:
            epochs, indices = orders[ref.source].indices(np.asarray([ref.take]))
            epoch, index = int(epochs[0]), int(indices[0])
            measured = runner.measured_sample(ref.source, epoch, index)
            if measured is None:
                continue
            for ordinal, offset in enumerate(measured.image_offsets):
                if ref.start <= offset < ref.stop:
                    images.append((ref.source, epoch, index, ordinal))
    return seconds, len(images), images


def bare(recipe: Recipe, images: list[Found], pipe: Connection) -> None:
    """One bare process: find the images untimed, then decode them against the clock."""
    prepare_worker()
    runner = TaskRunner(make_setup(recipe, 1))
    parts: list[tuple[int, ImagePart, Context]] = []
    most = 0
    for source, epoch, index, ordinal in images:
        sample = runner.measured_sample(source, epoch, index)
        assert sample is not None
        part = sample.images()[ordinal]
        assert part.grid is not None
        most = max(most, part.grid[1] * part.grid[2])
        parts.append((source, part, Context(runner.source(source), recipe.seed, source, epoch, index, ordinal)))
    chains = {source: runner.chain(source).render for source, _, _ in parts}
    row_bytes = make_setup(recipe, 1).layouts[0].row_bytes
    out = np.zeros((most, row_bytes), np.uint8)
    pipe.send("ready")
    pipe.recv()
    begin = time.perf_counter()
    for source, part, context in parts:
        assert part.grid is not None
        job = ImageJob(part, out[: part.grid[1] * part.grid[2]], context)
        pixels = context.image_bytes(part)
        for operator in chains[source]:
            pixels = operator.render(pixels, job)
    pipe.send(time.perf_counter() - begin)


def run_ceiling(recipe: Recipe, images: list[Found], workers: int) -> float:
    """Seconds that `workers` bare processes take for the images, shared out evenly in turn."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    processes = []
    for worker in range(workers):
        ours, theirs = context.Pipe()
        process = context.Process(target=bare, args=(recipe, images[worker::workers], theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()
    begin = time.perf_counter()
    for pipe in pipes:
        pipe.send("go")
    for pipe in pipes:
        pipe.recv()
    seconds = time.perf_counter() - begin
    for process in processes:
        process.join()
    return seconds


def main() -> None:
    arguments = tyro.cli(Arguments, description=__doc__)
    recipe = load_recipe(arguments.recipe)
    console = Console()
    table = Table("round", "images", "loader, images/s", "ceiling, images/s", "ratio")
    ratios: list[float] = []
    for number in range(arguments.rounds):
        seconds, count, images = run_loader(recipe, arguments)
        raw = run_ceiling(recipe, images, arguments.workers)
        ratios.append(raw / seconds)
        table.add_row(
            str(number + 1), str(count), f"{count / seconds:.0f}", f"{count / raw:.0f}", f"{raw / seconds:.3f}"
        )
    console.print(table)
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    console.print(
        f"median ratio to the ceiling {statistics.median(ratios):.3f} ({spread}), {arguments.workers} workers"
    )


if __name__ == "__main__":
    main()
