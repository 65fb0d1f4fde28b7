"""Runs TorchTitan's Trainer in real processes, one per rank, on a CPU with gloo.

The ranks are forked from one process that has torch and TorchTitan imported already: that takes longer than a run.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from torchtitan_demo.observe import observe

_SCRIPTS = str(Path(__file__).parent.parent)
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
# With torch 2.13, the default backend does not run on more than one CPU process.
_ALWAYS = ("--parallelism.spmd_backend", "partial_dtensor", "--debug.seed", "1", "--comm.train_timeout_seconds", "60")


class JobFailed(Exception):
    """A job ended otherwise than it should; has the end of its log."""


@dataclass
class Job:
    """A run of the Trainer that has been started."""

    folder: Path
    processes: Sequence[ForkServerProcess]
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def wait(self, timeout: float = 180) -> list[int]:
        """Exit codes of all ranks. Raises `JobFailed` when they take too long."""
        until = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
        self.seconds = time.monotonic() - self.started
        hanging = [rank for rank, process in enumerate(self.processes) if process.is_alive()]
        if hanging:
            self.kill()
            raise JobFailed(f"ranks {hanging} still run after {timeout} s\n{self.end_of_log(hanging[0])}")
        return [process.exitcode or 0 for process in self.processes]

    def finish(self, timeout: float = 180) -> Job:
        """Wait until all ranks have ended well. Raises `JobFailed`."""
        codes = self.wait(timeout)
        if any(codes):
            rank = next(rank for rank, code in enumerate(codes) if code)
            raise JobFailed(f"rank {rank} ended with status {codes[rank]}\n{self.end_of_log(rank)}")
        return self

    def kill(self, rank: int | None = None) -> None:
        """Kill one rank, or all."""
        for process in self.processes if rank is None else [self.processes[rank]]:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGKILL)

    def log(self, rank: int = 0) -> str:
        """What a rank printed so far."""
        path = self.folder / f"log_{rank}.txt"
        return path.read_text() if path.exists() else ""

    def end_of_log(self, rank: int) -> str:
        return "\n".join(self.log(rank).splitlines()[-25:])


def start(folder: Path, ranks: int, config: str, *options: str, setup: str = "") -> Job:
    """Start a Trainer on `ranks` processes.

    Args:
        folder: of logs and records; made if missing.
        config: name of a config function, of `zephon_vl.torchtitan` if it has no colon, else `module:name`.
        options: of TorchTitan's command line.
        setup: `module:function` to call in each rank before the Trainer is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    module, _, name = config.rpartition(":")
    arguments = ["--module", module or "zephon_vl.torchtitan", "--config", name, *_ALWAYS, *options]
    context = _prepared()
    port = _free_port()
    processes = [
        context.Process(target=_run_rank, args=(folder, rank, ranks, port, arguments, setup)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    return Job(folder, processes)


def prepare() -> None:
    """Start the process that ranks are forked from, which takes some seconds, without waiting for it."""
    process = _prepared().Process(target=int)
    process.start()


def _prepared() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if _SCRIPTS not in paths:  # the server reads it, and imports nothing from the caller's sys.path
        os.environ["PYTHONPATH"] = os.pathsep.join([_SCRIPTS, *filter(None, paths)])
    os.environ.update(_ENVIRONMENT)
    context.set_forkserver_preload(["torchtitan_demo.preload"])
    return context


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _run_rank(folder: Path, rank: int, ranks: int, port: int, arguments: list[str], setup: str) -> None:
    with (folder / f"log_{rank}.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    import torchtitan.train

    sys.argv = ["torchtitan.train", *arguments]
    observe(folder, rank)
    code = 0
    try:
        if setup:
            module, _, function = setup.partition(":")
            getattr(__import__(module, fromlist=[function]), function)()
        torchtitan.train.main()
    except BaseException:  # printed to this rank's log, where its job finds it
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.exit(code)


def error_of(job: Job, rank: int = 0) -> str:
    """The last error that a rank printed, on one line."""
    found = re.findall(r"^[\w.]*(?:Error|Exception)\w*: .*(?:\n(?![ \w]*Traceback).+)*", job.log(rank), re.MULTILINE)
    return found[-1] if found else ""
