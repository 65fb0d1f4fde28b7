"""Restoring: from a new process to the first batch, at a step of the packed pipeline of images and text.

    python bench/run_resume.py --data bench_data --step 300

A state is saved after `step` batches by a first process of each loader, which also takes the next batch; a process
with nothing but torch imported then restores it, and its first batch must be that one, unless the loader does not
promise it. Cold start is the same without a state. Loaders take turns.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import tyro
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.corpus import ensure_corpus
from bench.loaders.protocol import load, missing
from bench.measure import Failed, end_children, middle, run_module
from bench.work import Settings

if TYPE_CHECKING:
    from bench.loaders.protocol import Delivered

LOADERS = ("zephon_vl", "grain_loader", "zephon_loader")
"""Those that promise to go on exactly where they were."""


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """One restore, or one cold start. Seconds from before the import of the loader's library."""

    seconds: float
    digest: str
    """Of the first batch's token ids and pixels."""
    state_bytes: int = 0


class Results(msgspec.Struct, kw_only=True):
    """What a run found, by the loader's title."""

    step: int
    workers: int
    restored: dict[str, list[Resumed]] = {}
    cold: dict[str, list[Resumed]] = {}
    exact: dict[str, bool] = {}
    """Whether every restore gave the batch that the uninterrupted run gave."""
    failed: dict[str, str] = {}


@dataclass(frozen=True)
class Arguments:
    """Options of this benchmark."""

    loaders: tuple[str, ...] = LOADERS
    data: Path = Path("bench_data")
    images: int = 1000
    step: int = 300
    """Batches taken before the state is saved."""
    workers: int = 2
    repeat: int = 5
    json: Path | None = None


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        _child(*sys.argv[2:])
        return
    arguments = tyro.cli(Arguments, description=__doc__)
    results = measure_resume(arguments, Console())
    show(results, Console())
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))


def measure_resume(arguments: Arguments, console: Console) -> Results:
    """Save once with each loader, then restore and start cold in turn."""
    paths = ensure_corpus(arguments.data, arguments.images)
    settings = Settings(data=str(paths.root), workers=arguments.workers)
    results = Results(step=arguments.step, workers=arguments.workers)
    with tempfile.TemporaryDirectory() as folder:
        saved: dict[str, tuple[Path, Resumed]] = {}
        for name in arguments.loaders:
            if lacks := missing(name):
                results.failed[name] = f"not installed: {', '.join(lacks)}"
                continue
            path = Path(folder) / name
            try:
                saved[name] = path, _run("save", name, settings, path, arguments.step)
            except Failed as error:
                results.failed[name] = str(error)
                console.print(f"[red]{name}: {error}", highlight=False)
        for _ in range(arguments.repeat):
            for name, (path, after) in saved.items():
                title = load(name).TITLE
                restored = _run("restore", name, settings, path, arguments.step)
                cold = _run("cold", name, settings, path, arguments.step)
                results.restored.setdefault(title, []).append(restored)
                results.cold.setdefault(title, []).append(cold)
                results.exact[title] = results.exact.get(title, True) and restored.digest == after.digest
                console.print(f"{title:16} restored {restored.seconds:6.2f} s   cold {cold.seconds:6.2f} s")
    return results


def show(results: Results, console: Console) -> None:
    """Print the medians."""
    table = Table("loader", "restored, s", "spread", "cold, s", "state, kB", "exact")
    for title, rounds in results.restored.items():
        seconds, least, most = middle([one.seconds for one in rounds])
        table.add_row(
            title,
            f"{seconds:.2f}",
            f"{least:.2f} to {most:.2f}",
            f"{middle([one.seconds for one in results.cold[title]])[0]:.2f}",
            f"{rounds[0].state_bytes / 1e3:.0f}",
            "yes" if results.exact[title] else "NO",
        )
    console.print(table)


def _run(what: str, name: str, settings: Settings, path: Path, step: int) -> Resumed:
    command = [sys.executable, str(Path(__file__).resolve()), "--child", what, name]
    command += [msgspec.json.encode(settings).decode(), str(path), str(step)]
    return msgspec.json.decode(run_module(command).splitlines()[-1], type=Resumed)


def _child(what: str, name: str, encoded: str, path: str, step: str) -> None:
    """One process: save a state, restore one, or start cold."""
    import torch  # a trainer has it already

    torch.set_num_threads(1)
    settings, file = msgspec.json.decode(encoded, type=Settings), Path(path)
    state = pickle.loads(file.read_bytes()) if what == "restore" else None
    begin = time.perf_counter()
    module: Any = load(name)
    loader = module.open(settings, state) if state is not None else module.open(settings)
    if what == "save":
        for _ in range(int(step)):
            next(loader)
        file.write_bytes(pickle.dumps(loader.state()))
    batch = next(loader)
    seconds = time.perf_counter() - begin
    size = file.stat().st_size if file.exists() else 0
    print(msgspec.json.encode(Resumed(seconds=seconds, digest=_digest(batch), state_bytes=size)).decode(), flush=True)
    end_children()
    os._exit(0)


def _digest(batch: Delivered) -> str:
    found = hashlib.sha256()
    for name in ("input_ids", "pixel_patches"):
        found.update(batch.tensors[name].numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    main()
