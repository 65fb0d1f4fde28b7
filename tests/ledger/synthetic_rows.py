"""Batches and sources made of nothing: what a ledger needs of them, and no more."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from zephon_vl.batch import Batch
from zephon_vl.contracts import DocumentRef, SourceReader
from zephon_vl.ledger import LedgerWriter
from zephon_vl.recipe import Recipe, SourceConfig, TokenizerConfig
from zephon_vl.topology import EMPTY

SAMPLES = 50


def recipe(lanes: int = 4, global_batch_size: int = 8) -> Recipe:
    sources = tuple(SourceConfig(name=name, path=f"{name}/*.jsonl", schema="text") for name in ("web", "books"))
    return Recipe(
        lanes=lanes,
        global_batch_size=global_batch_size,
        seq_len=64,
        tokenizer=TokenizerConfig(path="tokenizer"),
        sources=sources,
    )


class SyntheticSource:
    """`SAMPLES` samples in two shards."""

    def __init__(self, name: str) -> None:
        self.name = name

    def blocks(self) -> np.ndarray:
        return np.array([0, SAMPLES // 2, SAMPLES])

    def locate(self, index: int) -> tuple[str, str]:
        return f"{self.name}-{index * 2 // SAMPLES}.jsonl", f"line {index + 1}"


class SyntheticBatch:
    """Rows whose digests depend on step, slot and salt."""

    def __init__(self, step: int, microbatch: int, slots: Sequence[int], salt: object = "") -> None:
        self.step, self.microbatch, self.slots = step, microbatch, tuple(slots)
        self.salt = salt
        self.valid_tokens = torch.tensor([0 if slot == EMPTY else slot for slot in slots])
        self.documents = tuple(() if slot == EMPTY else documents_of(step, slot) for slot in slots)

    def digests(self) -> dict[int, str]:
        return {slot: digest_of(self.step, slot, self.salt).hex() for slot in self.slots if slot != EMPTY}


def documents_of(step: int, slot: int) -> tuple[DocumentRef, ...]:
    return tuple(DocumentRef((step + i) % 2, step * 8 + slot + i, i, 10 + i) for i in range(slot % 3))


def digest_of(step: int, slot: int, salt: object = "") -> bytes:
    return hashlib.sha256(f"{step} {slot} {salt}".encode()).digest()


def batch(step: int, microbatch: int, slots: Sequence[int], salt: object = "") -> Batch:
    return cast(Batch, SyntheticBatch(step, microbatch, slots, salt))


def writer(path: Path, rank: int = 0, ranks: int = 1, identity: bytes = b"identity", **of: Any) -> LedgerWriter:
    made = recipe(**of)
    sources = cast(list[SourceReader], [SyntheticSource(source.name) for source in made.sources])
    return LedgerWriter(path, recipe=made, sources=sources, identity=identity, dp_rank=rank, dp_size=ranks)


def write_steps(path: Path, steps: range, salt: object = "", slots: Sequence[int] = range(8), **options: Any) -> None:
    """A run of one rank, from its start to its end."""
    made = writer(path, **options)
    made.begin(steps.start)
    for step in steps:
        made.append(batch(step, 0, slots, salt), 8)
    made.close()
