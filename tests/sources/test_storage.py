from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from shard_corpus import JPEG, Corpus, tar_bytes

from zephon_vl.contracts import File, TextPart
from zephon_vl.errors import BadSample, StorageError
from zephon_vl.sources import Storage, cache


class Flaky:
    """Makes every read of `memory://` fail `failures` times first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures = 0
        self._failed: Counter[tuple[str, int | None, int | None]] = Counter()
        real = MemoryFileSystem.cat_file

        def cat_file(fs: MemoryFileSystem, path: str, start: int | None = None, end: int | None = None) -> bytes:
            self._failed[path, start, end] += 1
            if self._failed[path, start, end] <= self.failures:
                raise ConnectionResetError("the connection was reset")
            return real(fs, path, start=start, end=end)

        monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)

    def pipe(self, path: str, data: bytes) -> None:
        fsspec.filesystem("memory").pipe(path, data)


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Flaky:
    return Flaky(monkeypatch)


def test_transient_failures_are_retried_with_growing_delays(flaky: Flaky) -> None:
    flaky.pipe("/flaky/a.bin", b"0123456789")
    flaky.failures = 3
    delays: list[float] = []
    assert Storage(sleep=delays.append).read("memory://flaky/a.bin", 2, 5) == b"23456"
    assert delays == [0.25, 0.5, 1.0]


def test_lasting_failures_name_the_shard(flaky: Flaky) -> None:
    flaky.pipe("/flaky/a.bin", b"0123456789")
    flaky.failures = 99
    with pytest.raises(StorageError, match=r"memory://flaky/a.bin .*tried 4 times.*was reset"):
        Storage(attempts=4, sleep=lambda _: None).read("memory://flaky/a.bin", 0, 5)


def test_a_flaky_source_reads_like_a_good_one(flaky: Flaky, corpus: Corpus) -> None:
    flaky.pipe("/flaky/0.tar", tar_bytes([("a.jpg", JPEG), ("a.txt", b"one"), ("b.jpg", JPEG), ("b.txt", b"two")]))
    source = corpus.open("memory://flaky/*.tar", "caption", storage=Storage(sleep=lambda _: None))
    flaky.failures = 2
    assert [source.sample(i).parts[1].text for i in (1, 0)] == ["two", "one"]  # type: ignore[union-attr]
    where = source.sample(1).images()[0].where
    assert where is not None and source.image_bytes(where, 10) == JPEG[:10]


def test_a_local_io_error_is_retried_on_a_new_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    real, failures = os.pread, [errno.EIO, errno.ESTALE]
    used: list[int] = []

    def pread(fd: int, size: int, offset: int) -> bytes:
        used.append(fd)
        if failures:
            raise OSError(failures.pop(), "storage is away")
        return real(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    assert Storage(sleep=lambda _: None).read(str(path), 3, 4) == b"3456"
    assert len(used) == 3


def test_short_reads_and_lost_files_are_storage_errors(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    storage = Storage(sleep=lambda _: pytest.fail("nothing to wait for"))
    with pytest.raises(StorageError, match=r"ends too early: 5 bytes were expected at 8, only 2 are there"):
        storage.read(str(path), 8, 5)
    with pytest.raises(StorageError, match="is gone"):
        storage.read(str(tmp_path / "b"), 0, 1)
    with pytest.raises(StorageError, match="is gone"):
        storage.stat("memory://no/such/file")
    fsspec.filesystem("memory").pipe("/short", b"0123")
    with pytest.raises(StorageError, match="ends too early"):
        storage.read("memory://short", 2, 5)


def test_descriptors_are_bounded_and_closed(tmp_path: Path) -> None:
    paths = [tmp_path / str(i) for i in range(10)]
    for path in paths:
        path.write_bytes(path.name.encode())
    before = len(os.listdir("/proc/self/fd"))
    storage = Storage(max_open=3)
    for _ in range(2):
        assert [storage.read(str(path), 0, 1) for path in paths] == [path.name.encode() for path in paths]
    assert len(os.listdir("/proc/self/fd")) == before + 3
    storage.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", ["no.jpg", "dir", "x" * 300, "a.jpg/b"])
def test_a_missing_image_file_is_a_bad_sample(corpus: Corpus, name: str) -> None:
    (corpus.root / "dir").mkdir()
    corpus.write("a.jpg", JPEG)
    corpus.jsonl("a.jsonl", [{"text": "x"}])
    source = corpus.open("a.jsonl")
    assert source.image_bytes(File("a.jpg")) == JPEG
    assert source.image_bytes(File("a.jpg"), 7) == JPEG[:7]
    with pytest.raises(BadSample, match="part is missing: there is no file"):
        source.image_bytes(File(name))


def test_an_image_that_may_not_be_read_is_a_storage_error(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus.jsonl("a.jsonl", [{"text": "x"}])
    source = corpus.open("a.jsonl")

    def refuse(path: str, limit: int | None) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr("zephon_vl.sources.storage._read_whole_local", refuse)
    with pytest.raises(StorageError, match="may not be read"):
        source.image_bytes(File("a.jpg"))


@pytest.mark.parametrize("suffix", ["tar", "jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_every_format_from_remote_storage(flaky: Flaky, corpus: Corpus, suffix: str) -> None:
    records = [{"text": f"{i} {'x' * i}"} for i in range(50)]
    if suffix == "tar":
        path = corpus.tar("a.tar", [(f"{i}.txt", record["text"].encode()) for i, record in enumerate(records)])
    else:
        write = corpus.parquet if suffix == "parquet" else corpus.jsonl
        path = write(f"a.{suffix}", records, 10)
    flaky.pipe(f"/remote/{path.name}", path.read_bytes())
    source = corpus.open(f"memory://remote/*.{suffix}", storage=Storage(attempts=3, sleep=lambda _: None))
    flaky.failures = 2
    assert [source.sample(i).parts for i in (49, 0, 25)] == [[TextPart(records[i]["text"])] for i in (49, 0, 25)]
    again = corpus.open(f"memory://remote/*.{suffix}", storage=Storage(attempts=3, sleep=lambda _: None))
    cache.decoded.clear()
    flaky.failures = 99
    with pytest.raises(StorageError, match=r"memory:///remote/a\."):
        again.sample(1)


def test_remote_images(flaky: Flaky, corpus: Corpus) -> None:
    flaky.pipe("/images/pics/a.jpg", JPEG)
    corpus.jsonl("a.jsonl", [{"image": "pics/a.jpg", "text": "x"}, {"image": "no.jpg", "text": "x"}])
    source = corpus.open("a.jsonl", "caption", image_root="memory://images")
    wheres = [source.sample(i).images()[0].where for i in range(2)]
    assert wheres == [File("pics/a.jpg"), File("no.jpg")]
    assert source.image_bytes(File("pics/a.jpg")) == JPEG and source.image_bytes(File("pics/a.jpg"), 9) == JPEG[:9]
    with pytest.raises(BadSample, match=r"there is no file memory://images/no\.jpg"):
        source.image_bytes(File("no.jpg"))
