"""The promise: digests depend on the recipe and the data alone."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_corpus import build_tiny_corpus

from zephon_vl import Loader
from zephon_vl.digest import step_digest
from zephon_vl.recipe import load_recipe

STEPS = 3


@pytest.fixture(scope="module")
def recipe_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_corpus(tmp_path_factory.mktemp("corpus"))


def run(recipe: Path, steps: int, ranks: int = 1, **options: int) -> list[str]:
    """Digests of the first steps from real loaders, one per rank."""
    loaders = [Loader(recipe, dp_rank=rank, dp_size=ranks, **options) for rank in range(ranks)]
    try:
        return [digest_of_step(loaders) for _ in range(steps)]
    finally:
        for loader in loaders:
            loader.close()


def digest_of_step(loaders: Sequence[Loader]) -> str:
    slots: dict[int, str] = {}
    for loader in loaders:
        for _ in range(loader.topology.microbatches_per_step):
            batch = next(loader)
            assert not set(batch.digests()) & set(slots)
            slots.update(batch.digests())
    return step_digest(slots, loaders[0].recipe.global_batch_size)


@pytest.fixture(scope="module")
def reference(recipe_path: Path) -> list[str]:
    return run(recipe_path, STEPS, workers=0)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("microbatch_size", [1, 3])
def test_topology_does_not_matter(recipe_path: Path, reference: list[str], ranks: int, microbatch_size: int) -> None:
    assert run(recipe_path, STEPS, ranks, microbatch_size=microbatch_size, workers=0) == reference


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 0), (2, 4), (3, 1)])
def test_workers_and_prefetch_do_not_matter(
    recipe_path: Path, reference: list[str], workers: int, prefetch: int
) -> None:
    assert run(recipe_path, STEPS, workers=workers, prefetch=prefetch, microbatch_size=2) == reference


def test_start_step_equals_iterating_there(recipe_path: Path, reference: list[str]) -> None:
    with Loader(recipe_path, start_step=2, workers=0) as loader:
        assert digest_of_step([loader]) == reference[2]


def test_killed_workers_do_not_matter(recipe_path: Path, reference: list[str]) -> None:
    with Loader(recipe_path, workers=2, prefetch=1) as loader:
        digests = [digest_of_step([loader])]
        for pid in loader.worker_pids:
            os.kill(pid, signal.SIGKILL)
        digests += [digest_of_step([loader]) for _ in range(STEPS - 1)]
        assert digests == reference
        assert loader.stats.worker_restarts >= 1


def test_killed_coordinator_does_not_matter(recipe_path: Path, reference: list[str]) -> None:
    with Loader(recipe_path, workers=1, microbatch_size=1) as loader:
        slots = dict(next(loader).digests())
        os.kill(loader.coordinator_pid, signal.SIGKILL)
        while len(slots) < loader.recipe.global_batch_size:
            batch = next(loader)
            assert batch.microbatch == len(slots), "microbatches keep their number"
            slots.update(batch.digests())
        assert step_digest(slots, loader.recipe.global_batch_size) == reference[0]
        assert [digest_of_step([loader]) for _ in range(STEPS - 1)] == reference[1:]


@pytest.mark.parametrize("change", ["seed", "weight", "caption"])
def test_what_decides_the_data_changes_the_digests(tmp_path: Path, reference: list[str], change: str) -> None:
    recipe = build_tiny_corpus(tmp_path)
    text = recipe.read_text()
    if change == "seed":
        recipe.write_text(text.replace(f"seed = {load_recipe(recipe).seed}", "seed = 4711"))
    elif change == "weight":
        first = load_recipe(recipe).sources[0]
        recipe.write_text(text.replace(f"weight = {first.weight}", f"weight = {first.weight + 1}", 1))
    else:
        for shard in sorted(tmp_path.rglob("*.jsonl")):
            shard.write_bytes(shard.read_bytes().replace(b"cat", b"cow"))
    assert run(recipe, STEPS, workers=0) != reference


def test_the_callers_generators_are_untouched(recipe_path: Path) -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # type: ignore[index]
    run(recipe_path, 1, workers=0)
    run(recipe_path, 1, workers=1)
    after = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # type: ignore[index]
    assert before == after


def microbatches(loaders: Sequence[Loader]) -> Iterator[dict[int, str]]:
    """Round by round over all ranks, as a training job takes them."""
    while True:
        slots: dict[int, str] = {}
        for loader in loaders:
            slots.update(next(loader).digests())
        yield slots


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (3, 1), (1, 3), (4, 3)])
@pytest.mark.parametrize("taken", [0, 1, 3, 5])
def test_resume_on_other_ranks(recipe_path: Path, reference: list[str], before: int, after: int, taken: int) -> None:
    """Save after any microbatch, also inside a step, restore on other ranks: nothing is lost, doubled or changed."""
    slots: list[dict[int, str]] = []
    loaders = [Loader(recipe_path, dp_rank=r, dp_size=before, workers=0) for r in range(before)]
    rounds = microbatches(loaders)
    per_step = loaders[0].topology.microbatches_per_step
    for i in range(taken):
        if i % per_step == 0:
            slots.append({})
        slots[-1].update(next(rounds))
    states = [loader.state_dict() for loader in loaders]
    entries = {key: entry for state in states for key, entry in state["lanes"].items()}

    resumed = [Loader(recipe_path, dp_rank=r, dp_size=after, workers=0, microbatch_size=2) for r in range(after)]
    for loader in resumed:
        loader.load_state_dict({"identity": states[0]["identity"], "lanes": entries})
    total = loaders[0].recipe.global_batch_size
    while len(slots) < STEPS or len(slots[-1]) < total:
        if not slots or len(slots[-1]) == total:
            slots.append({})
        found: dict[int, str] = {}
        for loader in resumed:
            found.update(next(loader).digests())
        assert not set(found) & set(slots[-1])
        slots[-1].update(found)
    assert [step_digest(step, total) for step in slots[:STEPS]] == reference
