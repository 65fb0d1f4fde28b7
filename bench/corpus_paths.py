"""Where the parts of a benchmark's corpus lie, and what it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

SEQ_LEN, MAX_PIXELS = 2048, 200_704
"""Tokens of a packed sequence; pixels that pictures are reduced to."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What decides a corpus, and what it came out as."""

    images: int
    seed: int
    tokenizer: str
    megapixels: float = 0.0
    """Mean of a picture."""
    bytes: float = 0.0
    """Mean of a file."""
    version: int = 1


@dataclass(frozen=True)
class Paths:
    """Where the parts of a corpus lie."""

    root: Path

    @property
    def captions(self) -> Path:
        """JSONL of `image` (path from the root) and `text`, in the order of the samples."""
        return self.root / "captions.jsonl"

    @property
    def tars(self) -> list[Path]:
        return sorted((self.root / "tar").glob("*.tar"))

    @property
    def parquets(self) -> list[Path]:
        return sorted((self.root / "parquet").glob("*.parquet"))

    @property
    def array_records(self) -> list[Path]:
        return sorted((self.root / "array_record").glob("*.array_record"))

    @property
    def texts(self) -> Path:
        return self.root / "texts.jsonl"

    @property
    def tokenizer(self) -> Path:
        return self.root / "tokenizer" / "tokenizer.json"

    @property
    def recipe(self) -> Path:
        return self.root / "recipe.toml"

    @property
    def about(self) -> About:
        return msgspec.json.decode((self.root / "corpus.json").read_bytes(), type=About)
