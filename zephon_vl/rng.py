"""Generators keyed by what they are for. The caller's generators are never read or advanced."""

from __future__ import annotations

import hashlib

import numpy as np


def derive_key(*parts: int | str) -> int:
    """A 128-bit key from its parts: the same on every machine, and free of Python's hash seed."""
    # A NumPy integer is the integer that it stands for.
    plain = [part if isinstance(part, str) else int(part) for part in parts]
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in plain)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def sample_generator(seed: int, source: str, epoch: int, index: int, *extra: int | str) -> np.random.Generator:
    """The generator of one sample in one epoch; `extra` separates uses (an image's ordinal, an operator's place)."""
    return np.random.Generator(np.random.Philox(key=derive_key(seed, source, epoch, index, *extra)))
