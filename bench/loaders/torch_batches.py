"""What loaders over torch's `DataLoader` share: tensors packed in the worker, counted in the consumer's process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from bench.loaders.protocol import Delivered, count
from bench.packing import pack
from bench.work import Sample, Settings

Tensors = dict[str, torch.Tensor]


def packed(samples: Iterator[Sample], settings: Settings) -> Iterator[Tensors]:
    """Packed batches of a worker's samples."""
    torch.set_num_threads(1)
    for batch in pack(samples, settings):
        yield {name: torch.from_numpy(field) for name, field in batch.items()}


class Counted:
    """The batches of a loader."""

    def __init__(self, loader: Iterable[Tensors]) -> None:
        self.batches = iter(loader)

    def __iter__(self) -> Iterator[Delivered]:
        return self

    def __next__(self) -> Delivered:
        return count(next(self.batches))

    def close(self) -> None:
        del self.batches
