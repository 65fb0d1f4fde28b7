"""The runs of the demo: what each trains, on how many ranks, and from the checkpoint of which other run it goes on."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchtitan_demo import jobs, observe
from torchtitan_demo.corpus import SEQ_LEN
from torchtitan_demo.jobs import Job
from zephon_vl.ledger import merged

SAVED, STEPS = 6, 12
_MOST_RANKS = 8
"""Processes at a time."""


@dataclass(frozen=True)
class Model:
    """What is trained."""

    config: str
    recipe: str
    """Empty for TorchTitan's own loader."""


VLM = Model("qwen35_tiny", "tiny.toml")
TEXT = Model("llama3_tiny", "tiny_text.toml")
STOCK = Model("torchtitan_demo.stock:llama3_tiny_stock", "")


@dataclass(kw_only=True)
class Run:
    """One run of TorchTitan's Trainer."""

    title: str
    ranks: int
    model: Model = VLM
    rows: int
    """Sequences of a microbatch: `training.local_batch_size`."""
    size: int = 8
    """`training.global_batch_size`; 8, or more where ranks do not divide the lanes."""
    after: Run | None = None
    """The run that it goes on from, at step `SAVED`."""
    steps: int = STEPS
    options: tuple[str, ...] = ()
    fails: bool = False
    """Whether it is meant to fail."""
    job: Job | None = None
    digests: dict[int, str] = field(default_factory=dict)
    """By step of TorchTitan, from 1."""

    @property
    def losses(self) -> dict[int, float]:
        """By step of TorchTitan."""
        return observe.losses(self.job.folder) if self.job else {}

    @property
    def done(self) -> bool:
        return self.job is not None and not any(process.is_alive() for process in self.job.processes)

    @property
    def error(self) -> str:
        """What a run that failed said."""
        return jobs.error_of(self.job) if self.job else ""

    def start(self, data: Path, work: Path) -> None:
        """Start it in a new directory of `work`."""
        folder = work / "".join(letter if letter.isalnum() else "_" for letter in self.title)
        if self.after is not None and self.after.job is not None:
            name = f"checkpoint/step-{SAVED}"
            shutil.copytree(self.after.job.folder / name, folder / name)
        ours = ("--dataloader.recipe", str(data / self.model.recipe), "--dataloader.ledger", str(folder / "ledger"))
        self.job = jobs.start(
            folder,
            self.ranks,
            self.model.config,
            *(ours if self.model.recipe else ()),
            *("--hf_assets_path", str(data / "tokenizer"), "--dump_folder", str(folder)),
            *("--training.steps", str(self.steps), "--training.seq_len", str(SEQ_LEN)),
            *("--training.local_batch_size", str(self.rows), "--training.global_batch_size", str(self.size)),
            *("--checkpoint.enable", "--checkpoint.interval", str(SAVED)),
            *self.options,
        )

    def finish(self) -> None:
        """Read what it left. Raises `JobFailed` where it ended otherwise than it was meant to."""
        assert self.job is not None
        if self.fails:
            self.job.wait()
            return
        self.job.finish()
        ledger = self.job.folder / "ledger"
        if ledger.exists():
            steps = merged(ledger)
            self.digests = {step.number + 1: step.digest for step in steps if step.digest is not None}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Runs of which all must take the same global batches as the first, at the same steps."""

    title: str
    runs: Sequence[Run]

    @property
    def first(self) -> Run:
        return self.runs[0]


def elastic(title: str, model: Model) -> Experiment:
    """Four ranks, and from their checkpoint two, one and three. Eight lanes on three ranks make nine rows a step."""
    whole = Run(title=f"{title} on 4", ranks=4, rows=2, model=model)
    return Experiment(
        title=title,
        runs=(
            whole,
            Run(title=f"{title} on 2", ranks=2, rows=2, after=whole, model=model),
            Run(title=f"{title} on 1", ranks=1, rows=8, after=whole, model=model),
            Run(title=f"{title} on 3", ranks=3, rows=3, size=9, after=whole, model=model),
        ),
    )


def tensor_parallel(model: Model) -> Experiment:
    """Two data-parallel ranks of two tensor-parallel peers, and from their checkpoint four data-parallel ranks."""
    split = ("--parallelism.tensor_parallel_degree", "2")
    whole = Run(title="text on TP 2 x DP 2", ranks=4, rows=4, options=split, model=model)
    return Experiment(
        title="tensor parallelism", runs=(whole, Run(title="text on DP 4", ranks=4, rows=2, after=whole, model=model))
    )


def without_state(after: Run) -> Run:
    """Goes on with the model only: the data starts again, which the loader says loudly."""
    exclude = ("--checkpoint.exclude_from_loading", "dataloader")
    return Run(title="without the loader's state", ranks=1, rows=8, after=after, steps=SAVED + 1, options=exclude)


def stock(text: Path) -> tuple[Run, ...]:
    """TorchTitan's own loader: four ranks, then two from their checkpoint, as it is and without the loader's state."""
    model = STOCK
    options = ("--dataloader.dataset_path", str(text))
    whole = Run(title="TorchTitan's own on 4", ranks=4, rows=2, options=options, model=model)
    again = (*options, "--checkpoint.exclude_from_loading", "dataloader")
    return (
        whole,
        Run(title="TorchTitan's own on 2", ranks=2, rows=4, after=whole, options=options, fails=True, model=model),
        Run(title="TorchTitan's own on 2, state excluded", ranks=2, rows=4, after=whole, options=again, model=model),
    )


def advance(runs: Sequence[Run], data: Path, work: Path) -> bool:
    """Start what can start and read what has ended; False when all is done. Raises `JobFailed`."""
    busy = sum(run.ranks for run in runs if run.job is not None and not run.done)
    for run in runs:
        if run.job is None and (run.after is None or run.after.done) and busy + run.ranks <= _MOST_RANKS:
            run.start(data, work)
            busy += run.ranks
    return not all(run.done for run in runs)
