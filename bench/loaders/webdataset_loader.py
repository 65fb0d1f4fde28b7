"""WebDataset: shards resampled and shuffled in each worker, `WebLoader` without batching, packing in the worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import webdataset as wds  # pyright: ignore[reportMissingImports]

from bench.corpus_paths import Paths
from bench.loaders.torch_batches import Counted, Tensors, packed
from bench.work import Sample, Settings

TITLE = "WebDataset"


def grid(workers: int) -> list[dict[str, Any]]:
    return [{}]


class Work:
    """Samples of a worker's shards, packed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __call__(self, raw: Iterator[dict[str, Any]]) -> Iterator[Tensors]:
        return packed(self._samples(raw), self.settings)

    def _samples(self, raw: Iterator[dict[str, Any]]) -> Iterator[Sample]:
        for sample in raw:
            yield self.settings.process(sample["jpg"], sample["txt"].decode())


def open(settings: Settings) -> Counted:
    shards = [str(path) for path in Paths(settings.root).tars]
    samples = wds.WebDataset(shards, resampled=True, shardshuffle=False, seed=settings.seed)  # type: ignore[attr-defined]
    return Counted(
        wds.WebLoader(  # type: ignore[attr-defined]
            samples.shuffle(200).compose(Work(settings)),
            batch_size=None,
            num_workers=settings.workers,
            prefetch_factor=settings.per_worker,
        )
    )
