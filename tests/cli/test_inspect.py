"""The page of a step: what stands in it, and that it needs nothing else."""

from __future__ import annotations

import html
import json
import re
import tarfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tiny_corpus import build_tiny_corpus
from tokenizers import Tokenizer

from zephon_vl import Loader
from zephon_vl.cli.main import main
from zephon_vl.inspect import page as html_page
from zephon_vl.inspect import sequences_of
from zephon_vl.inspect.words import Words
from zephon_vl.topology import EMPTY
from zephon_vl.verify import digests

HOSTILE = '</span></script><img src=http://example.com/x onerror="alert(1)"> & more'


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny corpus, with texts that no page may show as they are."""
    path = build_tiny_corpus(tmp_path_factory.mktemp("corpus"))
    with (path.parent / "web" / "000.jsonl").open("a") as web:
        for i in range(40):
            web.write(json.dumps({"text": f"{HOSTILE} {i} naïve 日本語 🦄"}) + "\n")
    return path


@pytest.fixture(scope="module")
def page(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "step.html"
    assert inspect(recipe, "--step", 1, "--out", out) == 0
    return out.read_text(encoding="utf-8")


def inspect(*words: object) -> int:
    with pytest.raises(SystemExit) as end:
        main(["inspect", *map(str, words), "--workers", "0"])
    assert isinstance(end.value.code, int)
    return end.value.code


class Parsed(HTMLParser):
    """The tags that are open, the attributes that were met, the text of each document."""

    void = frozenset({"meta", "img"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[tuple[str, str]] = []
        """(title, text) of each word."""
        self._title: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        title = dict(attrs).get("title")
        if tag == "i" and title:
            self.words.append((title, ""))
            self._title = title
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._title = None

    def handle_data(self, data: str) -> None:
        if self._title is not None:
            self.words[-1] = (self._title, self.words[-1][1] + data)


def test_it_is_well_formed_and_loads_nothing(page: str) -> None:
    parsed = Parsed(page)
    assert parsed.open == []
    assert not {"script", "link", "iframe", "object", "embed"} & set(parsed.tags)
    addresses = [value for name, value in parsed.attributes if name in ("src", "href", "srcset", "data", "action")]
    assert addresses
    assert all(address.startswith(("data:image/jpeg;base64,", "#")) for address in addresses)
    assert not any(name.startswith("on") for name, _ in parsed.attributes)
    styles = "".join(re.findall("<style>(.*?)</style>", page, re.DOTALL))
    assert "url(" not in styles
    assert "@import" not in styles


def test_hostile_texts_are_text(page: str) -> None:
    assert "<img src=http" not in page
    assert HOSTILE in "".join(text for _, text in Parsed(page).words)


def test_every_address_in_the_page_leads_to_a_place_in_it(page: str) -> None:
    parsed = Parsed(page)
    places = {value for name, value in parsed.attributes if name == "id"}
    assert {value[1:] for name, value in parsed.attributes if name == "href"} == places


def test_each_document_shows_the_record_that_it_names(recipe: Path, page: str) -> None:
    article = (
        r"<article .*?<b>(\w+)</b> <span>([^<]+?) · ([^<]+?) · epoch \d+ · .*?<div class=\"flow\">(.*?)</div></article>"
    )
    shown = [match.groups() for match in re.finditer(article, page)]
    assert {name for name, *_ in shown} == {"captions", "web"}
    assert len(shown) == page.count("<article") - page.count("a black image of one token")
    for name, shard, key, flow in shown:
        text = html.unescape(re.sub("<figcaption>.*?</figcaption>|<[^>]*>", "", flow))
        assert _record(recipe.parent / name / shard, key)[:60] in text


def _record(shard: Path, key: str) -> str:
    """The text of a record, read without the library."""
    if shard.suffix == ".tar":
        with tarfile.open(shard) as tar:
            member = tar.extractfile(f"{key}.txt")
            assert member is not None
            return member.read().decode()
    return json.loads(shard.read_text().splitlines()[int(key.removeprefix("line ")) - 1])["text"]


def test_words_carry_position_id_and_label(recipe: Path, page: str) -> None:
    with Loader(recipe, workers=0, start_step=1) as loader:
        batches = [next(loader) for _ in range(loader.topology.microbatches_per_step)]
        image_token = loader.setup.vocabulary.image
    expected = 0
    for batch in batches:
        for row in range(batch.rows):
            ids, documents = batch.input_ids[row].tolist(), batch.document_ids[row].tolist()
            expected += sum(token != image_token and n >= 0 for token, n in zip(ids, documents, strict=True))
    titles = [re.fullmatch(r"(\d+) · id ([\d ]+) · label ([\w ]+)", title) for title, _ in Parsed(page).words]
    shown = [match.groups() for match in titles if match]
    assert len(shown) == len(titles)
    assert sum(len(ids.split()) for _, ids, _ in shown) == expected
    first = batches[0]
    position = next(i for i, token in enumerate(first.input_ids[0].tolist()) if token != image_token)
    label = int(first.labels[0, position])
    title = f'"{position} · id {first.input_ids[0, position]} · label {"none" if label < 0 else label}"'
    assert title in page


def test_it_shows_the_digest_of_its_step(recipe: Path, page: str) -> None:
    ((_, digest),) = digests(recipe, range(1, 2))
    assert f"<dd>{digest}</dd>" in page


def test_each_image_stands_in_the_page_with_its_grid(recipe: Path, page: str) -> None:
    with Loader(recipe, workers=0, start_step=1) as loader:
        grids = [
            tuple(grid) for _ in range(loader.topology.microbatches_per_step) for grid in next(loader).grid_thw.tolist()
        ]
    found = re.findall(r"<figcaption>(\d+) x (\d+) x (\d+) patches", page)
    assert [tuple(map(int, grid)) for grid in found] == grids
    assert page.count("<img ") == len(grids)


def test_a_sequence_without_an_image_shows_what_closes_it(recipe: Path, tmp_path: Path) -> None:
    texts = recipe.with_name("texts.toml")
    texts.write_text(recipe.read_text().replace("weight = 3.0", "weight = 0.0"))
    assert inspect(texts, "--out", tmp_path / "page.html", "--max-sequences", 2) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "2 of 8 shown" in page
    assert page.count("a black image of one token") == 2


def test_a_row_that_fills_a_microbatch_up_is_shown_as_such(recipe: Path) -> None:
    # Four lanes on three ranks: one rank owns two, the others fill up.
    with Loader(recipe, workers=0, dp_rank=0, dp_size=3) as loader:
        batches = [next(loader) for _ in range(loader.topology.microbatches_per_step)]
        sequences = list(sequences_of(batches, loader.setup, loader.open_sources()))
    empty = sum(batch.slots.count(EMPTY) for batch in batches)
    assert empty > 0
    assert sum(sequence.empty for sequence in sequences) == empty
    shown = html_page("rank 0", [], sequences, [])
    assert shown.count("<h2>empty row</h2>") == shown.count("only fills its microbatch up") == empty
    assert shown.count("a black image of one token") >= empty
    parsed = Parsed(shown)
    places = [value for name, value in parsed.attributes if name == "id"]
    assert len(places) == len(set(places))
    assert {value[1:] for name, value in parsed.attributes if name == "href"} == set(places)


def test_a_lane_without_data_left_is_shown_as_empty(recipe: Path, tmp_path: Path) -> None:
    once = recipe.with_name("last.toml")
    once.write_text("repeat = false\n" + recipe.read_text())
    with Loader(once, workers=0) as loader:
        documents = {(batch.step, batch.slots[0]): batch.documents[0] for batch in loader}
    last = max(step for step, _ in documents)
    empty = sum(not inside for (step, _), inside in documents.items() if step == last)
    assert empty > 0
    assert inspect(once, "--step", last, "--out", tmp_path / "page.html") == 0
    assert (tmp_path / "page.html").read_text(encoding="utf-8").count("the data of its lane has ended") == empty


def test_bad_samples_are_listed_with_what_became_of_them(tmp_path: Path) -> None:
    recipe = build_tiny_corpus(tmp_path)
    recipe.write_text("max_bad_share = 1.0\n" + recipe.read_text())
    with (tmp_path / "web" / "000.jsonl").open("a") as web:
        web.write('{"text": "cut off\n' * 100)
    assert inspect(recipe, "--out", tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.search(r"<td>web</td><td>000.jsonl</td><td>line \d+</td><td>skipped</td>", page)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--step", "-1"), "--step is -1, but must be at least 0"),
        (("--max-sequences", "0"), "--max-sequences is 0, but must be at least 1"),
        (("--out", "nowhere/page.html"), "--out is nowhere/page.html, but nowhere is no directory"),
        (("--out", "/"), "--out is /, but / is a directory; name a file"),
    ],
)
def test_bad_input_ends_in_one_sentence(
    recipe: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    assert inspect(recipe, *words) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_a_step_after_the_end_of_the_data_is_refused(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once = recipe.with_name("once.toml")
    once.write_text("repeat = false\n" + recipe.read_text())
    assert inspect(once, "--step", 500, "--out", tmp_path / "page.html") == 2
    assert "the data ends before step 500 is whole" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("text", ["a cat sits", "naïve 日本語 🦄🦄", "🦄", " spaces  and\nlines "])
def test_words_are_whole_characters_and_lose_nothing(recipe: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(recipe.parent / "tokenizer" / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    words = Words(tokenizer).of(ids, ids, 5)
    assert "".join(word.text for word in words) == text
    assert [token for word in words for token in word.ids] == ids
    assert [word.first for word in words] == [5 + sum(len(w.ids) for w in words[:i]) for i in range(len(words))]
    assert not any("\N{REPLACEMENT CHARACTER}" in word.text for word in words)


def test_a_text_cut_inside_a_character_still_shows_every_token(recipe: Path) -> None:
    tokenizer = Tokenizer.from_file(str(recipe.parent / "tokenizer" / "tokenizer.json"))
    ids = tokenizer.encode("🦄 and then", add_special_tokens=False).ids
    for part in (ids[1:], ids[:1], ids[1:2] * 30):
        words = Words(tokenizer).of(part, part, 0)
        assert [token for word in words for token in word.ids] == part
