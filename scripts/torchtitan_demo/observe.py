"""Writes down what a rank's Trainer sees and reports: digests of the sequences it takes, losses, waiting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from zephon_vl.batch import Batch


class Recorder:
    """Appends lines of JSON to a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")

    def write(self, **values: Any) -> None:
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()


def observe(folder: Path, rank: int) -> None:
    """Record this process to `folder`: `data_<rank>.jsonl` and `metrics_<rank>.jsonl`."""
    from torchtitan.components.metrics import MetricsProcessor

    from zephon_vl.torchtitan import loader

    data, metrics = Recorder(folder / f"data_{rank}.jsonl"), Recorder(folder / f"metrics_{rank}.jsonl")
    to_inputs, log, log_validation = loader.model_inputs, MetricsProcessor.log, MetricsProcessor.log_validation

    def model_inputs(batch: Batch, special: Mapping[str, int], dtype: torch.dtype, validating: bool) -> Any:
        kind = "validation" if validating else "training"
        data.write(kind=kind, step=batch.step, slots={str(slot): text for slot, text in batch.digests().items()})
        return to_inputs(batch, special, dtype, validating)

    def logged(self: Any, step: int, loss: float, *args: Any, **kwargs: Any) -> None:
        extra = kwargs.get("extra_metrics") or {}
        trace = {name: value for name, value in extra.items() if name.startswith("data/")}
        metrics.write(kind="training", step=step, loss=loss, **trace)
        log(self, step, loss, *args, **kwargs)

    def logged_validation(self: Any, loss: float, step: int, *args: Any, **kwargs: Any) -> None:
        metrics.write(kind="validation", step=step, loss=loss)
        log_validation(self, loss, step, *args, **kwargs)

    loader.model_inputs = model_inputs
    MetricsProcessor.log = logged  # type: ignore[method-assign]
    MetricsProcessor.log_validation = logged_validation  # type: ignore[method-assign]


def losses(folder: Path, kind: str = "training") -> dict[int, float]:
    """Loss by step of TorchTitan (from 1), as rank 0 reported it."""
    return {line["step"]: line["loss"] for line in lines(folder / "metrics_0.jsonl", kind)}


def trace(folder: Path) -> dict[int, dict[str, float]]:
    """The loader's metrics by step of TorchTitan, as rank 0 reported them; none from TorchTitan's own loader."""
    found = {line["step"]: line for line in lines(folder / "metrics_0.jsonl", "training")}
    return {step: {k: v for k, v in line.items() if k.startswith("data/")} for step, line in found.items()}


def slots(folder: Path, rank: int, kind: str = "training") -> dict[int, dict[int, str]]:
    """Digests of what one rank took: by step of the recipe and slot."""
    steps: dict[int, dict[int, str]] = {}
    for line in lines(folder / f"data_{rank}.jsonl", kind):
        steps.setdefault(line["step"], {}).update({int(slot): text for slot, text in line["slots"].items()})
    return steps


def lines(path: Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind, `training` or `validation`."""
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0]  # the last line may be on its way
    return [line for line in map(json.loads, whole.splitlines()) if line["kind"] == kind]
