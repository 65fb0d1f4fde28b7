"""The real Trainer in real processes: what it takes, saves and reports is the same on any number of ranks."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from torchtitan_demo import jobs, observe
from torchtitan_demo.jobs import Job

from zephon_vl.ledger import merged
from zephon_vl.loader import Loader

Run = Callable[..., Job]
TOLERANCE = 1e-5
"""Losses of different numbers of ranks differ in the order of floating-point sums only."""


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a Trainer: `run(ranks, steps, "--option", "value", recipe=, config=, start=checkpoint directory, rows=)`."""

    def run(
        ranks: int,
        steps: int,
        *options: str,
        recipe: str = "vl",
        config: str = "qwen35_tiny",
        start: Path | None = None,
        rows: int = 2,
        size: int = 4,
        finish: bool = True,
    ) -> Job:
        folder = tmp_path_factory.mktemp("job")
        if start is not None:
            shutil.copytree(start, folder / "checkpoint" / start.name)
        sizes = ("--training.local_batch_size", str(rows), "--training.global_batch_size", str(size))
        job = jobs.start(
            folder,
            ranks,
            config,
            *("--dataloader.recipe", str(corpus / f"{recipe}.toml")) if ":" not in config else (),
            *("--hf_assets_path", str(corpus / "tokenizer"), "--dump_folder", str(folder)),
            *("--training.steps", str(steps), "--checkpoint.enable", "--checkpoint.interval", "2"),
            *sizes,
            *options,
        )
        return job.finish() if finish else job

    return run


def _checkpoint(job: Job, step: int) -> Path:
    return job.folder / "checkpoint" / f"step-{step}"


def _taken(job: Job, kind: str = "training") -> dict[int, dict[int, str]]:
    """Digests by step and slot, over all ranks, none of which took what another did."""
    steps: dict[int, dict[int, str]] = {}
    for rank in range(len(job.processes)):
        for step, slots in observe.slots(job.folder, rank, kind).items():
            assert not steps.setdefault(step, {}).keys() & slots.keys()
            steps[step].update(slots)
    return steps


def _planned(recipe: Path, steps: int | None = None) -> dict[int, dict[int, str]]:
    """Digests by step and slot, from a loader without a Trainer."""
    with Loader(recipe, microbatch_size=4, workers=0) as loader:
        return {batch.step: batch.digests() for batch in itertools.islice(loader, steps)}


@pytest.fixture(scope="module")
def reference(run: Run, corpus: Path) -> Job:
    """Two ranks, four steps, checkpoints after the second and the last, validation after the first and the last."""
    recipe = corpus / "once.toml"
    override = f'zephon_vl.torchtitan.override.validation_loader={{"recipe": "{recipe}", "workers": 1}}'
    validate = ("--validator.enable", "--validator.freq", "4", "--validator.steps", "-1")
    return run(2, 4, *validate, "--override.imports", override)


@pytest.fixture(scope="module")
def on_three(run: Run, reference: Job) -> Job:
    """Goes on on three ranks, which do not divide the four lanes, and saves asynchronously after the third step."""
    asynchronous = ("--checkpoint.async_mode", "async", "--checkpoint.interval", "3")
    return run(3, 4, *asynchronous, start=_checkpoint(reference, 2), rows=1, size=6)


def test_the_trainer_takes_the_recipes_steps(reference: Job, corpus: Path) -> None:
    assert _taken(reference) == _planned(corpus / "vl.toml", 4)


def test_the_loaders_metrics_stand_beside_torchtitans(reference: Job) -> None:
    """From the second step on, over both ranks; the first one is where counting begins."""
    trace = observe.trace(reference.folder)
    assert set(trace) == {1, 2, 3, 4}
    for step in (2, 3, 4):
        assert 0 <= trace[step]["data/waiting(%)"] <= 100
        assert 0 < trace[step]["data/fill(%)"] <= 100
        assert trace[step]["data/images_per_second"] > 0
        assert trace[step]["data/bad_samples"] == 0
    captions, web = ([trace[step][f"data/tokens/{name}"] for step in trace] for name in ("captions", "web"))
    assert captions == sorted(captions) and web == sorted(web)
    assert 0 < captions[-1] + web[-1] <= 4 * 4 * 64


def test_three_ranks_go_on_with_the_same_batches_and_loss(reference: Job, on_three: Job) -> None:
    whole = _taken(reference)
    assert _taken(on_three) == {step: whole[step] for step in (2, 3)}
    losses = observe.losses(reference.folder)
    assert observe.losses(on_three.folder) == pytest.approx({step: losses[step] for step in (3, 4)}, rel=TOLERANCE)
    assert "the data of 4 lanes starts with step 2 of the recipe: as the checkpoint says" in on_three.log()


def test_a_microbatch_without_a_label_changes_nothing(on_three: Job) -> None:
    """On three ranks, two of the six rows of a step are empty; the losses above are those of the four others."""
    counts = [len(steps[2]) for steps in (observe.slots(on_three.folder, rank) for rank in range(3))]
    assert sorted(counts) == [1, 1, 2]


def test_one_rank_goes_on_from_what_was_saved_asynchronously(run: Run, reference: Job, on_three: Job) -> None:
    job = run(1, 4, start=_checkpoint(on_three, 3), rows=2)
    assert _taken(job) == {3: _taken(reference)[3]}
    assert observe.losses(job.folder)[4] == pytest.approx(observe.losses(reference.folder)[4], rel=TOLERANCE)


def test_validation_takes_everything_once_on_all_ranks(reference: Job, corpus: Path) -> None:
    lines = [observe.lines(reference.folder / f"data_{rank}.jsonl", "validation") for rank in range(2)]
    assert len(lines[0]) == len(lines[1]) > 0
    twice = [[slots for line in of_rank for slots in line["slots"].items()] for of_rank in lines]
    halves = [(half[: len(half) // 2], half[len(half) // 2 :]) for half in twice]
    assert all(first == second for first, second in halves)  # the same after the first step and the last
    expected = [(str(slot), text) for step in _planned(corpus / "once.toml").values() for slot, text in step.items()]
    assert sorted(halves[0][0] + halves[1][0]) == sorted(expected)
    losses = observe.losses(reference.folder, "validation")
    assert set(losses) == {1, 4} and losses[4] < losses[1]


def test_excluded_from_loading_the_data_starts_again_and_says_so(run: Run, reference: Job) -> None:
    job = run(1, 3, "--checkpoint.exclude_from_loading", "dataloader", start=_checkpoint(reference, 2), rows=4)
    assert "THE DATA STARTS WITH STEP 0 OF THE RECIPE, BUT THE TRAINER HAS DONE 2 STEPS" in job.log()
    assert _taken(job) == {0: _taken(reference)[0]}


def test_another_global_batch_size_is_refused(run: Run) -> None:
    job = run(1, 2, rows=1, size=2, finish=False)
    assert job.wait() == [1]
    assert "training.global_batch_size is 2, but must be 4" in jobs.error_of(job)
    assert not (job.folder / "checkpoint").exists()


def test_after_the_death_of_a_rank_nothing_is_left_and_the_run_goes_on(run: Run, reference: Job) -> None:
    job = run(2, 10_000, finish=False)
    while not (_checkpoint(job, 2) / ".metadata").exists() or not observe.slots(job.folder, 1).get(3):
        job.processes[0].join(0.1)
        assert job.processes[0].is_alive(), job.end_of_log(0)
    children = [child for rank in job.processes for child in psutil.Process(rank.pid).children(recursive=True)]
    assert len(children) >= 4  # a coordinator and a worker of each rank
    job.kill(1)
    assert all(job.wait())
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    again = run(1, 4, start=_checkpoint(job, 2), rows=4)
    whole = _taken(reference)
    assert _taken(again) == {step: whole[step] for step in (2, 3)}


def test_the_end_of_the_data_ends_all_ranks(run: Run, corpus: Path) -> None:
    job = run(2, 10_000, recipe="once")
    steps = len(_planned(corpus / "once.toml"))
    assert set(observe.losses(job.folder)) == set(range(1, steps + 1))
    assert "Ran out of data" in job.log(0) and "Ran out of data" in job.log(1)


def test_a_long_stretch_of_text_does_not_hang(run: Run, corpus: Path) -> None:
    """Every microbatch holds an image, if only the dummy; without, a rank would skip the vision tower's collectives."""
    job = run(2, 3, recipe="mostly_text", rows=1)
    assert _taken(job) == _planned(corpus / "mostly_text.toml", 3)


def test_a_stock_config_with_tensor_parallel_peers_goes_on_without_them(run: Run, corpus: Path, tmp_path: Path) -> None:
    fields = {"recipe": str(corpus / "text.toml"), "workers": 1, "ledger": str(tmp_path / "ledger")}
    loader = f"zephon_vl.torchtitan.override.loader={json.dumps(fields)}"
    options = ("--training.seq_len", "64", "--override.imports", loader, "zephon_vl.torchtitan.override.metrics")
    options = (*options, "--training.mixed_precision_param", "float32", "--training.disable_cuda_graphs")
    stock = {"config": "torchtitan.models.llama3.config_registry:llama3_debugmodel"}
    peers = run(2, 3, *options, "--parallelism.tensor_parallel_degree", "2", **stock)
    taken = observe.slots(peers.folder, 0)
    assert observe.slots(peers.folder, 1) == taken
    assert len(list((tmp_path / "ledger").iterdir())) == len(list((tmp_path / "ledger").glob("rank00000-*"))) > 0
    apart = run(2, 3, *options, start=_checkpoint(peers, 2), **stock)
    assert _taken(apart) == {2: taken[2]}
    assert observe.losses(apart.folder)[3] == pytest.approx(observe.losses(peers.folder)[3], rel=TOLERANCE)
    of_all = {
        step.number: {slot: row.digest.hex() for slot, row in step.rows.items()} for step in merged(tmp_path / "ledger")
    }
    assert of_all == taken
