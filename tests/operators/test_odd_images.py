"""Odd images: the right ones load with the right pixels, the bad ones are `BadSample` with a reason, and nothing else
ever escapes."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from vision_chain import decode, encode, measure, photograph, render

from zephon_vl.errors import BadSample

PHOTO = photograph(60, 40)
RGB = np.asarray(PHOTO)
RAMP = np.linspace(0, 65535, 60 * 40).reshape(40, 60).astype(np.uint16)


def with_alpha(alpha: int = 255) -> Image.Image:
    """The left half opaque, the right half with `alpha`."""
    image = PHOTO.copy()
    image.putalpha(Image.fromarray(np.where(np.arange(60) < 30, 255, alpha).astype(np.uint8)[None].repeat(40, 0)))
    return image


def on_white(alpha: int) -> np.ndarray:
    image = with_alpha(alpha)
    return np.asarray(Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB"))


def oriented(value: int, format: str = "JPEG", **options: object) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = value
    return encode(PHOTO, format, exif=exif, **options)


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*c) for c in chunks)


def deep_rgb_png(transparent: bool = False) -> bytes:
    """16 bits a channel, which Pillow itself cannot write."""
    lines = b"".join(b"\0" + (line.astype(">u2") * 257).tobytes() for line in RGB)
    key = struct.pack(">3H", *(int(v) * 257 for v in RGB[0, 0]))
    head = (b"IHDR", struct.pack(">IIBBBBB", 60, 40, 16, 2, 0, 0, 0))
    middle = [(b"tRNS", key)] if transparent else []
    return png(head, *middle, (b"IDAT", zlib.compress(lines)), (b"IEND", b""))


def animation(format: str) -> bytes:
    second = Image.new("RGB", PHOTO.size, "red")
    return encode(PHOTO, format, save_all=True, append_images=[second], duration=100, lossless=True)


def palette() -> Image.Image:
    return PHOTO.quantize(16)


def transparent_palette() -> np.ndarray:
    colours = np.asarray(palette().convert("RGB")).copy()
    colours[np.asarray(palette()) == 2] = 255
    return colours


def grey(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("L").convert("RGB"))


def jpeg_pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def turn(image: np.ndarray) -> dict[int, np.ndarray]:
    """How a stored picture is meant to be seen, for each EXIF orientation."""
    rows_as_columns = image.transpose(1, 0, 2)
    return {
        1: image,
        2: image[:, ::-1],
        3: image[::-1, ::-1],
        4: image[::-1],
        5: rows_as_columns,
        6: rows_as_columns[:, ::-1],
        7: rows_as_columns[::-1, ::-1],
        8: rows_as_columns[::-1],
    }


GIF = encode(PHOTO, "GIF")
JPEG = encode(PHOTO, "JPEG")
CMYK = encode(PHOTO.convert("CMYK"), "JPEG")
GREY_JPEG = encode(PHOTO.convert("L"), "JPEG")
WEBP = encode(PHOTO, "WEBP", lossless=True)
PNG = encode(PHOTO, "PNG")
AVIF = encode(PHOTO, "AVIF")
YCC = encode(PHOTO.convert("YCbCr"), "TIFF", compression="jpeg")
DEEP = ((RAMP.astype(np.int64) * 255 + 32767) // 65535).astype(np.uint8)[..., None].repeat(3, 2)
BIG_ENDIAN = encode(Image.frombytes("I;16B", (60, 40), RAMP.astype(">u2").tobytes()), "TIFF")
HALF_GREY = np.where(np.arange(60)[:, None] < 30, grey(PHOTO), 255)
FIRST_COLOUR_WHITE = np.where((RGB[0, 0] == RGB).all(-1)[..., None], 255, RGB)
TURNED = turn(RGB)

GOOD: dict[str, tuple[bytes, np.ndarray]] = {
    "RGB PNG": (PNG, RGB),
    "RGB WebP": (WEBP, RGB),
    "BMP": (encode(PHOTO, "BMP"), RGB),
    "TIFF": (encode(PHOTO, "TIFF"), RGB),
    "PPM": (encode(PHOTO, "PPM"), RGB),
    "JPEG": (JPEG, jpeg_pixels(JPEG)),
    "grey JPEG": (GREY_JPEG, jpeg_pixels(GREY_JPEG)),
    "CMYK JPEG": (CMYK, jpeg_pixels(CMYK)),
    "grey PNG": (encode(PHOTO.convert("L"), "PNG"), grey(PHOTO)),
    "one bit PNG": (encode(PHOTO.convert("1"), "PNG"), grey(PHOTO.convert("1"))),
    "16-bit grey PNG": (encode(Image.fromarray(RAMP), "PNG"), DEEP),
    "16-bit grey TIFF": (encode(Image.fromarray(RAMP), "TIFF"), DEEP),
    "16-bit grey TIFF, big-endian": (BIG_ENDIAN, DEEP),
    "32-bit grey TIFF": (encode(Image.fromarray(RAMP.astype(np.int32)), "TIFF"), DEEP),
    "16-bit PGM": (b"P5 60 40 65535\n" + RAMP.astype(">u2").tobytes(), DEEP),
    "float TIFF": (encode(PHOTO.convert("L").convert("F"), "TIFF"), grey(PHOTO)),
    "16-bit RGB PNG": (deep_rgb_png(), RGB),
    "RGBA PNG": (encode(with_alpha(64), "PNG"), on_white(64)),
    "RGBA WebP": (encode(with_alpha(64), "WEBP", lossless=True, exact=True), on_white(64)),
    "grey and alpha PNG": (encode(with_alpha(0).convert("LA"), "PNG"), HALF_GREY),
    "palette PNG": (encode(palette(), "PNG"), np.asarray(palette().convert("RGB"))),
    "palette PNG with transparency": (encode(palette(), "PNG", transparency=2), transparent_palette()),
    "GIF": (GIF, jpeg_pixels(GIF)),
    "animated WebP": (animation("WEBP"), RGB),
    "animated PNG": (encode(PHOTO, "PNG", save_all=True, append_images=[PHOTO.rotate(180)]), RGB),
    "PNG without IEND": (PNG[:-12], RGB),
    "JPEG with trailing junk": (JPEG + b"junk" * 9, jpeg_pixels(JPEG)),
    "16-bit RGB PNG with transparency": (deep_rgb_png(transparent=True), FIRST_COLOUR_WHITE),
    "AVIF": (AVIF, jpeg_pixels(AVIF)),
    "YCbCr TIFF": (YCC, jpeg_pixels(YCC)),
    **{f"PNG, orientation {n}": (oriented(n, "PNG"), pixels) for n, pixels in TURNED.items()},
    **{f"WebP, orientation {n}": (oriented(n, "WEBP", lossless=True), pixels) for n, pixels in TURNED.items()},
    **{f"TIFF, orientation {n}": (oriented(n, "TIFF"), pixels) for n, pixels in TURNED.items()},
}  # fmt: skip


@pytest.mark.parametrize("kind", GOOD)
def test_loads_with_the_right_pixels(kind: str) -> None:
    data, expected = GOOD[kind]
    np.testing.assert_array_equal(decode(data), expected)


@pytest.mark.parametrize("orientation", TURNED)
def test_jpeg_orientation(orientation: int) -> None:
    upright, turned = decode(oriented(1)), decode(oriented(orientation))
    np.testing.assert_array_equal(turned, turn(upright)[orientation])


START_OF_FRAME = JPEG.index(b"\xff\xc0")


def jpeg_frame(at: int, replacement: bytes, data: bytes = JPEG) -> bytes:
    """A JPEG with other bytes in its frame header: 0 marker, 4 precision, 5 height, 7 width."""
    start = START_OF_FRAME + at
    return data[:start] + replacement + data[start + len(replacement) :]


def png_head(width: int, height: int) -> tuple[bytes, bytes]:
    return (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


IDAT, BOMB = (b"IDAT", zlib.compress(bytes(100))), (b"zTXt", b"k\0\0" + zlib.compress(bytes(2 << 20)))

AT_MEASURE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "HTML": (b"<html><body>404</body></html>", "no known image format.*<html>"),
    "zeros": (bytes(5000), "no known image format"),
    "junk before the magic": (b"junk" + JPEG, "no known image format"),
    "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no known image format"),
    "EPS, which would start a program": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no known image format"),
    "video": (b"\0\0\0\x20ftypisom" + bytes(99), "no known image format"),
    "JPEG magic only": (JPEG[:3], "cut off in its header"),
    "JPEG cut in its header": (JPEG[:100], "cut off in its header"),
    "JPEG without pixels": (JPEG[: JPEG.index(b"\xff\xda")] + b"\xff\xd9", "cut off|cannot be read as JPEG"),
    "JPEG of height zero": (jpeg_frame(5, b"\0\0"), "60 x 0 pixels"),
    "JPEG of 12 bits": (jpeg_frame(4, b"\x0c"), "12-bit"),
    "JPEG of 4 gigapixels": (jpeg_frame(5, b"\xff" * 4), "4,294,836,225 pixels.*max_source_pixels, 178,956,970"),
    "PNG cut in its header": (PNG[:20], "cut off in its header"),
    "PNG with a wrong checksum": (PNG[:20] + b"\1" + PNG[21:], "cannot be read as PNG.*checksum"),
    "PNG of width zero": (png(png_head(0, 60), IDAT), "0 x 60 pixels"),
    "PNG of 3.6 gigapixels": (png(png_head(60000, 60000), IDAT), "3,600,000,000 pixels"),
    "PNG that does not start with its header": (png(IDAT, png_head(60, 40)), "cannot be (read|decoded)"),
    "PNG with a text bomb": (png(png_head(60, 40), BOMB, IDAT), "cannot be read as PNG.*too large"),
    "WebP cut in its header": (WEBP[:18], "cut off in its header"),
    "GIF cut in its header": (GIF[:10], "cannot be read as GIF"),
    "GIF of size zero": (b"GIF89a" + bytes(4) + GIF[10:].replace(struct.pack("<HH", 60, 40), bytes(4)), "read as GIF"),
    "AVIF cut off": (encode(PHOTO, "AVIF")[:200], "cannot be read as AVIF"),
    "aspect over 200": (encode(Image.new("RGB", (604, 3)), "PNG"), "604 x 3 pixels.*200 times"),
}  # fmt: skip

AT_RENDER: dict[str, tuple[bytes, str]] = {
    "truncated JPEG": (JPEG[: len(JPEG) // 2], "cannot be decoded.*truncated"),
    "truncated CMYK JPEG": (CMYK[: len(CMYK) // 2], "cannot be decoded.*truncated"),
    "truncated JPEG that ends well": (JPEG[: len(JPEG) // 2] + b"\xff\xd9", "ends before the picture"),
    "JPEG with a header that promises more rows": (jpeg_frame(5, b"\0\x50"), "ends before the picture"),
    "lossless JPEG": (jpeg_frame(0, b"\xff\xc3"), "cannot be decoded"),
    "truncated PNG": (PNG[: len(PNG) // 2], "cannot be decoded.*truncated"),
    "truncated WebP": (WEBP[: len(WEBP) // 2], "cannot be read as WEBP"),
    "truncated GIF": (GIF[: len(GIF) // 2], "cannot be decoded.*truncated"),
    "truncated BMP": (GOOD["BMP"][0][:3000], "cannot be decoded.*truncated"),
    "truncated TIFF": (GOOD["TIFF"][0][:3000], "cannot be decoded.*truncated"),
    "truncated PPM": (GOOD["PPM"][0][:3000], "cannot be decoded.*truncated"),
}


@pytest.mark.parametrize("kind", AT_MEASURE)
def test_bad_ones_are_noticed_at_measure(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.PngImagePlugin.MAX_TEXT_CHUNK", 1 << 20)  # as always, but quicker to reach
    data, reason = AT_MEASURE[kind]
    with pytest.raises(BadSample, match=f"image 'image' .*{reason}"):
        measure(data)


@pytest.mark.parametrize("kind", AT_RENDER)
def test_bad_ones_are_noticed_at_render(kind: str) -> None:
    data, reason = AT_RENDER[kind]
    part = measure(data)
    with pytest.raises(BadSample, match=f"image 'image' .*{reason}"):
        render(data, part)


def test_another_size_than_measured_is_a_bad_sample() -> None:
    with pytest.raises(BadSample, match="60 x 40 pixels, but was 41 x 60 when it was measured"):
        render(PNG, measure(encode(Image.new("RGB", (41, 60)), "PNG")))


SEEDS = (JPEG, encode(PHOTO, "JPEG", progressive=True), CMYK, oriented(6), PNG, GOOD["palette PNG"][0], WEBP,
         oriented(8, "WEBP"), GIF, GOOD["TIFF"][0], GOOD["BMP"][0])  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), max_size=6),
    st.one_of(st.none(), st.integers(0, 1 << 14)),
    st.booleans(),
)
def test_damage_is_survived_or_a_bad_sample(
    data: bytes, flips: list[tuple[int, int]], end: int | None, near_the_start: bool
) -> None:
    damaged = bytearray(data)
    for at, mask in flips:
        damaged[at % (min(len(data), 200) if near_the_start else len(data))] ^= mask
    damaged = bytes(damaged[:end])
    try:
        part = measure(damaged, max_source_pixels=1 << 20)
        render(damaged, part)
    except BadSample as bad:
        assert bad.reason.startswith("image 'image' ")
