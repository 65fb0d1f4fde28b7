"""The image libraries of this process: what they are, for a run's identity, and how a worker sets them up."""

from __future__ import annotations

import warnings

import PIL
from PIL import Image, features

from zephon_vl.allocator import keep_freed_memory


def identity() -> dict[str, str]:
    """Names and versions of everything that decides a pixel, for a checkpoint's identity."""
    return {
        "library": "pillow-simd" if ".post" in PIL.__version__ else "pillow",
        "version": PIL.__version__,
        "jpeg": _version("jpg"),
        "jpeg_turbo": _version("libjpeg_turbo"),
        "simplejpeg": _simplejpeg(),
        "webp": _version("webp"),
        "avif": _version("avif"),
        "tiff": _version("libtiff"),
        "resize": "bicubic",
    }


def prepare_worker() -> None:
    """Set this process up for decoding; for worker processes only, since it changes Pillow's globals.

    Pillow's own pixel limit is turned off, as the recipe's is checked first, its warnings are silenced, and the
    memory of one image is kept for the next.
    """
    Image.MAX_IMAGE_PIXELS = None
    warnings.filterwarnings("ignore", module=r"PIL\.")
    keep_freed_memory()


def _version(feature: str) -> str:
    return features.version(feature) or "none"


def _simplejpeg() -> str:
    import importlib.metadata  # slow, and workers need no identity

    try:
        return importlib.metadata.version("simplejpeg")
    except importlib.metadata.PackageNotFoundError:
        return "none"
