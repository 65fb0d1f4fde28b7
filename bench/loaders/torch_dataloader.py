"""`torch.utils.data.DataLoader`: each worker shuffles its share, packs and collates; tensors come by shared memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bench.loaders.torch_batches import Counted, Tensors, packed
from bench.records import Records, order
from bench.work import Sample, Settings

TITLE = "torch DataLoader"


def grid(workers: int) -> list[dict[str, Any]]:
    return [{"context": context} for context in ("fork", "spawn")]


class Packed(IterableDataset):
    """Endless packed batches of one worker's share."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.records = settings, Records(settings)

    def __iter__(self) -> Iterator[Tensors]:
        return packed(self._samples(), self.settings)

    def _samples(self) -> Iterator[Sample]:
        worker = get_worker_info()
        part, parts = (worker.id, worker.num_workers) if worker else (0, 1)
        for epoch in itertools.count():
            for index in order(len(self.records), self.settings.seed, part, parts, epoch):
                yield self.records[index]


def open(settings: Settings) -> Counted:
    return Counted(
        DataLoader(
            Packed(settings),
            batch_size=None,
            num_workers=settings.workers,
            prefetch_factor=settings.per_worker,
            multiprocessing_context=settings.tuning.get("context", "fork"),
        )
    )
