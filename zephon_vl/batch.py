"""A microbatch as the trainer sees it: torch tensors over shared memory, no copy."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from zephon_vl.contracts import DocumentRef
from zephon_vl.digest import row_digest
from zephon_vl.layout import BatchLayout
from zephon_vl.messages import BadRecord, BatchHeader
from zephon_vl.topology import EMPTY

if TYPE_CHECKING:
    from zephon_vl.presets import VisionRules
    from zephon_vl.slabs import Slab


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """One microbatch of `rows` packed sequences with all their images.

    All tensors are views of one shared buffer; it is written again only when the last of them is gone. Keep as many
    microbatches as you like, up to the loader's `memory_limit`.
    """

    step: int
    microbatch: int
    """Index inside the step, from 0."""
    last: bool
    """Whether it is the last one of its step."""
    slots: tuple[int, ...]
    """Place of each row in the global batch, `EMPTY` (-1) for a row that only fills the microbatch up."""
    input_ids: torch.Tensor
    """(rows, seq_len) int64."""
    labels: torch.Tensor
    """(rows, seq_len) int64, already shifted within each document; -100 where nothing is to be predicted."""
    positions: torch.Tensor
    """(rows, seq_len) int64, from 0 in each document and in the padding."""
    document_ids: torch.Tensor
    """(rows, seq_len) int32, from 0 in each row; -1 is padding."""
    valid_tokens: torch.Tensor
    """(rows,) int64: labels that count."""
    mrope_positions: torch.Tensor | None = None
    """(rows, seq_len, 3) int64: temporal, height, width; where the preset asks for them."""
    pixel_patches: torch.Tensor | None = None
    """(patches, patch * patch * 3) uint8, all images one after the other, rows channel-last, stills once."""
    grid_thw: torch.Tensor | None = None
    """(images, 3) int64: patches of each image along time, height and width."""
    image_rows: torch.Tensor | None = None
    """(images,) int32: the row that each image belongs to."""
    documents: tuple[tuple[DocumentRef, ...], ...] = ()
    """The pieces of each row, in order: source, take, and the tokens of the document that it holds."""
    bad: tuple[BadRecord, ...] = ()
    """Samples skipped on the way to this microbatch, and its grey images."""
    rules: VisionRules | None = None

    @property
    def rows(self) -> int:
        return self.input_ids.shape[0]

    def pixel_values(
        self,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        layout: Literal["packed", "padded"] = "packed",
    ) -> torch.Tensor | None:
        """The model's `pixel_values` on `device`: permuted, repeated for the temporal patch, normalised.

        Returns:
            `packed`: (patches, patch_dim); `padded`: (images, most patches, patch_dim); None for text.
        """
        if self.pixel_patches is None or self.grid_thw is None or self.rules is None:
            return None
        from zephon_vl.operators.to_device import to_pixel_values

        return to_pixel_values(self.pixel_patches, self.grid_thw, self.rules, device=device, dtype=dtype, layout=layout)

    def digests(self) -> dict[int, str]:
        """SHA-256 of every slot in this microbatch, in hexadecimal, by slot."""
        return {slot: row_digest(self, row) for row, slot in enumerate(self.slots) if slot != EMPTY}


def batch_over(
    header: BatchHeader, slab: Slab, layout: BatchLayout, rules: VisionRules | None, release: Callable[[], None]
) -> Batch:
    """The batch over a slab. `release` is called once, when no tensor refers to the slab any more, in any thread."""
    flat = slab.fresh_view()
    weakref.finalize(flat, release).atexit = False
    counts = {"grid_thw": header.images, "image_rows": header.images, "pixel_patches": header.patches}
    tensors: dict[str, torch.Tensor] = {}
    for name, field in layout.fields.items():
        shape = (counts[name], *field.shape[1:]) if name in counts else field.shape
        # The array keeps `flat` alive, and the tensor the array.
        tensors[name] = torch.from_numpy(np.ndarray(shape, field.dtype, flat, field.offset))
    return Batch(
        step=header.step,
        microbatch=header.microbatch,
        last=header.last,
        slots=tuple(header.slots),
        valid_tokens=torch.tensor(header.valid),
        documents=tuple(map(tuple, header.documents)),
        bad=tuple(header.bad),
        rules=rules,
        **tensors,
    )
