"""The page of results is made of the results alone and keeps the sections of others."""

from __future__ import annotations

import msgspec

from bench.corpus_paths import About
from bench.measure import Measured
from bench.page import Everything, page
from bench.report import OTHERS
from bench.run_resume import Results as ResumeResults
from bench.run_resume import Resumed
from bench.run_vl import Results
from bench.work import Settings


def measured(loader: str, rate: float) -> Measured:
    numbers = dict.fromkeys(("imported", "opened", "first_batch", "batch_gap", "cpu", "consumer_cpu"), 0.01)
    return Measured(
        loader=loader,
        settings=Settings(data="x"),
        rate=rate,
        tokens_rate=rate * 200,
        pss=5e8,
        samples=100,
        batches=10,
        **numbers,
    )


def results(table: str) -> Results:
    rates = {
        "zephon_vl": [290.0, 300.0, 280.0],
        "ceiling, tuned": [300.0],
        "Grain": [200.0],
        "tokenizers alone": [400.0],
    }
    entries = {title: [measured(title, rate) for rate in rounds] for title, rounds in rates.items()}
    failed = {"zephon 0.2.0": "not installed: zephon"}
    return Results(table=table, workers=2, seconds=4.0, entries=entries, failed=failed)


def test_page_has_ratios_and_keeps_other_sections() -> None:
    restored = Resumed(seconds=1.5, digest="a", state_bytes=6000)
    resume = ResumeResults(
        step=300,
        workers=2,
        restored={"zephon_vl": [restored]},
        cold={"zephon_vl": [restored]},
        exact={"zephon_vl": True},
    )
    everything = Everything(
        about=About(images=10, seed=0, tokenizer="qwen", megapixels=1.0, bytes=2e5),
        machine={"processor": "one", "cores": "2"},
        minutes={"same": 12.0, "text": 7.0},
        same=results("same"),
        box=results("box"),
        scaling={"1": results("same")},
        sleeping={"32": results("sleep")},
        text=results("text"),
        resume=resume,
    )
    everything = msgspec.json.decode(msgspec.json.encode(everything), type=Everything)
    other = "<!-- section: plan -->\n## Planning\n<!-- end: plan -->"
    text = page(everything, [other])
    assert "| zephon_vl | 290 | 280 to 300 | 0.97 | 1.45 |" in text
    assert "in 19 minutes" in text
    assert "With 32 workers: not measured: zephon 0.2.0: not installed: zephon." in text
    assert "Not measured: zephon 0.2.0: not installed: zephon." in text
    assert [found.group(0) for found in OTHERS.finditer(text)] == [other]
    assert page(everything, [found.group(0) for found in OTHERS.finditer(text)]) == text


def test_page_of_one_table_has_that_one_alone() -> None:
    everything = Everything(
        about=About(images=10, seed=0, tokenizer="qwen", megapixels=1.0, bytes=2e5),
        machine={"processor": "one", "cores": "2"},
        text=results("text"),
    )
    text = page(everything, [])
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## Text only, 2 workers", "## Method"]
