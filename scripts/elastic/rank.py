"""One rank of a job: a process with its own loader, told over a pipe what to do, as a training script would do it."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection
from typing import Any, Literal

import msgspec
import torch

from zephon_vl import Loader
from zephon_vl.errors import ZephonError
from zephon_vl.recipe import Recipe
from zephon_vl.topology import EMPTY

Command = Literal["step", "save"]
"""Deliver the microbatches of one step; hand over the state. A closed pipe ends the process."""


class Ready(msgspec.Struct, frozen=True):
    """The loader stands before this step."""

    next_step: int


class Microbatch(msgspec.Struct, frozen=True):
    """What a rank tells of a microbatch."""

    step: int
    microbatch: int
    last: bool
    digests: dict[int, str]
    """SHA-256 of each slot."""
    empty: int
    """Rows that only fill it up."""
    next_step: int
    """Where the loader stands now."""


class State(msgspec.Struct, frozen=True):
    """What `Loader.state_dict` gave."""

    state: dict[str, Any]


class Stopped(msgspec.Struct, frozen=True):
    """The loader refused to start, or the run cannot go on."""

    text: str


Answer = Ready | Microbatch | State | Stopped


def serve(pipe: Connection, recipe: Recipe, options: dict[str, Any], state: dict[str, Any] | None) -> None:
    """Make the loader, go on from `state` if there is one, and obey until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every rank; the parent decides what it means
    torch.set_num_threads(1)
    try:
        with Loader(recipe, **options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            pipe.send(Ready(loader.next_step))
            while True:
                _obey(pipe.recv(), loader, pipe)
    except ZephonError as error:
        pipe.send(Stopped(str(error)))
    except (EOFError, ConnectionError):
        return


def _obey(command: Command, loader: Loader, pipe: Connection) -> None:
    if command == "save":
        pipe.send(State(loader.state_dict()))
        return
    for batch in loader:
        empty = batch.slots.count(EMPTY)
        pipe.send(Microbatch(batch.step, batch.microbatch, batch.last, batch.digests(), empty, loader.next_step))
        if batch.last:
            return
    raise ZephonError(f"the data ends before step {loader.next_step}, since the recipe has repeat = false")
