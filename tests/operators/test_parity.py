"""The whole chain against transformers: same grids, and the same float32 `pixel_values` bit for bit."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from vision_chain import encode, measure, photograph, photograph_folder, render

from zephon_vl.operators.to_device import to_pixel_values
from zephon_vl.presets import PRESETS


def odd_pictures() -> dict[str, bytes]:
    photo = photograph(150, 100)
    alpha = photo.copy()
    alpha.putalpha(Image.linear_gradient("L").resize(photo.size))
    rotated = Image.Exif()
    rotated[0x0112] = 6
    sizes = {f"{w} x {h}": (w, h) for w, h in ((1, 1), (3, 2), (13, 13), (1, 199), (398, 2), (27, 29), (2000, 10))}
    return {
        **{name: encode(photograph(*size), "PNG") for name, size in sizes.items()},
        "grey": encode(photo.convert("L"), "JPEG"),
        "grey with alpha": encode(alpha.convert("LA"), "PNG"),
        "alpha": encode(alpha, "PNG"),
        "alpha in WebP": encode(alpha, "WEBP", lossless=True),
        "palette": encode(photo.quantize(32), "PNG"),
        "transparent palette": encode(photo.quantize(32), "PNG", transparency=3),
        "one bit": encode(photo.convert("1"), "PNG"),
        "CMYK": encode(photo.convert("CMYK"), "JPEG"),
        "turned": encode(photo, "JPEG", exif=rotated),
        "4:4:4": encode(photo, "JPEG", subsampling=0),
        "progressive": encode(photo, "JPEG", progressive=True),
    }


@pytest.fixture(scope="module")
def pictures() -> dict[str, bytes]:
    names = sorted(p for p in photograph_folder().iterdir() if p.suffix in (".png", ".jpg", ".gif"))
    return {path.name: path.read_bytes() for path in names} | odd_pictures()


@pytest.mark.parametrize("preset", ["qwen2_vl", "qwen3_vl"])
def test_equals_the_pil_processor_of_transformers(preset: str, pictures: dict[str, bytes]) -> None:
    rules = PRESETS[preset]
    processor = Qwen2VLImageProcessorPil(
        patch_size=rules.patch,
        merge_size=rules.merge,
        temporal_patch_size=rules.temporal_patch,
        min_pixels=rules.min_pixels,
        max_pixels=rules.max_pixels,
        image_mean=list(rules.mean),
        image_std=list(rules.std),
    )
    assert len(pictures) >= 40
    for name, data in pictures.items():
        part = measure(data, rules)
        grid = torch.tensor([part.grid])
        values = to_pixel_values(torch.from_numpy(render(data, part, rules)), grid, rules)
        expected = processor(images=[ImageOps.exif_transpose(Image.open(io.BytesIO(data)))], return_tensors="pt")
        assert torch.equal(grid, expected["image_grid_thw"]), name
        assert torch.equal(values.view(torch.int32), expected["pixel_values"].view(torch.int32)), name
        assert part.tokens == int(grid.prod()) // processor.merge_size**2, name


@pytest.mark.parametrize(("preset", "same_as"), [("qwen2_5_vl", "qwen2_vl"), ("qwen3_5", "qwen3_vl")])
def test_families_that_share_an_image_processor_share_its_rules(preset: str, same_as: str) -> None:
    assert replace(PRESETS[preset], preset=same_as) == PRESETS[same_as]


def test_equals_a_second_statement_of_the_kimi_processor(pictures: dict[str, bytes]) -> None:
    """Its own needs torchvision; here in NumPy: resize, pad with black, patches row by row, normalise."""
    rules = PRESETS["kimi_k2_5"]
    for name, data in pictures.items():
        part = measure(data, rules)
        rows = render(data, part, rules)
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        if "A" in image.getbands() or "transparency" in image.info:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        pixels = np.asarray(image.convert("RGB"))  # no picture here is over Kimi's limits, so none is resized
        height, width = -(-pixels.shape[0] // 28) * 28, -(-pixels.shape[1] // 28) * 28
        pixels = np.pad(pixels, ((0, height - pixels.shape[0]), (0, width - pixels.shape[1]), (0, 0)))
        patches = pixels.reshape(height // 14, 14, width // 14, 14, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 588)
        assert part.grid == (1, height // 14, width // 14), name
        values = to_pixel_values(torch.from_numpy(rows), torch.tensor([part.grid]), rules)
        np.testing.assert_allclose(values, (patches / 255 - 0.5) / 0.5, rtol=0, atol=1e-6, err_msg=name)
