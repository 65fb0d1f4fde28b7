"""Resize: the exact size of each image in its model, from the size alone, and the bicubic resize itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from PIL import Image

from zephon_vl.contracts import Context, ImageJob, Operator, Sample
from zephon_vl.errors import BadSample
from zephon_vl.presets import MAX_ASPECT

if TYPE_CHECKING:
    from zephon_vl.presets import VisionRules


class ResizeImage(Operator):
    """Sets `part.target` from `part.size`; renders an RGB image to that size, with black to the right and below it
    where the model pads."""

    def __init__(self, rules: VisionRules) -> None:
        self.rules = rules

    def measure(self, sample: Sample, context: Context) -> Sample:
        """Raises `BadSample` for a size that the model refuses."""
        for part in sample.images():
            if part.size is None:
                raise ValueError(
                    f"image {part.name!r} has no size yet: the decode operator must come before the resize"
                )
            try:
                _, part.target = resize_size(part.size, self.rules)
            except BadSample as bad:
                raise BadSample(f"image {part.name!r} {bad.reason}") from None
        return sample

    def render(self, pixels: Image.Image, job: ImageJob) -> Image.Image:
        """RGB image of any size to an RGB image of `resize_size(...)[1]`."""
        content, target = resize_size(pixels.size, self.rules)
        if pixels.size != content:
            pixels = pixels.resize(content, Image.Resampling.BICUBIC)
        if content != target:
            canvas = Image.new("RGB", target)
            canvas.paste(pixels)
            pixels = canvas
        return pixels


def resize_size(size: tuple[int, int], rules: VisionRules) -> tuple[tuple[int, int], tuple[int, int]]:
    """The (width, height) that the picture itself is resized to, and the (width, height) with padding.

    Raises:
        BadSample: for sides of 0 or an aspect that the model refuses.
    """
    width, height = size
    if width < 1 or height < 1:
        raise BadSample(f"is {width} x {height} pixels")
    if rules.resize == "navit":
        return _navit_resize(width, height, rules)
    target = _smart_resize(width, height, rules)
    return target, target


def _smart_resize(width: int, height: int, rules: VisionRules) -> tuple[int, int]:
    """`smart_resize` of Qwen2-VL in transformers, operation by operation."""
    factor = rules.factor
    if max(height, width) / min(height, width) > MAX_ASPECT:
        raise BadSample(f"is {width} x {height} pixels: its longer side is over {MAX_ASPECT} times the shorter one")
    h_bar = round(height / factor) * factor
    w_bar = round(width / factor) * factor
    if h_bar * w_bar > rules.max_pixels:
        beta = math.sqrt((height * width) / rules.max_pixels)
        h_bar = max(factor, math.floor(height / beta / factor) * factor)
        w_bar = max(factor, math.floor(width / beta / factor) * factor)
    elif h_bar * w_bar < rules.min_pixels:
        beta = math.sqrt(rules.min_pixels / (height * width))
        h_bar = math.ceil(height * beta / factor) * factor
        w_bar = math.ceil(width * beta / factor) * factor
    return w_bar, h_bar


def _navit_resize(width: int, height: int, rules: VisionRules) -> tuple[tuple[int, int], tuple[int, int]]:
    """`navit_resize` of Kimi K2.5 in transformers, operation by operation."""
    patch, side = rules.patch, rules.max_side_patches * rules.patch
    patches = max(1.0, height // patch) * max(1.0, width // patch)
    most = rules.max_pixels // patch**2
    scale = min(1.0, math.sqrt(most / patches), side / height, side / width)
    h = min(max(1, int(height * scale)), side)
    w = min(max(1, int(width * scale)), side)
    factor = rules.factor
    return (w, h), (-(-w // factor) * factor, -(-h // factor) * factor)
