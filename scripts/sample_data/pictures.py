"""Many distinct pictures from a few real photographs: deterministic crops, scalings, flips and encodings."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

TITLES = {
    "astronaut.png": "a portrait of the astronaut Eileen Collins in an orange suit before a flag",
    "camera.png": "a photographer with a camera on a tripod on a lawn",
    "cell.png": "a cell under a microscope",
    "chelsea.png": "the face of a tabby cat named Chelsea",
    "china.jpg": "the Summer Palace in Beijing with its roofs under a cloudy sky",
    "coffee.png": "a cup of espresso with a spoon on a wooden table",
    "coins.png": "rows of ancient coins from Pompeii",
    "flower.jpg": "a red dahlia among green leaves",
    "grass.png": "blades of grass seen from above",
    "gravel.png": "a bed of gravel",
    "hubble_deep_field.jpg": "thousands of galaxies in the Hubble deep field",
    "ihc.png": "stained tissue of a colon under a microscope",
    "moon.png": "craters on the surface of the moon",
    "motorcycle_left.png": "a motorcycle in a workshop full of tools",
    "retina.jpg": "the retina of an eye with its blood vessels",
    "rocket.jpg": "a rocket on its launch pad at night",
}
_PLACES = (("upper", "middle", "lower"), ("left", "centre", "right"))
_ORIENTATION = 0x0112


@dataclass(frozen=True)
class Picture:
    """An encoded picture and what is in it."""

    data: bytes
    suffix: str
    title: str
    place: str
    """Which part of the photograph it shows."""
    size: tuple[int, int]


def make_picture(photographs: dict[str, bytes], seed: int, number: int) -> Picture:
    """Picture `number` of a corpus; the same bytes each time.

    Pixels are log-normal around 0.4 megapixels, 0.05 to 2, with aspect ratios around 4:3, as in web data; mostly JPEG
    of quality 75 to 95, both subsamplings, some progressive, some PNG and WebP, some grey, some rotated by EXIF only.
    """
    rng = np.random.Generator(np.random.Philox(key=seed * 1_000_003 + number))
    name = sorted(photographs)[int(rng.integers(len(photographs)))]
    image = Image.open(io.BytesIO(photographs[name])).convert("RGB")
    image, place = _crop(image, rng)
    pixels = float(np.clip(np.exp(rng.normal(np.log(0.4), 0.7)), 0.05, 2.0)) * 1e6
    aspect = float(np.exp(rng.normal(np.log(4 / 3), 0.25)))
    width, height = max(8, round((pixels * aspect) ** 0.5)), max(8, round((pixels / aspect) ** 0.5))
    image = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
    if rng.random() < 0.5:
        image = ImageOps.mirror(image)
    data, suffix = _encode(image, rng)
    return Picture(data, suffix, TITLES[name], place, (width, height))


def _crop(image: Image.Image, rng: np.random.Generator) -> tuple[Image.Image, str]:
    """A part of the photograph, a third to all of each side, and its name."""
    shares = rng.uniform(0.35, 1.0, 2)
    width, height = (round(side * share) for side, share in zip(image.size, shares, strict=True))
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
    if kind < 0.07:
        image.save(buffer, "WEBP", quality=quality, method=2)
        return buffer.getvalue(), "webp"
    if kind < 0.12:
        image = image.convert("L")
    exif = Image.Exif()
    if kind > 0.92:
        exif[_ORIENTATION] = int(rng.choice([3, 6, 8]))
    options = {"progressive": bool(rng.random() < 0.3), "exif": exif.tobytes()}
    subsampling = 0 if rng.random() < 0.25 or image.mode == "L" else 2
    image.save(buffer, "JPEG", quality=quality, subsampling=subsampling, **options)
    return buffer.getvalue(), "jpg"
