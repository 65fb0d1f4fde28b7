"""WebDataset: shards resampled and shuffled in each worker, `WebLoader` without batching, packing in the worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import webdataset as wds  # pyright: ignore[reportMissingImports]

from bench.corpus_paths import Paths
from bench.loaders.protocol import Delivered, count
from bench.packing import pack
from bench.work import Sample, Settings

TITLE = "WebDataset"


def grid(workers: int) -> list[dict[str, Any]]:
    return [{}]


class Work:
    """Samples of a worker's shards, packed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __call__(self, raw: Iterator[dict[str, Any]]) -> Iterator[dict[str, torch.Tensor]]:
        torch.set_num_threads(1)
        for batch in pack(self._samples(raw), self.settings):
            yield {name: torch.from_numpy(field) for name, field in batch.items()}

    def _samples(self, raw: Iterator[dict[str, Any]]) -> Iterator[Sample]:
        for sample in raw:
            yield self.settings.process(sample["jpg"], sample["txt"].decode())


class Open:
    """A WebLoader's iterator."""

    def __init__(self, settings: Settings) -> None:
        shards = [str(path) for path in Paths(settings.root).tars]
        samples = wds.WebDataset(shards, resampled=True, shardshuffle=False, seed=settings.seed)  # type: ignore[attr-defined]
        packed = samples.shuffle(200).compose(Work(settings))
        self.batches = iter(
            wds.WebLoader(  # type: ignore[attr-defined]
                packed, batch_size=None, num_workers=settings.workers, prefetch_factor=settings.per_worker
            )
        )

    def __iter__(self) -> Iterator[Delivered]:
        return self

    def __next__(self) -> Delivered:
        return count(next(self.batches))

    def close(self) -> None:
        del self.batches


def open(settings: Settings) -> Open:
    return Open(settings)
