"""The interface of TorchTitan's main branch, which cannot be installed beside the released one: a package with just its
base classes, as documented there, stands for it in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_MODULES = {
    "components/data/loader.py": """
from abc import ABC, abstractmethod
from dataclasses import dataclass

class BaseDataLoader(ABC):
    @dataclass(kw_only=True, slots=True)
    class Config:
        pass

    @abstractmethod
    def __iter__(self): ...

    @abstractmethod
    def state_dict(self): ...

    @abstractmethod
    def load_state_dict(self, state_dict): ...

    @abstractmethod
    def close(self): ...
""",
    "components/metrics.py": """
from dataclasses import dataclass

class MetricsProcessor:
    @dataclass(kw_only=True, slots=True)
    class Config:
        pass
""",
    "tools/utils.py": 'device_type = "cpu"\n',
}
_TOKENIZER = """
import sys
from tokenizers import Tokenizer

class MultiModalTokenizer:
    TOKEN_FIELDS = ("image", "video", "vision_start", "vision_end", "pad")

    def __init__(self, path):
        self.tokenizer = Tokenizer.from_file(path)
        texts = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|endoftext|>")
        for name, text in zip(self.TOKEN_FIELDS, texts):
            setattr(self, name + "_token", text)
            setattr(self, name + "_id", self.tokenizer.token_to_id(text))

corpus = sys.argv[1]
tokenizer = MultiModalTokenizer(corpus + "/tokenizer/tokenizer.json")
"""
_BATCHES = """
from dataclasses import replace
from zephon_vl.torchtitan import ZephonVLDataLoader
from zephon_vl.torchtitan.interfaces import FLAT

assert FLAT
config = ZephonVLDataLoader.Config(recipe=corpus + "/vl.toml", workers=0)
given = dict(dp_world_size=2, dp_rank=1, tokenizer=tokenizer, max_context_length=64, num_tokens_per_batch=128)
loader = ZephonVLDataLoader(config, **given)
inputs, labels = next(iter(loader))
for name, shape in {"input": (128,), "positions": (128,), "mrope_positions": (128, 3)}.items():
    assert inputs[name].shape == shape, (name, inputs[name].shape)
assert labels.shape == (128,)
patches = int(inputs["grid_thw"].prod(1).sum())
assert inputs["pixel_values"].shape == inputs["pixel_values"].to("cpu").shape == (patches, 1536)

state = loader.state_dict()
assert sorted(state) == ["identity", "lane_00002", "lane_00003"]
after = ZephonVLDataLoader(config, **given)
after.load_state_dict(state)
assert next(iter(after))[0]["input"].equal(next(iter(loader))[0]["input"])
loader.close()
assert next(iter(loader), None) is None

once = ZephonVLDataLoader(replace(config, recipe=corpus + "/once.toml", repeat=False), **given)
assert sum(1 for _ in once) > 0
"""
_REFUSED = """
from zephon_vl.torchtitan import ZephonVLDataLoader

config = ZephonVLDataLoader.Config(recipe=corpus + "/vl.toml", workers=0)
given = dict(dp_world_size=1, dp_rank=0, tokenizer=tokenizer, max_context_length=64, num_tokens_per_batch=96)
ZephonVLDataLoader(config, **given)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("main")
    for name, text in _MODULES.items():
        path = root / "torchtitan" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in ("", "components", "components/data", "tools"):
        (root / "torchtitan" / folder / "__init__.py").touch()
    return {**os.environ, "PYTHONPATH": str(root)}


def _python(code: str, corpus: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _TOKENIZER + code, str(corpus)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_flat_batches_state_end_and_close(corpus: Path, environment: dict[str, str]) -> None:
    result = _python(_BATCHES, corpus, environment)
    assert result.returncode == 0, result.stderr


def test_microbatches_hold_whole_sequences(corpus: Path, environment: dict[str, str]) -> None:
    result = _python(_REFUSED, corpus, environment)
    assert "num_tokens_per_microbatch_per_dp_rank is 96, but must be a multiple" in result.stderr
    assert "The nearest are 64 and 128" in result.stderr
