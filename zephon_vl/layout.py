"""Where each field of a microbatch lies in its slab. One layout for a run, computed by every process alike."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

_ALIGN = 64
"""A cache line; also what vector loads and device copies like best."""
_PAGE = 4096


class LayoutSpec(msgspec.Struct, frozen=True):
    """What decides a layout. Small enough to send to every worker."""

    rows: int
    """Sequences of a microbatch."""
    seq_len: int
    row_bytes: int = 0
    """Bytes of a stored patch; 0 in text recipes."""
    merge: int = 1
    mrope: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """One array in the slab."""

    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]

    def view(self, slab: NDArray[np.uint8]) -> NDArray:
        """The array over the slab's bytes, no copy."""
        size = math.prod(self.shape) * self.dtype.itemsize
        return slab[self.offset : self.offset + size].view(self.dtype).reshape(self.shape)


class BatchLayout:
    """Offsets of all fields. Image fields are sized for the most images that `rows * seq_len` tokens can hold, as pages
    of a slab take memory only once they are written."""

    def __init__(self, spec: LayoutSpec) -> None:
        self.spec = spec
        rows, length = spec.rows, spec.seq_len
        self.max_images = rows * length if spec.row_bytes else 0
        self.max_patches = rows * length * spec.merge**2 if spec.row_bytes else 0
        self.fields: dict[str, Field] = {}
        self._end = 0
        self._add("input_ids", np.int64, (rows, length))
        self._add("labels", np.int64, (rows, length))
        self._add("positions", np.int64, (rows, length))
        self._add("document_ids", np.int32, (rows, length))
        if spec.mrope:
            self._add("mrope_positions", np.int64, (rows, length, 3))
        if spec.row_bytes:
            self._add("grid_thw", np.int64, (self.max_images, 3))
            self._add("image_rows", np.int32, (self.max_images,))
            self._end = -(-self._end // _PAGE) * _PAGE
            self._add("pixel_patches", np.uint8, (self.max_patches, spec.row_bytes))
        self.size = -(-self._end // _PAGE) * _PAGE

    def _add(self, name: str, dtype: type, shape: tuple[int, ...]) -> None:
        offset = -(-self._end // _ALIGN) * _ALIGN
        self.fields[name] = Field(offset, np.dtype(dtype), shape)
        self._end = offset + math.prod(shape) * np.dtype(dtype).itemsize

    def views(self, slab: NDArray[np.uint8]) -> dict[str, NDArray]:
        """All fields as arrays over one slab (uint8, at least `size` bytes)."""
        return {name: field.view(slab) for name, field in self.fields.items()}
