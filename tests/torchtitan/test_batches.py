"""Batches have exactly the form that TorchTitan's own collator gives its models."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from unittest.mock import MagicMock, patch

import pytest
import torch
from adapters import build, tokenizer_of

from zephon_vl.loader import Loader
from zephon_vl.torchtitan.batches import SpecialTokens
from zephon_vl.torchtitan.pixels import DeferredPixels

# Beside TorchTitan's collator stand functions that decode with torchvision, which is not wanted here.
_TORCHVISION = ("torchvision", "torchvision.io", "torchvision.transforms.v2.functional")
with patch.dict(sys.modules, {name: MagicMock() for name in (*_TORCHVISION, "torchvision.transforms.v2")}):
    from torchtitan.hf_datasets.multimodal.mm_collator import MultiModalCollator
    from torchtitan.hf_datasets.multimodal.utils.image import vision_to_patches

KEYS = {
    "input",
    "positions",
    "pixel_values",
    "grid_thw",
    "pixel_values_videos",
    "grid_thw_videos",
    "special_tokens",
    "mrope_positions",
}


def _collator(corpus: Path) -> MultiModalCollator:
    return MultiModalCollator(
        batch_size=2,
        seq_len=64,
        max_images_per_batch=64,
        patch_size=16,
        temporal_patch_size=2,
        spatial_merge_size=2,
        tokenizer=tokenizer_of(corpus / "tokenizer"),
        build_mrope_positions=True,
    )


def test_the_fields_are_those_of_the_models(corpus: Path) -> None:
    inputs, labels = next(iter(build(corpus, local_batch_size=2)))
    assert set(inputs) == KEYS
    for name in ("input", "positions"):
        assert (inputs[name].shape, inputs[name].dtype) == ((2, 64), torch.int64)
    assert (labels.shape, labels.dtype) == ((2, 64), torch.int64)
    assert (inputs["mrope_positions"].shape, inputs["mrope_positions"].dtype) == ((2, 64, 3), torch.int64)
    images = len(inputs["grid_thw"])
    assert (inputs["grid_thw"].shape, inputs["grid_thw"].dtype) == ((images, 3), torch.int64)
    assert inputs["pixel_values"].shape == (images, int(inputs["grid_thw"].prod(1).max()), 3 * 2 * 16 * 16)
    assert inputs["pixel_values_videos"] is inputs["grid_thw_videos"] is None
    tokenizer = tokenizer_of(corpus / "tokenizer")
    assert inputs["special_tokens"] == {
        f"{name}_id": getattr(tokenizer, f"{name}_id")
        for name in ("image", "video", "vision_start", "vision_end", "pad")
    }


def test_every_microbatch_has_an_image_and_as_many_tokens_as_patches(corpus: Path) -> None:
    loader = iter(build(corpus, "mostly_text"))
    for _ in range(24):
        inputs, _ = next(loader)
        placeholders = (inputs["input"] == inputs["special_tokens"]["image_id"]).sum()
        assert placeholders == inputs["grid_thw"].prod(1).sum() // 4 > 0


def test_positions_along_three_axes_are_torchtitans(corpus: Path) -> None:
    collator, loader = _collator(corpus), iter(build(corpus, local_batch_size=2))
    for _ in range(8):
        inputs, _ = next(loader)
        special = inputs["special_tokens"]
        theirs = collator._build_mrope_positions(
            inputs["input"],
            inputs["grid_thw"],
            None,
            inputs["positions"],
            image_token_id=special["image_id"],
            video_token_id=special["video_id"],
        )
        assert torch.equal(inputs["mrope_positions"], theirs)


def test_patch_vectors_are_torchtitans(corpus: Path) -> None:
    """Undo the patches of an image by hand, and let TorchTitan make them again."""
    inputs, _ = next(iter(build(corpus)))
    pixels = inputs["pixel_values"].to("cpu")
    _, height, width = (int(n) for n in inputs["grid_thw"][0])
    patches = pixels[0, : height * width].reshape(height // 2, width // 2, 2, 2, 3, 2, 16, 16)
    assert torch.equal(patches[..., 0, :, :], patches[..., 1, :, :])  # a still, repeated
    rows_of_patches = patches[..., 0, :, :].permute(
        0, 2, 5, 1, 3, 6, 4
    )  # block row, in it, y; block column, in it, x; c
    picture = rows_of_patches.reshape(1, height * 16, width * 16, 3)
    theirs, grid = vision_to_patches(picture, 16, 2, 2, patch_order="block")
    assert grid.tolist() == [1, height, width]
    assert torch.equal(theirs, pixels[0, : height * width])


def test_pixels_wait_as_bytes_and_are_made_when_they_are_moved(corpus: Path) -> None:
    loader = Loader(corpus / "vl.toml", microbatch_size=2, workers=0)
    batch = next(loader)
    pixels = DeferredPixels(batch, torch.float32)
    plain = batch.pixel_values("cpu", torch.float32, "padded")
    assert plain is not None and plain.shape == pixels.shape and pixels.dtype == torch.float32
    moved = pixels.to("cpu")
    assert type(moved) is torch.Tensor and torch.equal(moved, plain)
    assert torch.equal(pixels + 1, plain + 1)
    assert torch.equal(pixels.to(torch.bfloat16), plain.to(torch.bfloat16))
    assert DeferredPixels(batch, torch.bfloat16).to("cpu").dtype == torch.bfloat16
    gone = weakref.ref(batch.input_ids)
    del batch, pixels
    gc.collect()
    assert gone() is None


def test_text_has_no_pixels(corpus: Path) -> None:
    batch = next(Loader(corpus / "text.toml", workers=0))
    with pytest.raises(ValueError, match="no images"):
        DeferredPixels(batch, torch.float32)


def test_validation_batches_hold_only_what_can_be_moved(corpus: Path) -> None:
    inputs, _ = next(iter(build(corpus, "once", infinite=False)))
    assert set(inputs) == KEYS - {"pixel_values_videos", "grid_thw_videos"}
    moved = {name: value.to("cpu") for name, value in inputs.items()}
    assert isinstance(moved["special_tokens"], SpecialTokens)
