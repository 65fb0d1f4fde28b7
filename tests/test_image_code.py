"""The identity of the image libraries, and what a worker changes in its own process only."""

from __future__ import annotations

import subprocess
import sys

import PIL
import simplejpeg
from PIL import Image

from zephon_vl.image_code import identity


def test_identity_names_what_decides_a_pixel() -> None:
    names = identity()
    assert names["library"] in ("pillow", "pillow-simd")
    assert names["version"] == PIL.__version__
    assert names["simplejpeg"] == simplejpeg.__version__
    assert names["resize"] == "bicubic"
    assert {"jpeg", "jpeg_turbo", "webp", "avif", "tiff"} < names.keys()
    assert all(isinstance(value, str) and value for value in names.values())


def test_a_worker_is_prepared_and_the_caller_is_not() -> None:
    script = (
        "import sys, warnings\n"
        "from PIL import Image\n"
        "import zephon_vl.operators.decode, zephon_vl.operators.resize, zephon_vl.operators.patchify\n"
        "from zephon_vl.image_code import prepare_worker\n"
        "before = (Image.MAX_IMAGE_PIXELS, list(warnings.filters))\n"
        "prepare_worker()\n"
        "warnings.warn_explicit('a', UserWarning, 'b.py', 1, module='PIL.TiffImagePlugin')\n"
        "print(before[0], Image.MAX_IMAGE_PIXELS, len(warnings.filters) - len(before[1]))\n"
        "print(sorted({'torch', 'transformers'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{Image.MAX_IMAGE_PIXELS} None 1", "[]"]
    assert done.stderr == ""
