"""Readers of the corpus for loaders that bring none: files and captions, or texts."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np

from bench.corpus_paths import Paths
from bench.work import Sample, Settings


class Caption(msgspec.Struct):
    image: str
    text: str


class Records:
    """Random access to what a stage works on: (JPEG bytes, caption), or (nothing, text)."""

    def __init__(self, settings: Settings) -> None:
        self.settings, paths = settings, Paths(settings.root)
        self.root: Path = paths.root
        self.images: list[str] = []
        if settings.stage != "text":
            lines = [msgspec.json.decode(line, type=Caption) for line in paths.captions.read_bytes().splitlines()]
            self.texts, self.images = [line.text for line in lines], [line.image for line in lines if settings.vision]
        else:
            self.texts = [json.loads(line)["text"] for line in paths.texts.read_bytes().splitlines()]

    def __len__(self) -> int:
        return len(self.texts)

    def read(self, index: int) -> tuple[bytes, str]:
        return (self.root / self.images[index]).read_bytes() if self.images else b"", self.texts[index]

    def __getitem__(self, index: int) -> Sample:
        return self.settings.process(*self.read(int(index)))


def order(length: int, seed: int, part: int, parts: int, epoch: int) -> np.ndarray:
    """The indices of one of several workers in an epoch."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(length)[part::parts]
