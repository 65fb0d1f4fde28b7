"""The elastic demo as a person runs it: real processes, saved, resumed, refused and killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_corpus import build_tiny_corpus

SCRIPT = Path(__file__).parents[2] / "scripts" / "elastic_demo.py"
UNSTABLE = """
import os
from zephon_vl import Operator

class Unstable(Operator):
    def measure(self, sample, context):
        for part in sample.parts:
            if hasattr(part, "text"):
                part.text += f" {os.getpid()}"
        return sample
"""


def demo(data: Path, *words: str) -> tuple[int, str]:
    """(status, all it printed, without the breaks of lines and tables)."""
    command = [sys.executable, str(SCRIPT), "--data", str(data), "--quick", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).replace("│", " ").split())


def test_other_ranks_and_killed_ranks_see_the_same_bytes(tmp_path: Path) -> None:
    build_tiny_corpus(tmp_path)
    words = ("--ranks", "4", "--resume", "2", "3", "5", "--steps", "7", "--save-at", "2", "--kill", "--seed", "3")
    status, text = demo(tmp_path, *words)
    assert status == 0, text
    assert "PASS: 7 global batches" in text
    assert "3 ranks 2 to 6" in text
    assert "the same, 4 empty rows a step" in text  # four lanes of two sequences on three ranks
    assert "refused: dp_size is 5, but the recipe has 4 lanes" in text
    assert text.count("was killed, all were ended; the steps before are the same") == 3
    assert "the same, to the end" in text


def test_a_difference_is_named_and_fails(tmp_path: Path) -> None:
    recipe = build_tiny_corpus(tmp_path)
    (tmp_path / "unstable.py").write_text(UNSTABLE)
    recipe.write_text('operators = [{ use = "unstable.py:Unstable" }]\n' + recipe.read_text())
    status, text = demo(tmp_path, "--ranks", "2", "--resume", "1", "--steps", "3", "--save-at", "1")
    assert status == 1
    assert "FAIL: step 1 is " in text
    assert "in 1 ranks, but" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--save-at", "6"), "--save-at is 6, but must be from 1 to 5"),
        (("--lanes", "0"), "lanes is 0"),
        (("--ranks", "9"), "dp_size is 9, but the recipe has 4 lanes"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    build_tiny_corpus(tmp_path)
    status, text = demo(tmp_path, *words)
    assert status == 1
    assert f"elastic demo: {said}" in text
    assert "Traceback" not in text
