"""A corpus of many distinct captioned JPEGs made of real photographs, in every format that a loader here reads.

    python bench/corpus.py --out bench_data --images 1000

Sizes are log-uniform from 0.1 to 4 megapixels with aspects around 4:3; qualities are around 85, from 70 to 97; four
fifths are 4:2:0, the rest 4:4:4; a quarter is progressive. A picture is made of crops of photographs that keep their
own sharpness: one that is larger than a crop at its limit of enlargement is a collage of several, since an enlarged
photograph would be smoother than web images are, and cheaper to decode. Captions are sentences of documentation with a
number that tells the sample.

The same options give the same bytes with the same libraries. Written are: files with a JSONL of captions, tar shards,
Parquet, ArrayRecord where its package is installed, documents of text, a tokenizer and recipes.
"""

from __future__ import annotations

import concurrent.futures
import importlib.util
import io
import itertools
import json
import math
import multiprocessing
import os
import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import tyro
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "scripts"))

from bench.corpus_paths import MAX_PIXELS, SEQ_LEN, About, Paths
from sample_data import vocabularies
from sample_data.origins import PHOTOGRAPHS, QWEN, licences
from sample_data.packages import read_files
from sample_data.texts import documents, sentences
from zephon_vl.recipe import load_recipe
from zephon_vl.vocabulary import load_vocabulary

SMALLEST, LARGEST = 0.1e6, 4e6
"""Pixels of a picture; log-uniform between them."""
_ENLARGED = 1.5
"""Most that a photograph is enlarged along a side."""
_SHARDS = 4
_ROW_GROUP = 64
_LONGEST_TEXT = 4000
"""Characters of a document of text."""
_CACHE = Path(os.environ.get("ZEPHON_VL_CACHE") or Path.home() / ".cache" / "zephon-vl") / "packages"


@dataclass(frozen=True)
class Arguments:
    """Options of the corpus."""

    out: Path = Path("bench_data")
    images: int = 1000
    seed: int = 0
    tokenizer: Literal["qwen", "tiny"] = "qwen"
    """qwen: the real vocabulary of 151,657 tokens. tiny: one of about 8,000, trained on the spot."""


def ensure_corpus(out: Path, images: int, seed: int = 0, tokenizer: Literal["qwen", "tiny"] = "qwen") -> Paths:
    """The corpus in `out`, made there if it is not the one asked for."""
    paths, wanted = Paths(out.absolute()), About(images=images, seed=seed, tokenizer=tokenizer)
    if (out / "corpus.json").is_file():
        found = paths.about
        if (found.images, found.seed, found.tokenizer, found.version) == (images, seed, tokenizer, wanted.version):
            return paths
    photographs = {name: data for package in PHOTOGRAPHS for name, data in read_files(package, _CACHE).items()}
    make_corpus(paths, wanted, photographs, licences((*PHOTOGRAPHS, QWEN)))
    return paths


def make_corpus(paths: Paths, wanted: About, photographs: Mapping[str, bytes], licence_text: str) -> None:
    """Write a whole corpus; `corpus.json` last, which tells that it is complete."""
    if paths.root.exists() and any(paths.root.iterdir()) and not (paths.root / "LICENSES.md").is_file():
        sys.exit(f"{paths.root} holds other files than a corpus of this benchmark; name a new or empty directory")
    shutil.rmtree(paths.root, ignore_errors=True)
    (paths.root / "files").mkdir(parents=True)
    (paths.root / "LICENSES.md").write_text(licence_text)
    texts = [part for text in documents() for part in _parts(text)]
    _write_tokenizer(paths, wanted, texts)
    captions = _captions(wanted, sentences(texts))
    _write_pictures(paths, wanted, photographs)
    names = [f"files/{number:06d}.jpg" for number in range(wanted.images)]
    lines = (json.dumps({"image": name, "text": text}) + "\n" for name, text in zip(names, captions, strict=True))
    paths.captions.write_text("".join(lines))
    files = [(paths.root / name).read_bytes() for name in names]
    for write in (_write_tars, _write_parquet, _write_array_records):
        write(paths, files, captions)
    paths.texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for name, file in (("captions", paths.captions), ("texts", paths.texts)):  # one whose shards are all in a folder
        (paths.root / "zephon" / name).mkdir(parents=True)
        shutil.copy(file, paths.root / "zephon" / name / "000.jsonl")
    _write_recipes(paths)
    for recipe in paths.root.glob("*.toml"):
        vocabulary = load_vocabulary(load_recipe(recipe))
        recipe.with_suffix(".vocabulary.json").write_bytes(msgspec.json.encode(vocabulary))
    pixels = sum(math.prod(Image.open(io.BytesIO(file)).size) for file in files)
    sizes = {"megapixels": pixels / len(files) / 1e6, "bytes": sum(map(len, files)) / len(files)}
    (paths.root / "corpus.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(wanted, **sizes)))


# --- pictures ---------------------------------------------------------------------------------------------------------

_photographs: dict[str, Image.Image] = {}


def _set_photographs(encoded: Mapping[str, bytes]) -> None:
    """Give this process the photographs that its pictures are made from."""
    for name in sorted(encoded):
        _photographs[name] = Image.open(io.BytesIO(encoded[name])).convert("RGB")


def _write_pictures(paths: Paths, wanted: About, photographs: Mapping[str, bytes]) -> None:
    # Spawned, not forked: image libraries and locks of this process stay out of it.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        mp_context=context, initializer=_set_photographs, initargs=(photographs,)
    ) as pool:
        pictures = pool.map(make_picture, itertools.repeat(wanted.seed), range(wanted.images), chunksize=8)
        for number, data in enumerate(pictures):
            (paths.root / f"files/{number:06d}.jpg").write_bytes(data)


def make_picture(seed: int, number: int) -> bytes:
    """Picture `number` of a corpus as a JPEG; the same bytes each time."""
    rng = np.random.Generator(np.random.Philox(key=[seed % 2**64, number]))
    pixels = math.exp(rng.uniform(math.log(SMALLEST), math.log(LARGEST)))
    aspect = math.exp(rng.normal(math.log(4 / 3), 0.25))
    picture = _collage(round((pixels * aspect) ** 0.5), round((pixels / aspect) ** 0.5), rng)
    quality = int(np.clip(round(rng.normal(85, 7)), 70, 97))
    subsampling = 2 if rng.random() < 0.8 else 0
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality, subsampling=subsampling, progressive=bool(rng.random() < 0.25))
    return buffer.getvalue()


def _collage(width: int, height: int, rng: np.random.Generator) -> Image.Image:
    """A picture of the size, of as few crops as keep their photographs' sharpness."""
    names = sorted(_photographs)
    typical = 512 * _ENLARGED
    columns, rows = max(1, round(width / typical)), max(1, round(height / typical))
    across = [width * i // columns for i in range(columns + 1)]
    down = [height * i // rows for i in range(rows + 1)]
    picture = Image.new("RGB", (width, height))
    for top, bottom in itertools.pairwise(down):
        for left, right in itertools.pairwise(across):
            photograph = _photographs[names[int(rng.integers(len(names)))]]
            picture.paste(_crop(photograph, right - left, bottom - top, rng), (left, top))
    return picture


def _crop(photograph: Image.Image, width: int, height: int, rng: np.random.Generator) -> Image.Image:
    """A part of a photograph, scaled between its full width and the limit of enlargement, perhaps mirrored."""
    fits = min(photograph.width / width, photograph.height / height)
    scale = rng.uniform(min(fits, max(0.4 * fits, 1 / _ENLARGED)), fits)
    across, down = min(width * scale, photograph.width), min(height * scale, photograph.height)
    left, top = rng.uniform(0, photograph.width - across), rng.uniform(0, photograph.height - down)
    box = (left, top, min(left + across, photograph.width), min(top + down, photograph.height))
    part = photograph.resize((width, height), Image.Resampling.LANCZOS, box=box)
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else part


# --- texts and files --------------------------------------------------------------------------------------------------


def _captions(wanted: About, lines: Sequence[str]) -> list[str]:
    """One or two sentences and the sample's number: token ids alone tell which sample they are of."""
    rng = np.random.Generator(np.random.Philox(key=wanted.seed + 1))
    return [
        " ".join(
            [*(lines[int(rng.integers(len(lines)))] for _ in range(int(rng.integers(1, 3)))), f"Picture {number}."]
        )
        for number in range(wanted.images)
    ]


def _parts(text: str) -> list[str]:
    """A document in parts of whole lines that fit in a sequence, so that no loader cuts any of what it tokenized."""
    parts, size = [[]], 0
    for line in text.splitlines(keepends=True):
        if size + len(line) > _LONGEST_TEXT and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(line)
        size += len(line)
    return [joined for part in parts if (joined := "".join(part).strip())]


def _write_tokenizer(paths: Paths, wanted: About, texts: list[str]) -> None:
    small = paths.root / "tokenizer_small"  # where many workers start, a large one would only delay the start
    vocabularies.write_tiny(texts, small)
    if wanted.tokenizer == "tiny":
        shutil.copytree(small, paths.tokenizer.parent)
    else:
        vocabularies.write_qwen(read_files(QWEN, _CACHE)["qwen.tiktoken"], paths.tokenizer.parent)


def _write_tars(paths: Paths, files: Sequence[bytes], captions: Sequence[str]) -> None:
    (paths.root / "tar").mkdir()
    for shard in range(_SHARDS):
        with tarfile.open(paths.root / f"tar/{shard:03d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(shard, len(files), _SHARDS):
                for suffix, data in (("jpg", files[number]), ("txt", captions[number].encode())):
                    member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def _write_parquet(paths: Paths, files: Sequence[bytes], captions: Sequence[str]) -> None:
    """As `datasets` stores images: a struct of bytes and path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (paths.root / "parquet").mkdir()
    schema = pa.schema([("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("text", pa.string())])
    for shard in range(_SHARDS):
        rows = [
            {"image": {"bytes": files[number], "path": f"{number:06d}.jpg"}, "text": captions[number]}
            for number in range(shard, len(files), _SHARDS)
        ]
        table = pa.Table.from_pylist(rows, schema=schema)
        pq.write_table(
            table, paths.root / f"parquet/{shard:03d}.parquet", row_group_size=_ROW_GROUP, compression="none"
        )


def _write_array_records(paths: Paths, files: Sequence[bytes], captions: Sequence[str]) -> None:
    if importlib.util.find_spec("array_record") is None:
        return
    from array_record.python.array_record_module import ArrayRecordWriter  # pyright: ignore[reportMissingImports]

    (paths.root / "array_record").mkdir()
    for shard in range(_SHARDS):
        # A group of one record, uncompressed: what its authors advise for random access to records of this size.
        writer = ArrayRecordWriter(
            str(paths.root / f"array_record/{shard:03d}.array_record"), "group_size:1,uncompressed"
        )
        for number in range(shard, len(files), _SHARDS):
            writer.write(msgspec.msgpack.encode({"image": files[number], "text": captions[number]}))
        writer.close()


def _write_recipes(paths: Paths) -> None:
    head = f"""\
seed = 42
lanes = 8
global_batch_size = 8
seq_len = {SEQ_LEN}

[tokenizer]
path = "tokenizer"
"""
    vision = f"""
[vision]
preset = "qwen3_5"
max_pixels = {MAX_PIXELS}

[[sources]]
name = "captions"
path = "tar/*.tar"
schema = "caption"
"""
    text = """
[[sources]]
name = "texts"
path = "texts.jsonl"
schema = "text"
"""
    captions = """
[[sources]]
name = "captions"
path = "captions.jsonl"
schema = "text"
"""
    paths.recipe.write_text(head + vision)
    (paths.root / "sleep.toml").write_text(head.replace('"tokenizer"', '"tokenizer_small"') + captions)
    (paths.root / "text.toml").write_text(head + text)


def main() -> None:
    arguments = tyro.cli(Arguments, description=__doc__)
    paths = ensure_corpus(arguments.out, arguments.images, arguments.seed, arguments.tokenizer)
    about = paths.about
    print(f"{paths.root}: {about.images} pictures, {about.megapixels:.2f} megapixels, {about.bytes / 1e3:.0f} kB each")


if __name__ == "__main__":
    main()
