"""`zephon-vl ledger`: what it says of runs of real loaders, equal and not."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest
from tiny_corpus import build_tiny_corpus

from zephon_vl import Loader
from zephon_vl.cli.main import main
from zephon_vl.errors import StorageError
from zephon_vl.ledger import Ledger, merged
from zephon_vl.recipe import load_recipe
from zephon_vl.verify import Ranks, digests


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_corpus(tmp_path_factory.mktemp("corpus"))


def run(recipe: Path, path: Path, ranks: int = 1, rounds: int = 24) -> Path:
    """Some rounds of all ranks of a job, in this process; the ledger."""
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(Loader(recipe, dp_rank=rank, dp_size=ranks, workers=0, ledger=path))
            for rank in range(ranks)
        ]
        for _ in range(rounds):
            for loader in loaders:
                next(loader)
    return path


@pytest.fixture(scope="module")
def reference(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of one rank."""
    return run(recipe, tmp_path_factory.mktemp("reference"))


def ledger(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Status, output and errors of a command."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["ledger", *map(str, words)])
    assert isinstance(end.value.code, int)
    said = capsys.readouterr()
    return end.value.code, said.out, said.err


# --- what is written -----------------------------------------------------------------------------------------------


def test_its_digests_are_those_of_the_run(recipe: Path, reference: Path) -> None:
    assert [(step.number, step.digest) for step in merged(reference)] == list(digests(recipe, range(3)))


JOBS = """
import os, signal, sys
from pathlib import Path
import msgspec
from zephon_vl import Loader
recipe, ledger, state = sys.argv[1:]

def rank(number, rounds, resumed, kill):
    loader = Loader(recipe, dp_rank=number, dp_size=4, workers=0, ledger=ledger)
    if resumed:
        saved = [msgspec.msgpack.decode(path.read_bytes()) for path in Path(state).iterdir()]
        entries = {key: entry for one in saved for key, entry in one["lanes"].items()}
        loader.load_state_dict({"identity": saved[0]["identity"], "lanes": entries})
    for i in range(rounds):
        if i == 1 and not resumed:
            Path(state, str(number)).write_bytes(msgspec.msgpack.encode(loader.state_dict()))
        next(loader)
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    loader.close()

# Two rounds are a step: saved inside step 0, rank 2 is killed inside step 1, and all restart.
for rounds, resumed, killed in (3, False, 2), (5, True, None):
    pids = []
    for number in range(4):
        pids.append(os.fork())
        if pids[-1] == 0:
            status = 1
            try:
                rank(number, rounds, resumed, number == killed)
                status = 0
            finally:
                os._exit(status)
    print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids], flush=True)
"""


def test_a_rank_killed_inside_a_step_and_a_restart_of_all_leave_one_story(
    recipe: Path, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, state = tmp_path / "ledger", tmp_path / "state"
    state.mkdir()
    words = [sys.executable, "-c", JOBS, str(recipe), str(path), str(state)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    assert done.stdout.splitlines() == [f"[0, 0, {-signal.SIGKILL}, 0]", "[0, 0, 0, 0]"]
    status, out, _ = ledger(capsys, "verify", reference, path)
    assert status == 0, out
    assert "all 3 whole steps that both hold are equal" in out
    assert re.search(r"redone in B +6 rows after a restart, all with the same digest", out)
    assert [(step.number, step.whole, step.contradictions) for step in merged(path)] == [
        (n, True, []) for n in range(3)
    ]


def test_steps_left_out_after_a_restart_are_no_part_of_the_story(recipe: Path, tmp_path: Path) -> None:
    plain = load_recipe(recipe)
    skipping = msgspec.structs.replace(plain, skip_steps=((1, 3),))
    with Loader(plain, workers=0, microbatch_size=8, ledger=tmp_path) as loader:
        next(loader)
        state = loader.state_dict()
        for _ in range(3):
            next(loader)
    for _ in range(2):
        with Loader(skipping, workers=0, microbatch_size=8, ledger=tmp_path) as loader:
            loader.load_state_dict(state)
            next(loader)
            next(loader)
    assert [(step.number, step.digest) for step in merged(tmp_path)] == list(digests(skipping, range(5)))


def test_a_restore_that_the_ledger_cannot_record_changes_nothing(recipe: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Loader(recipe, workers=0, microbatch_size=8, ledger=path) as loader:
        start = loader.state_dict()
        next(loader)
        path.rmdir()
        path.write_text("in the way")
        with pytest.raises(StorageError, match="cannot be written"):
            loader.load_state_dict(start)
        assert loader.next_step == 1
        path.unlink()
        next(loader)
    assert [(step.number, step.digest) for step in merged(path)] == list(digests(recipe, range(2)))


def test_a_loader_that_is_not_closed_leaves_its_ledger_whole(recipe: Path, tmp_path: Path) -> None:
    """Also where a fork of its process ends before it."""
    code = f"""
import os, sys
from zephon_vl import Loader
loader = Loader({str(recipe)!r}, workers=0, ledger={str(tmp_path / "run")!r})
next(loader)
if os.fork() == 0:
    sys.exit(0)
os.wait()
for _ in range(7):
    next(loader)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)
    assert [step.whole for step in merged(tmp_path / "run")] == [True]
    assert len(list((tmp_path / "run").iterdir())) == 1


# --- verify --------------------------------------------------------------------------------------------------------


def test_equal_runs(recipe: Path, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(recipe, tmp_path, ranks=2, rounds=10)
    status, out, _ = ledger(capsys, "verify", reference, tmp_path)
    assert status == 0
    assert out == (
        "steps compared  2\nequal           2\ndifferent       0\nonly in A       0\nonly in B       0\n"
        "incomplete in B 1 (2)\nall 2 whole steps that both hold are equal\n"
    )


def test_the_first_difference_is_named(
    recipe: Path, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = recipe.with_name("other.toml")
    other.write_text(recipe.read_text().replace("seed = 7", "seed = 8"))
    run(other, tmp_path, rounds=8)
    status, out, _ = ledger(capsys, "verify", reference, tmp_path)
    assert status == 1
    a, b = (Ledger(path).step(0).rows[0] for path in (reference, tmp_path))
    assert "different       1 (0)\nonly in A       2 (1 to 2)\n" in out
    assert f"first difference: step 0, slot 0\n  A  SHA-256 {a.digest.hex()}\n  B  SHA-256 {b.digest.hex()}\n" in out
    assert "the documents differ from number 0 on" in out
    for name, row in (("A", a), ("B", b)):
        d = row.documents[0]
        assert f"  {name}  {d.source}  {d.shard}  {d.key}  epoch {d.epoch}, tokens {d.start}:{d.stop}\n" in out
    assert "of the runs are not the same by their identities" in out


def test_other_bytes_of_the_same_documents_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = build_tiny_corpus(tmp_path / "corpus")
    recipe.write_text("max_bad_share = 1.0\n" + recipe.read_text())
    before = run(recipe, tmp_path / "before", rounds=8)
    for shard in sorted((tmp_path / "corpus" / "captions").glob("*.tar")):
        content = bytearray(shard.read_bytes())
        with tarfile.open(shard) as tar:
            for member in tar:
                if member.name.endswith(".jpg"):
                    content[member.offset_data + member.size - 100] ^= 1  # a pixel, or a grey image
        shard.write_bytes(content)
    after = run(recipe, tmp_path / "after", rounds=8)
    status, out, _ = ledger(capsys, "verify", before, after)
    assert status == 1
    assert "the documents are the same: their bytes, the tokenizer, an operator or the image code differ" in out
    assert "of the runs are the same by their identities" in out
    status, out, _ = ledger(capsys, "show", before, "--step", 0, "--out", tmp_path / "page.html")
    assert status == 1
    assert out.splitlines()[1].startswith("DIFFERENT from the ledger: ")
    assert "DIFFERENT from the ledger: " in (tmp_path / "page.html").read_text()


def test_runs_without_a_step_in_common_prove_nothing(
    recipe: Path, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(recipe, tmp_path, rounds=3)
    status, _, error = ledger(capsys, "verify", reference, tmp_path)
    assert status == 2
    assert error == (
        "zephon-vl: the ledgers have no whole step in common, so nothing is proved: whole steps in "
        f"{reference} are 3 (0 to 2), in {tmp_path} 0\n"
    )


def test_one_ledger_by_itself(reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ledger(capsys, "verify", reference) == (0, "whole steps     3 (0 to 2)\nthe ledger is sound\n", "")
    for path in reference.iterdir():
        shutil.copy(path, tmp_path)
    made = Ledger(reference).sessions[0][0]
    assert made.header.dp_size == 1
    (tmp_path / made.path.name).unlink()
    status, _, error = ledger(capsys, "verify", tmp_path)
    assert (status, error) == (
        2,
        f"zephon-vl: there is no ledger at {tmp_path}: the directory holds no .parquet file\n",
    )


def test_rows_that_are_lost_inside_a_run_are_a_fault(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Ranks(recipe, 2, workers=0, ledger=tmp_path)) as job:
        for _ in range(3):
            job.step()
            job.save(tmp_path / "checkpoint")
    lost = [segments[1].path for segments in Ledger(tmp_path).sessions if segments[0].header.dp_rank == 1]
    lost[0].unlink()
    status, out, _ = ledger(capsys, "verify", tmp_path)
    assert status == 1
    assert "incomplete      1 (1)\n" in out
    assert "is segment 2 of its session, but 1 of those before it are missing\n" in out
    assert "fault           rows are missing inside the run, not only at its end: of steps 1 (1)\n" in out
    assert out.endswith("the ledger is NOT sound\n")


# --- why and show --------------------------------------------------------------------------------------------------


def test_why_lists_the_samples_of_a_step(recipe: Path, reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = ledger(capsys, "why", reference, "--step", 1)
    title, head, *lines = out.splitlines()
    ((_, digest),) = digests(recipe, range(1, 2))
    assert (status, title) == (0, f"step 1  {digest}")
    assert head.split("\t") == ["slot", "source", "shard", "key", "epoch", "tokens"]
    found: dict[int, list[tuple[str, ...]]] = {}
    for line in lines:
        slot, *cells = line.split("\t")
        found.setdefault(int(slot), []).append(tuple(cells))
    with Loader(recipe, start_step=1, workers=0) as loader:
        sources = loader.open_sources()
        for _ in range(8):
            batch = next(loader)
            spans = [(sources[ref.source].name, f"{ref.start}:{ref.stop}") for ref in batch.documents[0]]
            assert [(cells[0], cells[-1]) for cells in found[batch.slots[0]]] == spans
    web = next(cells for row in found.values() for cells in row if cells[0] == "web")
    assert json.loads((recipe.parent / "web" / web[1]).read_text().splitlines()[int(web[2].split()[1]) - 1])["text"]


def test_why_of_one_slot(reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ledger(capsys, "why", reference, "--step", 1, "--slot", 3)
    _, slot, _, *lines = out.splitlines()
    assert slot == f"slot 3  {Ledger(reference).step(1).rows[3].digest.hex()}"
    assert {line.split("\t")[0] for line in lines} == {"3"}
    status, _, error = ledger(capsys, "why", reference, "--step", 1, "--slot", 8)
    assert status == 2
    assert "has no slot 8: it holds 8 of the 8 slots from 0 to 7" in error


def test_show_makes_the_page_of_inspect(
    recipe: Path, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, inspected = tmp_path / "shown.html", tmp_path / "inspected.html"
    status, out, _ = ledger(capsys, "show", reference, "--step", 2, "--out", shown)
    ((_, digest),) = digests(recipe, range(2, 3))
    assert status == 0
    assert out.splitlines()[1:] == [f"{digest}, as in the ledger"]
    with pytest.raises(SystemExit):
        main(["inspect", str(recipe), "--step", "2", "--out", str(inspected), "--workers", "0"])
    pages = [re.sub("<dl>.*?</dl>", "", path.read_text(), flags=re.DOTALL) for path in (shown, inspected)]
    assert pages[0] == pages[1]
    assert f"<dd>{digest}, as in the ledger</dd>" in shown.read_text()


def test_show_of_a_phase_and_of_some_sequences(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phases = recipe.with_name("phases.toml")
    changed = "[[phases]]\nfrom_step = 1\nseq_len = 320\nglobal_batch_size = 12\nweights = { web = 9.0 }\n"
    phases.write_text(f"{recipe.read_text()}\n{changed}")
    run(phases, tmp_path / "run", rounds=20)
    status, out, _ = ledger(capsys, "show", tmp_path / "run", "--step", 1, "--out", tmp_path / "p.html")
    assert status == 0, out
    options = ("--max-sequences", 2, "--recipe", phases, "--out", tmp_path / "p.html")
    status, out, _ = ledger(capsys, "show", tmp_path / "run", "--step", 1, *options)
    assert (status, out.splitlines()[1:]) == (0, ["the sequences shown, 2 of 12, are as in the ledger"])


@pytest.mark.parametrize(
    ("change", "status", "sentence"),
    [
        ("gone", 2, "matches no file"),
        ("fewer", 2, "has only 45 now: the data has changed"),
        ("bad", 2, "cannot be used any more: "),
        ("source", 2, "the recipe has no source 'web'. Give the recipe of the run"),
    ],
)
def test_show_says_what_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, status: int, sentence: str
) -> None:
    recipe = build_tiny_corpus(tmp_path / "corpus")
    path = run(recipe, tmp_path / "run", rounds=24)
    web = recipe.parent / "web"
    if change == "gone":
        shutil.rmtree(web)
    elif change == "fewer":
        (web / "001.jsonl").unlink()
    elif change == "bad":
        for shard in web.glob("*.jsonl"):
            shard.write_text(re.sub("^.", "!", shard.read_text(), flags=re.MULTILINE))
    else:
        recipe.write_text(recipe.read_text().replace('name = "web"', 'name = "texts"'))
    words = ("show", path, "--step", 2, "--recipe", recipe, "--out", tmp_path / "page.html")
    found, _, error = ledger(capsys, *words)
    assert found == status
    assert sentence in error
    assert error.count("\n") == 1
    assert load_recipe(recipe).lanes == 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("why", "{run}", "--step", "7"), "holds no step 7: it goes from step 0 to step 2"),
        (("why", "{run}", "--step", "-1"), "--step is -1, but must be at least 0"),
        (("why", "/nowhere", "--step", "1"), "there is no ledger at /nowhere: No such file or directory"),
        (("show", "{run}", "--step", "1", "--out", "/"), "--out is /, but / is a directory; name a file"),
        (("verify", "{run}", "/nowhere"), "there is no ledger at /nowhere: No such file or directory"),
        (("verify",), "A"),
        ((), "see zephon-vl ledger --help"),
    ],
)
def test_bad_input_ends_in_one_sentence(
    reference: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    status, _, error = ledger(capsys, *(word.format(run=reference) for word in words))
    assert status == 2
    assert sentence in error
    assert error.count("\n") == 1
