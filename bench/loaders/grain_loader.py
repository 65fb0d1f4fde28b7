"""Google Grain: ArrayRecord, a global shuffle, `map`, packing and batching in its workers, `mp_prefetch`.

Its documentation advises processes for work in Python and threads for reading; `grid` tries both and mixtures of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grain  # pyright: ignore[reportMissingImports]
import msgspec
from absl import flags, logging  # pyright: ignore[reportMissingImports]

from bench.corpus_paths import SEQ_LEN, Paths
from bench.loaders.protocol import Delivered, delivered
from bench.packing import BestFit, collate
from bench.records import Records
from bench.work import Settings

TITLE = "Grain"


def grid(workers: int) -> list[dict[str, Any]]:
    """Processes and reading threads of each; 0 processes reads with threads alone."""
    shapes = [(workers, 1), (workers, 2), (max(1, workers // 2), 2), (0, workers), (0, 2 * workers)]
    return [{"processes": processes, "threads": threads} for processes, threads in dict.fromkeys(shapes)]


class Encoded(msgspec.Struct):
    """A record of the corpus."""

    image: bytes
    text: str


class Work(grain.transforms.Map):
    """The work of one record."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def map(self, element: Any) -> Any:
        if isinstance(element, bytes):
            record = msgspec.msgpack.decode(element, type=Encoded)
            return self.settings.process(record.image, record.text)
        return self.settings.process(b"", element)


class PackAndBatch(grain.IterDataset):
    """Best-fit packing and batching; the state is the parent's and the samples that wait."""

    def __init__(self, parent: grain.IterDataset, settings: Settings) -> None:
        super().__init__(parent)
        self.settings = settings

    def __iter__(self) -> grain.DatasetIterator:
        return PackAndBatchIterator(self._parent.__iter__(), self.settings)


class PackAndBatchIterator(grain.DatasetIterator):
    """Goes on exactly: with the state of the parent the open sequences are saved."""

    def __init__(self, parent: grain.DatasetIterator, settings: Settings) -> None:
        super().__init__(parent)
        self.settings = settings
        self.packer = BestFit(SEQ_LEN, settings.bins)

    def __next__(self) -> dict[str, Any]:
        rows = []
        while len(rows) < self.settings.rows:
            if (row := self.packer.add(next(self._parent))) is not None:
                rows.append(row)
        return collate(rows)

    def get_state(self) -> dict[str, Any]:
        return {"parent": self._parent.get_state(), "open": [(used, list(row)) for used, row in self.packer.open]}

    def set_state(self, state: dict[str, Any]) -> None:
        self._parent.set_state(state["parent"])
        self.packer.open = [(used, list(row)) for used, row in state["open"]]


def dataset(settings: Settings) -> grain.IterDataset:
    """The pipeline."""
    if settings.vision:
        source: Any = grain.sources.ArrayRecordDataSource([str(p) for p in Paths(settings.root).array_records])
    else:
        source = Records(settings).texts
    processes = settings.tuning.get("processes", settings.workers)
    threads = settings.tuning.get("threads", 1)
    samples = grain.MapDataset.source(source).seed(settings.seed).shuffle().repeat().map(Work(settings))
    reading = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
    batches: grain.IterDataset = PackAndBatch(samples.to_iter_dataset(reading), settings)
    if processes:
        each = max(1, settings.prefetch // processes)
        options = grain.MultiprocessingOptions(num_workers=processes, per_worker_buffer_size=each)
        return batches.mp_prefetch(options)
    return batches


class Open:
    """A Grain iterator."""

    def __init__(self, settings: Settings, state: Any = None) -> None:
        logging.set_verbosity(logging.ERROR)
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()
        self.batches = iter(dataset(settings))
        if state is not None:
            self.batches.set_state(state)

    def __iter__(self) -> Iterator[Delivered]:
        return self

    def __next__(self) -> Delivered:
        return delivered(next(self.batches))

    def state(self) -> Any:
        return self.batches.get_state()

    def close(self) -> None:
        close = getattr(self.batches, "close", None)
        if close:
            close()


def open(settings: Settings, state: Any = None) -> Open:
    return Open(settings, state)
