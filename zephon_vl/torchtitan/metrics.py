"""A trace of the loader in TorchTitan's metrics and in the log."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.tools.utils import device_type

from zephon_vl.stats import LoaderStats


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What happened in a window of time."""

    waiting: float
    """Share of the time that the trainer waited for data, in 0..1."""
    fill: float
    """Share of the sequences that documents fill, in 0..1."""
    images_per_second: float
    bad: int
    """Bad samples since the start."""
    tokens: dict[str, int]
    """Tokens of each source since the start."""

    def text(self) -> str:
        """One line for a log."""
        total = sum(self.tokens.values()) or 1
        shares = ", ".join(f"{name} {count / total:.1%}" for name, count in self.tokens.items())
        return (
            f"waited {self.waiting:.1%} of the time, {self.fill:.1%} of the room filled, "
            f"{self.images_per_second:.1f} images/s, {self.bad} bad samples; tokens: {shares}"
        )

    def metrics(self) -> dict[str, float]:
        """For TensorBoard and W&B."""
        return {
            "data/waiting(%)": 100 * self.waiting,
            "data/fill(%)": 100 * self.fill,
            "data/images_per_second": self.images_per_second,
            "data/bad_samples": self.bad,
            **{f"data/tokens/{name}": count for name, count in self.tokens.items()},
        }


class Window:
    """Counts from one look at a loader's statistics to the next."""

    def __init__(self, stats: LoaderStats) -> None:
        self._stats = stats
        self._begin()

    def _begin(self) -> None:
        stats = self._stats
        self._time, self._waited, self._images = time.monotonic(), stats.waited, stats.images
        self._room, self._tokens = stats.room, stats.tokens.total()

    def take(self, mesh: Any = None) -> Trace:
        """What happened since the last look.

        Args:
            mesh: the data-parallel mesh, to sum over all its ranks; waiting is that of the rank that waited longest.
        """
        stats = self._stats
        seconds = max(time.monotonic() - self._time, 1e-9)
        waiting = (stats.waited - self._waited) / seconds
        counts = [
            stats.images - self._images,
            stats.tokens.total() - self._tokens,
            stats.room - self._room,
            stats.bad.total(),
            *(stats.tokens[name] for name in stats.sources),
        ]
        self._begin()
        if mesh is not None:
            waiting = float(_reduced([waiting], dist.ReduceOp.MAX, mesh)[0])
            counts = [int(count) for count in _reduced(counts, dist.ReduceOp.SUM, mesh)]
        images, tokens, room, bad, *of_sources = counts
        return Trace(
            waiting=waiting,
            fill=tokens / room if room else 0.0,
            images_per_second=images / seconds,
            bad=bad,
            tokens=dict(zip(stats.sources, of_sources, strict=True)),
        )


def _reduced(values: list[Any], how: Any, mesh: Any) -> list[float]:
    tensor = torch.tensor(values, dtype=torch.float64, device=device_type)
    dist.all_reduce(tensor, how, group=mesh.get_group())
    return tensor.tolist()


class HasStats(Protocol):
    """A loader."""

    @property
    def stats(self) -> LoaderStats: ...


_training: weakref.ref[HasStats] | None = None


def set_training(loader: HasStats) -> None:
    """Let the metrics be of this loader, as long as it lives."""
    global _training
    _training = weakref.ref(loader)


class ZephonVLMetrics(MetricsProcessor):
    """TorchTitan's metrics, and with them the loader's: `metrics=ZephonVLMetrics.Config(...)`.

    Adds `data/waiting(%)`, `data/fill(%)`, `data/images_per_second`, `data/bad_samples` and `data/tokens/<source>`,
    over all data-parallel ranks.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        pass

    _window: Window | None = None

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: dict[str, Any] | None = None,
    ) -> None:
        """Called on all ranks at the same steps."""
        loader = _training() if _training is not None else None
        if self._window is None and loader is not None:
            self._window = Window(loader.stats)
        if self._window is not None:
            mesh = self.parallel_dims.get_optional_mesh("batch")
            extra_metrics = {**(extra_metrics or {}), **self._window.take(mesh).metrics()}
        super().log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics=extra_metrics)
