"""Many distinct pictures from a few real photographs: deterministic crops, scalings, flips and encodings."""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps, features

from sample_data.origins import TITLES

_PLACES = (("upper", "middle", "lower"), ("left", "centre", "right"))
_ORIENTATION = 0x0112
# EXIF orientation -> how the upright picture is turned before it is stored.
_STORED_AS = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}


@dataclass(frozen=True)
class Picture:
    """An encoded picture and what is in it."""

    data: bytes
    suffix: str
    title: str
    place: str
    """Which part of the photograph it shows."""


_encoded: dict[str, bytes] = {}


def set_photographs(photographs: Mapping[str, bytes]) -> None:
    """Give this process the photographs that its pictures are made from."""
    _encoded.update(photographs)


def make_picture(seed: int, number: int) -> Picture:
    """Picture `number` of a corpus; the same bytes each time.

    Pixels are log-normal around 0.4 megapixels, 0.05 to 2, with aspect ratios around 4:3, as in web data; mostly JPEG
    of quality 75 to 95, both subsamplings, some progressive, some PNG and WebP, some grey, some stored turned, with the
    EXIF orientation that rights them.
    """
    rng = np.random.Generator(np.random.Philox(key=[seed % 2**64, number]))
    name = sorted(_encoded)[int(rng.integers(len(_encoded)))]
    pixels = float(np.clip(np.exp(rng.normal(np.log(0.4), 0.7)), 0.05, 2.0)) * 1e6
    aspect = float(np.exp(rng.normal(np.log(4 / 3), 0.25)))
    image, place = _crop(_photograph(name), pixels, rng)
    size = round((pixels * aspect) ** 0.5), round((pixels / aspect) ** 0.5)
    image = ImageOps.fit(image, size, Image.Resampling.BICUBIC)
    if rng.random() < 0.5:
        image = ImageOps.mirror(image)
    data, suffix = _encode(image, rng)
    return Picture(data, suffix, TITLES[name], place)


@functools.cache
def _photograph(name: str) -> Image.Image:
    return Image.open(io.BytesIO(_encoded[name])).convert("RGB")


def _crop(image: Image.Image, pixels: float, rng: np.random.Generator) -> tuple[Image.Image, str]:
    """A part of the photograph, a third to all of each side, and its name. Large pictures take a large part, so that
    little is enlarged so far that its statistics are no longer a photograph's."""
    least = min(0.8, max(0.35, (pixels / (image.width * image.height)) ** 0.5))
    width, height = (round(side * rng.uniform(least, 1.0)) for side in image.size)
    left = int(rng.integers(image.width - width + 1))
    top = int(rng.integers(image.height - height + 1))
    row = min(2, int(3 * (top + height / 2) / image.height))
    column = min(2, int(3 * (left + width / 2) / image.width))
    return image.crop((left, top, left + width, top + height)), f"{_PLACES[0][row]} {_PLACES[1][column]}"


def _encode(image: Image.Image, rng: np.random.Generator) -> tuple[bytes, str]:
    kind, quality = rng.random(), int(rng.integers(75, 96))
    buffer = io.BytesIO()
    if kind < 0.04:
        image.save(buffer, "PNG", compress_level=3)
        return buffer.getvalue(), "png"
    if kind < 0.07 and features.check("webp"):  # pillow-simd may be built without
        image.save(buffer, "WEBP", quality=quality, method=2)
        return buffer.getvalue(), "webp"
    if 0.07 <= kind < 0.12:
        image = image.convert("L")
    exif = Image.Exif()
    if kind > 0.92:
        exif[_ORIENTATION] = orientation = int(rng.choice(list(_STORED_AS)))
        image = image.transpose(_STORED_AS[orientation])
    subsampling = 0 if rng.random() < 0.25 or image.mode == "L" else 2
    progressive = bool(rng.random() < 0.3)
    image.save(buffer, "JPEG", quality=quality, subsampling=subsampling, progressive=progressive, exif=exif.tobytes())
    return buffer.getvalue(), "jpg"
