"""SHA-256 of slots and steps: the proof that two runs saw the same bytes.

The digest of a slot covers every tensor of its row and the patches of its images. The digest of a step is the SHA-256
of its slots' digests in slot order, whatever ranks and microbatches they came from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from zephon_vl.batch import Batch

_FIELDS = ("input_ids", "labels", "positions", "document_ids", "mrope_positions")


def row_digest(batch: Batch, row: int) -> str:
    """SHA-256 of one row of a batch, in hexadecimal."""
    digest = hashlib.sha256()
    for name in _FIELDS:
        tensor = getattr(batch, name)
        if tensor is not None:
            _update(digest, name, tensor[row])
    if batch.grid_thw is not None and batch.pixel_patches is not None and batch.image_rows is not None:
        patches = batch.grid_thw.prod(dim=1)
        ends = patches.cumsum(0)
        images = (batch.image_rows == row).nonzero().flatten()
        first = int(ends[images[0]] - patches[images[0]])
        _update(digest, "grid_thw", batch.grid_thw[images[0] : images[-1] + 1])
        _update(digest, "pixel_patches", batch.pixel_patches[first : int(ends[images[-1]])])
    return digest.hexdigest()


def step_digest(slots: Mapping[int, str], global_batch_size: int) -> str:
    """SHA-256 of a step from the digests of all its slots, in hexadecimal.

    Raises:
        ValueError: if slots are missing.
    """
    missing = [slot for slot in range(global_batch_size) if slot not in slots]
    if missing:
        raise ValueError(f"slots {missing} of {global_batch_size} are missing")
    digest = hashlib.sha256()
    for slot in range(global_batch_size):
        digest.update(bytes.fromhex(slots[slot]))
    return digest.hexdigest()


def _update(digest: hashlib._Hash, name: str, tensor: torch.Tensor) -> None:
    digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
    digest.update(tensor.contiguous().numpy().data)
