"""The ledger of a run that was killed and restarted is that of one run: each step once, as delivered last."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_rows import batch, digest_of, recipe, write_steps, writer

from zephon_vl.ledger import Ledger, merged
from zephon_vl.ledger.format import Header
from zephon_vl.ledger.sessions import EVERYTHING, valid_rows
from zephon_vl.topology import Topology

LANES, SLOTS = 4, 8


@dataclass
class Checkpoint:
    """Where a job stood, and what it had delivered until then: (step, slot) -> the job that did."""

    step: int
    done: frozenset[int]
    delivered: dict[tuple[int, int], int]


def topology(rank: int, ranks: int, rows: int) -> Topology:
    return Topology(lanes=LANES, global_batch_size=SLOTS, dp_size=ranks, dp_rank=rank, microbatch_size=rows)


def run_job(path: Path, job: int, start: Checkpoint, draw: st.DataObject, last: bool) -> list[Checkpoint]:
    """One job of a story: from a checkpoint on some ranks until it is killed, or closed. Its digests carry its number,
    so that a row of another job in its place is noticed. Returns the checkpoints that it took."""
    ranks, rows = draw.draw(st.integers(1, LANES), "ranks"), draw.draw(st.integers(1, 3), "microbatch size")
    rounds = draw.draw(st.integers(1, 12), "rounds")
    writers = [writer(path, rank, ranks) for rank in range(ranks)]
    step, microbatch, done = start.step, 0, start.done
    delivered = dict(start.delivered)
    taken: list[Checkpoint] = []
    for made in writers:
        made.begin(step, done)
    for _ in range(rounds):
        for rank, made in enumerate(writers):
            slots = topology(rank, ranks, rows).step_rows(done)[microbatch]
            made.append(batch(step, microbatch, slots, job), SLOTS)
            delivered.update({(step, slot): job for slot in slots if slot >= 0})
            if draw.draw(st.booleans(), "written early"):
                made.flush()
        microbatch += 1
        if microbatch == len(topology(0, ranks, rows).step_rows(done)):
            step, microbatch, done = step + 1, 0, frozenset()
        if draw.draw(st.booleans(), "checkpoint"):
            for made in writers:
                made.flush()
            taken.append(Checkpoint(step, topology(0, ranks, rows).delivered(microbatch, done), dict(delivered)))
    if last:
        for made in writers:
            made.close()
        taken.append(Checkpoint(step, frozenset(), dict(delivered)))
    return taken


@settings(max_examples=40)
@given(st.data(), st.booleans())
def test_a_story_of_kills_and_restarts_is_one_run(draw: st.DataObject, old_checkpoints: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        checkpoints = [Checkpoint(0, frozenset(), {})]
        jobs = draw.draw(st.integers(1, 4), "jobs")
        for job in range(jobs):
            start = draw.draw(st.sampled_from(checkpoints), "from") if old_checkpoints else checkpoints[-1]
            checkpoints += run_job(path, job, start, draw, last=job == jobs - 1)
        found = {(step.number, slot): row.digest for step in merged(path) for slot, row in step.rows.items()}
        story = checkpoints[-1].delivered
        assert list(found) == sorted(story)
        assert not any(step.contradictions for step in merged(path))
        for place, job in story.items():
            # Where several jobs had got to the checkpoint that the last one started from, any may have saved it.
            told = range(jobs) if old_checkpoints and job < jobs - 1 else [job]
            assert found[place] in [digest_of(*place, by) for by in told]


def story(path: Path, *jobs: tuple[int, range, frozenset[int]]) -> dict[int, set[int]]:
    """Jobs of one rank after each other: (ranks, steps, slots done in the first); which jobs each step is from."""
    for job, (ranks, steps, done) in enumerate(jobs):
        for rank in range(ranks):
            made = writer(path, rank, ranks)
            made.begin(steps.start, done)
            for step in steps:
                slots = set(topology(rank, ranks, SLOTS).step_rows()[0]) - (done if step == steps.start else set())
                made.append(batch(step, 0, sorted(slots), job), SLOTS)
            made.close()
    digests = {digest_of(step, slot, job): job for step in range(20) for slot in range(SLOTS) for job in range(9)}
    return {step.number: {digests[row.digest] for row in step.rows.values()} for step in merged(path)}


NONE: frozenset[int] = frozenset()


def test_a_restart_replaces_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    assert story(tmp_path, (2, range(6), NONE), (4, range(3, 5), NONE)) == {0: {0}, 1: {0}, 2: {0}, 3: {1}, 4: {1}}


def test_a_restart_inside_a_step_keeps_the_slots_delivered_before(tmp_path: Path) -> None:
    assert story(tmp_path, (1, range(6), NONE), (1, range(3, 4), frozenset({1, 2}))) == {
        0: {0},
        1: {0},
        2: {0},
        3: {0, 1},
    }


def test_an_attempt_that_was_given_up_is_no_part_of_the_story(tmp_path: Path) -> None:
    """A job that started from the beginning by mistake does not void what the one before it had delivered."""
    assert story(tmp_path, (2, range(6), NONE), (2, range(3), NONE), (4, range(5, 7), NONE)) == {
        0: {0},
        1: {0},
        2: {0},
        3: {0},
        4: {0},
        5: {2},
        6: {2},
    }


def test_a_restart_from_an_old_checkpoint_goes_on_from_there(tmp_path: Path) -> None:
    jobs = (1, range(4), NONE), (1, range(3, 6), NONE), (1, range(2, 4), NONE)
    assert story(tmp_path, *jobs) == {0: {0}, 1: {0}, 2: {2}, 3: {2}}


def test_a_start_right_after_a_step_that_all_jobs_left_out(tmp_path: Path) -> None:
    jobs = (1, range(0, 8, 2), NONE), (1, range(0, 8, 2), NONE), (1, range(4, 6), NONE)
    assert story(tmp_path, *jobs) == {0: {1}, 2: {1}, 4: {2}, 5: {2}}


def test_a_restart_of_the_same_ranks_at_the_same_place_replaces_each_rank_by_itself(tmp_path: Path) -> None:
    for rank in range(2):
        write_steps(tmp_path, range(2), "first", ((0, 1, 4, 5), (2, 3, 6, 7))[rank], ranks=2, rank=rank)
    write_steps(tmp_path, range(2), "again", (0, 1, 4, 5), ranks=2, rank=0)
    (step, _) = merged(tmp_path)
    assert [row.digest for row in step.rows.values()] == [
        digest_of(0, slot, "again" if slot % LANES < 2 else "first") for slot in range(SLOTS)
    ]


def test_many_restarts_of_many_ranks_are_sorted_out_at_once() -> None:
    raw = msgspec.Raw(msgspec.json.encode(recipe()))
    sessions = [
        Header(
            session=f"{job} {rank}", start_ns=job * 1000 + rank, dp_rank=rank, dp_size=256, step=job * 10, done=[],
            lanes=LANES, global_batch_size=SLOTS, identity="", recipe=raw, segment=0, rows=0, first_step=0, last_step=0,
        )
        for job in range(64)
        for rank in range(256)
    ]  # fmt: skip
    found = valid_rows(sessions, [session.step + 12 for session in sessions], lambda *_: ({0}, 1))
    assert [place.step for place in found[::256]] == [*range(10, 640, 10), EVERYTHING.step]


def test_redone_rows_are_counted_and_compared(tmp_path: Path) -> None:
    write_steps(tmp_path, range(4))
    write_steps(tmp_path, range(2, 5))
    assert [(step.redone, step.changed) for step in merged(tmp_path)] == [(0, 0), (0, 0), (8, 0), (8, 0), (0, 0)]
    write_steps(tmp_path, range(3, 5), salt="other data")
    assert [(step.redone, step.changed) for step in merged(tmp_path)] == [(0, 0), (0, 0), (8, 0), (16, 16), (8, 8)]


def test_two_runs_in_one_place_contradict_each_other(tmp_path: Path) -> None:
    """Ranks of one job never deliver the same slot; those of two jobs at the same time do."""
    write_steps(tmp_path, range(2), ranks=2, rank=0)
    write_steps(tmp_path, range(2), ranks=2, rank=1, salt="another run")
    contradiction = next(merged(tmp_path)).contradictions[0]
    first, second = sorted(str(path) for path in tmp_path.iterdir())
    assert str(contradiction) == (
        f"step 0, slot 0: SHA-256 is {digest_of(0, 0).hex()} and {digest_of(0, 0, 'another run').hex()}, "
        f"in {first} and {second}"
    )


def test_equal_rows_of_two_ranks_are_no_contradiction(tmp_path: Path) -> None:
    for rank in range(2):
        write_steps(tmp_path, range(2), ranks=2, rank=rank)
    assert [(step.whole, step.contradictions) for step in merged(tmp_path)] == [(True, []), (True, [])]


def test_steps_that_disagree_on_the_number_of_slots_contradict(tmp_path: Path) -> None:
    for rank, size in ((0, 8), (1, 12)):
        made = writer(tmp_path, rank, 2)
        made.begin(0)
        made.append(batch(0, 0, range(rank * 4, rank * 4 + 4)), size)
        made.close()
    assert "global_batch_size is 8 and 12, in " in str(next(merged(tmp_path)).contradictions[0])


def test_steps_may_be_left_out_and_change_their_size(tmp_path: Path) -> None:
    made = writer(tmp_path)
    made.begin(0)
    for step, size in ((0, 8), (3, 8), (4, 16)):
        made.append(batch(step, 0, range(size)), size)
    made.close()
    assert [(s.number, s.global_batch_size, s.whole) for s in merged(tmp_path)] == [
        (0, 8, True),
        (3, 8, True),
        (4, 16, True),
    ]


@pytest.mark.parametrize(("first", "last"), [(0, 0), (2, 5), (5, None), (9, 20), (10, None)])
def test_a_range_of_steps(tmp_path: Path, first: int, last: int | None) -> None:
    write_steps(tmp_path, range(6))
    write_steps(tmp_path, range(4, 10))
    stop = 10 if last is None else min(last + 1, 10)
    assert [step.number for step in Ledger(tmp_path).steps(first, last)] == list(range(first, stop))
