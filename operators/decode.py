"""Decode: the size of each image from its header, and RGB pixels the way a person sees the image."""

from __future__ import annotations

import functools
import importlib
import io
import struct
import warnings
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL
from PIL import Image, features

from zephon_vl.contracts import Context, ImageJob, ImagePart, Operator, Sample
from zephon_vl.errors import BadSample
from zephon_vl.image_header import Header, NeedMore, exif_orientation, read_header

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIRST_LOOK = (1 << 16, 1 << 20, None)
"""How many bytes measure reads of an image, one after the other, until its header is complete; None: all."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM", "DIB", "QOI")
"""Formats that are tried, in this order. Left out on purpose: those that start other programs (EPS), are no pictures
(stubs, fonts) or have no magic number, so that any bytes would do (TGA)."""

_CODEC_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    EOFError,
    ImportError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
"""What Pillow's plugins raise on damaged data."""


class DecodeImage(Operator):
    """Sets `part.size` and `part.decode_cost` from the header; renders encoded bytes to an RGB image.

    EXIF orientation is applied, transparency is put on white and of an animation the first frame is taken, all as
    transformers does. Grey of 16 bits is scaled to 8, where Pillow alone would clip it.
    """

    def __init__(self, max_source_pixels: int) -> None:
        self.max_source_pixels = max_source_pixels

    def measure(self, sample: Sample, context: Context) -> Sample:
        """Reads headers only. Raises `BadSample` for an image that cannot be read or has too many pixels."""
        for part in sample.images():
            width, height = part.size = self._measure(part, context)
            part.decode_cost = width * height
        return sample

    def render(self, pixels: bytes, job: ImageJob) -> Image.Image:
        """Encoded bytes to an RGB image of `part.size`. Raises `BadSample` for damaged or truncated data."""
        try:
            picture = _Picture(pixels)
            self._check(picture.size)
            if job.part.size is not None and picture.size != tuple(job.part.size):
                raise BadSample(f"is {_by(picture.size)} pixels, but was {_by(job.part.size)} when it was measured")
            return picture.decode()
        except NeedMore:
            raise BadSample(f"image {job.part.name!r} is cut off in its header ({len(pixels)} bytes)") from None
        except BadSample as bad:
            raise BadSample(f"image {job.part.name!r} {bad.reason}") from None

    def _measure(self, part: ImagePart, context: Context) -> tuple[int, int]:
        for limit in FIRST_LOOK:
            data = context.image_bytes(part, limit)
            complete = limit is None or len(data) < limit
            try:
                size = _Picture(data).size
                self._check(size)
                return size
            except NeedMore:
                if complete:
                    raise BadSample(f"image {part.name!r} is cut off in its header ({len(data)} bytes)") from None
            except _Unreadable as bad:
                if complete:
                    raise BadSample(f"image {part.name!r} {bad.reason}") from None
            except BadSample as bad:
                raise BadSample(f"image {part.name!r} {bad.reason}") from None
        raise AssertionError("the last look is at all bytes")

    def _check(self, size: tuple[int, int]) -> None:
        if min(size) < 1:
            raise BadSample(f"is {_by(size)} pixels")
        if size[0] * size[1] > self.max_source_pixels:
            raise BadSample(
                f"has {size[0] * size[1]:,} pixels ({_by(size)}), over vision.max_source_pixels, "
                f"{self.max_source_pixels:,}"
            )


class _Unreadable(BadSample):
    """The header cannot be read; perhaps because it goes on beyond the bytes given."""


class _Picture:
    """An encoded image whose header has been read. Measure and render go the same way to its size."""

    size: tuple[int, int]
    """(width, height) with the orientation applied."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.header: Header | None = read_header(data)
        self.image: Image.Image | None = None
        if self.header is not None and (self.header.format != "WEBP" or features.check("webp")):
            size, self.orientation = self.header.size, self.header.orientation
        else:
            self.image = _open(data)
            size, self.orientation = self.image.size, _orientation(self.image)
        self.size = (size[1], size[0]) if self.orientation >= 5 else size

    def decode(self) -> Image.Image:
        rgb = self._fast_jpeg()
        if rgb is None:
            image = self.image or _open(self.data)
            rgb = _guarded(lambda: to_rgb(image), "cannot be decoded")
        method = _TRANSPOSE.get(self.orientation)
        if method is not None:
            rgb = rgb.transpose(method)
        if rgb.size != self.size:
            raise BadSample(f"has {_by(rgb.size)} pixels, but its header says {_by(self.size)}")
        return rgb

    def _fast_jpeg(self) -> Image.Image | None:
        """Grey and YCbCr through simplejpeg; None where Pillow must decide, also on whether damage matters."""
        if _decode_jpeg is None or self.header is None or self.header.format != "JPEG" or self.header.channels == 4:
            return None
        try:
            pixels: NDArray[np.uint8] = _decode_jpeg(self.data, "RGBX")
        except ValueError as error:
            if "premature end of data segment" in str(error):  # Pillow would return what there is, and grey below it
                raise BadSample("is cut off: its data ends before the picture does") from error
            return None
        # Four bytes a pixel is how Pillow itself keeps RGB. Mapped like this they are not copied; with a copy
        # simplejpeg would be no faster than Pillow.
        mapped = Image.frombuffer("RGBX", (pixels.shape[1], pixels.shape[0]), pixels, "raw", "RGBX", 0, 1)
        mapped.im.setmode("RGB")
        return mapped._new(mapped.im)


def _simplejpeg() -> Callable[..., Any] | None:
    try:
        from simplejpeg import decode_jpeg
    except ImportError:
        return None
    return decode_jpeg


_decode_jpeg = _simplejpeg()

_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode to RGB; decodes if that has not happened. As `convert_to_rgb` of transformers, but that deeper grey
    (I;16, I) is scaled from 16 bits instead of clipped."""
    image.load()
    transparency = image.info.get("transparency")
    if image.mode == "I" or image.mode.startswith("I;16"):
        return _deep_grey(image, transparency)
    if image.mode == "RGB" and transparency is None:
        return image
    if "A" in image.getbands() or transparency is not None:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _deep_grey(image: Image.Image, transparency: object) -> Image.Image:
    grey = np.clip(np.asarray(image).astype(np.int64), 0, 65535)
    scaled = ((grey * 255 + 32767) // 65535).astype(np.uint8)
    if isinstance(transparency, int):
        scaled[grey == transparency] = 255
    return Image.fromarray(scaled).convert("RGB")


def _orientation(image: Image.Image) -> int:
    """From the EXIF data that stands before the pixels. Pillow turns TIFF by itself. Not `getexif`, which decodes."""
    exif = image.info.get("exif")
    return exif_orientation(exif) if isinstance(exif, bytes) and image.format != "TIFF" else 1


def _open(data: bytes) -> Image.Image:
    """Pillow's `Image.open` for the formats above, without its pixel limit (a global: the caller's, in the training
    process) and with the plugin's own words when it fails. Raises `_Unreadable`."""
    if not data:
        raise _Unreadable("is empty")
    for name, factory, accept in _plugins():
        accepted = accept is None or accept(data[:16].ljust(16, b"\0"))
        if isinstance(accepted, str):
            raise _Unreadable(f"is a {name} image, which this Pillow ({PIL.__version__}) is built without")
        if accepted:
            return _guarded(functools.partial(factory, io.BytesIO(data), ""), f"cannot be read as {name}", _Unreadable)
    raise _Unreadable(f"is in no known image format; it starts with {data[:12]!r}")


@functools.cache
def _plugins() -> list[tuple[str, Callable[..., Image.Image], Callable[[bytes], bool | str] | None]]:
    """Name, opener and test of the magic number of each format; loaded when first needed."""
    Image.preinit()
    for plugin in ("WebP", "Tiff", "Avif", "Jpeg2K", "Qoi"):
        importlib.import_module(f"PIL.{plugin}ImagePlugin")
    return [(name, *Image.OPEN[name]) for name in FORMATS]


def _guarded(call: Callable[[], Any], failure: str, kind: type[BadSample] = BadSample) -> Any:
    """What Pillow raises becomes a bad sample; what it warns of is left out, also where warnings are made errors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except _CODEC_ERRORS as error:
        raise kind(f"{failure}: {str(error) or type(error).__name__}") from error


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
