"""Patches to `pixel_values`: layouts, orders and types. Parity with transformers is in test_parity.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zephon_vl.operators.to_device import to_pixel_values
from zephon_vl.presets import PRESETS

RULES = PRESETS["qwen2_vl"]
GRIDS = torch.tensor([[1, 2, 4], [1, 2, 2], [1, 4, 4]])
PATCHES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (28, 588), dtype=np.uint8))


def test_every_byte_is_scaled_as_in_float64() -> None:
    """transformers multiplies with 1 / 255 in float64 and rounds; here float32 is divided by 255: equal for all."""
    rules = PRESETS["qwen3_vl"]
    patches = torch.arange(256, dtype=torch.uint8).repeat(3).reshape(1, 768)
    values = to_pixel_values(patches, torch.tensor([[1, 1, 1]]), rules)
    scaled = (np.arange(256) * (1 / 255)).astype(np.float32)
    assert set(values.flatten().tolist()) == set(((scaled - np.float32(0.5)) / np.float32(0.5)).tolist())


def test_vectors_are_channel_time_height_width() -> None:
    values = to_pixel_values(PATCHES, GRIDS, RULES).reshape(-1, 3, 2, 14, 14)
    pixels = PATCHES.reshape(-1, 14, 14, 3).to(torch.float64) / 255
    expected = (pixels - torch.tensor(RULES.mean)) / torch.tensor(RULES.std)
    for frame in (0, 1):
        torch.testing.assert_close(values[:, :, frame].permute(0, 2, 3, 1).double(), expected, rtol=0, atol=1e-6)


def test_time_first_order_swaps_the_two_axes() -> None:
    values = to_pixel_values(PATCHES, GRIDS, RULES)
    swapped = to_pixel_values(PATCHES, GRIDS, RULES, order="t c h w")
    assert torch.equal(swapped.reshape(-1, 2, 3, 196).transpose(1, 2).reshape(28, -1), values)


def test_padded_has_one_image_a_row() -> None:
    packed = to_pixel_values(PATCHES, GRIDS, RULES)
    padded = to_pixel_values(PATCHES, GRIDS, RULES, layout="padded")
    assert padded.shape == (3, 16, 1176)
    for image, (start, stop) in zip(padded, ((0, 8), (8, 12), (12, 28)), strict=True):
        assert torch.equal(image[: stop - start], packed[start:stop])
        assert not image[stop - start :].any()
    assert to_pixel_values(PATCHES, GRIDS, RULES, layout="padded", pad_to=20).shape == (3, 20, 1176)


def test_no_images() -> None:
    none, grids = PATCHES[:0], GRIDS[:0]
    assert to_pixel_values(none, grids, RULES).shape == (0, 1176)
    assert to_pixel_values(none, grids, RULES, layout="padded").shape == (0, 0, 1176)


def test_other_types_are_rounded_from_float32() -> None:
    values = to_pixel_values(PATCHES, GRIDS, RULES)
    assert torch.equal(to_pixel_values(PATCHES, GRIDS, RULES, "cpu", torch.bfloat16), values.to(torch.bfloat16))


def test_a_preset_without_temporal_patch_repeats_nothing() -> None:
    rules = PRESETS["kimi_k2_5"]
    assert to_pixel_values(PATCHES, GRIDS, rules).shape == (28, 588)


def test_what_does_not_match_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(patches, 768\)"):
        to_pixel_values(PATCHES, GRIDS, PRESETS["qwen3_5"])
    with pytest.raises(ValueError, match="12 patches in 2 images, but there are 28"):
        to_pixel_values(PATCHES, GRIDS[:2], RULES, layout="padded")
    with pytest.raises(ValueError, match=r"pad_to is 8.*16"):
        to_pixel_values(PATCHES, GRIDS, RULES, layout="padded", pad_to=8)
