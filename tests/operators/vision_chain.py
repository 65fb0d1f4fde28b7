"""What the tests of the vision operators share: encoding, measuring and rendering one image."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from zephon_vl.contracts import Context, File, ImageJob, ImagePart, Sample
from zephon_vl.operators.decode import DecodeImage
from zephon_vl.operators.patchify import Patchify, patches_to_image
from zephon_vl.operators.resize import ResizeImage
from zephon_vl.presets import PRESETS, VisionRules

RULES = PRESETS["qwen2_vl"]


class OneFile:
    """A source that holds one image and remembers how much of it was asked for."""

    name = "one"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.limits: list[int | None] = []

    def image_bytes(self, where: object, limit: int | None = None) -> bytes:
        self.limits.append(limit)
        return self.data[:limit]


def context(data: bytes) -> Context:
    return Context(source=OneFile(data), seed=0, source_index=0, epoch=0, index=0)  # type: ignore[arg-type]


def measure(data: bytes, rules: VisionRules = RULES, max_source_pixels: int = 178_956_970) -> ImagePart:
    """The part after all measure faces; the bytes are reached as a file's."""
    part = ImagePart(where=File("image"), name="image")
    sample = Sample(key="k", shard="s", parts=[part])
    where = context(data)
    for operator in (DecodeImage(max_source_pixels), ResizeImage(rules), Patchify(rules)):
        sample = operator.measure(sample, where)
    return part


def render(data: bytes, part: ImagePart, rules: VisionRules = RULES) -> np.ndarray:
    """The rows that the render faces write for a measured part."""
    assert part.grid is not None
    out = np.full((part.grid[1] * part.grid[2], rules.row_bytes), 0xAB, np.uint8)
    job = ImageJob(part, out, context(data))
    pixels: Any = data
    for operator in (DecodeImage(178_956_970), ResizeImage(rules), Patchify(rules)):
        pixels = operator.render(pixels, job)
    return out


def decode(data: bytes) -> np.ndarray:
    """(height, width, 3) uint8 as the decode operator gives it, after measuring."""
    part = ImagePart(where=File("image"), name="image")
    operator = DecodeImage(178_956_970)
    operator.measure(Sample(key="k", shard="s", parts=[part]), context(data))
    image = operator.render(data, ImageJob(part, np.empty((0, 0), np.uint8), context(data)))
    assert image.mode == "RGB"
    assert image.size == part.size
    return np.asarray(image)


def picture(data: bytes, rules: VisionRules = RULES) -> np.ndarray:
    part = measure(data, rules)
    assert part.grid is not None
    return patches_to_image(render(data, part, rules), part.grid, rules)


def encode(image: Image.Image, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def photograph(width: int, height: int) -> Image.Image:
    """A real photograph, scaled, without its colour profile."""
    image = Image.open(photograph_folder() / "astronaut.png").convert("RGB").resize((width, height))
    return Image.fromarray(np.asarray(image))


def photograph_folder() -> Path:
    """The pictures that the package scikit-image ships."""
    package = importlib.util.find_spec("skimage")
    assert package is not None and package.origin is not None, "the tests need scikit-image: pip install -e '.[dev]'"
    return Path(package.origin).parent / "data"
