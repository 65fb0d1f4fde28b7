"""A microbatch in exactly the form that TorchTitan's models take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch

from zephon_vl.batch import Batch
from zephon_vl.torchtitan.interfaces import shaped
from zephon_vl.torchtitan.pixels import DeferredPixels

ABSENT = ("pixel_values_videos", "grid_thw_videos")
"""Modalities that this loader does not deliver."""


class SpecialTokens(dict[str, int]):
    """Ids of the special tokens. TorchTitan's validator moves every value of a batch to the device; these stay."""

    def to(self, device: Any) -> Self:
        return self


def model_inputs(
    batch: Batch, special_tokens: Mapping[str, int], dtype: torch.dtype, validating: bool
) -> tuple[dict[str, Any], torch.Tensor]:
    """`(inputs, labels)` of a microbatch. All tensors are on the CPU and views of it.

    Args:
        special_tokens: `image_id`, `video_id`, `vision_start_id`, `vision_end_id` and `pad_id`.
        dtype: of `pixel_values`.
        validating: leave out what is absent, rather than name it as None, which the validator cannot take.

    Returns:
        inputs: `input` and `positions`, int64 (rows, seq_len). With images also `pixel_values`, (images, most patches,
            patch_dim), which is normalised when the trainer moves it to its device; `grid_thw`, int64 (images, 3);
            `special_tokens`; and `mrope_positions`, int64 (rows, seq_len, 3), where the preset asks for them.
        labels: int64 (rows, seq_len), shifted, -100 where nothing is to be predicted.
    """
    inputs: dict[str, Any] = {"input": shaped(batch.input_ids), "positions": shaped(batch.positions)}
    labels = shaped(batch.labels)
    if batch.rules is None:
        return inputs, labels
    inputs["pixel_values"] = DeferredPixels(batch, dtype)
    inputs["grid_thw"] = batch.grid_thw
    inputs["special_tokens"] = SpecialTokens(special_tokens)
    if not validating:
        inputs |= dict.fromkeys(ABSENT)
    if batch.mrope_positions is not None:
        inputs["mrope_positions"] = shaped(batch.mrope_positions)
    return inputs, labels
