"""The sample corpus with a small vocabulary, and recipes that a tiny model trains on in seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sample_data.writers import IMAGE_SOURCES, WEB_SOURCE

LANES, SEQUENCES, SEQ_LEN = 8, 8, 64

_VISION = """
[vision]
preset = "qwen3_5"
min_pixels = 4096
max_pixels = 8192
"""


def make_corpus(directory: Path) -> None:
    """Make the corpus where it is not there yet, and its recipes `tiny.toml` and `tiny_text.toml`."""
    if not (directory / "recipe.toml").is_file():
        script = Path(__file__).parent.parent / "make_sample_data.py"
        options = ["--out", str(directory), "--images", "80", "--tokenizer", "tiny"]
        subprocess.run([sys.executable, str(script), *options], check=True, stdout=subprocess.DEVNULL)
    head = f"seed = 7\nlanes = {LANES}\nglobal_batch_size = {SEQUENCES}\nseq_len = {SEQ_LEN}\n"
    head += '\n[tokenizer]\npath = "tokenizer"\n'
    (directory / "tiny.toml").write_text(head + _VISION + IMAGE_SOURCES + WEB_SOURCE)
    (directory / "tiny_text.toml").write_text(head + WEB_SOURCE)
