"""Processes and memory: who lives, who dies, and what stays behind. Real processes, real kills."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from tiny_corpus import build_tiny_corpus

from zephon_vl import Loader, ZephonError
from zephon_vl.errors import RecipeError, StateError

_TRAINER = """
import psutil, sys
from zephon_vl import Loader
loader = Loader(sys.argv[1], workers=2, microbatch_size=2)
for count, batch in enumerate(loader):
    if count == 2:
        print(*(process.pid for process in psutil.Process().children(recursive=True)), flush=True)
    if count >= 2 and sys.argv[2] == "exit":
        break
    if count == 2 and sys.argv[2] == "raise":
        raise RuntimeError("training failed")
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_corpus(tmp_path_factory.mktemp("corpus"))


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition about other processes comes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("end", ["kill", "terminate", "raise", "exit"])
def test_nothing_outlives_the_training_process(recipe: Path, tmp_path: Path, end: str) -> None:
    before = set(os.listdir("/dev/shm"))
    trainer = subprocess.Popen(
        [sys.executable, "-c", _TRAINER, str(recipe), end],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert trainer.stdout is not None
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(pids) == 1 + 1 + 2  # the coordinator, the template and its workers
    if end in ("kill", "terminate"):
        assert len(alive(pids)) == 4
        trainer.send_signal(signal.SIGKILL if end == "kill" else signal.SIGTERM)
    trainer.wait(30)
    assert eventually(lambda: not alive(pids), 2), f"{alive(pids)} still live"
    assert not os.listdir(tmp_path)
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "zephon" in name or "zvl" in name]


def test_the_loader_needs_no_main_guard_and_works_in_a_thread(recipe: Path) -> None:
    """The thread that builds a loader may end: its processes live as long as the training process."""
    script = """
import sys, threading
from zephon_vl import Loader
box = []
def build():
    loader = Loader(sys.argv[1], workers=1)
    next(loader)
    box.append(loader)
thread = threading.Thread(target=build)
thread.start()
thread.join()
steps = [next(box[0]).step for _ in range(12)]
assert box[0].stats.worker_restarts == 0
print("ok", steps[-1])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(recipe)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith("ok"), done.stderr


def test_close_collection_and_context_end_the_processes(recipe: Path) -> None:
    with Loader(recipe, workers=1) as loader:
        next(loader)
        pids = [loader.coordinator_pid, *loader.worker_pids]
    assert eventually(lambda: not alive(pids), 2)
    with pytest.raises(StopIteration):
        next(loader)

    loader = Loader(recipe, workers=1)
    next(loader)
    pids = [loader.coordinator_pid, *loader.worker_pids]
    del loader
    gc.collect()
    assert eventually(lambda: not alive(pids), 2)


def test_batches_outlive_the_loader(recipe: Path) -> None:
    with Loader(recipe, workers=1) as loader:
        batch = next(loader)
        before = batch.digests()
    gc.collect()
    assert batch.digests() == before


@pytest.mark.parametrize("workers", [0, 1])
def test_a_buffer_is_not_reused_while_a_tensor_refers_to_it(recipe: Path, workers: int) -> None:
    with Loader(recipe, workers=workers, prefetch=1) as loader:
        kept, copies = [], []
        for i in range(loader.topology.microbatches_per_step):
            batch = next(loader)
            # A view of a view, all that is left of its batch.
            view = batch.input_ids[0][3:40].view(-1, 1)
            kept.append(view)
            copies.append(view.clone())
            assert batch.microbatch == i
            del batch
        for _ in range(3):
            assert next(loader).rows == 1
        assert all(torch.equal(view, copy) for view, copy in zip(kept, copies, strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_holding_every_buffer_is_an_error_not_a_deadlock(recipe: Path, workers: int) -> None:
    with Loader(recipe, workers=workers, prefetch=0) as loader:
        held = []
        with pytest.raises(ZephonError, match="buffers are still referenced by microbatches that you keep"):
            held.extend(loader)
        assert len(held) >= loader.topology.microbatches_per_step


def test_buffers_are_bounded_however_slow_the_consumer(recipe: Path) -> None:
    """The coordinator makes no more than its limit of buffers, and takes no more once they are full."""
    with Loader(recipe, workers=1, prefetch=2) as loader:
        seen = set()
        for _ in range(40):
            batch = next(loader)
            seen.add(batch.input_ids.untyped_storage().data_ptr())
            del batch
        assert len(seen) <= loader.topology.microbatches_per_step + 4


def test_a_memory_limit_that_cannot_work_is_refused(recipe: Path) -> None:
    with pytest.raises(RecipeError, match=r"memory_limit is 1000 bytes, but must be at least \d+"):
        Loader(recipe, memory_limit=1000)


def test_a_killed_worker_is_replaced(recipe: Path) -> None:
    with Loader(recipe, workers=2) as loader:
        next(loader)
        old = loader.worker_pids
        os.kill(old[0], signal.SIGKILL)
        for _ in range(20):
            next(loader)
        assert len(loader.worker_pids) == 2
        assert old[0] not in loader.worker_pids
        assert loader.stats.worker_restarts == 1


def test_a_process_without_standard_input_can_load(recipe: Path) -> None:
    """A new descriptor is 0 there; it must reach the child all the same."""
    script = "import sys; from zephon_vl import Loader; print(next(Loader(sys.argv[1], workers=1)).step)"
    command = f'exec "{sys.executable}" -c "{script}" "{recipe}" <&-'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "0\n", done.stderr


def test_a_fork_cannot_take_the_loaders_microbatches(recipe: Path) -> None:
    with Loader(recipe, workers=1) as loader:
        next(loader)
        child = os.fork()
        if child == 0:
            try:
                next(loader)
            except ZephonError as error:
                os._exit(7 if "belongs to process" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert [next(loader).microbatch for _ in range(3)] == [1, 2, 3]


def test_closing_is_quick_while_a_fork_holds_the_descriptors(recipe: Path) -> None:
    loader = Loader(recipe, workers=1)
    next(loader)
    pids = [loader.coordinator_pid, *loader.worker_pids]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    loader.close()
    assert not alive(pids)
    os.close(write)
    os.waitpid(child, 0)


@pytest.mark.parametrize("state", [None, {}, {"identity": None, "lanes": None}, {"identity": b"{}", "lanes": {}}])
def test_what_is_no_state_is_refused_and_the_loader_goes_on(recipe: Path, state: object) -> None:
    with Loader(recipe, workers=0) as loader:
        first = next(loader).digests()
        with pytest.raises(StateError):
            loader.load_state_dict(state)  # type: ignore[arg-type]
        assert next(loader).microbatch == 1
    with Loader(recipe, workers=0) as loader:
        assert next(loader).digests() == first
