"""The `zephon` package from PyPI (0.2.0), as its user guide says: processes, best-fit packing, own tensors of images.

Records are JSON lines that name the picture's file; the map reads it. `grid` tries where the batch is put together: in
a worker (`map_batch`) or in the consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from zephon import MixtureSpec, Pipeline, StaticMixtureWorkSource  # pyright: ignore[reportMissingImports]
from zephon.io import Dataset  # pyright: ignore[reportMissingImports]

from bench.corpus_paths import SEQ_LEN, Paths
from bench.loaders.protocol import Delivered, delivered
from bench.packing import collate
from bench.work import Sample, Settings

TITLE = "zephon 0.2.0"
_CHUNK = 512
"""Samples of a work chunk; it must not be over those of the corpus."""


def grid(workers: int) -> list[dict[str, Any]]:
    return [{"runner": "process"}, {"runner": "threads"}, {"runner": "process", "mtp": True}]


def working(settings: Settings) -> Callable[[Any], Any]:
    """The function of `map_transform`."""
    root = Paths(settings.root).root

    def work(record: Any) -> Any:
        data = (root / record["image"]).read_bytes() if settings.vision else b""
        return settings.process(data, record["text"])

    return work


def length(record: Any) -> int:
    return len(record.payload["input_ids"])


class Open:
    """A zephon pipeline."""

    def __init__(self, settings: Settings, state: Any = None) -> None:
        folder = settings.root / "zephon" / ("texts" if settings.stage == "text" else "captions")
        work = StaticMixtureWorkSource(
            datasets=[Dataset.from_path("train", str(folder))],
            mixture=MixtureSpec({"train": 1.0}),
            seed=settings.seed,
            chunk_size=_CHUNK,
            shuffle_block_size="global",
            exhausted_policy="repeat",
        )
        tuning = settings.tuning or {"runner": "process"}
        self.pipeline = (
            Pipeline(work)
            .options(
                runner=tuning["runner"],
                max_workers=settings.workers,
                prefetch_batches=settings.prefetch,
                mtp_mode=tuning.get("mtp", False),
                canonical_replicas=1,
            )
            .map_transform(working(settings), parallelism=settings.workers)
            .pack_sequences(
                max_length=SEQ_LEN, num_bins=settings.bins, algorithm="best_fit", length_fn=length, parallelism=1
            )
            .batch(microbatch_size=settings.rows)
        )
        if state is not None:
            self.pipeline.restore(state)
        self.batches = iter(self.pipeline)

    def __iter__(self) -> Iterator[Delivered]:
        return self

    def __next__(self) -> Delivered:
        records = next(self.batches).records
        rows: list[list[Sample]] = [[_payload(one) for one in record.payload["packed_samples"]] for record in records]
        return delivered(collate(rows))

    def state(self) -> Any:
        return self.pipeline.checkpoint()

    def close(self) -> None:
        close = getattr(self.batches, "close", None)
        if close:
            close()


def _payload(packed: Any) -> Sample:
    return getattr(packed, "payload", packed)


def open(settings: Settings, state: Any = None) -> Open:
    return Open(settings, state)
