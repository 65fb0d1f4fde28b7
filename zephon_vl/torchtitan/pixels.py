"""Pixels on their way to the trainer's device: uint8 until the trainer moves them, normalised there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from zephon_vl.batch import Batch
from zephon_vl.torchtitan.interfaces import PIXEL_LAYOUT


class DeferredPixels(torch.Tensor):
    """`pixel_values` of a microbatch, made by `.to(device)`.

    TorchTitan fetches all microbatches of a step before it runs the first, and moves each to the device when its turn
    comes. So only uint8 patches wait in memory, and only they travel to the device. Used in any other way, it turns
    into the plain tensor, on the CPU.
    """

    _make: Callable[[torch.device | str | None], torch.Tensor]

    @staticmethod
    def __new__(cls, batch: Batch, dtype: torch.dtype) -> DeferredPixels:
        """Raises `ValueError` for a batch without images."""
        patches, grid, rules = batch.pixel_patches, batch.grid_thw, batch.rules
        if patches is None or grid is None or rules is None:
            raise ValueError("the batch has no images")
        width = rules.row_bytes * rules.temporal_patch
        most = int(grid.prod(dim=1).max()) if len(grid) else 0
        shape = (len(patches), width) if PIXEL_LAYOUT == "packed" else (len(grid), most, width)
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device="cpu")

        def make(device: torch.device | str | None) -> torch.Tensor:
            values = batch.pixel_values(device, dtype, PIXEL_LAYOUT)
            assert values is not None
            return values

        self._make = make
        return self

    def to(self, device: torch.device | str | None = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The normalised pixels on `device`; further arguments are those of `torch.Tensor.to`."""
        if isinstance(device, torch.dtype | torch.Tensor):
            return self._make(None).to(device, *args, **kwargs)
        values = self._make(device)
        return values.to(values.device, *args, **kwargs) if args or kwargs else values

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"DeferredPixels({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def plain(pixels: DeferredPixels) -> torch.Tensor:
            return pixels._make(None)

        args, kwargs = tree_map_only(DeferredPixels, plain, (args, kwargs or {}))
        return func(*args, **kwargs)
