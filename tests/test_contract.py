"""What must always hold, seen from a user's side: exactly once, shares, fill, ends, bad samples, own operators."""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_determinism import run
from tiny_corpus import add_member, build_tiny_corpus, picture, sentence

from zephon_vl import Loader
from zephon_vl.contracts import IGNORE, DocumentRef
from zephon_vl.errors import TooManyBadSamples
from zephon_vl.lane import decode_state
from zephon_vl.state import decode_entries


def write_recipe(recipe: Path, *changes: tuple[str, str], head: str = "") -> Path:
    text = recipe.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    recipe.write_text(head + text)
    return recipe


def documents(loaders: Sequence[Loader]) -> list[DocumentRef]:
    return [ref for loader in loaders for batch in loader for row in batch.documents for ref in row]


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_without_repeats_every_sample_comes_once_and_all_ranks_end_together(tmp_path: Path, ranks: int) -> None:
    recipe = write_recipe(build_tiny_corpus(tmp_path), head="repeat = false\n")
    counts: list[int] = []
    seen: Counter[tuple[int, int]] = Counter()
    for rank in range(ranks):
        with Loader(recipe, dp_rank=rank, dp_size=ranks, workers=0) as loader:
            seen.update((ref.source, ref.take) for ref in documents([loader]))
            counts.append(loader.stats.microbatches)
            assert loader.stats.microbatches == loader.stats.steps * loader.topology.microbatches_per_step
    assert len(set(counts)) == 1
    assert seen == Counter({(source, take): 1 for source, total in ((0, 60), (1, 90)) for take in range(total)})


def test_within_an_epoch_every_sample_comes_once_over_all_lanes(tmp_path: Path) -> None:
    with Loader(build_tiny_corpus(tmp_path), workers=0, microbatch_size=8) as loader:
        seen = [(ref.source, ref.take) for _ in range(20) for row in next(loader).documents for ref in row]
    assert len(seen) == len(set(seen))
    captions = [take for source, take in seen if source == 0]
    # Three epochs of captions are behind it; what is missing of their end is still in open sequences.
    assert max(captions) > 3 * 60
    assert set(range(2 * 60)) <= set(captions)


def test_shares_and_fill(tmp_path: Path) -> None:
    recipe = write_recipe(build_tiny_corpus(tmp_path, images=120, docs=400), ("seq_len = 256", "seq_len = 1024"))
    with Loader(recipe, workers=0, microbatch_size=8) as loader:
        for _ in range(26):
            next(loader)
        # What lanes have taken is exact; what was delivered lags by what stands in open sequences.
        position = decode_entries(loader.state_dict()["lanes"], range(4), 4)
        spent = np.sum([decode_state(state).spent for state in position.states.values()], axis=0)
        assert spent[0] / spent.sum() == pytest.approx(0.75, abs=0.005)
        assert loader.stats.shares()["captions"] == pytest.approx(0.75, abs=0.01)
        assert loader.stats.fill > 0.97


def test_batches_are_what_the_contract_says(tmp_path: Path) -> None:
    with Loader(build_tiny_corpus(tmp_path), workers=0, microbatch_size=3, dp_size=3) as loader:
        image, pad = loader.setup.vocabulary.image, loader.setup.vocabulary.pad
        merge = loader.rules.merge if loader.rules else 0
        for _ in range(6):
            batch = next(loader)
            assert batch.grid_thw is not None
            assert batch.pixel_patches is not None
            assert batch.image_rows is not None
            per_image = batch.grid_thw.prod(dim=1)
            assert per_image.sum() == len(batch.pixel_patches)
            for row, slot in enumerate(batch.slots):
                tokens = (batch.input_ids[row] == image).sum()
                assert tokens == per_image[batch.image_rows == row].sum() // merge**2
                assert tokens > 0, "every row has an image"
                valid = batch.labels[row] != IGNORE
                assert batch.valid_tokens[row] == valid.sum()
                assert (slot == -1) == (valid.sum() == 0)
                # A label is the next token of the same document, and never an image's.
                where = valid.nonzero().flatten()
                assert torch.equal(batch.labels[row][where], batch.input_ids[row][where + 1])
                assert torch.equal(batch.document_ids[row][where], batch.document_ids[row][where + 1])
                assert not (batch.labels[row][where] == image).any()
                starts = (batch.document_ids[row].diff() != 0).nonzero().flatten() + 1
                assert (batch.positions[row][starts] == 0).all()
                assert (batch.input_ids[row][batch.document_ids[row] == -1] == pad).all()
            pixels = batch.pixel_values()
            assert pixels is not None
            assert pixels.shape == (len(batch.pixel_patches), 3 * 2 * 14 * 14)


def odd_members(rng: np.random.Generator) -> dict[str, tuple[dict[str, bytes], str | None]]:
    """Name: (members, what the reason must contain; None if it must be loaded)."""
    good = picture(rng, 90, 70)
    bomb = io.BytesIO()
    Image.new("1", (20000, 10000)).save(bomb, "PNG")

    def encoded(mode: str, form: str, **options: object) -> bytes:
        buffer = io.BytesIO()
        Image.new(mode, (64, 48)).save(buffer, form, **options)
        return buffer.getvalue()

    text = {"txt": b"a small picture of the sea"}
    return {
        "grey": ({"png": encoded("L", "PNG"), **text}, None),
        "grey16": ({"png": encoded("I;16", "PNG"), **text}, None),
        "bilevel": ({"png": encoded("1", "PNG"), **text}, None),
        "palette": ({"png": encoded("P", "PNG", transparency=0), **text}, None),
        "alpha": ({"png": encoded("RGBA", "PNG"), **text}, None),
        "grey-alpha": ({"png": encoded("LA", "PNG"), **text}, None),
        "cmyk": ({"jpg": encoded("CMYK", "JPEG"), **text}, None),
        "progressive": ({"jpg": encoded("RGB", "JPEG", progressive=True), **text}, None),
        "gif": ({"gif": encoded("P", "GIF"), **text}, None),
        "wrong-suffix": ({"png": good, **text}, None),
        "trailing-junk": ({"jpg": good + b"junk" * 100, **text}, None),
        "empty-image": ({"jpg": b"", **text}, "is empty"),
        "html": ({"jpg": b"<html>not found</html>", **text}, ""),
        "zeros": ({"jpg": bytes(500), **text}, ""),
        "junk-before": ({"jpg": b"junk" + good, **text}, ""),
        "cut-in-header": ({"jpg": good[:30], **text}, "cut off in its header"),
        "cut-in-pixels": ({"jpg": good[: len(good) // 2], **text}, "truncated"),
        "png-cut": ({"png": encoded("RGB", "PNG")[:60], **text}, ""),
        "bomb": ({"png": bomb.getvalue(), **text}, "pixels"),
        "strip": ({"png": encoded_strip(), **text}, "longer side is over 200"),
        "no-image": (text, "image"),
        "no-text": ({"jpg": good}, "text"),
        "empty-text": ({"jpg": good, "txt": b"  "}, "'txt' is empty"),
        "not-utf8": ({"jpg": good, "txt": b"\xff\xfe\xfa"}, "UTF-8"),
        "bad-json": ({"jpg": good, "json": b"{nope"}, "JSON"),
        "json-without-caption": ({"jpg": good, "json": b'{"a": 1}'}, "caption"),
    }


def encoded_strip() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (2100, 10)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def odd_recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("odd")
    recipe = build_tiny_corpus(directory)
    rng = np.random.Generator(np.random.Philox(key=9))
    with tarfile.open(directory / "captions" / "odd.tar", "w") as tar:
        for name, (members, _) in odd_members(rng).items():
            for suffix, data in members.items():
                add_member(tar, f"{name}.{suffix}", data)
    lines = [
        '{"text": 3}',
        "{broken",
        '{"other": "x"}',
        '{"text": ""}',
        json.dumps({"text": sentence(rng, 12)}),
        "[1, 2]",
    ]
    (directory / "web" / "odd.jsonl").write_text("\n".join(lines) + "\n")
    return write_recipe(recipe, head="max_bad_share = 0.5\nrepeat = false\n")


def test_odd_samples_are_loaded_or_on_record_with_a_reason(odd_recipe: Path) -> None:
    expected = odd_members(np.random.Generator(np.random.Philox(key=9)))
    with Loader(odd_recipe, workers=1, microbatch_size=4) as loader:
        used = documents([loader])
        records = {record.key: record for record in loader.stats.records if record.shard == "odd.tar"}
        texts = [record for record in loader.stats.records if record.shard == "odd.jsonl"]
    bad = {name for name, (_, reason) in expected.items() if reason is not None}
    assert set(records) == bad
    for name in sorted(bad):
        reason = expected[name][1]
        assert records[name].reason
        assert reason is not None
        assert reason.lower() in records[name].reason.lower()
    assert records["cut-in-pixels"].stage == "render"
    assert len(texts) == 5
    grey = sum(record.stage == "render" for record in records.values())
    assert len({(ref.source, ref.take) for ref in used}) == 60 + 90 + len(expected) - len(bad) + grey + 1


def test_odd_samples_do_not_make_digests_depend_on_topology(odd_recipe: Path) -> None:
    reference = run(odd_recipe, 4, workers=0)
    assert run(odd_recipe, 4, ranks=3, microbatch_size=2, workers=1) == reference
    assert run(odd_recipe, 4, ranks=4, workers=0) == reference


def test_too_many_bad_samples_stop_the_run_with_figures(tmp_path: Path) -> None:
    recipe = build_tiny_corpus(tmp_path)
    shard = tmp_path / "web" / "bad.jsonl"
    shard.write_text("{broken\n" * 400)
    with (
        Loader(recipe, workers=1) as loader,
        pytest.raises(TooManyBadSamples, match=r"source 'web': \d+ of \d+ samples are bad .*Worst shards: bad.jsonl"),
    ):
        for _ in range(500):
            next(loader)


OPERATORS = """
from PIL import ImageOps
from zephon_vl import Operator

class Flip(Operator):
    def __init__(self, share=0.5):
        self.share = share

    def render(self, pixels, job):
        return ImageOps.mirror(pixels) if job.context.rng.random() < self.share else pixels

def keep(sample, rng):
    return rng.random() < 0.7

def shout(sample):
    for part in sample.parts:
        if hasattr(part, "text"):
            part.text = part.text.upper()
    return sample
"""


def test_own_operators_are_exact_too(tmp_path: Path) -> None:
    recipe = build_tiny_corpus(tmp_path)
    plain = run(recipe, 2, workers=0)
    (tmp_path / "my_ops.py").write_text(OPERATORS)
    operators = """operators = [
    { use = "filter", function = "my_ops.py:keep" },
    { use = "map", function = "my_ops.py:shout" },
    { use = "my_ops.py:Flip", share = 0.4 },
]
"""
    write_recipe(recipe, ('schema = "caption"\n', f'schema = "caption"\n{operators}'))
    reference = run(recipe, 3, workers=0)
    assert reference[:2] != plain
    assert run(recipe, 3, ranks=3, workers=2) == reference
    with Loader(recipe, workers=1) as loader:
        for _ in range(24):
            next(loader)
        assert loader.stats.filtered > 0
        assert not loader.stats.bad


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_resume_inside_the_last_step_finishes_it_on_all_ranks(tmp_path: Path, ranks: int, missing: int) -> None:
    """Without repeats the lanes may have nothing left for the rest of the last step: its rows are empty, not gone."""
    recipe = write_recipe(build_tiny_corpus(tmp_path), head="repeat = false\n")
    with Loader(recipe, workers=0) as loader:
        total = sum(1 for _ in loader)
    with Loader(recipe, workers=0) as loader:
        for _ in range(total - missing):
            next(loader)
        state = loader.state_dict()
        rest = [slot for batch in loader for slot in batch.slots]
    assert len(rest) == missing
    found: list[int] = []
    counts: set[int] = set()
    for rank in range(ranks):
        with Loader(recipe, dp_rank=rank, dp_size=ranks, workers=0) as loader:
            loader.load_state_dict(state)
            slots = [(batch.slots, batch.last) for batch in loader]
        counts.add(len(slots))
        assert slots[-1][1]
        found += [slot for row, _ in slots for slot in row if slot != -1]
    assert len(counts) == 1
    assert sorted(found) == sorted(rest)


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_samples_at_the_very_end_are_on_record_too(tmp_path: Path, workers: int) -> None:
    recipe = write_recipe(
        build_tiny_corpus(tmp_path),
        ('path = "web/*.jsonl"\n', 'path = "web/*.jsonl"\norder = "none"\n'),
        head="repeat = false\nmax_bad_share = 0.9\n",
    )
    (tmp_path / "web" / "zzz.jsonl").write_text("{broken\n" * 9)
    with Loader(recipe, workers=workers, microbatch_size=4) as loader:
        documents([loader])
        assert sum(loader.stats.bad.values()) == 9
