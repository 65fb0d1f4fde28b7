"""What a loader has done so far, for logs, metrics and the command line."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from zephon_vl.messages import BadRecord, BatchHeader

_KEPT_RECORDS = 1000


@dataclass(slots=True)
class LoaderStats:
    """Counters since the loader started; all of one rank."""

    sources: tuple[str, ...]
    microbatches: int = 0
    steps: int = 0
    samples: Counter[str] = field(default_factory=Counter)
    """Samples taken from each source."""
    tokens: Counter[str] = field(default_factory=Counter)
    """Tokens placed from each source."""
    images: int = 0
    """Images delivered, dummies included."""
    valid_tokens: int = 0
    """Labels that count."""
    room: int = 0
    """Tokens that the delivered sequences could hold; empty rows do not count."""
    filtered: int = 0
    """Samples that a user's filter dropped."""
    bad: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Bad samples by (source, reason)."""
    records: deque[BadRecord] = field(default_factory=lambda: deque(maxlen=_KEPT_RECORDS))
    """The last bad samples, with shard and key."""
    waited: float = 0.0
    """Seconds that the consumer waited for microbatches."""
    worker_restarts: int = 0
    started: float = field(default_factory=time.monotonic)

    def count(self, header: BatchHeader, seq_len: int, waited: float) -> None:
        """Add one delivered microbatch of sequences of `seq_len` tokens."""
        self.microbatches += 1
        self.steps += header.last
        self.images += header.images
        self.valid_tokens += sum(header.valid)
        self.room += seq_len * sum(slot >= 0 for slot in header.slots)
        self.waited += waited
        for name, samples, tokens in zip(self.sources, header.samples, header.tokens, strict=True):
            self.samples[name] += samples
            self.tokens[name] += tokens
        self.count_skips(header.filtered, header.bad)

    def count_skips(self, filtered: int, bad: Sequence[BadRecord]) -> None:
        """Add samples that are not used."""
        self.filtered += filtered
        for record in bad:
            self.bad[record.source, record.reason] += 1
            self.records.append(record)

    @property
    def seconds(self) -> float:
        """Since the loader started."""
        return time.monotonic() - self.started

    @property
    def fill(self) -> float:
        """Share of the delivered room that documents fill, in 0..1."""
        return self.tokens.total() / self.room if self.room else 0.0

    @property
    def samples_per_second(self) -> float:
        return self.samples.total() / self.seconds

    @property
    def tokens_per_second(self) -> float:
        return self.tokens.total() / self.seconds

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds

    @property
    def waiting_share(self) -> float:
        """Share of the time that the consumer waited, in 0..1."""
        return self.waited / self.seconds

    def shares(self) -> dict[str, float]:
        """Share of each source in the delivered tokens."""
        total = self.tokens.total()
        return {name: self.tokens[name] / total if total else 0.0 for name in self.sources}
