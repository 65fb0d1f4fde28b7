"""The tiny text model with the loader that TorchTitan brings, for the comparison."""

from __future__ import annotations

from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.trainer import Trainer

from zephon_vl.torchtitan.config_registry import llama3_tiny


def llama3_tiny_stock() -> Trainer.Config:
    """As `llama3_tiny`, on a directory of JSONL files given as `--dataloader.dataset_path`."""
    config = llama3_tiny()
    config.dataloader = HuggingFaceTextDataLoader.Config(dataset="c4_test", infinite=True)
    return config
