"""Each format by itself: what an index finds, and that random access gives what reading in sequence gives."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from itertools import groupby

import numpy as np
import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from shard_corpus import JPEG, PNG, Corpus, outline, reason, tar_bytes

from zephon_vl.errors import MissingExtra, SourceError, StorageError
from zephon_vl.sources import compressed, jsonl
from zephon_vl.sources.cache import ByteCache
from zephon_vl.sources.jsonl import index_lines
from zephon_vl.sources.tar import split_name

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1).filter(lambda t: not t.isspace())


# --- all formats ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["tar", "jsonl", "ndjson", "jsonl.gz", "jsonl.zst", "parquet"])
@settings(max_examples=12)
@given(data=st.data())
def test_random_access_equals_sequential_reading(tmp_path_factory, suffix: str, data: st.DataObject) -> None:
    corpus = Corpus(tmp_path_factory.mktemp("random"))
    shards = data.draw(st.lists(st.lists(WORDS, min_size=1, max_size=12), min_size=1, max_size=3))
    for i, texts in enumerate(shards):
        name = f"{i}.{suffix}"
        if suffix == "tar":
            corpus.tar(name, [(f"{j}.txt", text.encode()) for j, text in enumerate(texts)])
        elif suffix == "parquet":
            corpus.parquet(name, [{"text": text} for text in texts])
        else:
            corpus.jsonl(name, [{"text": text} for text in texts])
    source = corpus.open(f"*.{suffix}")
    expected = [text for texts in shards for text in texts]
    assert len(source) == len(expected)
    order = data.draw(st.permutations(range(len(expected))))
    assert [outline(source, i) for i in order] == [[expected[i]] for i in order]
    names = [source.locate(i)[0] for i in range(len(source))]
    assert [len(list(group)) for _, group in groupby(names)] == [len(texts) for texts in shards]


def test_blocks(corpus: Corpus) -> None:
    for i, count in enumerate([5000, 10, 1100]):
        corpus.jsonl(f"{i}.jsonl", [{"text": "x"}] * count, frame_lines=10000)
    blocks = corpus.open("*.jsonl").blocks()
    assert blocks.dtype == np.int64 and blocks.tolist() == [0, 1000, 2000, 3000, 4000, 5000, 5010, 6110]
    corpus.parquet("0.parquet", [{"text": "x"}] * 10, group=4)
    corpus.parquet("1.parquet", [{"text": "x"}] * 3, group=4)
    assert corpus.open("*.parquet").blocks().tolist() == [0, 4, 8, 10, 13]


def test_keys_and_names(corpus: Corpus) -> None:
    corpus.tar("a/0.tar", [("x/k.1.txt", b"one"), ("./y/k.txt", b"two")])
    corpus.tar("b/0.tar", [("z.txt", b"three")])
    source = corpus.open("*/0.tar")
    located = [source.locate(i) for i in range(3)]
    assert located == [("a/0.tar", "x/k"), ("a/0.tar", "y/k"), ("b/0.tar", "z")]
    assert [(source.sample(i).shard, source.sample(i).key) for i in (1, 2)] == located[1:]
    corpus.write("k.jsonl", b'{"text": "a", "id": 7}\n\n{"text": "b", "key": "k"}\n{"text": "c", "id": true}\n')
    lines = corpus.open("k.jsonl")
    assert [lines.sample(i).key for i in range(3)] == ["7", "k", "line 4"]
    assert [lines.locate(i)[1] for i in range(3)] == ["line 1", "line 3", "line 4"]
    corpus.parquet("k.parquet", [{"text": "a"}] * 5)
    assert corpus.open("k.parquet").sample(4).key == "row 5"
    with pytest.raises(IndexError, match="there is no sample 5"):
        corpus.open("k.parquet").sample(5)


# --- tar -----------------------------------------------------------------------------------------------------------


def test_members_are_grouped_by_key(corpus: Corpus) -> None:
    corpus.tar(
        "a.tar",
        [
            ("1.JPG", JPEG),
            ("2.png", PNG),
            ("noextension", b"-"),
            (".hidden.txt", b"-"),
            ("1.txt", b"one"),  # not a neighbour of its image
            ("2.txt", b"two"),
            ("1.txt", b"once more"),  # a second archive written behind
            ("1.jpg", PNG),
        ],
    )
    source = corpus.open("a.tar", "caption")
    assert [outline(source, i) for i in range(len(source))] == [[JPEG, "one"], [PNG, "two"], [PNG, "once more"]]
    assert source.sample(0).images()[0].name == "1.jpg" and source.sample(0).images()[0].data is None


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_members_that_are_no_files(corpus: Corpus, format: int) -> None:
    out = io.BytesIO()
    long = "d" * 90 + "/" + "n" * 95 if format == tarfile.USTAR_FORMAT else "d" * 150 + "/" + "ü" * 150
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo(f"{int(kind)}.txt")
            info.type, info.linkname = kind, "x"
            archive.addfile(info)
        info = tarfile.TarInfo(f"{long}.txt")
        info.size = 4
        archive.addfile(info, io.BytesIO(b"text"))
    corpus.write("a.tar", out.getvalue())
    source = corpus.open("a.tar")
    assert len(source) == 1 and source.locate(0)[1] == long and outline(source) == ["text"]


def test_a_truncated_tar_names_shard_and_offset(corpus: Corpus) -> None:
    whole = tar_bytes([("a.txt", b"a" * 1000), ("b.txt", b"b" * 1000)])
    for cut in (300, 700, 1536, 1600, 2000, 3000, 3072):
        corpus.write("a.tar", whole[:cut])
        with pytest.raises(SourceError, match=rf"a\.tar .*offset \d+ of {cut} bytes"):
            corpus.index("a.tar")
    corpus.write("a.tar", whole[: 3072 + 512])
    assert corpus.index("a.tar").samples == 2


def test_a_damaged_tar_is_not_taken_for_a_short_one(corpus: Corpus) -> None:
    whole = tar_bytes([("a.txt", b"a" * 1000), ("b.txt", b"b" * 1000)])
    corpus.write("a.tar", whole[:1536] + b"garbage!" * 64 + whole[2048:])
    with pytest.raises(SourceError, match="damaged: no member header at offset 1536"):
        corpus.index("a.tar")
    corpus.write("a.tar", whole + whole)
    with pytest.raises(SourceError, match="goes on behind its end-of-archive mark"):
        corpus.index("a.tar")


@given(st.binary(max_size=30))
def test_key_and_suffix(name: bytes) -> None:
    key, suffix = split_name(name)
    directory, _, base = name.rpartition(b"/")
    if b"." in base[1:] and not base.startswith(b"."):
        first, _, rest = base.partition(b".")
        assert key == (directory + b"/" + first if b"/" in name else first) and suffix == rest.lower()
    else:
        assert (key, suffix) == (b"", b"")


# --- JSON lines ----------------------------------------------------------------------------------------------------


@given(st.binary().map(lambda data: data.replace(b"x", b"\n").replace(b"y", b" ")), st.integers(1, 20))
def test_lines_are_those_of_python(data: bytes, chunk: int) -> None:
    assume(not data.startswith(b"\xef\xbb\xbf"))
    index = index_lines(data[i : i + chunk] for i in range(0, len(data), chunk))
    starts, stops = index.arrays["starts"].tolist(), index.arrays["stops"].tolist()
    lines = data.split(b"\n")
    kept = [(i + 1, line) for i, line in enumerate(lines) if line.strip()]
    assert [data[start:stop] for start, stop in zip(starts, stops, strict=True)] == [line for _, line in kept]
    numbers = index.arrays.get("numbers", np.arange(1, index.count + 1))
    assert numbers.tolist() == [number for number, _ in kept]


def test_odd_ends_of_lines(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "_CHUNK", 7)
    corpus.write("a.jsonl", b'\xef\xbb\xbf{"text": "bom"}\r\n \r\n\n{"text": "crlf"}\r\n  {"text": "last"}')
    source = corpus.open("a.jsonl")
    assert [outline(source, i) for i in range(len(source))] == [["bom"], ["crlf"], ["last"]]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"text": "a', "the line is not valid JSON"),
        (b"[1, 2]", "the line is a JSON list, but must be an object"),
        (b'{"text": "\xff"}', "the line is not valid JSON: Invalid UTF-8"),
        (b'{"text": "\\ud800"}', "the line is not valid JSON"),
        (b'{"text": "\\ud800", "x": NaN}', "the line is not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"text": "a"} {"text": "b"}', "trailing characters"),
    ],
)
def test_broken_lines_are_bad_samples(corpus: Corpus, line: bytes, expected: str) -> None:
    corpus.write("a.jsonl", b'{"text": "good"}\n' + line + b'\n{"text": "good too", "score": NaN}\n')
    source = corpus.open("a.jsonl")
    assert expected in reason(source, 1)
    assert [outline(source, i) for i in (0, 2)] == [["good"], ["good too"]]


# --- compressed ----------------------------------------------------------------------------------------------------


def long_lines(count: int) -> list[dict[str, str]]:
    generator = np.random.default_rng(0)
    return [{"text": f"{i} {generator.bytes(300).hex()}"} for i in range(count)]


@pytest.mark.parametrize("frame_lines", [100_000, 37])
@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_large_compressed_files(corpus: Corpus, monkeypatch: pytest.MonkeyPatch, suffix: str, frame_lines: int) -> None:
    monkeypatch.setattr(compressed.cache, "decoded", ByteCache(200_000))  # entries come and go
    records = long_lines(8000)
    corpus.jsonl(f"a.jsonl.{suffix}", records, frame_lines)
    source = corpus.open(f"*.{suffix}")
    assert len(source) == 8000
    for i in [7999, 0, *np.random.default_rng(1).integers(0, 8000, 60).tolist()]:
        assert outline(source, i) == [records[i]["text"]]


def test_zstd_frames_that_end_anywhere_and_skippable_ones(corpus: Corpus) -> None:
    records = long_lines(50)
    plain = b"\n\n".join(json.dumps(record).encode() for record in records)
    pack = zstandard.ZstdCompressor(write_content_size=False).compress
    skip = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    frames = [pack(plain[i : i + 1234]) + skip for i in range(0, len(plain), 1234)]
    corpus.write("a.jsonl.zst", skip + b"".join(frames))
    source = corpus.open("a.jsonl.zst")
    assert [outline(source, i) for i in range(50)] == [[record["text"]] for record in records]


def test_damaged_and_truncated_compressed_files(corpus: Corpus) -> None:
    for suffix in ("gz", "zst"):
        path = corpus.jsonl(f"a.jsonl.{suffix}", long_lines(200), 100_000)
        whole = path.read_bytes()
        for broken in (whole[:-7], whole[: len(whole) // 2], whole + b"junk behind the end", b"no archive at all"):
            path.write_bytes(broken)
            with pytest.raises(SourceError, match=rf"a\.jsonl\.{suffix} is (damaged|truncated)"):
                corpus.index(path.name)
    flipped = bytearray(gzip.compress(b'{"text": "x"}\n' * 1000))
    flipped[-6] ^= 1  # the checksum
    corpus.write("a.jsonl.gz", bytes(flipped))
    with pytest.raises(SourceError, match="damaged"):
        corpus.index("a.jsonl.gz")


def test_a_huge_zstd_frame_is_refused_with_the_remedy(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "MAX_FRAME", 1 << 20)
    corpus.jsonl("a.jsonl.zst", long_lines(3000), 100_000)
    with pytest.raises(SourceError, match=r"frame of over 1 MiB at offset 0.*pzstd"):
        corpus.index("a.jsonl.zst")
    corpus.jsonl("a.jsonl.zst", long_lines(3000), 1000)
    assert corpus.index("a.jsonl.zst").samples == 3000


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_compressed_data_that_changes_under_a_run(corpus: Corpus, suffix: str) -> None:
    path = corpus.jsonl(f"a.jsonl.{suffix}", long_lines(6000), 100_000)
    source = corpus.open(path.name)
    source.locate(0)
    with path.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(StorageError, match=rf"a\.jsonl\.{suffix}"):
        source.sample(5999)


# --- Parquet -------------------------------------------------------------------------------------------------------


def test_a_broken_parquet_file_is_a_source_error(corpus: Corpus) -> None:
    corpus.write("a.parquet", b"PAR1 no, it is not")
    with pytest.raises(SourceError, match=r"a\.parquet is no Parquet file"):
        corpus.index("a.parquet")


def test_a_broken_row_group_is_a_source_error(corpus: Corpus) -> None:
    path = corpus.parquet("a.parquet", [{"text": f"{i}" * 500} for i in range(9)])
    data = bytearray(path.read_bytes())
    data[4:60] = bytes(56)
    path.write_bytes(data)
    source = corpus.open("a.parquet")
    with pytest.raises(SourceError, match=r"a\.parquet: row group 0 cannot be read"):
        source.sample(0)
    assert outline(source, 8) == ["8" * 500]


def test_columns_are_read_as_needed(corpus: Corpus) -> None:
    corpus.parquet("a.parquet", [{"text": "x", "score": 0.5, "raw": b"bytes", "tags": ["a"]}])
    assert corpus.open("a.parquet").sample(0).record == {"text": "x"}
    with_operators = corpus.open("a.parquet", operators=({"use": "filter"},))
    assert with_operators.sample(0).record == {"text": "x", "score": 0.5, "tags": ["a"]}
    assert "the record has text, score, raw, tags" in reason(corpus.open("a.parquet", fields={"text": "body"}))


def test_the_same_path_with_new_rows(corpus: Corpus) -> None:
    corpus.parquet("a.parquet", [{"text": "old"}])
    assert outline(corpus.open("a.parquet")) == ["old"]
    corpus.parquet("a.parquet", [{"text": "newer"}])
    assert outline(corpus.open("a.parquet")) == ["newer"]


@pytest.mark.parametrize(
    ("package", "name", "extra"),
    [
        ("pyarrow", "a.parquet", "parquet"),
        ("indexed_gzip", "a.jsonl.gz", "compressed"),
        ("zstandard", "a.jsonl.zst", "compressed"),
    ],
)
def test_a_missing_package_names_its_extra(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, package: str, name: str, extra: str
) -> None:
    corpus.write(name, gzip.compress(b"{}\n"))
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{package}.*zephon-vl\[{extra}\]"):
        corpus.index(name)


# --- the cache -----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50))))
def test_the_cache_is_bounded_and_gives_what_was_made(calls: list[tuple[int, int]]) -> None:
    cache, sizes = ByteCache(100), {}
    for key, size in calls:
        value = cache.get(key, lambda key=key, size=size: ((key, sizes.setdefault(key, size)), sizes[key]))
        assert value[0] == key
        held = [size for _, size in cache._entries.values()]
        assert cache._used == sum(held) and (cache._used <= 100 or len(held) == 1)
