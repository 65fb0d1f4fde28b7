"""Loaders as TorchTitan 0.3.0 builds them, without a Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchtitan.components.tokenizer import MultiModalTokenizer
from torchtitan.models.qwen3_5 import QWEN3_5_SPECIAL_TOKENS

from zephon_vl.torchtitan import ZephonVLDataLoader


def tokenizer_of(directory: Path) -> MultiModalTokenizer:
    return MultiModalTokenizer.Config(**QWEN3_5_SPECIAL_TOKENS).build(tokenizer_path=str(directory))


def build(corpus: Path, recipe: str = "vl", rank: int = 0, ranks: int = 1, **changed: Any) -> ZephonVLDataLoader:
    """A loader that works in this process.

    Args:
        changed: `tokenizer`, `seq_len` and `local_batch_size` of TorchTitan; anything else is a field of the config.
    """
    given = {
        "tokenizer": changed.pop("tokenizer", None) or tokenizer_of(corpus / "tokenizer"),
        "seq_len": changed.pop("seq_len", 64),
        "local_batch_size": changed.pop("local_batch_size", 1),
    }
    config = ZephonVLDataLoader.Config(**{"recipe": str(corpus / f"{recipe}.toml"), "workers": 0, **changed})
    return config.build(dp_world_size=ranks, dp_rank=rank, snapshot_every_n_steps=None, **given)
