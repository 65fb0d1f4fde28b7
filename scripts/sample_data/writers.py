"""Pictures and texts as shards, and the recipes that read them."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sample_data.pictures import Picture

_TAR_SHARDS = 4
_ROW_GROUP = 8
FEWEST_PICTURES = 20
"""With fewer, a source would have an empty shard."""

_HEAD = """\
seed = 42
lanes = 16
global_batch_size = 32          # packed sequences per optimizer step
seq_len = 2048

[tokenizer]
path = "tokenizer"
"""
_VISION = """
[vision]
preset = "qwen3_5"
max_pixels = 200704
"""
_PACKING = """
[packing]
algorithm = "best_fit"
open_sequences = 8
overlong = "truncate"
"""
IMAGE_SOURCES = """
[[sources]]
name = "captions"
path = "captions/*.tar"
schema = "caption"
weight = 3.0

[[sources]]
name = "interleaved"
path = "interleaved/*.parquet"
schema = "interleaved"
weight = 1.0

[[sources]]
name = "chat"
path = "chat/*.jsonl"
schema = "chat"
weight = 1.0
"""
WEB_SOURCE = """
[[sources]]
name = "web"
path = ["web/*.jsonl", "web/*.jsonl.gz"]
schema = "text"
weight = 1.0
"""


@dataclass
class Corpus:
    """What was written: (source, files, records, images)."""

    rows: list[tuple[str, str, int, int]] = field(default_factory=list)


def write_corpus(out: Path, pictures: list[Picture], texts: list[str], lines: list[str], seed: int) -> Corpus:
    """Write all sources: six tenths of the pictures as captions, a quarter interleaved, the rest chats."""
    rng = np.random.Generator(np.random.Philox(key=seed + 1))
    first, second = round(len(pictures) * 0.6), round(len(pictures) * 0.85)
    corpus = Corpus()
    corpus.rows.append(_write_captions(out / "captions", pictures[:first], lines, rng))
    corpus.rows.append(_write_interleaved(out / "interleaved", pictures[first:second], lines, rng))
    corpus.rows.append(_write_chats(out / "chat", pictures[second:], lines, rng))
    corpus.rows.append(_write_web(out / "web", texts))
    return corpus


def write_recipes(out: Path) -> None:
    """Write the recipes; last, because their presence tells that the corpus is complete."""
    (out / "text.toml").write_text(_HEAD + _PACKING + WEB_SOURCE)
    (out / "recipe.toml").write_text(_HEAD + _VISION + _PACKING + IMAGE_SOURCES + WEB_SOURCE)


def _pick(rng: np.random.Generator, lines: list[str]) -> str:
    return lines[int(rng.integers(len(lines)))]


def _caption(picture: Picture) -> str:
    return f"{picture.title[0].upper()}{picture.title[1:]}: the {picture.place} of the photograph."


def _write_captions(
    directory: Path, pictures: list[Picture], lines: list[str], rng: np.random.Generator
) -> tuple[str, str, int, int]:
    directory.mkdir(parents=True, exist_ok=True)
    for shard in range(_TAR_SHARDS):
        with tarfile.open(directory / f"{shard:03d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(shard, len(pictures), _TAR_SHARDS):
                picture = pictures[number]
                text = _caption(picture)
                if rng.random() < 0.5:
                    text += " " + _pick(rng, lines)
                for suffix, data in ((picture.suffix, picture.data), ("txt", text.encode())):
                    member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return "captions", f"{_TAR_SHARDS} tar", len(pictures), len(pictures)


def _groups(pictures: list[Picture], rng: np.random.Generator) -> Iterator[list[Picture]]:
    """The pictures in groups of one to four."""
    start = 0
    while start < len(pictures):
        size = int(rng.integers(1, 5))
        yield pictures[start : start + size]
        start += size


def _write_interleaved(
    directory: Path, pictures: list[Picture], lines: list[str], rng: np.random.Generator
) -> tuple[str, str, int, int]:
    """Parallel lists of texts and images with None in the gaps, as in OBELICS."""
    directory.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, list[object]]] = []
    for group in _groups(pictures, rng):
        texts: list[object] = []
        images: list[object] = []
        for i, picture in enumerate(group):
            texts += [" ".join(_pick(rng, lines) for _ in range(int(rng.integers(1, 6)))), None]
            images += [None, {"bytes": picture.data, "path": f"{i}.{picture.suffix}"}]
        texts.append(_caption(group[-1]))
        images.append(None)
        rows.append({"texts": texts, "images": images})
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("texts", pa.list_(pa.string())), ("images", pa.list_(image))])
    half = -(-len(rows) // 2)
    for shard, part in enumerate((rows[:half], rows[half:])):
        table = pa.Table.from_pylist(part, schema=schema)
        pq.write_table(table, directory / f"{shard:03d}.parquet", row_group_size=_ROW_GROUP, compression="none")
    return "interleaved", "2 Parquet", len(rows), len(pictures)


def _write_chats(
    directory: Path, pictures: list[Picture], lines: list[str], rng: np.random.Generator
) -> tuple[str, str, int, int]:
    """OpenAI messages and LLaVA conversations, with pictures as files beside them."""
    (directory / "images").mkdir(parents=True, exist_ok=True)
    openai: list[str] = []
    llava: list[str] = []
    for number, picture in enumerate(pictures):
        path = f"images/{number:06d}.{picture.suffix}"
        (directory / path).write_bytes(picture.data)
        question, answer, follow = "What does this picture show?", _caption(picture), _pick(rng, lines)
        if number % 2:
            turns = [("human", f"<image>\n{question}"), ("gpt", answer), ("human", "Tell me more."), ("gpt", follow)]
            record = {
                "id": number,
                "image": path,
                "conversations": [{"from": who, "value": said} for who, said in turns],
            }
            llava.append(json.dumps(record))
        else:
            content = [{"type": "image_url", "image_url": {"url": path}}, {"type": "text", "text": question}]
            messages = [{"role": "user", "content": content}, {"role": "assistant", "content": f"{answer} {follow}"}]
            openai.append(json.dumps({"messages": messages}))
    for name, records in (("openai", openai), ("llava", llava)):
        (directory / f"{name}.jsonl").write_text("".join(f"{record}\n" for record in records))
    return "chat", "2 JSONL", len(pictures), len(pictures)


def _write_web(directory: Path, texts: list[str]) -> tuple[str, str, int, int]:
    directory.mkdir(parents=True, exist_ok=True)
    records = [json.dumps({"text": text}) + "\n" for text in texts]
    half = len(records) // 2
    (directory / "000.jsonl").write_text("".join(records[:half]))
    with (
        open(directory / "001.jsonl.gz", "wb") as file,
        # No time and no name in the header: the same bytes each time.
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as packed,
    ):
        packed.write("".join(records[half:]).encode())
    return "web", "1 JSONL, 1 JSONL.gz", len(records), 0
