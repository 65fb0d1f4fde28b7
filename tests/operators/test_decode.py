"""The header that measure reads and the picture that render decodes are the same, and cheap to tell apart."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from vision_chain import OneFile, context, encode, measure, photograph

from zephon_vl.contracts import File, ImageJob, ImagePart, Sample
from zephon_vl.errors import BadSample
from zephon_vl.image_header import NeedMore, read_header
from zephon_vl.operators import decode
from zephon_vl.operators.decode import DecodeImage

PHOTO = photograph(300, 200)


def size_and_looks(data: bytes) -> tuple[tuple[int, int] | None, list[int | None]]:
    part, where = ImagePart(where=File("a"), name="a"), context(data)
    DecodeImage(1 << 24).measure(Sample(key="k", shard="s", parts=[part]), where)
    assert isinstance(where.source, OneFile)
    return part.size, where.source.limits


def with_segment(jpeg: bytes, size: int) -> bytes:
    """A JPEG with comments before its frame header."""
    whole, rest = divmod(size, 60000)
    comments = b"".join(b"\xff\xfe" + struct.pack(">H", n + 2) + bytes(n) for n in [60000] * whole + [rest])
    return jpeg[:2] + comments + jpeg[2:]


def test_measure_reads_only_the_start_of_a_file() -> None:
    large = Image.effect_noise((900, 700), 80).convert("RGB")
    for format in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"):
        data = encode(large, format, **({"lossless": True} if format == "WEBP" else {}))
        assert len(data) > 1 << 17
        assert size_and_looks(data) == ((900, 700), [1 << 16]), format


def test_a_longer_header_is_looked_at_again() -> None:
    jpeg = encode(PHOTO, "JPEG")
    assert size_and_looks(with_segment(jpeg, 100_000)) == ((300, 200), [1 << 16, 1 << 20])
    assert size_and_looks(with_segment(jpeg, 1_200_000)) == ((300, 200), [1 << 16, 1 << 20, None])


def test_orientation_behind_the_pixels_of_webp_is_found() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(Image.effect_noise((400, 300), 80), "WEBP", lossless=True, exif=exif)
    assert len(data) > 1 << 16
    assert size_and_looks(data) == ((300, 400), [1 << 16, 1 << 20])


def test_bytes_inside_the_record() -> None:
    part = ImagePart(data=encode(PHOTO, "JPEG"), name="a")
    DecodeImage(1 << 24).measure(Sample(key="k", shard="s", parts=[part]), context(b""))
    assert (part.size, part.decode_cost) == ((300, 200), 60000)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF"])
def test_the_pixel_limit_is_the_recipes_own(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # of the calling program; would be an error from 20 on
    data = encode(PHOTO, format)
    assert measure(data, max_source_pixels=60000).size == (300, 200)
    with pytest.raises(BadSample, match=r"image 'image' has 60,000 pixels.*over vision.max_source_pixels, 59,999"):
        measure(data, max_source_pixels=59999)
    job = ImageJob(ImagePart(name="a"), np.empty((0, 0), np.uint8), context(data))
    with pytest.raises(BadSample, match="60,000 pixels"):
        DecodeImage(59999).render(data, job)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_the_fast_way_has_the_pixels_of_pillow(mode: str, subsampling: int, progressive: bool) -> None:
    """Also for sides that are no multiple of a block; and the image behaves like any of Pillow's."""
    for size in ((300, 200), (301, 199), (1, 1), (17, 3)):
        options = {"subsampling": subsampling} if mode == "RGB" else {}
        data = encode(photograph(*size).convert(mode), "JPEG", progressive=progressive, quality=91, **options)
        image = DecodeImage(1 << 24).render(data, ImageJob(ImagePart(), np.empty((0, 0), np.uint8), context(data)))
        expected = Image.open(io.BytesIO(data)).convert("RGB")
        assert image.mode == "RGB" and image.size == size
        np.testing.assert_array_equal(np.asarray(image), np.asarray(expected))
        for change in (Image.Image.copy, lambda i: i.convert("RGBA"), lambda i: i.transpose(5), lambda i: i.rotate(9)):
            np.testing.assert_array_equal(np.asarray(change(image)), np.asarray(change(expected)))


def test_without_simplejpeg_pillow_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(PHOTO, "JPEG")
    job = ImageJob(ImagePart(), np.empty((0, 0), np.uint8), context(data))
    fast = np.asarray(DecodeImage(1 << 24).render(data, job))
    monkeypatch.setattr(decode, "_decode_jpeg", None)
    np.testing.assert_array_equal(np.asarray(DecodeImage(1 << 24).render(data, job)), fast)


def test_webp_without_support_is_said_at_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode.features, "check", lambda feature: False)
    monkeypatch.setattr(decode, "_plugins", lambda: [("WEBP", Image.Image, lambda prefix: "not installed")])
    with pytest.raises(BadSample, match=r"is a WEBP image, which this Pillow .* is built without"):
        measure(encode(PHOTO, "WEBP"))


def test_every_cut_of_a_header_asks_for_more() -> None:
    exif = Image.Exif()
    exif[0x0112] = 3
    for format in ("JPEG", "PNG", "WEBP"):
        data = encode(photograph(30, 20), format, exif=exif)
        whole = read_header(data)
        assert whole is not None and (whole.format, whole.size, whole.orientation) == (format, (30, 20), 3)
        for end in range(len(data)):
            try:
                header = read_header(data[:end])
            except NeedMore:
                continue
            assert header in (None, whole)
            assert header is not None or end < 12, "only an incomplete magic number leaves it to Pillow"


def test_measure_decodes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("decoded at measure")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", never)
    monkeypatch.setattr(decode, "_decode_jpeg", never)
    notes = PngInfo()
    notes.add_text("comment", "compressed, so that Pillow must look", zip=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    assert measure(encode(PHOTO.convert("CMYK"), "JPEG")).size == (300, 200)
    assert measure(encode(PHOTO, "PNG", pnginfo=notes, exif=exif)).size == (200, 300)
    assert measure(encode(PHOTO, "TIFF", exif=exif)).size == (200, 300)
