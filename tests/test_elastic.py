"""Any run, saved anywhere, goes on on any number of ranks as if it had never stopped."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tiny_corpus import build_tiny_corpus

from zephon_vl.batch import Batch
from zephon_vl.recipe import PackingConfig, PhaseConfig, Recipe, load_recipe
from zephon_vl.schedule import Schedule
from zephon_vl.topology import EMPTY
from zephon_vl.verify import Ranks

STEPS = 7
STORY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return load_recipe(build_tiny_corpus(tmp_path_factory.mktemp("corpus"), images=24, docs=40))


@dataclass(frozen=True)
class Leg:
    """A part of a story: so many rounds on so many ranks, then a save and an end."""

    ranks: int
    microbatch_size: int
    rounds: int


@dataclass(frozen=True)
class Story:
    changes: dict
    """Of the recipe."""
    legs: tuple[Leg, ...]


@st.composite
def phases(draw: st.DrawFn, lanes: int) -> tuple[PhaseConfig, ...]:
    starts = sorted(draw(st.sets(st.integers(1, STEPS - 1), max_size=2)))
    return tuple(
        PhaseConfig(
            from_step=start,
            seq_len=draw(st.sampled_from([None, 160, 256, 320])),
            global_batch_size=draw(st.sampled_from([lanes, 2 * lanes])),
            weights=draw(st.sampled_from([{}, {"captions": 1.0, "web": 2.0}, {"web": 0.0}, {"web": 3.0}])),
        )
        for start in starts
    )


@st.composite
def stories(draw: st.DrawFn) -> Story:
    lanes = draw(st.integers(2, 5))
    first = draw(st.integers(0, STEPS))
    changes = {
        "lanes": lanes,
        "global_batch_size": lanes * draw(st.integers(1, 2)),
        "seed": draw(st.integers(0, 2**40)),
        "weight_by": draw(st.sampled_from(["tokens", "samples"])),
        "packing": PackingConfig(
            algorithm=draw(st.sampled_from(["best_fit", "first_fit", "concat"])),
            open_sequences=draw(st.integers(1, 4)),
            overlong=draw(st.sampled_from(["truncate", "split", "drop"])),
        ),
        "phases": draw(phases(lanes)),
        "skip_steps": draw(st.sampled_from([(), ((first, first + 2),)])),
    }
    leg = st.builds(Leg, st.integers(1, lanes), st.integers(1, 3), st.integers(0, 5))
    return Story(changes, tuple(draw(st.lists(leg, min_size=3, max_size=3))))


def story_of(recipe: Recipe, legs: tuple[Leg, ...], directory: Path) -> Iterator[tuple[Batch, dict[int, str]]]:
    """All batches of a run that is saved and taken up again on other ranks, leg after leg, and its digests."""
    for i, leg in enumerate((*legs, Leg(1, 2, 10**6))):
        with closing(Ranks(recipe, leg.ranks, microbatch_size=leg.microbatch_size, workers=0)) as job:
            if i:
                job.load(directory)
            for _ in range(leg.rounds):
                if job.next_step >= STEPS or not (batches := job.round()):
                    break
                for batch in batches:
                    yield batch, batch.digests()
                if batches[0].last:
                    job.finish(batches[0].step)
            job.save(directory)


@settings(STORY, max_examples=20)
@given(story=stories())
def test_every_story_has_the_digests_of_the_uninterrupted_run(base: Recipe, story: Story, tmp_path: Path) -> None:
    recipe = msgspec.structs.replace(base, **story.changes)
    whole = {(batch.step, s): d for batch, found in story_of(recipe, (), tmp_path) for s, d in found.items()}
    told: dict[tuple[int, int], str] = {}
    pieces: Counter[tuple[int, int, int]] = Counter()
    for batch, found in story_of(recipe, story.legs, tmp_path):
        for slot, digest in found.items():
            assert (batch.step, slot) not in told
            told[batch.step, slot] = digest
        pieces.update((ref.source, ref.take, ref.start) for row in batch.documents for ref in row)
    assert told == whole
    assert max(pieces.values()) == 1
    schedule = Schedule(recipe)
    sizes = {step: schedule.recipe_of(step).global_batch_size for step in range(STEPS) if not schedule.skipped(step)}
    assert Counter(step for step, _ in told) == sizes


@settings(STORY, max_examples=10)
@given(lanes=st.integers(2, 5), seed=st.integers(0, 999), leg=st.builds(Leg, st.just(2), st.just(1), st.integers(1, 6)))
def test_an_epoch_with_restores_uses_each_sample_once(
    base: Recipe, lanes: int, seed: int, leg: Leg, tmp_path: Path
) -> None:
    changes = {"lanes": lanes, "global_batch_size": lanes, "seed": seed, "repeat": False}
    changes["packing"] = PackingConfig(overlong="split")
    recipe = msgspec.structs.replace(base, **changes)
    used: Counter[tuple[int, int]] = Counter()
    for batch, _ in story_of(recipe, (leg, Leg(1, 2, 3), leg), tmp_path):
        used.update((ref.source, ref.take) for row in batch.documents for ref in row if ref.start == 0)
    with closing(Ranks(recipe, 1, workers=0)) as job:
        counts = [len(source) for source in job.loaders[0].open_sources()]
    whole = Counter((source, take) for source, count in enumerate(counts) for take in range(count))
    assert used == whole or (STEPS * lanes <= sum(used.values()) and used <= whole)


@settings(STORY, max_examples=2, phases=[Phase.generate])
@given(seed=st.integers(0, 2**32))
def test_kills_at_any_moment_change_nothing(base: Recipe, seed: int, tmp_path: Path) -> None:
    """Workers and coordinators are killed while rounds go on, and the whole job twice, which goes on from its last save
    on other ranks."""
    chance = random.Random(seed)  # not hypothesis's: when a kill strikes is not repeatable
    recipe = msgspec.structs.replace(base, phases=(PhaseConfig(from_step=3, seq_len=320, weights={"web": 3.0}),))
    whole = {(batch.step, s): d for batch, found in story_of(recipe, (), tmp_path) for s, d in found.items()}
    told: dict[tuple[int, int], str] = {}
    for i, ranks in enumerate(chance.sample([1, 2, 3, 4], 3)):
        with closing(Ranks(recipe, ranks, microbatch_size=chance.randint(1, 2), workers=chance.randint(1, 2))) as job:
            if i:
                job.load(tmp_path)
            save = chance.randint(0, 3)
            rounds = save + chance.randint(1, 3) if i < 2 else 10**6
            for taken in range(rounds):
                if taken == save:
                    job.save(tmp_path)
                if job.next_step >= STEPS:
                    break
                batches = job.round()
                for batch in batches:
                    for slot, digest in batch.digests().items():
                        assert whole[batch.step, slot] == digest
                        told[batch.step, slot] = digest
                if batches[0].last:
                    job.finish(batches[0].step)
                loader = chance.choice(job.loaders)
                for pid in chance.choice([[], [], [], loader.worker_pids, [loader.coordinator_pid]]):
                    with suppress(ProcessLookupError):  # it may be gone since it was told
                        os.kill(pid, signal.SIGKILL)
    assert told == whole


def test_empty_slots_are_no_part_of_a_story(base: Recipe, tmp_path: Path) -> None:
    for batch, found in story_of(base, (Leg(3, 3, 2),), tmp_path):
        assert set(found) == set(batch.slots) - {EMPTY}
