"""What the loaders of the benchmark deliver is what the work made; only those that need no further packages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.loaders.protocol import Delivered, delivered
from bench.packing import pack
from bench.records import Records
from bench.same_work import compare, compare_open
from bench.work import Settings


class Packed:
    """A loader in this process: the work, packed."""

    def __init__(self, settings: Settings) -> None:
        records = Records(settings)
        self._batches = pack((records[i % len(records)] for i in range(10**6)), settings)

    def __iter__(self) -> Iterator[Delivered]:
        return self

    def __next__(self) -> Delivered:
        return delivered(next(self._batches))

    def close(self) -> None:
        pass


def settings(corpus: Path, **changes) -> Settings:
    return Settings(**{"data": str(corpus), "workers": 1, "rows": 1, "bins": 2, "prefetch": 2} | changes)


@pytest.mark.parametrize("stage", ["same", "text"])
@pytest.mark.parametrize("loader", ["zephon_vl", "torch_dataloader"])
def test_loader_delivers_the_work(loader, stage, corpus, monkeypatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    found = compare(loader, settings(corpus, stage=stage, tuning={}), documents=12)
    assert found.same and found.documents >= 12 and found.images_differ == 0
    assert found.distinct > 5


def test_stages_differ_in_pixels_at_most(corpus) -> None:
    """What a user writes with Pillow gives the same tokens; pixels as near as two resizers of one kind are."""
    own, pillow = (settings(corpus, stage=stage) for stage in ("same", "pillow"))
    found = compare_open("pillow", Packed(pillow), own, documents=12)
    assert found.same and found.largest <= 3


def test_a_wrong_pixel_label_and_token_are_found(corpus) -> None:
    class Damaged(Packed):
        def __next__(self) -> Delivered:
            batch = super().__next__()
            batch.tensors["pixel_patches"][0, 0] += 7
            batch.tensors["labels"][0, 1] = 5
            last = batch.tensors["document_ids"][0].max()
            where = int((batch.tensors["document_ids"][0] == last).nonzero()[0])
            batch.tensors["input_ids"][0, where] += 1
            return dataclasses.replace(batch)

    own = settings(corpus)
    found = compare_open("damaged", Damaged(own), own, documents=1)
    assert not found.same
    assert (found.unknown, found.fields, found.images_differ) == (1, {"labels": 1}, 1)


def test_corpus_is_as_described(corpus) -> None:
    from bench.corpus_paths import Paths

    paths = Paths(corpus)
    assert paths.about.images == 48 and 0.1 < paths.about.megapixels < 4
    records = Records(settings(corpus))
    files = {records.read(i)[0] for i in range(len(records))}
    assert len(files) == len(records) == 48
    assert len(set(records.texts)) == 48
