from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from shard_corpus import Corpus

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    monkeypatch.setenv("ZEPHON_VL_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    return Corpus(data)
