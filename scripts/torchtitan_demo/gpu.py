"""Trains the tiny VLM on one GPU, saves, resumes, and compares what it took with what a CPU-only loader delivers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

import torch
import tyro

from torchtitan_demo import cpu
from torchtitan_demo.corpus import LANES, make_corpus
from zephon_vl.ledger import Ledger
from zephon_vl.ledger.compare import compare
from zephon_vl.loader import Loader

SAVED, STEPS = 2, 4
_TRAIN = "train"


@dataclass(frozen=True)
class Arguments:
    """Options of the smoke test."""

    data: Path = Path("build/torchtitan_data")
    """Directory of the corpus with a small vocabulary; made where it is missing."""
    on_cpu: bool = False
    """The same without a GPU, as the demo does it: to try this script."""


def main() -> None:
    if sys.argv[1:2] == [_TRAIN]:
        _train(sys.argv[2:])
        return
    arguments = tyro.cli(Arguments, description=__doc__)
    if not arguments.on_cpu and not torch.cuda.is_available():
        print("GPU smoke test: SKIPPED, since torch sees no GPU here (--on-cpu runs the same on a CPU)")
        return
    make_corpus(arguments.data)
    with tempfile.TemporaryDirectory(prefix="zephon-vl-gpu-") as directory:
        difference = _smoke(arguments, Path(directory))
    if difference:
        sys.exit(f"GPU smoke test: FAIL: {difference}")
    print(f"GPU smoke test: PASS: {STEPS} steps, and those after a resume, have the digests of a CPU-only loader")


def _smoke(arguments: Arguments, work: Path) -> str | None:
    """The first difference, in words."""
    whole, resumed, reference = work / "whole", work / "resumed", work / "reference"
    _run_trainer(arguments, whole)
    shutil.copytree(whole / "checkpoint" / f"step-{SAVED}", resumed / "checkpoint" / f"step-{SAVED}")
    _run_trainer(arguments, resumed)
    with Loader(arguments.data / "tiny.toml", microbatch_size=LANES, ledger=reference) as loader:
        for _ in takewhile(lambda batch: batch.step < STEPS - 1, loader):
            pass
    for name, directory, steps in (("the run", whole, STEPS), ("the resumed run", resumed, STEPS - SAVED)):
        result = compare(Ledger(reference), Ledger(directory / "ledger"))
        if result.first is not None or result.equal != steps:
            return f"{name} has {result.equal} of {steps} steps like the reference; first difference: {result.first}"
    return None


def _run_trainer(arguments: Arguments, folder: Path) -> None:
    options: Sequence[str] = (
        *("--module", "zephon_vl.torchtitan", "--config", "qwen35_tiny"),
        *("--dataloader.recipe", str(arguments.data / "tiny.toml"), "--dataloader.ledger", str(folder / "ledger")),
        *("--hf_assets_path", str(arguments.data / "tokenizer"), "--dump_folder", str(folder)),
        *("--training.steps", str(STEPS), "--checkpoint.enable", "--checkpoint.interval", str(SAVED)),
        *("--parallelism.spmd_backend", "partial_dtensor"),
    )
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    device = "cpu" if arguments.on_cpu else "gpu"
    command = [sys.executable, "-m", "torchtitan_demo.gpu", _TRAIN, device, *options]
    subprocess.run(command, check=True, env={**os.environ, **alone})


def _train(arguments: list[str]) -> None:
    """A Trainer in this process."""
    device, *options = arguments
    if device == "cpu":
        cpu.prepare()
    else:
        cpu.add_set_timeout()
        if find_spec("fla") is None:
            print("flash-linear-attention is not installed: plain torch stands for it, which is slow")
            cpu.replace_linear_attention()
    import torchtitan.train

    sys.argv = ["torchtitan.train", *options]
    torchtitan.train.main()


if __name__ == "__main__":
    main()
