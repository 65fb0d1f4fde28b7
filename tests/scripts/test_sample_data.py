"""The sample corpus: the same bytes each time, and a corpus that the loader takes without a complaint."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zephon_vl import Loader

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_sample_data.py"


def make(out: Path, hash_seed: str) -> Path:
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--images", "24", "--tokenizer", "tiny"]
    subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, check=True, timeout=300)
    return out


def digests(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("sample") / "data", "1")


def test_the_same_options_give_the_same_bytes(data: Path, tmp_path: Path) -> None:
    again = digests(make(tmp_path / "data", "2"))
    first = digests(data)
    assert {name: first[name] for name in again} == again


@pytest.mark.parametrize("recipe", ["recipe.toml", "text.toml"])
def test_the_loader_takes_it(data: Path, recipe: str) -> None:
    with Loader(data / recipe, workers=0, microbatch_size=4) as loader:
        for _ in range(2 * loader.topology.microbatches_per_step):
            next(loader)
        assert not loader.stats.bad
        assert all(loader.stats.samples[source.name] > 0 for source in loader.recipe.sources)
        assert loader.stats.fill > 0.97
