"""The sample corpus: the same bytes each time, and a corpus that the loader takes without a complaint."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers

from zephon_vl import Loader

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_sample_data.py"


def make(out: Path, hash_seed: str = "0", tokenizer: str = "tiny") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--images", "24", "--tokenizer", tokenizer]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def tree_digest(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(directory)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A corpus, and the digest that it had before any loader saw it."""
    out = tmp_path_factory.mktemp("sample") / "data"
    done = make(out, "1")
    assert done.returncode == 0, done.stderr
    assert "recipe.toml --steps 20" in done.stdout.replace("\n", "")
    return out, tree_digest(out)


def test_the_same_options_give_the_same_bytes(corpus: tuple[Path, str], tmp_path: Path) -> None:
    again = tmp_path / "data"
    (again / "chat").mkdir(parents=True)
    shutil.copy(corpus[0] / "LICENSES.md", again)  # an earlier corpus, to be replaced
    (again / "chat" / "left_over.jsonl").touch()
    done = make(again, "2")
    assert done.returncode == 0, done.stderr
    assert tree_digest(again) == corpus[1]


@pytest.mark.parametrize("recipe", ["recipe.toml", "text.toml"])
def test_the_loader_takes_it(corpus: tuple[Path, str], recipe: str) -> None:
    with Loader(corpus[0] / recipe, workers=0, microbatch_size=4) as loader:
        for _ in range(2 * loader.topology.microbatches_per_step):
            next(loader)
        assert not loader.stats.bad
        assert all(loader.stats.samples[source.name] > 0 for source in loader.recipe.sources)
        assert loader.stats.fill > 0.97


def test_every_picture_names_its_licence(corpus: tuple[Path, str]) -> None:
    lines = (corpus[0] / "LICENSES.md").read_text().splitlines()
    licences = [line.split(" | ")[2] for line in lines if line.startswith("| scikit-")]
    assert len(licences) == 13
    assert all(text.startswith(("CC0", "CC BY 2.0", "public domain", "no known copyright")) for text in licences)


def test_files_of_a_person_are_not_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "web" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    done = make(tmp_path)
    assert done.returncode == 1
    assert "holds other files than a sample corpus" in done.stderr
    assert mine.read_text() == "mine"


def test_the_real_vocabulary_is_that_of_qwen2_vl(tmp_path: Path) -> None:
    done = make(tmp_path, tokenizer="qwen")
    assert done.returncode == 0, done.stderr
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 151_657
    assert tokenizer.encode("Hello world").ids == [9707, 1879]
    assert tokenizer.encode("<|vision_start|><|image_pad|><|vision_end|>").ids == [151652, 151655, 151653]
    config = json.loads((tmp_path / "tokenizer" / "tokenizer_config.json").read_text())
    assert config["eos_token"] == config["pad_token"] == "<|endoftext|>"
