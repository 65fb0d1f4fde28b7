"""A tiny corpus for TorchTitan's tiny models, and the parts of the demo that run its Trainer on a CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiny_corpus import build_tiny_corpus

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from torchtitan_demo import cpu

cpu.prepare()  # before torchtitan is imported, in this process as in those of the ranks

_HEAD = """
seed = 7
lanes = 4
global_batch_size = 4
seq_len = 64
{more}

[tokenizer]
path = "tokenizer"
"""
_VISION = """
[vision]
preset = "qwen3_5"
min_pixels = 4096
max_pixels = 8192
"""
_CAPTIONS = """
[[sources]]
name = "captions"
path = "captions/*.tar"
schema = "caption"
weight = {weight}
"""
_WEB = """
[[sources]]
name = "web"
path = "web/*.jsonl"
schema = "text"
"""


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tokenizer and the recipes `vl`, `text`, `mostly_text` and `once`, which does not repeat."""
    directory = tmp_path_factory.mktemp("corpus")
    build_tiny_corpus(directory, images=24, docs=40)
    once = _HEAD.format(more="repeat = false")
    recipes = {
        "vl": _HEAD.format(more="") + _VISION + _CAPTIONS.format(weight=3.0) + _WEB,
        "text": _HEAD.format(more="") + '\n[packing]\nalgorithm = "concat"\n' + _WEB,
        "mostly_text": _HEAD.format(more="") + _VISION + _CAPTIONS.format(weight=0.01) + _WEB,
        "once": once + _VISION + _CAPTIONS.format(weight=1.0),
    }
    for name, text in recipes.items():
        (directory / f"{name}.toml").write_text(text)
    return directory
