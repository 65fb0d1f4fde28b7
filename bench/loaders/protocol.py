"""What every loader under measurement must give."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import torch

    from bench.work import Settings

NAMES = (
    "zephon_vl",
    "ceiling",
    "grain_loader",
    "torch_dataloader",
    "webdataset_loader",
    "torchtitan_loader",
    "zephon_loader",
)

NEEDS = {
    "grain_loader": ("grain", "array_record"),
    "webdataset_loader": ("webdataset",),
    "zephon_loader": ("zephon",),
    "torchtitan_loader": ("torchtitan", "torchvision", "datasets"),
}
"""Libraries of each loader that has any of its own."""


@dataclass(slots=True)
class Delivered:
    """A batch in the consumer's process."""

    tensors: dict[str, torch.Tensor]
    """`input_ids`, `labels`, `positions` (rows, seq_len) int64, `document_ids` (rows, seq_len) int32, -1: padding; with
    pictures `mrope_positions` (rows, seq_len, 3), `grid_thw` (images, 3), `image_rows` (images,), and
    `pixel_patches` or `pixel_values`, one row a patch."""
    samples: int
    tokens: int = 0
    """Of documents; padding does not count."""


class OpenLoader(Protocol):
    """An open loader: an endless iterator."""

    def __iter__(self) -> Iterator[Delivered]: ...

    def __next__(self) -> Delivered: ...

    def close(self) -> None: ...


class Resumable(OpenLoader, Protocol):
    """A loader that can go on from a saved state."""

    def state(self) -> Any:
        """After the last batch delivered; can be pickled."""
        ...


class LoaderModule(Protocol):
    """A module of this package."""

    TITLE: str

    def grid(self, workers: int) -> list[dict[str, Any]]:
        """Its own settings to try, the best of which is taken."""
        ...

    open: Callable[[Settings], OpenLoader]
    """Start it. `Settings.tuning` is one of `grid`."""


def load(name: str) -> LoaderModule:
    """The module of a loader. Raises `ModuleNotFoundError` where its library is missing."""
    return cast(LoaderModule, importlib.import_module(f"bench.loaders.{name}"))


def missing(name: str, path: Sequence[str] = ()) -> list[str]:
    """The libraries that a loader lacks, also in the directories of `path`. Its module is not imported."""
    return [
        need
        for need in NEEDS.get(name, ())
        if importlib.util.find_spec(need) is None and not any((Path(folder) / need).is_dir() for folder in path)
    ]


def delivered(batch: dict[str, Any]) -> Delivered:
    """A packed batch of arrays, as `packing.collate` makes it, over the same memory."""
    import torch  # not at the top: workers import this module too

    return count({name: torch.from_numpy(field) for name, field in batch.items()})


def count(tensors: dict[str, torch.Tensor]) -> Delivered:
    """Count the samples and tokens of a batch."""
    documents = tensors["document_ids"]
    samples = int((documents.amax(dim=1) + 1).sum())
    return Delivered(tensors, samples, int((documents >= 0).sum()))
