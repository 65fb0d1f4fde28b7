"""The command line as a person uses it: what it prints, how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tiny_corpus import build_tiny_corpus

from zephon_vl.cli.main import main


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_corpus(tmp_path_factory.mktemp("corpus"))


def run(*words: object) -> int:
    """Status of a command run in this process."""
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    assert isinstance(end.value.code, int)
    return end.value.code


def digest_lines(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    capsys.readouterr()
    assert run("digest", *words) == 0
    return capsys.readouterr().out.splitlines()


def test_digest_lines_depend_on_the_recipe_alone(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = digest_lines(capsys, recipe, "--steps", "0:3")
    assert [line.split()[0] for line in lines] == ["0", "1", "2"]
    assert all(len(line.split()[1]) == 64 for line in lines)
    for ranks, workers, rows in ((2, 0, 1), (3, 1, 2), (4, 0, 2)):
        options = ("--ranks", ranks, "--workers", workers, "--microbatch-size", rows)
        assert digest_lines(capsys, recipe, "--steps", "3", *options) == lines
    assert digest_lines(capsys, recipe, "--steps", "1:3") == lines[1:]


def test_digest_in_another_process_with_another_hash_seed(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = digest_lines(capsys, recipe, "--steps", "2")
    environment = {**os.environ, "PYTHONHASHSEED": "77", "LC_ALL": "C", "TZ": "Asia/Tokyo"}
    command = [sys.executable, "-m", "zephon_vl.cli", "digest", str(recipe), "--steps", "2", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", timeout=120, check=True)
    assert done.stdout.splitlines() == lines


def test_digest_saves_and_resumes_on_other_ranks(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = digest_lines(capsys, recipe, "--steps", "4")
    saving = ("--save-at", 2, "--checkpoint", tmp_path / "state")
    assert digest_lines(capsys, recipe, "--steps", "3", "--ranks", 4, *saving) == lines[:3]
    resumed = digest_lines(capsys, recipe, "--steps", "4", "--ranks", 3, "--resume", tmp_path / "state")
    assert resumed == lines[2:]


def test_a_changed_recipe_is_refused_on_resume(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest_lines(capsys, recipe, "--steps", "1", "--save-at", 1, "--checkpoint", tmp_path)
    other = recipe.with_name("other.toml")
    other.write_text(recipe.read_text().replace("weight = 3.0", "weight = 4.0"))
    assert run("digest", other, "--steps", "3", "--resume", tmp_path) == 2
    error = capsys.readouterr().err
    assert "sources.captions.weight: saved 3.0, now 4.0" in error


def test_explain_names_sources_ranks_and_memory(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", recipe, "--ranks", 3) == 0
    text = capsys.readouterr().out
    for expected in ("captions", "web", "75.0%", "8 sequences of 256 tokens", "rows are empty, on ranks", "buffers of"):
        assert expected in text


def test_index_and_run_end_with_tables(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("index", recipe) == 0
    assert "60" in capsys.readouterr().out
    assert run("run", recipe, "--steps", 2, "--workers", 0) == 0
    text = capsys.readouterr().out
    assert "2 steps" in text
    assert "no bad samples" in text


class _Page(HTMLParser):
    """Collects tags that are open and addresses that are loaded."""

    void = frozenset({"meta", "img", "br", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_inspect_writes_one_page_that_needs_nothing_else(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    web = recipe.parent / "web" / "000.jsonl"
    hostile = "</script><img src=http://example.com/x onerror=alert(1)> and more"
    web.write_text(web.read_text() + "".join(f'{{"text": "{hostile}"}}\n' for _ in range(40)))
    out = tmp_path / "step.html"
    assert run("inspect", recipe, "--step", 1, "--out", out, "--workers", 0) == 0
    page = out.read_text()
    parser = _Page()
    parser.feed(page)
    assert parser.open == []
    assert all(address.startswith(("data:image/jpeg;base64,", "#")) for address in parser.addresses)
    assert "onerror=alert(1)&gt;" in page
    digest = digest_lines(capsys, recipe, "--steps", "1:2")[0].split()[1]
    for expected in ("captions", "web", digest, "slot 7", "000.tar"):
        assert expected in page


def test_inspect_shows_the_image_that_closes_a_sequence_without_any(recipe: Path, tmp_path: Path) -> None:
    texts = recipe.with_name("texts.toml")
    texts.write_text(recipe.read_text().replace("weight = 3.0", "weight = 0.0"))
    out = tmp_path / "step.html"
    assert run("inspect", texts, "--out", out, "--workers", 0, "--max-sequences", 2) == 0
    page = out.read_text()
    assert "2 of 8 shown" in page
    assert page.count("a black image of one token") == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("run", "nowhere.toml"), "cannot read the recipe nowhere.toml: No such file or directory"),
        (("digest", "{recipe}", "--steps", "5:2"), "--steps is '5:2', but must be A:B with A below B"),
        (("digest", "{recipe}", "--ranks", "9"), "dp_size is 9, but the recipe has 4 lanes"),
        (("digest", "{recipe}", "--save-at", "1"), "--save-at and --checkpoint go together"),
        (("digest", "{recipe}", "--resume", "nowhere"), "cannot read the checkpoint nowhere/loader.msgpack"),
        (("run", "{recipe}", "--memory-limit", "lots"), "--memory-limit is 'lots', but must be bytes"),
        (("run", "{recipe}", "--memory-limit", "1MB"), "memory_limit is 1000000 bytes, but must be at least"),
        (("explain", "{recipe}", "--microbatch-size", "0"), "microbatch_size is 0, but must be at least 1"),
    ],
)
def test_bad_input_ends_in_one_sentence(
    recipe: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    assert run(*(word.format(recipe=recipe) for word in words)) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error


def test_a_bad_recipe_names_field_value_and_what_is_allowed(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(recipe.read_text().replace("lanes = 4", "lanes = 3"))
    assert run("explain", bad) == 2
    assert "global_batch_size is 8, but must be a multiple of lanes (3)" in capsys.readouterr().err
    assert run("explain", bad, "--debug") == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_unknown_option_ends_with_status_2(recipe: Path) -> None:
    assert run("run", recipe, "--stepz", "3") == 2
