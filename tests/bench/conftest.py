"""A corpus of a few small pictures for the benchmark's own tests."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

_ROOT = Path(__file__).resolve().parents[2]
for _folder in (_ROOT, _ROOT / "scripts"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made as the large one is, from two smooth pictures of noise instead of photographs."""
    from bench import corpus
    from bench.corpus_paths import About, Paths

    rng = np.random.Generator(np.random.Philox(key=3))
    photographs = {}
    for name in ("first", "second"):
        noise = Image.fromarray(rng.integers(0, 256, (300, 400, 3), np.uint8)).filter(ImageFilter.GaussianBlur(3))
        buffer = io.BytesIO()
        noise.save(buffer, "PNG")
        photographs[name] = buffer.getvalue()
    root = tmp_path_factory.mktemp("bench") / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "documents", lambda: _TEXTS)
        corpus.make_corpus(Paths(root), About(images=48, seed=1, tokenizer="tiny"), photographs, "# none\n")
    return root


_TEXTS = [
    f"Function {number} returns the sum of its arguments. It raises an error for less than {number} of them. "
    "Call it once for each file, and close the file after the last call."
    for number in range(60)
]
