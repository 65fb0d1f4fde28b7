"""Decoding JPEGs at a reduced DCT scale: how far the result is from that of the full decode, and what it saves.

    python bench/jpeg_scaling.py --data bench_data

For pictures of which a half, a quarter or an eighth still has at least `--left` times the target's sides, so that the
antialiased resize has something to do. Compared are the patches that a model would get. SSIM as in Wang et al. 2004,
windows of 7 pixels, of the grey picture.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from PIL import Image
from rich.console import Console
from rich.table import Table
from simplejpeg import decode_jpeg
from skimage.metrics import structural_similarity

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.corpus import ensure_corpus
from bench.records import Records
from bench.work import Settings, tools
from zephon_vl.image_code import prepare_worker
from zephon_vl.image_header import read_header
from zephon_vl.operators.resize import resize_size


@dataclass(frozen=True)
class Arguments:
    """Options of this measurement."""

    data: Path = Path("bench_data")
    images: int = 1000
    left: tuple[float, ...] = (2.0, 1.5, 1.0)
    """Least that the reduced picture has of the target's sides."""


@dataclass
class Found:
    """Of one picture."""

    psnr: float
    ssim: float
    full: float
    """Seconds of CPU, decode and resize."""
    reduced: float


def main() -> None:
    arguments = tyro.cli(Arguments, description=__doc__)
    settings = Settings(data=str(ensure_corpus(arguments.data, arguments.images).root))
    prepare_worker()
    columns = ("least left", "pictures", "PSNR median", "1st percentile", "least", "SSIM median", "1st percentile")
    table = Table(*columns, "CPU, full, ms", "reduced, ms", "CPU of the corpus saved")
    records, rules = Records(settings), tools(settings).rules
    assert rules is not None
    whole = 0.0
    found: dict[float, list[Found]] = {left: [] for left in arguments.left}
    for number in range(len(records)):
        data, _ = records.read(number)
        header = read_header(data)
        assert header is not None
        target, _ = resize_size(header.size, rules)
        full, seconds = _timed(lambda d=data, t=target: _pixels(d, t))
        whole += seconds
        for left in arguments.left:
            scale = scale_of(header.size, target, left)
            if scale > 1:
                reduced, faster = _timed(lambda d=data, t=target, h=header, s=scale: _pixels(d, t, h.size, s))
                found[left].append(Found(*_compare(full, reduced), seconds, faster))
    for left, pictures in found.items():
        if pictures:
            psnr, ssim = [one.psnr for one in pictures], [one.ssim for one in pictures]
            saved = sum(one.full - one.reduced for one in pictures) / whole
            table.add_row(
                f"{left:g}",
                f"{len(pictures)} of {len(records)}",
                f"{statistics.median(psnr):.1f} dB",
                f"{np.percentile(psnr, 1):.1f} dB",
                f"{min(psnr):.1f} dB",
                f"{statistics.median(ssim):.4f}",
                f"{np.percentile(ssim, 1):.4f}",
                f"{statistics.mean(one.full for one in pictures) * 1e3:.1f}",
                f"{statistics.mean(one.reduced for one in pictures) * 1e3:.1f}",
                f"{saved:.1%}",
            )
    Console(width=160).print(table)


def scale_of(size: tuple[int, int], target: tuple[int, int], left: float) -> int:
    """The largest of 8, 4, 2 by which `size` can be divided with `left` times the target left; else 1."""
    most = min(size[0] / target[0], size[1] / target[1]) / left
    return next((scale for scale in (8, 4, 2) if scale <= most), 1)


def _pixels(data: bytes, target: tuple[int, int], size: tuple[int, int] = (0, 0), scale: int = 1) -> Image.Image:
    least: dict[str, Any] = {}
    if scale > 1:
        least = {"min_width": -(-size[0] // scale), "min_height": -(-size[1] // scale), "min_factor": scale}
    pixels = decode_jpeg(data, "RGBX", **least)
    mapped = Image.frombuffer("RGBX", (pixels.shape[1], pixels.shape[0]), pixels, "raw", "RGBX", 0, 1)
    mapped.im.setmode("RGB")
    return mapped._new(mapped.im).resize(target, Image.Resampling.BICUBIC)


def _timed(call: Any) -> tuple[Image.Image, float]:
    begin = time.thread_time()
    return call(), time.thread_time() - begin


def _compare(full: Image.Image, reduced: Image.Image) -> tuple[float, float]:
    """(PSNR, SSIM)."""
    a, b = np.asarray(full).astype(np.float64), np.asarray(reduced).astype(np.float64)
    error = float(np.mean((a - b) ** 2))
    psnr = 10 * np.log10(255**2 / error) if error else 99.0
    grey, other = np.asarray(full.convert("L")), np.asarray(reduced.convert("L"))
    similarity: Any = structural_similarity(grey, other, data_range=255)
    return psnr, float(similarity)


if __name__ == "__main__":
    main()
