"""Digests of whole steps from real loaders, one per rank: how a promise becomes a check."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from zephon_vl.batch import Batch
from zephon_vl.digest import step_digest
from zephon_vl.errors import StateError, ZephonError
from zephon_vl.loader import Loader
from zephon_vl.recipe import Recipe

_CHECKPOINT = "loader.msgpack"


class Ranks:
    """The loaders of all ranks of a job, taken round by round as a training job takes them."""

    def __init__(self, recipe: Recipe | str | Path, ranks: int, **options: Any) -> None:
        self.loaders: list[Loader] = []
        self._slots: dict[int, str] = {}
        """Digests of the unfinished step."""
        try:
            for rank in range(ranks):
                self.loaders.append(Loader(recipe, dp_rank=rank, dp_size=ranks, **options))
        except ZephonError:
            self.close()
            raise

    def steps(self, count: int) -> Iterator[tuple[int, str]]:
        """(step, digest) of the next `count` steps, each as soon as it is whole.

        Raises:
            ZephonError: if ranks disagree on where they are, or their slots are not exactly the global batch.
        """
        while count and (batches := self.round()):
            if batches[0].last:
                yield batches[0].step, self._finish(batches[0].step)
                count -= 1

    def round(self) -> list[Batch]:
        """One microbatch of every rank; none at the end of data that is not repeated."""
        batches = [batch for loader in self.loaders if (batch := next(loader, None)) is not None]
        if batches and len(batches) < len(self.loaders):
            raise ZephonError(f"only {len(batches)} of {len(self.loaders)} ranks go on after step {batches[0].step}")
        places = {(batch.step, batch.microbatch, batch.last) for batch in batches}
        if len(places) > 1:
            raise ZephonError(f"the ranks are not at the same microbatch: {sorted(places)}")
        for batch in batches:
            found = batch.digests()
            if twice := sorted(found.keys() & self._slots.keys()):
                raise ZephonError(f"step {batch.step}: slots {twice} were delivered twice")
            self._slots.update(found)
        return batches

    def save(self, directory: Path) -> None:
        """Write the merged state of all ranks, with the digests of the unfinished step, as one file."""
        states = [loader.state_dict() for loader in self.loaders]
        merged = {
            "identity": states[0]["identity"],
            "lanes": {key: entry for state in states for key, entry in state["lanes"].items()},
            "slots": self._slots,
        }
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
            file.write(msgspec.msgpack.encode(merged))
        os.replace(file.name, directory / _CHECKPOINT)

    def load(self, directory: Path, allow: Sequence[str] = ()) -> None:
        """Go on from a saved state, whatever number of ranks saved it. Raises `StateError`."""
        path = directory / _CHECKPOINT
        try:
            merged = msgspec.msgpack.decode(path.read_bytes(), strict=False)
        except OSError as error:
            raise StateError(f"cannot read the checkpoint {path}: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise StateError(f"the checkpoint {path} is damaged: {error}") from error
        for loader in self.loaders:
            loader.load_state_dict(merged, allow)
        self._slots = dict(merged.get("slots", {}))

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()

    def _finish(self, step: int) -> str:
        slots, self._slots = self._slots, {}
        try:
            return step_digest(slots, self.loaders[0].recipe.global_batch_size)
        except ValueError as error:
            raise ZephonError(f"step {step}: {error}") from error


def digests(
    recipe: Recipe | str | Path,
    steps: range,
    *,
    ranks: int = 1,
    workers: int = 0,
    microbatch_size: int = 1,
    save_at: int | None = None,
    checkpoint: Path | None = None,
    resume: Path | None = None,
) -> Iterator[tuple[int, str]]:
    """(step, SHA-256) of steps, from real loaders.

    Args:
        steps: which; with `resume`, only their end counts.
        save_at: write a checkpoint to `checkpoint` before this step.
        resume: directory of a checkpoint to go on from.
    """
    options = {"workers": workers, "microbatch_size": microbatch_size}
    with contextlib.closing(Ranks(recipe, ranks, start_step=0 if resume else steps.start, **options)) as job:
        at = steps.start
        if resume is not None:
            job.load(resume)
            at = job.loaders[0].next_step
        while at < steps.stop:
            if at == save_at and checkpoint is not None:
                job.save(checkpoint)
            finished = list(job.steps(1))
            if not finished:
                return
            yield from finished
            at = finished[0][0] + 1
        if at == save_at and checkpoint is not None:
            job.save(checkpoint)
