"""A tiny mixed corpus for tests: captions with pictures in tars, texts in JSONL, a tokenizer, and a recipe."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image
from tiny_tokenizer import build_tiny_tokenizer

_RECIPE = """
seed = 7
lanes = 4
global_batch_size = 8
seq_len = 256

[tokenizer]
path = "tokenizer"

[vision]
preset = "qwen2_vl"
max_pixels = 40000

[packing]
open_sequences = 4

[[sources]]
name = "captions"
path = "captions/*.tar"
schema = "caption"
weight = 3.0

[[sources]]
name = "web"
path = "web/*.jsonl"
schema = "text"
weight = 1.0
"""
_LINE = "a cat sits on the red mat while two small dogs run over green grass under a wide sky near the old sea"
_WORDS = _LINE.split()


def build_tiny_corpus(directory: Path, images: int = 60, docs: int = 90) -> Path:
    """Write the corpus, the same bytes each time; returns the path of its recipe."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.Generator(np.random.Philox(key=5))
    build_tiny_tokenizer(directory / "tokenizer")
    for shard in range(2):
        _write_tar(directory / "captions" / f"{shard:03d}.tar", rng, images // 2, shard)
        _write_jsonl(directory / "web" / f"{shard:03d}.jsonl", rng, docs // 2)
    recipe = directory / "recipe.toml"
    recipe.write_text(_RECIPE)
    return recipe


def picture(rng: np.random.Generator, width: int, height: int) -> bytes:
    """A JPEG of smooth noise."""
    small = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8))
    buffer = io.BytesIO()
    small.resize((width, height), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def sentence(rng: np.random.Generator, words: int) -> str:
    return " ".join(_WORDS[i] for i in rng.integers(0, len(_WORDS), words))


def add_member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """A member without anything that changes from one run to the next."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _write_tar(path: Path, rng: np.random.Generator, count: int, shard: int) -> None:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for i in range(count):
            width, height = (int(side) for side in rng.integers(30, 260, 2))
            add_member(tar, f"{shard}-{i:04d}.jpg", picture(rng, width, height))
            add_member(tar, f"{shard}-{i:04d}.txt", sentence(rng, int(rng.integers(4, 20))).encode())


def _write_jsonl(path: Path, rng: np.random.Generator, count: int) -> None:
    path.parent.mkdir(exist_ok=True)
    lengths = np.minimum(rng.lognormal(3.0, 1.0, count).astype(int) + 2, 500)
    path.write_text("".join(json.dumps({"text": sentence(rng, int(n))}) + "\n" for n in lengths))
