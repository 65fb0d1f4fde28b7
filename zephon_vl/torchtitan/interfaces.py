"""What differs between TorchTitan 0.3.0 and the newer interface of its main branch; nothing else knows of it.

| | 0.3.0 | main |
| --- | --- | --- |
| sizes in the constructor | `seq_len`, `local_batch_size` | `max_context_length`, `num_tokens_per_batch` |
| `input`, `labels`, `positions` | (rows, seq_len) | (tokens,) |
| `mrope_positions` | (rows, seq_len, 3) | (tokens, 3) |
| `pixel_values` | padded (images, most patches, dim) | packed (patches, dim) |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import torch

from zephon_vl.errors import MissingExtra, RecipeError

if find_spec("torchtitan") is None:
    raise MissingExtra("torchtitan", "torchtitan", "zephon_vl.torchtitan")

_RELEASED, _MAIN = "torchtitan.components.dataloader", "torchtitan.components.data.loader"


def _has(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


FLAT = not _has(_RELEASED)
"""Whether batches are flat runs of tokens, as on main."""

if TYPE_CHECKING:
    from torchtitan.components.dataloader import BaseDataLoader
else:
    BaseDataLoader = import_module(_MAIN if FLAT else _RELEASED).BaseDataLoader

PIXEL_LAYOUT: Literal["packed", "padded"] = "packed" if FLAT else "padded"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What TorchTitan says of a microbatch, and under which names."""

    seq_len: int
    rows: int
    """Sequences of a microbatch on one data-parallel rank."""
    seq_len_field: str
    rows_field: str


def sizes_of(given: Mapping[str, Any]) -> Sizes:
    """The sizes among a constructor's arguments.

    Raises:
        RecipeError: for a number of tokens that is not a multiple of the sequence length.
    """
    if not FLAT:
        return Sizes(
            seq_len=given["seq_len"],
            rows=given["local_batch_size"],
            seq_len_field="training.seq_len",
            rows_field="training.local_batch_size",
        )
    seq_len, tokens = given["max_context_length"], given["num_tokens_per_batch"]
    if tokens % seq_len:
        raise RecipeError(
            f"training.num_tokens_per_microbatch_per_dp_rank is {tokens}, but must be a multiple of "
            f"training.max_context_length ({seq_len}): a microbatch holds whole sequences. The nearest are "
            f"{tokens // seq_len * seq_len or seq_len} and {(tokens // seq_len + 1) * seq_len}"
        )
    return Sizes(
        seq_len=seq_len,
        rows=tokens // seq_len,
        seq_len_field="training.max_context_length",
        rows_field="training.num_tokens_per_microbatch_per_dp_rank",
    )


def shaped(tokens: torch.Tensor) -> torch.Tensor:
    """A token field (rows, seq_len, ...) in the shape that the models take; a view."""
    return tokens.flatten(0, 1) if FLAT else tokens


def trainer_step() -> int | None:
    """The optimizer step that the trainer is at, from 1; None where it does not say."""
    if not _has("torchtitan.observability.structured_logger"):
        return None
    from torchtitan.observability.structured_logger import get_step

    return get_step()
