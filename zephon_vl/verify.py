"""Digests of whole steps from real loaders, one per rank: how a promise becomes a check."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from zephon_vl.batch import Batch
from zephon_vl.digest import step_digest
from zephon_vl.errors import RecipeError, StateError, ZephonError
from zephon_vl.files import write_atomically
from zephon_vl.loader import Loader
from zephon_vl.recipe import Recipe, load_recipe

_CHECKPOINT = "loader.msgpack"


class Checkpoint(msgspec.Struct, frozen=True):
    """What a checkpoint of all ranks holds."""

    identity: bytes
    lanes: dict[str, bytes]
    slots: dict[int, str]
    """Digests of the slots of an unfinished step that were delivered before."""

    @classmethod
    def merge(cls, states: Sequence[Mapping[str, Any]], slots: Mapping[int, str]) -> Checkpoint:
        """One checkpoint from the `Loader.state_dict` of every rank."""
        lanes = {key: entry for state in states for key, entry in state["lanes"].items()}
        return cls(states[0]["identity"], lanes, dict(slots))

    @classmethod
    def read(cls, directory: Path) -> Checkpoint:
        """Raises `StateError` if there is none, or it is damaged."""
        path = directory / _CHECKPOINT
        try:
            return msgspec.msgpack.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise StateError(f"cannot read the checkpoint {path}: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise StateError(f"{path} is damaged or not a checkpoint of zephon-vl digest: {error}") from error

    def write(self, directory: Path) -> None:
        """Write it as one file: whole, or not at all. Raises `OSError`."""
        write_atomically(directory / _CHECKPOINT, msgspec.msgpack.encode(self))

    def state_dict(self) -> dict[str, Any]:
        """What `Loader.load_state_dict` takes, of all lanes."""
        return {"identity": self.identity, "lanes": self.lanes}


class StepSlots:
    """Digests of the slots of one step, put together as ranks deliver them.

    Args:
        found: slots that were delivered before.
    """

    def __init__(self, found: Mapping[int, str] | None = None) -> None:
        self.found = dict(found or {})

    def add(self, step: int, digests: Mapping[int, str]) -> None:
        """Take the slots of a microbatch. Raises `ZephonError` for one that was delivered before."""
        if twice := sorted(digests.keys() & self.found.keys()):
            raise ZephonError(f"step {step}: slots {twice} were delivered twice")
        self.found.update(digests)

    def finish(self, step: int, size: int) -> str:
        """The digest of the step, a global batch of `size`; the next step begins. Raises `ZephonError` if slots are
        missing or foreign."""
        slots, self.found = self.found, {}
        if foreign := sorted(slot for slot in slots if not 0 <= slot < size):
            raise ZephonError(f"step {step}: slots {foreign} are not of a global batch of {size}")
        try:
            return step_digest(slots, size)
        except ValueError as error:
            raise ZephonError(f"step {step}: {error}") from error


class Ranks:
    """The loaders of all ranks of a job, taken round by round as a training job takes them.

    Args:
        recipe: a recipe, or the path of a recipe file.
        ranks: number of data-parallel ranks.
        options: further arguments of every `Loader`.

    Raises:
        RecipeError: for a number of ranks or an option that cannot be served.
    """

    def __init__(self, recipe: Recipe | str | Path, ranks: int, **options: Any) -> None:
        if ranks < 1:
            raise RecipeError(f"ranks is {ranks}, but must be at least 1")
        self.recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
        # No loader has a process yet: if one is refused, there is nothing to close.
        self.loaders = [Loader(self.recipe, dp_rank=rank, dp_size=ranks, **options) for rank in range(ranks)]
        self._slots = StepSlots()

    @property
    def next_step(self) -> int:
        """The step that the next microbatches belong to."""
        return self.loaders[0].next_step

    def step(self) -> tuple[int, str] | None:
        """(number, digest) of the next whole step; None at the end of data that is not repeated.

        Raises:
            ZephonError: if ranks disagree on where they are, or their slots are not exactly the global batch.
        """
        while batches := self.round():
            if batches[0].last:
                return batches[0].step, self.finish(batches[0].step)
        return None

    def round(self) -> list[Batch]:
        """One microbatch of every rank; none at the end of data that is not repeated. Raises as `step` does."""
        for loader in self.loaders:
            loader.start()  # all of them, before the first one is waited for
        batches = [batch for loader in self.loaders if (batch := next(loader, None)) is not None]
        if batches and len(batches) < len(self.loaders):
            raise ZephonError(f"only {len(batches)} of {len(self.loaders)} ranks go on after step {batches[0].step}")
        places = {(batch.step, batch.microbatch, batch.last) for batch in batches}
        if len(places) > 1:
            raise ZephonError(f"the ranks are not at the same microbatch: {sorted(places)}")
        for batch in batches:
            self._slots.add(batch.step, batch.digests())
        return batches

    def finish(self, step: int) -> str:
        """The digest of a step whose last round was taken. Raises `ZephonError` if it is not whole."""
        return self._slots.finish(step, self.loaders[0].schedule.recipe_of(step).global_batch_size)

    def save(self, directory: Path) -> None:
        """Write the merged state of all ranks as one file: whole, or not at all. Raises `OSError`."""
        Checkpoint.merge([loader.state_dict() for loader in self.loaders], self._slots.found).write(directory)

    def load(self, directory: Path, allow: Collection[str] = ()) -> None:
        """Go on from a saved state, whatever number of ranks saved it.

        Args:
            allow: parts of the identity that may differ, as of `Loader.load_state_dict`.

        Raises:
            StateError: if it cannot be read or is not of this run.
        """
        checkpoint = Checkpoint.read(directory)
        for loader in self.loaders:
            loader.load_state_dict(checkpoint.state_dict(), allow)
        self._slots = StepSlots(checkpoint.slots)

    def close(self) -> None:
        """Stop all processes."""
        for loader in self.loaders:
            loader.close()


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
    ledger: str | Path | None = None,
) -> Iterator[tuple[int, str]]:
    """(step, SHA-256) of whole steps from real loaders, each as soon as it is whole.

    Args:
        steps: consecutive steps. With `resume` the loaders start where the checkpoint is, which may be inside them.
        save_at: write a checkpoint to the directory `checkpoint` before this step.
        resume: directory of a checkpoint to go on from, on any number of ranks.
        ledger: directory in which all ranks record what they deliver.

    Raises:
        ZephonError: on what a loader refuses, ranks that do not deliver exactly the global batch, steps before the
            checkpoint or beyond the end of data that is not repeated.
    """
    start = 0 if resume else steps.start
    options = {"workers": workers, "microbatch_size": microbatch_size, "start_step": start, "ledger": ledger}
    with closing(Ranks(recipe, ranks, **options)) as job:
        if resume is not None:
            job.load(resume)
        first = job.next_step
        if first >= steps.stop:
            why = "the checkpoint goes on" if resume else "the recipe's skip_steps leaves the others out, it goes on"
            raise ZephonError(f"{why} with step {first}, but the last one asked for is {steps[-1]}")
        if save_at is not None and job.loaders[0].schedule.from_step(save_at) < first:
            raise ZephonError(f"the checkpoint goes on with step {first}: nothing can be saved before step {save_at}")
        if checkpoint is not None:
            checkpoint.mkdir(parents=True, exist_ok=True)  # what cannot be written fails now, not at the save
        while True:
            if save_at is not None and checkpoint is not None and job.next_step >= save_at:
                job.save(checkpoint)
                save_at = None
            if job.next_step >= steps.stop:
                return
            done = job.step()
            if done is None:
                raise ZephonError(
                    f"the data ends before step {job.next_step}, since the recipe has repeat = false, "
                    f"but steps up to {steps[-1]} were asked for"
                )
            if done[0] >= steps.start:
                yield done
