from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import fsspec
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_corpus import JPEG, Corpus, outline

from zephon_vl.errors import RecipeError, SourceError, StorageError
from zephon_vl.sources import SourceHandle, build, open_source
from zephon_vl.sources.build import IndexProgress, build_indexes
from zephon_vl.sources.indexfile import ShardIndex, UnusableIndex, load_index, save_index
from zephon_vl.sources.storage import Stat


def text_shards(corpus: Corpus, shards: int = 3) -> None:
    for i in range(shards):
        corpus.jsonl(f"{i}.jsonl", [{"text": f"{i}-{j}"} for j in range(5)])


def texts(source) -> list[str]:
    return [source.sample(i).parts[0].text for i in range(len(source))]


def test_indexes_lie_beside_the_shards_and_are_used_again(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    text_shards(corpus)
    seen: list[IndexProgress] = []
    recipe = corpus.recipe("*.jsonl", "text")
    first = build_indexes(recipe, progress=seen.append)
    assert sorted(path.name for path in corpus.root.glob("*.zvlindex")) == [f"{i}.jsonl.zvlindex" for i in range(3)]
    assert [step.done for step in seen] == [1, 2, 3] and seen[-1].bytes_done == seen[-1].bytes_total == first[0].size
    assert not list(corpus.root.glob(".*")) and not list(corpus.root.parent.glob("cache/locks/*"))
    monkeypatch.setattr(build, "_index", lambda *_: pytest.fail("indexed again"))
    assert build_indexes(recipe) == first


def test_a_handle_travels_and_fingerprints(corpus: Corpus) -> None:
    text_shards(corpus)
    handle = corpus.index("*.jsonl")
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(handle), type=SourceHandle)
    assert again == handle
    sizes = [(corpus.root / f"{i}.jsonl").stat().st_size for i in range(3)]
    assert handle.fingerprint() == [(f"{i}.jsonl", sizes[i], 5, "") for i in range(3)]
    assert (handle.samples, handle.size) == (15, sum(sizes))


def test_the_fingerprint_depends_on_the_data_alone(corpus: Corpus) -> None:
    text_shards(corpus)
    first = corpus.index("*.jsonl").fingerprint()
    moved = corpus.root.parent / "moved"
    moved.mkdir()
    for i in (2, 0, 1):
        (moved / f"{i}.jsonl").write_bytes((corpus.root / f"{i}.jsonl").read_bytes())
    assert corpus.index("../moved/*.jsonl").fingerprint() == first


@pytest.mark.parametrize("change", ["content", "time"])
def test_a_stale_index_is_built_anew(corpus: Corpus, change: str) -> None:
    path = corpus.jsonl("a.jsonl", [{"text": "old"}])
    assert texts(corpus.open("a.jsonl")) == ["old"]
    if change == "content":
        corpus.jsonl("a.jsonl", [{"text": "new"}, {"text": "newer"}])
        assert texts(corpus.open("a.jsonl")) == ["new", "newer"]
    else:
        path.write_bytes(b'\n{"text": 1}\n')
        os.utime(path, ns=(1, 1))
        assert corpus.open("a.jsonl").locate(0) == ("a.jsonl", "line 2")


@pytest.mark.parametrize("damage", ["empty", "cut", "header", "body", "junk"])
def test_a_damaged_index_is_built_anew(corpus: Corpus, damage: str) -> None:
    text_shards(corpus, 1)
    index = Path(corpus.index("0.jsonl").shards[0].index)
    good = bytearray(index.read_bytes())
    bad = bytearray(good)
    bad[20] ^= 0xFF
    flipped = bytearray(good)
    flipped[-3] ^= 0xFF
    damaged = {"empty": b"", "cut": good[:-8], "header": bad, "body": flipped, "junk": b"junk" * 100}
    index.write_bytes(damaged[damage])
    assert texts(corpus.open("0.jsonl")) == [f"0-{j}" for j in range(5)]
    assert index.read_bytes() == good


def test_a_shard_or_index_that_changes_under_a_run_is_a_storage_error(corpus: Corpus) -> None:
    text_shards(corpus, 1)
    recipe = corpus.recipe("0.jsonl", "text")
    handle = build_indexes(recipe)[0]
    os.remove(handle.shards[0].index)
    with pytest.raises(StorageError, match="start again"):
        open_source(recipe, recipe.sources[0], handle).sample(0)
    corpus.jsonl("0.jsonl", [{"text": "longer than it was"}] * 9)
    with pytest.raises(StorageError, match=r"0\.jsonl has changed since the run started"):
        open_source(recipe, recipe.sources[0], handle).sample(0)


def test_a_shard_that_shrinks_after_it_was_opened_is_never_a_bad_sample(corpus: Corpus) -> None:
    text_shards(corpus, 1)
    source = corpus.open("0.jsonl")
    source.sample(0)
    os.truncate(corpus.root / "0.jsonl", 20)
    with pytest.raises(StorageError, match="ends too early"):
        source.sample(4)


def test_a_read_only_directory_gets_its_indexes_in_the_cache(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    text_shards(corpus)
    real = build.save_index

    def save(path: str, *rest) -> None:
        if path.startswith(str(corpus.root)):
            raise OSError(errno.EROFS, "Read-only file system", path)
        real(path, *rest)

    monkeypatch.setattr(build, "save_index", save)
    handle = corpus.index("*.jsonl")
    cache = str(corpus.root.parent / "cache" / "index")
    assert all(shard.index.startswith(cache) for shard in handle.shards)
    monkeypatch.setattr(build, "_index", lambda *_: pytest.fail("indexed again"))
    assert len(texts(corpus.open("*.jsonl"))) == 15


def test_nowhere_to_write(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    text_shards(corpus, 1)

    def save(path: str, *rest) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(build, "save_index", save)
    with pytest.raises(SourceError, match=r"0\.jsonl.*No space left.*ZEPHON_VL_CACHE"):
        corpus.index("0.jsonl")


_BUILDER = """
import sys
from zephon_vl.recipe import *
from zephon_vl.sources import build
from zephon_vl.sources.build import build_indexes
real = build._index
build._index = lambda job, storage: (sys.stdout.write(f"built {job.name}\\n"), real(job, storage))[1]
build_indexes(Recipe(lanes=1, global_batch_size=1, seq_len=64, tokenizer=TokenizerConfig(path="none"),
    base_dir=sys.argv[1], sources=(SourceConfig(name="data", path="*.jsonl", schema="text"),)))
"""


def test_processes_that_start_together_build_each_index_once(corpus: Corpus) -> None:
    text_shards(corpus, 4)
    command = [sys.executable, "-c", _BUILDER, str(corpus.root)]
    builders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    built = [line for builder in builders for line in builder.communicate()[0].splitlines()]
    assert [builder.returncode for builder in builders] == [0] * 4
    assert sorted(built) == [f"built {i}.jsonl" for i in range(4)]


def test_threads_build_each_index_once(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    text_shards(corpus, 4)
    real, built = build._index, []
    monkeypatch.setattr(build, "_index", lambda job, storage: (built.append(job.name), real(job, storage))[1])
    threads = [threading.Thread(target=corpus.index, args=("*.jsonl",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(built) == [f"{i}.jsonl" for i in range(4)]


def test_helper_processes_give_the_same_indexes(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_WORTH_PROCESSES", 0)
    monkeypatch.setattr(build, "_index", lambda *_: pytest.fail("indexed in the caller's process"))
    for i in range(5):
        corpus.tar(f"{i}.tar", [(f"{j}.{suffix}", JPEG) for j in range(i + 1) for suffix in ("jpg", "txt")])
    recipe = corpus.recipe("*.tar", "caption")
    seen: list[IndexProgress] = []
    handle = build_indexes(recipe, workers=2, progress=seen.append)[0]
    assert [shard.count for shard in handle.shards] == [1, 2, 3, 4, 5] and seen[-1].done == 5
    corpus.tar("2.tar", [("a.jpg", JPEG)])
    corpus.write("3.tar", b"junk" * 300)
    with pytest.raises(SourceError, match=r"3\.tar is truncated or no tar"):
        build_indexes(recipe, workers=2)


def test_remote_indexes_lie_in_the_cache(corpus: Corpus) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe("/index/a.jsonl", b'{"text": "one"}\n{"text": "two"}\n')
    fs.pipe("/index/b.jsonl", b'{"text": "three"}\n')
    source = corpus.open("memory://index/*.jsonl")
    assert texts(source) == ["one", "two", "three"]
    assert source.locate(2) == ("b.jsonl", "line 1")
    assert fs.ls("/index", detail=False) == ["/index/a.jsonl", "/index/b.jsonl"]
    fs.pipe("/index/b.jsonl", b'\n{"text": "new"}\n')
    assert texts(corpus.open("memory://index/*.jsonl")) == ["one", "two", "new"]


def test_a_source_without_samples_is_refused(corpus: Corpus) -> None:
    corpus.write("a.jsonl", b"\n \n")
    with pytest.raises(SourceError, match="hold no sample"):
        corpus.index("a.jsonl")


def test_an_unknown_part_in_fields_is_refused(corpus: Corpus) -> None:
    corpus.jsonl("a.jsonl", [{"text": "x"}])
    with pytest.raises(RecipeError, match=r"fields\.txet is set, but schema 'text' knows only text"):
        corpus.index("a.jsonl", fields={"txet": "body"})


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=3),
        st.tuples(st.sampled_from(["u1", "i8", "u4"]), st.lists(st.integers(0, 100), max_size=70)),
    ),
    st.integers(0, 2**60),
)
def test_arrays_come_back(tmp_path_factory, arrays, size) -> None:
    path = str(tmp_path_factory.mktemp("index") / "x.zvlindex")
    given_arrays = {name: np.array(values, dtype) for name, (dtype, values) in arrays.items()}
    save_index(path, "tar", Stat(size, "t"), ShardIndex(7, given_arrays, {"suffixes": ["é"]}))
    loaded = load_index(path, "tar", Stat(size, "t"), check=True)
    assert loaded.count == 7 and loaded.meta == {"suffixes": ["é"]} and list(loaded.arrays) == list(given_arrays)
    for name, array in given_arrays.items():
        assert loaded.arrays[name].dtype == array.dtype and np.array_equal(loaded.arrays[name], array)
    with pytest.raises(UnusableIndex, match="was made for"):
        load_index(path, "tar", Stat(size + 1, "t"), check=False)


def test_order_of_the_directory_does_not_matter(corpus: Corpus) -> None:
    contents = {f"{i}.tar": [(f"{i}.jpg", JPEG), (f"{i}.txt", b"t%d" % i)] for i in range(4)}
    for name in reversed(contents):
        corpus.tar(f"x/{name}", contents[name])
    for name in contents:
        corpus.tar(f"y/{name}", contents[name])
    x, y = corpus.open("x/*.tar", "caption"), corpus.open("y/*.tar", "caption")
    assert [outline(x, i) for i in range(4)] == [outline(y, i) for i in range(4)]
    assert x.fingerprint() == y.fingerprint()
