"""Planning alone, from a few lanes to thousands: time and memory per lane must be flat.

    python bench/plan_scaling.py

The real engine of a rank mixes, packs and plans microbatches of four sources, two of them with images. Measurements are
answered at once with synthetic documents of random lengths, and nothing is rendered. Ranks run one after the other in
this process, of large sizes a sample that is spread evenly, since ranks do not know of each other. Time is CPU time.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import tyro
from plan_only import PlanOnly
from rich.console import Console
from rich.table import Table

from zephon_vl.contracts import ImageSlot, Measured, Vocabulary
from zephon_vl.layout import LayoutSpec
from zephon_vl.messages import BatchHeader
from zephon_vl.prepare import VISION_LANGUAGE
from zephon_vl.recipe import Recipe, SourceConfig, TokenizerConfig, VisionConfig
from zephon_vl.sources.build import build_indexes
from zephon_vl.tasks import MeasureResult, MeasureTask, Setup
from zephon_vl.topology import lanes_of

_SIZES = ((64, 16), (512, 128), (4096, 1024), (64, 1), (4096, 64))
_SEQ_LEN = 2048
_DOCUMENTS = 1024
"""Distinct synthetic documents of a source."""


@dataclass(frozen=True)
class Arguments:
    """Options of this benchmark."""

    sizes: tuple[tuple[int, int], ...] = _SIZES
    """Pairs of lanes and ranks."""
    lanes_run: int = 256
    """About how many lanes of each size are run: those of a sample of its ranks."""
    steps: int = 30
    """Steps of each rank that are timed, after as many that fill its open sequences."""
    samples: int = 2_000_000
    """Samples of each source; so many that no size comes to the end of an epoch, which costs a little."""
    rounds: int = 3
    json: Path | None = None
    """A file for the figures."""
    markdown: bool = False
    """Print a section of docs/benchmarks.md instead of a table."""


class Size(msgspec.Struct, kw_only=True):
    """What was measured of one size; a value for each round where there are several."""

    lanes: int
    ranks: int
    ranks_run: int
    lanes_run: int
    start: list[float] = []
    """CPU milliseconds to build the engine of a rank."""
    sequence: list[float] = []
    """CPU microseconds to plan a sequence, all that belongs to it included."""
    memory: float = 0.0
    """KiB that Python and NumPy hold for each lane of a rank, after its last step."""
    state: float = 0.0
    """Mean bytes of a lane's state."""


class Documents:
    """Answers measurements: random lengths, but the same for the same sample; every other source has images."""

    def __init__(self) -> None:
        self._documents = [
            [_document(np.random.Generator(np.random.Philox(key=[source, number])), images=source % 2 == 0)
             for number in range(_DOCUMENTS)]
            for source in range(4)
        ]  # fmt: skip

    def measure(self, task: MeasureTask) -> MeasureResult:
        """The result that a worker would send."""
        found = self._documents[task.source]
        return MeasureResult(task.id, [found[index % _DOCUMENTS] for _, _, index in task.samples])


def _document(rng: np.random.Generator, images: bool) -> Measured:
    text = int(np.clip(rng.lognormal(5.0, 1.0), 4, _SEQ_LEN // 2))
    if not images:
        return Measured(bytes(4 * text), [])
    h, w = (int(side) for side in rng.integers(4, 14, 2))
    width, height = 32 * w, 32 * h
    image = ImageSlot(1, h * w, (1, 2 * h, 2 * w), 0, None, (width, height), (width, height), width * height)
    return Measured(bytes(4 * (text + h * w + 2)), [image])


def make_setup(directory: Path, lanes: int, samples: int) -> Setup:
    """A run with four sources that have an index, but whose records are never read."""
    for name in "abcd":
        path = directory / f"{name}.jsonl"
        if not path.exists():
            path.write_bytes(b"{}\n" * samples)
    recipe = Recipe(
        lanes=lanes,
        global_batch_size=lanes,
        seq_len=_SEQ_LEN,
        tokenizer=TokenizerConfig(path="none"),
        vision=VisionConfig(preset="qwen3_5", max_pixels=200_704),
        sources=tuple(
            SourceConfig(name=name, path=f"{name}.jsonl", schema="caption" if i % 2 == 0 else "text", weight=1.0 + i)
            for i, name in enumerate("abcd")
        ),
        base_dir=str(directory),
    )
    recipe.validate()
    vocabulary = Vocabulary(tokenizer_json="", fingerprint="", size=100, image=1, vision_start=2, vision_end=3)
    layout = LayoutSpec(rows=1, seq_len=_SEQ_LEN, row_bytes=768, merge=2, mrope=True)
    return Setup(recipe, vocabulary, build_indexes(recipe), [layout], VISION_LANGUAGE)


class Benchmark:
    """Plans steps of sampled ranks."""

    def __init__(self, directory: Path, arguments: Arguments) -> None:
        self._directory, self._arguments = directory, arguments
        self._documents = Documents()

    def sizes(self) -> list[Size]:
        """The sizes asked for, nothing measured yet."""
        sizes = []
        for lanes, ranks in self._arguments.sizes:
            run = min(ranks, max(1, self._arguments.lanes_run * ranks // lanes))
            owned = sum(len(lanes_of(rank, lanes, ranks)) for rank in _spread_over(ranks, run))
            sizes.append(Size(lanes=lanes, ranks=ranks, ranks_run=run, lanes_run=owned))
        return sizes

    def time(self, size: Size) -> None:
        """One round of a size."""
        setup = make_setup(self._directory, size.lanes, self._arguments.samples)
        starts: list[float] = []
        seconds, states = 0.0, []
        for rank in _spread_over(size.ranks, size.ranks_run):
            begin = time.process_time()
            planned = PlanOnly(setup, rank, size.ranks, self._documents.measure)
            starts.append(1e3 * (time.process_time() - begin))
            headers = planned.headers()
            _take(headers, self._arguments.steps)
            begin = time.process_time()
            last = _take(headers, self._arguments.steps)
            seconds += time.process_time() - begin
            states += [len(state) for _, state in last.states]
        size.start.append(statistics.median(starts))
        size.sequence.append(1e6 * seconds / (size.lanes_run * self._arguments.steps))
        size.state = statistics.mean(states)

    def weigh(self, size: Size) -> None:
        """Memory of the first rank: apart from the timing, as watching costs time."""
        setup = make_setup(self._directory, size.lanes, self._arguments.samples)
        _take(PlanOnly(setup, 0, size.ranks, self._documents.measure).headers(), 1)  # imports and caches
        tracemalloc.start()
        planned = PlanOnly(setup, 0, size.ranks, self._documents.measure)
        _take(planned.headers(), self._arguments.steps)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        size.memory = held / 1024 / len(lanes_of(0, size.lanes, size.ranks))


def _spread_over(ranks: int, run: int) -> list[int]:
    return [number * ranks // run for number in range(run)]


def _take(headers: Iterator[BatchHeader], steps: int) -> BatchHeader:
    """Take whole steps; returns the last header."""
    for header in headers:
        steps -= header.last
        if steps == 0:
            return header
    raise AssertionError("a recipe that repeats has ended")


# --- reports -------------------------------------------------------------------------------------------------------

_COLUMNS = (
    "lanes",
    "ranks",
    "lanes per rank",
    "ranks run",
    "µs per sequence",
    "KiB per lane",
    "state, bytes",
    "start, ms",
)


def rows(sizes: list[Size]) -> list[list[str]]:
    """A row for each size, as `_COLUMNS` says."""
    return [
        [
            f"{size.lanes:,}",
            f"{size.ranks:,}",
            f"{size.lanes / size.ranks:g}",
            f"{size.ranks_run:,}",
            f"{statistics.median(size.sequence):.0f} ({min(size.sequence):.0f} to {max(size.sequence):.0f})",
            f"{size.memory:.0f}",
            f"{size.state:.0f}",
            f"{statistics.median(size.start):.1f}",
        ]
        for size in sizes
    ]


def setting(arguments: Arguments) -> str:
    """What was measured, in words."""
    return (
        f"Four sources of {arguments.samples:,} samples, sequences of {_SEQ_LEN:,} tokens, one to a lane and step, "
        f"8 open ones. {arguments.steps} steps of each rank that was run; CPU time, medians of {arguments.rounds} "
        "alternating rounds, in brackets the extremes. A sequence's time holds all of its rank: requests, order, "
        "mixture, packing, the plan of the microbatch and the encoded state."
    )


def markdown(sizes: list[Size], arguments: Arguments) -> str:
    """A section of docs/benchmarks.md."""
    lines = ["## Planning scales", "", setting(arguments), "", f"| {' | '.join(_COLUMNS)} |"]
    lines += ["|" + " ---: |" * len(_COLUMNS), *(f"| {' | '.join(row)} |" for row in rows(sizes))]
    return "\n".join(lines)


def main() -> None:
    arguments = tyro.cli(Arguments, description=__doc__)
    with tempfile.TemporaryDirectory(prefix="zephon-vl-plan-") as directory:
        benchmark = Benchmark(Path(directory), arguments)
        sizes = benchmark.sizes()
        with Console(stderr=True).status("starting") as status:
            for number, size in itertools.product(range(arguments.rounds), sizes):
                status.update(f"round {number + 1} of {arguments.rounds}: {size.lanes} lanes on {size.ranks} ranks")
                benchmark.time(size)
            for size in sizes:
                status.update(f"memory: {size.lanes} lanes on {size.ranks} ranks")
                benchmark.weigh(size)
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(sizes)))
    if arguments.markdown:
        print(markdown(sizes, arguments))
        return
    table = Table(*_COLUMNS, title="Planning alone")
    for row in rows(sizes):
        table.add_row(*row)
    Console().print(table, setting(arguments), sep="\n")


if __name__ == "__main__":
    main()
