"""Pixels on the trainer's device: stored uint8 patches to the model's `pixel_values`. For the training process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from zephon_vl.presets import VisionRules


def to_pixel_values(
    pixel_patches: torch.Tensor,
    grid_thw: torch.Tensor,
    rules: VisionRules,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    layout: Literal["packed", "padded"] = "packed",
    order: Literal["c t h w", "t c h w"] = "c t h w",
    pad_to: int | None = None,
) -> torch.Tensor:
    """The model's `pixel_values` from the patches of a batch; only uint8 goes to the device, the rest happens there.

    In float32 they equal those of transformers' PIL image processors to the bit; other types are rounded from there.

    Args:
        pixel_patches: (patches, patch * patch * 3) uint8, rows channel-last, all images one after the other.
        grid_thw: (images, 3) patches of each image; needed for `padded` only, and best left on the CPU.
        rules: the recipe's vision rules.
        device: None leaves the patches where they are.
        dtype: of the result.
        layout: `packed`: (patches, dim), as transformers takes it; `padded`: (images, most patches, dim) with zeros, as
            TorchTitan takes it. dim is channel * temporal_patch * patch * patch.
        order: axes of a patch vector: channel first, or time first.
        pad_to: `padded` only: patches to pad each image to; None: a multiple of merge * merge that just suffices.

    Raises:
        ValueError: when the patches and grids do not match, or `pad_to` is too small.
    """
    if pixel_patches.ndim != 2 or pixel_patches.shape[1] != rules.row_bytes or pixel_patches.dtype != torch.uint8:
        raise ValueError(
            f"pixel_patches is {tuple(pixel_patches.shape)} {pixel_patches.dtype}, but preset {rules.preset!r} has "
            f"(patches, {rules.row_bytes}) torch.uint8"
        )
    if device is not None:
        pixel_patches = pixel_patches.to(device, non_blocking=True)
    values = _normalised(pixel_patches, rules, dtype)
    time = 2 if order == "c t h w" else 1
    repeats = [-1] * 5
    repeats[time] = rules.temporal_patch
    values = values.unsqueeze(time).expand(repeats).flatten(1)
    return values if layout == "packed" else _padded(values, grid_thw, rules, pad_to)


def _normalised(pixel_patches: torch.Tensor, rules: VisionRules, dtype: torch.dtype) -> torch.Tensor:
    """(patches, 3, patch, patch): scaled to 0 to 1, minus mean, over std, each step rounded to float32 as transformers
    does. The operands are tensors on the device: by a Python number, CUDA would multiply with the reciprocal."""

    def constant(values: tuple[float, ...]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=pixel_patches.device).reshape(-1, 1, 1)

    patch = rules.patch
    channels_first = pixel_patches.reshape(-1, patch, patch, 3).permute(0, 3, 1, 2)
    values = torch.empty(channels_first.shape, dtype=torch.float32, device=pixel_patches.device)
    values.copy_(channels_first)
    values.div_(constant((255.0,))).sub_(constant(rules.mean)).div_(constant(rules.std))
    return values.to(dtype)


def _padded(values: torch.Tensor, grid_thw: torch.Tensor, rules: VisionRules, pad_to: int | None) -> torch.Tensor:
    counts = grid_thw.to("cpu", torch.int64).prod(dim=1)
    total, longest = int(counts.sum()), int(counts.max()) if len(counts) else 0
    if total != values.shape[0]:
        raise ValueError(f"grid_thw has {total} patches in {len(counts)} images, but there are {values.shape[0]}")
    unit = rules.merge**2
    width = -(-longest // unit) * unit if pad_to is None else pad_to
    if width < longest:
        raise ValueError(f"pad_to is {pad_to}, but the largest image has {longest} patches")
    first = torch.arange(len(counts)) * width - (counts.cumsum(0) - counts)
    rows = torch.arange(total) + first.repeat_interleave(counts)
    padded = values.new_zeros((len(counts) * width, values.shape[1]))
    padded.index_copy_(0, rows.to(values.device, non_blocking=True), values)
    return padded.reshape(len(counts), width, values.shape[1])
