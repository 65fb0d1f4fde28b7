from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_corpus import Corpus

from zephon_vl.errors import SourceError
from zephon_vl.recipe import Recipe, SourceConfig, TokenizerConfig
from zephon_vl.sources import find_shards
from zephon_vl.sources.patterns import expand_braces


def names(corpus: Corpus, path: str | tuple[str, ...]) -> list[str]:
    recipe = corpus.recipe(path, "text")
    return [name for name, _ in find_shards(recipe, recipe.sources[0]).shards]


def refusal(corpus: Corpus, path: str | tuple[str, ...]) -> str:
    with pytest.raises(SourceError) as caught:
        names(corpus, path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a{0..2}.tar", ["a0.tar", "a1.tar", "a2.tar"]),
        ("{008..011}", ["008", "009", "010", "011"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{0..6..3}", ["0", "3", "6"]),
        ("{a,b}{1,2}", ["a1", "a2", "b1", "b2"]),
        ("{a,{b,c}d}", ["a", "bd", "cd"]),
        ("{x}", ["{x}"]),
        ("plain", ["plain"]),
    ],
)
def test_braces(pattern: str, expected: list[str]) -> None:
    assert expand_braces(pattern) == expected


@given(st.integers(0, 200), st.integers(0, 50), st.integers(1, 6))
def test_a_padded_range_names_every_number_once(first: int, length: int, width: int) -> None:
    last = first + length
    expanded = expand_braces(f"{{{first:0{width}d}..{last:0{width}d}}}")
    assert [int(text) for text in expanded] == list(range(first, last + 1))
    assert all(len(text) >= width for text in expanded)


def test_shards_are_sorted_by_name_in_whatever_order_they_were_made(corpus: Corpus) -> None:
    for name in ("b/2.jsonl", "a/3.jsonl", "b/1.jsonl", "a/10.jsonl"):
        corpus.jsonl(name, [{"text": name}])
    assert names(corpus, "*/*.jsonl") == ["a/10.jsonl", "a/3.jsonl", "b/1.jsonl", "b/2.jsonl"]
    assert names(corpus, "**/*.jsonl") == ["a/10.jsonl", "a/3.jsonl", "b/1.jsonl", "b/2.jsonl"]
    assert names(corpus, ("b/*.jsonl", "a/{3,10}.jsonl", "b/1.jsonl")) == names(corpus, "*/*.jsonl")
    assert names(corpus, "a/*.jsonl") == ["10.jsonl", "3.jsonl"]
    assert names(corpus, str(corpus.root / "a" / "*.jsonl")) == ["10.jsonl", "3.jsonl"]
    assert names(corpus, f"file://{corpus.root}/a/3.jsonl") == ["3.jsonl"]


def test_a_name_that_looks_like_a_pattern(corpus: Corpus) -> None:
    corpus.jsonl("part[1]{a,b}.jsonl", [{"text": "x"}])
    assert names(corpus, "part[1]{a,b}.jsonl") == ["part[1]{a,b}.jsonl"]


def test_index_files_are_not_shards(corpus: Corpus) -> None:
    corpus.jsonl("a.jsonl", [{"text": "x"}])
    corpus.index("a.jsonl")
    assert (corpus.root / "a.jsonl.zvlindex").exists()
    assert names(corpus, "*") == ["a.jsonl"]


def test_refusals_name_source_pattern_and_remedy(corpus: Corpus) -> None:
    nothing = refusal(corpus, "x/*.tar")
    assert "'data'" in nothing and "x/*.tar" in nothing and str(corpus.root) in nothing and "relative" in nothing
    corpus.write("0.tar", b"")
    corpus.write("1.parquet", b"")
    corpus.write("2.txt", b"")
    (corpus.root / "dir").mkdir()
    assert "1 of the shards" in refusal(corpus, "{0..1}.tar") and "1.tar" in refusal(corpus, "{0..1}.tar")
    assert "1.parquet (parquet) and 0.tar (tar)" in refusal(corpus, "[01].*").replace(f"{corpus.root}/", "")
    assert "2.txt" in refusal(corpus, "2.txt") and ".parquet" in refusal(corpus, "2.txt")
    assert '"dir/*.tar"' in refusal(corpus, "dir/")
    assert "nosuchprotocol" in refusal(corpus, "nosuchprotocol://x/*.tar")


def test_remote_patterns(corpus: Corpus) -> None:
    fs = fsspec.filesystem("memory")
    for name in ("/patterns/b.jsonl", "/patterns/a.jsonl", "/patterns/deep/c.jsonl"):
        fs.pipe(name, b"{}\n")
    assert names(corpus, "memory://patterns/*.jsonl") == ["a.jsonl", "b.jsonl"]
    assert names(corpus, "memory://patterns/{deep/c,a}.jsonl") == ["a.jsonl", "deep/c.jsonl"]
    assert "matches no file" in refusal(corpus, "memory://patterns/*.tar")
    assert "z.jsonl" in refusal(corpus, "memory://patterns/{a,z}.jsonl")


def test_a_dangling_link_among_the_shards_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "000.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "001.jsonl").symlink_to(tmp_path / "gone.jsonl")
    recipe = Recipe(
        lanes=1,
        global_batch_size=1,
        seq_len=8,
        tokenizer=TokenizerConfig(path="t"),
        sources=(SourceConfig(name="a", path="*.jsonl", schema="text"),),
        base_dir=str(tmp_path),
    )
    with pytest.raises(SourceError, match=r"001\.jsonl is a link to .*gone\.jsonl, which is not there"):
        find_shards(recipe, recipe.sources[0])
