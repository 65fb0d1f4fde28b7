"""The ceiling of text: bare processes that tokenize the documents with `tokenizers` and throw the ids away."""

from __future__ import annotations

import itertools
import time
from multiprocessing.connection import Connection
from typing import Any

from bench.loaders.ceiling import EVERY, Bare
from bench.records import Records, order
from bench.work import Settings, tools

TITLE = "tokenizers alone"
_CHUNK = 16


def grid(workers: int) -> list[dict[str, Any]]:
    return [{}]


def work(settings: Settings, part: int, pipe: Connection) -> None:
    """One bare process. An end token is counted for each document, as the loaders add one."""
    records, tokenizer = Records(settings), tools(settings).tokenizer
    done = tokens = 0
    last = time.perf_counter()
    for epoch in itertools.count():
        mine = [records.texts[index] for index in order(len(records), settings.seed, part, settings.workers, epoch)]
        for first in range(0, len(mine), _CHUNK):
            encodings = tokenizer.encode_batch_fast(mine[first : first + _CHUNK], add_special_tokens=False)
            done += len(encodings)
            tokens += sum(len(encoding.ids) + 1 for encoding in encodings)
            if time.perf_counter() - last >= EVERY:
                last = time.perf_counter()
                pipe.send((done, tokens))
                done = tokens = 0


def open(settings: Settings) -> Bare:
    return Bare(settings, work)
