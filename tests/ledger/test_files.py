"""Segments on disk: whole or not there, and what is said of those that are damaged, foreign or gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic_rows import SAMPLES, batch, digest_of, documents_of, recipe, write_steps, writer

from zephon_vl.errors import LedgerError, MissingExtra, StorageError
from zephon_vl.ledger import Ledger, LedgerDocument, format, merged
from zephon_vl.ledger import writer as writing
from zephon_vl.ledger.format import METADATA_KEY
from zephon_vl.order import SourceOrder


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.parquet"))


def test_rows_say_what_was_delivered_and_where_it_lies(tmp_path: Path) -> None:
    write_steps(tmp_path, range(3))
    step = Ledger(tmp_path).step(1)
    row = step.rows[5]
    assert (row.step, row.slot, row.microbatch, row.global_batch_size) == (1, 5, 0, 8)
    assert (row.digest, row.valid_tokens, row.used_tokens) == (digest_of(1, 5), 5, 20)
    names = [source.name for source in recipe().sources]
    blocks = np.array([0, SAMPLES // 2, SAMPLES])
    for ref, document in zip(documents_of(1, 5), row.documents, strict=True):
        order = SourceOrder(0, names[ref.source], blocks, "global", 8)
        epoch, index = (int(values[0]) for values in order.indices(np.array([ref.take])))
        shard = f"{names[ref.source]}-{index * 2 // SAMPLES}.jsonl"
        line = f"line {index + 1}"
        assert document == LedgerDocument(names[ref.source], shard, line, epoch, index, ref.take, ref.start, ref.stop)


def test_nothing_is_on_disk_before_a_flush_and_all_of_it_after(tmp_path: Path) -> None:
    made = writer(tmp_path)
    made.begin(0)
    made.append(batch(0, 0, [0, 1]), 8)
    assert segments(tmp_path) == []
    made.flush()
    made.flush()
    assert [list(step.rows) for step in merged(tmp_path)] == [[0, 1]]
    made.append(batch(0, 1, [2, -1]), 8)
    made.close()
    made.close()
    assert [list(step.rows) for step in merged(tmp_path)] == [[0, 1, 2]]
    assert len(segments(tmp_path)) == 2


@pytest.mark.parametrize("limit", ["_MOST_ROWS", "_MOST_DOCUMENTS", "_MOST_STEPS"])
def test_what_waits_to_be_written_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(writing, limit, 2)
    write_steps(tmp_path, range(12))
    sizes = [pq.read_metadata(path).num_rows for path in segments(tmp_path)]
    assert sum(sizes) == 12 * 8
    assert max(sizes) <= 3 * 8
    assert [step.whole for step in merged(tmp_path)] == [True] * 12


def test_a_reader_holds_few_rows_of_a_long_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_ROW_GROUP", 10)
    write_steps(tmp_path, range(10))
    assert pq.read_metadata(segments(tmp_path)[0]).num_row_groups == 8
    assert [step.whole for step in merged(tmp_path)] == [True] * 10


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from synthetic_rows import batch, writer
from pathlib import Path
made = writer(Path({path!r}))
made.begin(0)
for step in range(3):
    if step == 2:  # in the middle of writing the last segment
        os.{call} = lambda *of, **options: os.kill(os.getpid(), signal.SIGKILL)
    made.append(batch(step, 0, range(8)), 8)
    made.flush()
"""


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_kill_in_the_middle_of_a_write_loses_what_was_not_flushed_and_no_more(tmp_path: Path, call: str) -> None:
    code = KILLED.format(tests=str(Path(__file__).parent), path=str(tmp_path), call=call)
    done = subprocess.run([sys.executable, "-c", code], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    left = [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert len(left) == 1
    assert [step.number for step in merged(tmp_path)] == [0, 1]
    write_steps(tmp_path, range(2, 4))
    assert [(step.number, step.whole) for step in merged(tmp_path)] == [(n, True) for n in range(4)]
    assert left[0].exists()


def test_a_full_disk_stops_the_run_and_what_was_not_written_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = writer(tmp_path)
    made.begin(0)
    made.append(batch(0, 0, range(8)), 8)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(writing, "write_atomically", full)
        for _ in range(2):
            with pytest.raises(StorageError, match=f"the ledger {tmp_path} cannot be written: No space left on device"):
                made.flush()
    made.append(batch(1, 0, range(8)), 8)
    made.close()
    assert [step.whole for step in merged(tmp_path)] == [True, True]


def test_a_session_goes_on_in_a_new_one_after_a_restore(tmp_path: Path) -> None:
    made = writer(tmp_path)
    made.begin(0)
    for step in range(4):
        made.append(batch(step, 0, range(8), "before"), 8)
    made.begin(2)
    made.append(batch(2, 0, range(8), "after"), 8)
    made.close()
    found = [step.rows[0].digest for step in merged(tmp_path)]
    assert found == [digest_of(0, 0, "before"), digest_of(1, 0, "before"), digest_of(2, 0, "after")]


def test_appending_before_beginning_is_an_error(tmp_path: Path) -> None:
    made = writer(tmp_path)
    made.append(batch(0, 0, range(8)), 8)
    with pytest.raises(RuntimeError, match="begin must be called before append"):
        made.flush()


def test_names_that_are_no_text_are_escaped() -> None:
    assert format.text_of("caf\udce9.tar") == "caf\\udce9.tar"
    assert format.text_of("plain é") == "plain é"


# --- places and files that cannot be used --------------------------------------------------------------------------


def test_a_place_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"the ledger .*/file cannot be made: File exists"):
        writer(tmp_path / "file")
    with pytest.raises(StorageError, match="the ledger is 's3://bucket/ledger', but must be a directory"):
        writer("s3://bucket/ledger")  # type: ignore[arg-type]


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    for use, purpose in ((lambda: writer(tmp_path), "writing"), (lambda: Ledger(tmp_path), "reading")):
        with pytest.raises(MissingExtra) as raised:
            use()
        assert str(raised.value) == f'{purpose} a ledger needs the package "pyarrow": pip install "zephon-vl[parquet]"'


def test_no_torch_and_no_pyarrow_until_a_ledger_is_used() -> None:
    code = "import sys, zephon_vl.ledger; assert not {'torch', 'pyarrow', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def rewrite(path: Path, metadata: dict[bytes, bytes], table: pa.Table | None = None) -> None:
    """Write a segment again with other metadata."""
    table = pq.read_table(path) if table is None else table
    with pq.ParquetWriter(path, table.schema) as file:
        file.write_table(table)
        file.add_key_value_metadata(metadata)


def damage(path: Path, how: str) -> None:
    header = pq.read_metadata(path).metadata[METADATA_KEY] if path.exists() else b""
    if how == "no ledger":
        shutil.rmtree(path.parent)
    elif how == "empty directory":
        path.unlink()
    elif how == "cut off":
        os.truncate(path, 200)
    elif how == "foreign file":
        rewrite(path, {b"other": b"{}"})
    elif how == "other columns":
        rewrite(path, {METADATA_KEY: header}, pa.table({"x": [1]}))
    elif how == "newer":
        rewrite(path, {METADATA_KEY: header.replace(b'"version":1', b'"version":7')})
    elif how == "broken header":
        rewrite(path, {METADATA_KEY: header.replace(b'"step":0', b'"step":"x"')})
    elif how == "flipped bytes":
        offset = pq.read_metadata(path).row_group(0).column(4).data_page_offset
        content = bytearray(path.read_bytes())
        content[offset + 300] ^= 255  # behind the header of the page
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("no ledger", "there is no ledger at {dir}: No such file or directory"),
        ("empty directory", "there is no ledger at {dir}: the directory holds no .parquet file"),
        ("cut off", "{file} is no Parquet file, or a damaged one"),
        ("foreign file", "{file} is no segment of a ledger of this library"),
        ("other columns", "{file} is no segment of a ledger of this library"),
        ("newer", "{file} has ledger format 7, this library reads up to 1"),
        ("broken header", "{file} has a damaged header: Expected `int`, got `str`"),
        ("flipped bytes", "{file} is damaged: "),
    ],
)
def test_each_fault_has_its_own_sentence(tmp_path: Path, how: str, sentence: str) -> None:
    write_steps(tmp_path, range(2))
    (path,) = segments(tmp_path)
    damage(path, how)
    with pytest.raises(LedgerError) as raised:
        list(merged(tmp_path))
    assert sentence.format(dir=tmp_path, file=path) in str(raised.value)


def test_a_lost_segment_is_noticed(tmp_path: Path) -> None:
    made = writer(tmp_path)
    made.begin(0)
    for step in range(3):
        made.append(batch(step, 0, range(8)), 8)
        made.flush()
    made.close()
    first, second, third = segments(tmp_path)
    assert Ledger(tmp_path).missing == []
    second.unlink()
    assert Ledger(tmp_path).missing == [f"{third} is segment 2 of its session, but 1 of those before it are missing"]
    assert first.exists()


def test_a_step_that_is_not_there_is_named_with_the_range_that_is(tmp_path: Path) -> None:
    write_steps(tmp_path, range(3, 9))
    write_steps(tmp_path, range(5, 7))
    with pytest.raises(LedgerError, match=f"the ledger {tmp_path} holds no step 7: it goes from step 3 to step 6"):
        Ledger(tmp_path).step(7)
