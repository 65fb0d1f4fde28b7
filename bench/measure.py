"""Measure one loader once, in a process of its own: `python -m bench.measure LOADER SETTINGS SECONDS` prints JSON.

A window of the steady state is timed from the arrival of one batch to that of another; the consumer touches each page
of each tensor and lets it go. Memory is read after the window, so that reading it costs the window nothing.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil

from bench.work import Settings

_ROOT = Path(__file__).resolve().parent.parent
_MEMORY_SECONDS = 0.8
_PATIENCE = 90.0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. Times in seconds, CPU times over all processes."""

    loader: str
    settings: Settings
    rate: float
    """Samples a second."""
    tokens_rate: float
    cpu: float
    """CPU time of a sample."""
    consumer_cpu: float
    """CPU time of a sample in the consumer's process."""
    batch_gap: float
    """Mean time between two batches."""
    imported: float
    """Import of the loader's library, in a process that has torch."""
    opened: float
    """From the call that opens it until it returns."""
    first_batch: float
    """From before the import to the first batch."""
    pss: float
    """Largest proportional set size of all processes together, bytes."""
    samples: int
    batches: int


class Failed(Exception):
    """A measurement ended without a result."""


def measure(name: str, settings: Settings, seconds: float, warm: float | None = None) -> Measured:
    """Measure in this process."""
    import torch  # a trainer has it already

    torch.set_num_threads(1)
    begin = time.perf_counter()
    from bench.loaders.protocol import load

    module = load(name)
    imported = time.perf_counter() - begin
    loader = module.open(settings)
    opened = time.perf_counter() - begin - imported
    try:
        touch(next(loader).tensors)
        first = time.perf_counter() - begin
        warm_until = time.perf_counter() + (min(3.0, max(1.0, seconds / 3)) if warm is None else warm)
        batches = 0
        # What was ready when the consumer came is no rate, nor is the filling of a loader's sequences: taken first.
        while batches <= max(settings.prefetch + 1, settings.settle) or time.perf_counter() < warm_until:
            touch(next(loader).tensors)
            batches += 1
        me = psutil.Process()
        cpu, own = _cpu(me), time.process_time()
        start = now = time.perf_counter()
        samples = tokens = batches = 0
        while now - start < seconds:
            batch = next(loader)
            touch(batch.tensors)
            samples, tokens, batches = samples + batch.samples, tokens + batch.tokens, batches + 1
            del batch
            now = time.perf_counter()
        wall, cpu, own = now - start, _cpu(me) - cpu, time.process_time() - own
        pss, until = _pss(me), time.perf_counter() + _MEMORY_SECONDS
        while time.perf_counter() < until:
            touch(next(loader).tensors)
            pss = max(pss, _pss(me))
    finally:
        loader.close()
    return Measured(
        loader=name,
        settings=settings,
        rate=samples / wall,
        tokens_rate=tokens / wall,
        cpu=cpu / samples,
        consumer_cpu=own / samples,
        batch_gap=wall / batches,
        imported=imported,
        opened=opened,
        first_batch=first,
        pss=pss,
        samples=samples,
        batches=batches,
    )


def touch(tensors: dict) -> int:
    """Read one byte of each page: a consumer that copies to a device reads them all."""
    import torch

    return sum(int(field.reshape(-1).view(torch.uint8)[::4096].sum()) for field in tensors.values())


def _cpu(process: psutil.Process) -> float:
    """CPU time of a process and all below it."""
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def _pss(process: psutil.Process) -> float:
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # ended between the listing and the reading
    return float(total)


def end_children() -> None:
    """End what a loader left running: some libraries wait for their workers at exit."""
    for child in psutil.Process().children(recursive=True):
        child.kill()


def run(name: str, settings: Settings, seconds: float, path: tuple[str, ...] = ()) -> Measured:
    """Measure in a fresh process. `path`: directories before all others on its path. Raises `Failed`."""
    command = [sys.executable, "-m", "bench.measure", name, msgspec.json.encode(settings).decode(), str(seconds)]
    output = run_module(command, path)
    return msgspec.json.decode(output.splitlines()[-1], type=Measured)


def run_module(command: list[str], path: tuple[str, ...] = ()) -> str:
    """Run a measuring process; its standard output. Raises `Failed` with the end of what it wrote."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*path, str(_ROOT)]),
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    try:
        done = subprocess.run(
            command, check=False, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"no result in {_PATIENCE:.0f} s") from error
    if done.returncode:
        raise Failed("\n".join((done.stderr or done.stdout).splitlines()[-8:]))
    return done.stdout


def middle(values: list[float]) -> tuple[float, float, float]:
    """(median, least, most)."""
    return statistics.median(values), min(values), max(values)


def main() -> None:
    name, settings, seconds = sys.argv[1:]
    result = measure(name, msgspec.json.decode(settings, type=Settings), float(seconds))
    sys.stdout.flush()
    print(msgspec.json.encode(result).decode(), flush=True)
    end_children()
    os._exit(0)


if __name__ == "__main__":
    main()
