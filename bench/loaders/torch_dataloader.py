"""`torch.utils.data.DataLoader`: each worker shuffles its share, packs and collates; tensors come by shared memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bench.loaders.protocol import Delivered, count
from bench.packing import pack
from bench.records import Records, order
from bench.work import Sample, Settings

TITLE = "torch DataLoader"


def grid(workers: int) -> list[dict[str, Any]]:
    return [{"context": context} for context in ("fork", "spawn")]


class Packed(IterableDataset):
    """Endless packed batches of one worker's share."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.records = settings, Records(settings)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        torch.set_num_threads(1)
        for batch in pack(self._samples(), self.settings):
            yield {name: torch.from_numpy(field) for name, field in batch.items()}

    def _samples(self) -> Iterator[Sample]:
        worker = get_worker_info()
        part, parts = (worker.id, worker.num_workers) if worker else (0, 1)
        for epoch in itertools.count():
            for index in order(len(self.records), self.settings.seed, part, parts, epoch):
                yield self.records[index]


class Open:
    """A DataLoader's iterator."""

    def __init__(self, settings: Settings) -> None:
        self.loader = DataLoader(
            Packed(settings),
            batch_size=None,
            num_workers=settings.workers,
            prefetch_factor=settings.per_worker,
            multiprocessing_context=settings.tuning.get("context", "fork"),
        )
        self.batches = iter(self.loader)

    def __iter__(self) -> Iterator[Delivered]:
        return self

    def __next__(self) -> Delivered:
        return count(next(self.batches))

    def close(self) -> None:
        del self.batches


def open(settings: Settings) -> Open:
    return Open(settings)
