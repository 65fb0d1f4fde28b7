"""A directory of shards, and short ways to write them and open them as a source."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from zephon_vl.errors import BadSample
from zephon_vl.recipe import Recipe, SourceConfig, TokenizerConfig, VisionConfig
from zephon_vl.sources import Source, SourceHandle, Storage, open_source
from zephon_vl.sources.build import build_indexes

JPEG = b"\xff\xd8\xff" + bytes(range(256))
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


def tar_bytes(members: Iterable[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


class Corpus:
    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, data: bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def tar(self, name: str, members: Iterable[tuple[str, bytes]]) -> Path:
        return self.write(name, tar_bytes(members))

    def jsonl(self, name: str, records: Iterable[Any], frame_lines: int = 3) -> Path:
        lines = [json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records]
        pieces = [b"".join(lines[i : i + frame_lines]) for i in range(0, len(lines), frame_lines)]
        pack = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}.get(Path(name).suffix, bytes)
        return self.write(name, b"".join(map(pack, pieces)))

    def parquet(self, name: str, records: list[dict[str, Any]], group: int = 3) -> Path:
        path = self.root / name
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=group)
        return path

    def recipe(self, path: str | tuple[str, ...], schema: Any, **options: Any) -> Recipe:
        return Recipe(
            lanes=1,
            global_batch_size=1,
            seq_len=8192,
            tokenizer=TokenizerConfig(path="none"),
            vision=VisionConfig(preset="qwen2_vl"),
            base_dir=str(self.root),
            sources=(SourceConfig(name="data", path=path, schema=schema, **options),),
        )

    def index(self, path: str | tuple[str, ...], schema: Any = "text", **options: Any) -> SourceHandle:
        return build_indexes(self.recipe(path, schema, **options))[0]

    def open(
        self, path: str | tuple[str, ...], schema: Any = "text", storage: Storage | None = None, **options: Any
    ) -> Source:
        recipe = self.recipe(path, schema, **options)
        return open_source(recipe, recipe.sources[0], build_indexes(recipe)[0], storage)


def reason(source: Source, index: int = 0) -> str:
    """Why a sample is bad."""
    with pytest.raises(BadSample) as caught:
        source.sample(index)
    return caught.value.reason


def outline(source: Source, index: int = 0) -> list[Any]:
    """A sample's parts: texts as they are, images as their bytes; turns as (role, train, parts)."""
    sample = source.sample(index)

    def plain(parts: list[Any]) -> list[Any]:
        return [
            part.text
            if hasattr(part, "text")
            else part.data
            if part.data is not None
            else source.image_bytes(part.where)
            for part in parts
        ]

    if sample.messages:
        return [(message.role, message.train, plain(message.parts)) for message in sample.messages]
    return plain(sample.parts)
