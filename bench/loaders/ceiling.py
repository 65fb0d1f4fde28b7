"""The ceiling: bare processes that decode, resize and patchify the pictures and throw them away.

They tokenize nothing, pack nothing and hand nothing over; counts come often enough to time a window well. With
`{"tuned": true}` they set up the allocator as this library's workers do, and write to one warm buffer; without it they
are what a plain process is.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from bench.loaders.protocol import Delivered
from bench.records import Records, order
from bench.work import Settings, tools

TITLE = "ceiling"
EVERY = 0.05
"""Seconds between two counts of a process."""


def grid(workers: int) -> list[dict[str, Any]]:
    return [{"tuned": True}]


def work(settings: Settings, part: int, pipe: Connection) -> None:
    """One bare process."""
    import numpy as np

    from zephon_vl.contracts import ImagePart
    from zephon_vl.image_code import prepare_worker

    tuned = settings.tuning.get("tuned", True)
    if tuned:
        prepare_worker()
    records, mine = Records(settings), tools(settings)
    rules = mine.rules
    assert rules is not None
    warm = np.zeros((rules.max_tokens * rules.merge**2, rules.row_bytes), np.uint8)
    measures = [operator for operator in mine.chain.measure if not operator.text_only]
    done, last = 0, time.perf_counter()
    for epoch in itertools.count():
        for index in order(len(records), settings.seed, part, settings.workers, epoch):
            data, _ = records.read(int(index))
            image = ImagePart(data=data)
            sample: Any = _OneImage(image)
            for operator in measures:
                operator.measure(sample, mine.context)
            assert image.grid is not None
            count = image.grid[1] * image.grid[2]
            mine.render(data, image, warm[:count] if tuned else np.empty((count, rules.row_bytes), np.uint8))
            done += 1
            if time.perf_counter() - last >= EVERY:
                last = time.perf_counter()
                pipe.send((done, 0))
                done = 0


class _OneImage:
    """What the image operators need of a sample."""

    def __init__(self, image: Any) -> None:
        self._images = [image]

    def images(self) -> list[Any]:
        return self._images


class Bare:
    """Bare processes; a batch is what one of them has done since it last told."""

    def __init__(self, settings: Settings, work: Callable[[Settings, int, Connection], None]) -> None:
        context = multiprocessing.get_context("spawn")
        self.processes = []
        self.pipes: list[Any] = []
        for part in range(settings.workers):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=work, args=(settings, part, theirs), daemon=True)
            process.start()
            self.processes.append(process)
            self.pipes.append(ours)
        self.told: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[Delivered]:
        return self

    def __next__(self) -> Delivered:
        if not self.told:
            self.told = [pipe.recv() for pipe in wait(self.pipes)]  # type: ignore[union-attr]
        return Delivered({}, *self.told.pop())

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def open(settings: Settings) -> Bare:
    return Bare(settings, work)
