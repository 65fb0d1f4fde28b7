"""What one image costs, decoded, resized and patchified by the operators: through simplejpeg and through Pillow alone.

    python bench/image_stack.py [--rounds 15] [--preset qwen3_5] [--max-pixels 200704]

Real photographs (those that scikit-image and scikit-learn ship), scaled to three sizes and encoded with quality 90. The
ways alternate image by image on one core, so that a noisy neighbour hits all of them; medians are shown. Headers are
measured with the operators' own reader and with Pillow's.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from zephon_vl.contracts import Context, ImageJob, ImagePart, Sample, SourceReader
from zephon_vl.image_code import identity, prepare_worker
from zephon_vl.image_header import read_header
from zephon_vl.operators import decode
from zephon_vl.operators.decode import DecodeImage
from zephon_vl.operators.patchify import Patchify
from zephon_vl.operators.resize import ResizeImage
from zephon_vl.presets import PRESETS

SIZES = ((640, 480), (1280, 960), (2048, 1536))
PICTURES = (
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/coffee.png"),
    ("skimage", "data/rocket.jpg"),
    ("sklearn", "datasets/images/china.jpg"),
    ("sklearn", "datasets/images/flower.jpg"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="qwen3_5")
    parser.add_argument("--max-pixels", type=int, default=504 * 392)
    options = parser.parse_args()
    rules = replace(PRESETS[options.preset], max_pixels=options.max_pixels)
    chain = (DecodeImage(1 << 28), ResizeImage(rules), Patchify(rules))
    nowhere: SourceReader = None  # type: ignore[assignment]  # the bytes are in the part
    context = Context(source=nowhere, seed=0, source_index=0, epoch=0, index=0)
    fast = decode._decode_jpeg
    if fast is None:
        raise SystemExit('simplejpeg is not installed: pip install "zephon-vl[jpeg]"')
    prepare_worker()

    def whole(data: bytes, part: ImagePart, out: np.ndarray, decoder: Callable[..., Any] | None) -> None:
        decode._decode_jpeg = decoder
        pixels: Any = data
        for operator in chain:
            pixels = operator.render(pixels, ImageJob(part, out, context))

    table = Table(
        "size", "image", "simplejpeg", "Pillow", "ratio", "resize + patchify", "header, own", "header, Pillow"
    )
    for size in SIZES:
        seconds: dict[str, list[float]] = defaultdict(list)
        jobs = [job(data, chain, context, rules.row_bytes) for data in photographs(size)]
        for _ in range(options.rounds):
            for data, part, out, image in jobs:
                timed(seconds["simplejpeg"], lambda d=data, p=part, o=out: whole(d, p, o, fast))
                timed(seconds["pillow"], lambda d=data, p=part, o=out: whole(d, p, o, None))
                timed(
                    seconds["rest"],
                    lambda i=image, p=part, o=out: chain[2].render(
                        chain[1].render(i, ImageJob(p, o, context)), ImageJob(p, o, context)
                    ),
                )
                timed(seconds["own"], lambda d=data: read_header(d))
                timed(seconds["open"], lambda d=data: Image.open(io.BytesIO(d)))
        median = {name: statistics.median(values) * 1e3 for name, values in seconds.items()}
        table.add_row(
            f"{size[0]} x {size[1]}",
            f"{statistics.mean(len(data) for data, *_ in jobs) / 1e3:.0f} kB",
            f"{median['simplejpeg']:.2f} ms",
            f"{median['pillow']:.2f} ms",
            f"{median['pillow'] / median['simplejpeg']:.2f}",
            f"{median['rest']:.2f} ms",
            f"{median['own'] * 1e3:.0f} us",
            f"{median['open'] * 1e3:.0f} us",
        )
    console = Console()
    console.print(", ".join(f"{name} {value}" for name, value in identity().items()))
    console.print(table)


Job = tuple[bytes, ImagePart, np.ndarray, Image.Image]


def job(data: bytes, chain: tuple[DecodeImage, ResizeImage, Patchify], context: Context, row_bytes: int) -> Job:
    """Encoded bytes, the measured part, where its rows go, and the decoded image."""
    part = ImagePart(data=data)
    sample = Sample(key="", shard="", parts=[part])
    for operator in chain:
        sample = operator.measure(sample, context)
    assert part.grid is not None
    out = np.zeros((part.grid[1] * part.grid[2], row_bytes), np.uint8)
    return data, part, out, chain[0].render(data, ImageJob(part, out, context))


def photographs(size: tuple[int, int]) -> list[bytes]:
    """JPEG files of `size` made of the real photographs."""
    files = []
    for package, path in PICTURES:
        found = importlib.util.find_spec(package)
        if found is None or found.origin is None:
            raise SystemExit("the photographs are not installed: pip install scikit-image scikit-learn")
        buffer = io.BytesIO()
        image = Image.open(Path(found.origin).parent / path).convert("RGB")
        image.resize(size, Image.Resampling.LANCZOS).save(buffer, "JPEG", quality=90)
        files.append(buffer.getvalue())
    return files


def timed(into: list[float], call: Callable[[], Any]) -> None:
    start = time.perf_counter()
    call()
    into.append(time.perf_counter() - start)


if __name__ == "__main__":
    main()
