"""Make a mixed corpus of real photographs and texts to try the library on.

    python scripts/make_sample_data.py --out sample_data --images 600

Four sources: captions in tars, interleaved documents in Parquet, chats in JSONL with image files beside it, and web
text in JSONL. Photographs come from the wheels of scikit-image and scikit-learn, texts from the documentation of
Python's standard library, the vocabulary is Qwen2's. The same options give the same bytes on the same Python and image
libraries.
"""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from sample_data import vocabularies
from sample_data.packages import Package, read_files
from sample_data.pictures import Picture, make_picture
from sample_data.texts import documents, sentences
from sample_data.writers import Corpus, write_corpus

SCIKIT_IMAGE = Package(
    "scikit-image",
    "0.26.0",
    "BSD-3-Clause; the pictures are in the public domain or CC0, each one's origin is in skimage/data/README.txt",
    (
        ("skimage/data/astronaut.png", "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5"),
        ("skimage/data/camera.png", "b0793d2adda0fa6ae899c03989482bff9a42d3d5690fc7e3648f2795d730c23a"),
        ("skimage/data/cell.png", "8d23a7fb81f7cc877cd09f330357fc7f595651306e84e17252f6e0a1b3f61515"),
        ("skimage/data/chelsea.png", "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb"),
        ("skimage/data/coffee.png", "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7"),
        ("skimage/data/coins.png", "f8d773fc9cfa6f4d8e5942dc34d0a0788fcaed2a4fefbbed0aef5398d7ef4cba"),
        ("skimage/data/grass.png", "b6b6022426b38936c43a4ac09635cd78af074e90f42ffa8227ac8b7452d39f89"),
        ("skimage/data/gravel.png", "c48615b451bf1e606fbd72c0aa9f8cc0f068ab7111ef7d93bb9b0f2586440c12"),
        ("skimage/data/hubble_deep_field.jpg", "3a19c5dd8a927a9334bb1229a6d63711b1c0c767fb27e2286e7c84a3e2c2f5f4"),
        ("skimage/data/ihc.png", "f8dd1aa387ddd1f49d8ad13b50921b237df8e9b262606d258770687b0ef93cef"),
        ("skimage/data/moon.png", "78739619d11f7eb9c165bb5d2efd4772cee557812ec847532dbb1d92ef71f577"),
        ("skimage/data/motorcycle_left.png", "db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179"),
        ("skimage/data/retina.jpg", "38a07f36f27f095e818aea7b96d34202c05176d30253c66733f2e00379e9e0e6"),
        ("skimage/data/rocket.jpg", "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c"),
    ),
)
SCIKIT_LEARN = Package(
    "scikit-learn",
    "1.9.1",
    "BSD-3-Clause; china.jpg and flower.jpg are CC BY 2.0, by Miriam Christine and dany13 on Flickr",
    (
        ("sklearn/datasets/images/china.jpg", "8378025ad2519d649d02e32bd98990db4ab572357d9f09841c2fbfbb4fefad29"),
        ("sklearn/datasets/images/flower.jpg", "a77f6ec41e353afdf8bdff2ea981b2955535d8d83294f8cfa49cf4e423dd5638"),
    ),
)
QWEN = Package(
    "dashscope",
    "2.0.2",
    "Apache-2.0",
    (("dashscope/resources/qwen.tiktoken", "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"),),
)


@dataclass(frozen=True)
class Arguments:
    """Options of the sample data."""

    out: Path = Path("sample_data")
    images: int = 600
    """Distinct pictures over all sources."""
    seed: int = 0
    tokenizer: Literal["qwen", "tiny"] = "qwen"
    """qwen: the real vocabulary of 151,657 tokens. tiny: one of about 8,000, trained on the spot."""
    cache: Path = Path(os.environ.get("ZEPHON_VL_CACHE") or Path.home() / ".cache" / "zephon-vl") / "packages"
    """Where downloaded files are kept."""


def main() -> None:
    arguments = tyro.cli(Arguments, description=__doc__)
    console = Console()
    photographs = read_files(SCIKIT_IMAGE, arguments.cache) | read_files(SCIKIT_LEARN, arguments.cache)
    with console.status("reading the standard library's documentation"):
        texts = documents()
    with console.status(f"making {arguments.images} pictures"):
        pictures = _pictures(photographs, arguments.seed, arguments.images)
    with console.status("making the tokenizer"):
        if arguments.tokenizer == "qwen":
            vocabularies.write_qwen(read_files(QWEN, arguments.cache)["qwen.tiktoken"], arguments.out / "tokenizer")
        else:
            vocabularies.write_tiny(texts, arguments.out / "tokenizer")
    with console.status("writing shards"):
        corpus = write_corpus(arguments.out, pictures, texts, sentences(texts), arguments.seed)
    used = (SCIKIT_IMAGE, SCIKIT_LEARN) + ((QWEN,) if arguments.tokenizer == "qwen" else ())
    _write_licences(arguments.out, used)
    _summarise(console, arguments.out, corpus)


def _pictures(photographs: dict[str, bytes], seed: int, count: int) -> list[Picture]:
    make = functools.partial(make_picture, photographs, seed)
    # Spawned, not forked: image libraries and locks of this process stay out of it.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(mp_context=context) as pool:
        return list(pool.map(make, range(count), chunksize=max(1, min(32, count // 8))))


def _write_licences(out: Path, used: tuple[Package, ...]) -> None:
    lines = ["# Where this corpus comes from", ""]
    lines += [f"- {package.name} {package.version} (PyPI): {package.licence}" for package in used]
    lines += ["- texts: docstrings of the Python standard library, Python Software Foundation License", ""]
    (out / "LICENSES.md").write_text("\n".join(lines))


def _summarise(console: Console, out: Path, corpus: Corpus) -> None:
    table = Table("source", "files", "records", "images", title=f"sample data in {out}")
    for name, files, records, images in corpus.rows:
        table.add_row(name, files, f"{records:,}", f"{images:,}")
    console.print(table)
    console.print(f"licences: {out}/LICENSES.md\nnext: zephon-vl run {out}/recipe.toml --steps 20", highlight=False)


if __name__ == "__main__":
    main()
