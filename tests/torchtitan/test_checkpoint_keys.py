"""The state is one key per lane, which a distributed checkpoint reshards."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
from adapters import build
from torch.distributed.checkpoint import FileSystemReader

from zephon_vl.errors import RecipeError, StateError
from zephon_vl.torchtitan import ZephonVLDataLoader


def _take(loaders: list[ZephonVLDataLoader], steps: int) -> list[str]:
    """Hashes of all rows of each step, over all ranks, in no particular order."""
    found = []
    for _ in range(steps):
        rows = []
        for loader in loaders:
            for _ in range(loader._loader.topology.microbatches_per_step):
                inputs, labels = next(iter(loader))
                rows += [
                    hashlib.sha256(tokens.numpy().tobytes() + targets.numpy().tobytes()).hexdigest()
                    for tokens, targets in zip(inputs["input"], labels, strict=True)
                    if (targets >= 0).any()
                ]
        found.append(hashlib.sha256("".join(sorted(rows)).encode()).hexdigest())
    return found


def test_a_fresh_loader_names_the_lanes_that_it_owns(corpus: Path) -> None:
    states = [build(corpus, rank=rank, ranks=3).state_dict() for rank in range(3)]
    assert [sorted(state) for state in states] == [
        ["identity", "lane_00000"],
        ["identity", "lane_00001"],
        ["identity", "lane_00002", "lane_00003"],
    ]
    assert len({state["identity"] for state in states}) == 1


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_a_run_on_two_ranks_goes_on_on_others_through_dcp(corpus: Path, tmp_path: Path, ranks: int) -> None:
    before = [build(corpus, rank=rank, ranks=2) for rank in range(2)]
    _take(before, 3)
    merged: dict[str, Any] = {key: entry for loader in before for key, entry in loader.state_dict().items()}
    dcp.save({"dataloader": merged}, checkpoint_id=tmp_path, no_dist=True)
    assert sorted(FileSystemReader(tmp_path).read_metadata().state_dict_metadata) == [
        "dataloader.identity",
        *(f"dataloader.lane_{lane:05d}" for lane in range(4)),
    ]
    after = [build(corpus, rank=rank, ranks=ranks) for rank in range(ranks)]
    for loader in after:
        dcp.load({"dataloader": loader}, checkpoint_id=tmp_path, no_dist=True)
    assert _take(after, 3) == _take(before, 3)


def test_the_state_of_another_recipe_is_refused(corpus: Path) -> None:
    state = build(corpus).state_dict()
    with pytest.raises(StateError, match="recipe"):
        build(corpus, "mostly_text").load_state_dict(state)
    build(corpus, "mostly_text", allow=["recipe"]).load_state_dict(state)


def test_the_state_of_another_loader_is_refused(corpus: Path) -> None:
    with pytest.raises(StateError, match="not a state of this library"):
        build(corpus).load_state_dict({"dp_rank_0": b"...", "world_size": 1})


def test_start_step_goes_where_the_data_would_be(corpus: Path) -> None:
    whole = [build(corpus, rank=rank, ranks=2) for rank in range(2)]
    later = _take(whole, 4)[2:]
    assert _take([build(corpus, start_step=2)], 2) == later


def test_a_checkpoint_within_a_step_is_refused(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zephon_vl.torchtitan.loader.trainer_step", lambda: 1)
    loader = build(corpus)
    next(iter(loader))
    with pytest.raises(RecipeError, match="global_batch_size is 1, but must be 4"):
        loader.state_dict()
