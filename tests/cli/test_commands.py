"""The command line as a person uses it: what it prints, how it ends."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tiny_corpus import build_tiny_corpus

from zephon_vl import Loader, __version__
from zephon_vl.cli.main import main
from zephon_vl.cli.options import bytes_text, parse_bytes, parse_steps
from zephon_vl.image_code import identity as image_identity
from zephon_vl.verify import Ranks, digests


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_corpus(tmp_path_factory.mktemp("corpus"))


def run(*words: object) -> int:
    """Status of a command run in this process."""
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    assert isinstance(end.value.code, int)
    return end.value.code


def flat(text: str) -> str:
    """A text without its line breaks, as these depend on the terminal."""
    return " ".join(text.split())


def digest_lines(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    capsys.readouterr()
    assert run("digest", *words) == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture(scope="module")
def lines(recipe: Path) -> list[str]:
    """What four steps give on one rank, in this process."""
    return [f"{step} {digest}" for step, digest in digests(recipe, range(4))]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("ranks", "rows"), [(1, 2), (2, 1), (3, 2)])
def test_digest_lines_depend_on_the_recipe_alone(
    recipe: Path, lines: list[str], capsys: pytest.CaptureFixture[str], ranks: int, rows: int, workers: int
) -> None:
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3"]
    assert all(len(bytes.fromhex(line.split()[1])) == 32 for line in lines)
    options = ("--ranks", ranks, "--workers", workers, "--microbatch-size", rows)
    assert digest_lines(capsys, recipe, "--steps", "3", *options) == lines[:3]


def test_digest_starts_at_the_first_step_asked_for(
    recipe: Path, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert digest_lines(capsys, recipe, "--steps", "1:3", "--ranks", 2) == lines[1:3]


def test_digest_in_another_process_with_another_hash_seed(recipe: Path, lines: list[str]) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "77", "LC_ALL": "C", "TZ": "Asia/Tokyo"}
    command = [sys.executable, "-m", "zephon_vl.cli", "digest", str(recipe), "--steps", "2", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", timeout=120, check=True)
    assert done.stdout.splitlines() == lines[:2]


def test_digest_saves_and_resumes_on_other_ranks(
    recipe: Path, lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    saving = ("--save-at", 2, "--checkpoint", state)
    assert digest_lines(capsys, recipe, "--steps", "3", "--ranks", 4, *saving) == lines[:3]
    assert [path.name for path in state.iterdir()] == ["loader.msgpack"]
    assert digest_lines(capsys, recipe, "--steps", "4", "--ranks", 3, "--resume", state) == lines[2:]
    assert digest_lines(capsys, recipe, "--steps", "3:4", "--ranks", 2, "--resume", state) == lines[3:]


@pytest.mark.parametrize(
    ("steps", "options", "sentence"),
    [
        ("0:2", (), "the checkpoint goes on with step 2, but the last one asked for is 1"),
        ("0:9", ("--save-at", 1, "--checkpoint", "unused"), "nothing can be saved before step 1"),
    ],
)
def test_a_checkpoint_beyond_what_is_asked_for_is_refused(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: str, options: tuple, sentence: str
) -> None:
    digest_lines(capsys, recipe, "--steps", "2", "--save-at", 2, "--checkpoint", tmp_path)
    assert run("digest", recipe, "--steps", steps, "--resume", tmp_path, *options) == 2
    assert sentence in capsys.readouterr().err


def test_steps_that_are_all_left_out_are_named_as_such(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    skipping = recipe.with_name("skipping.toml")
    skipping.write_text(f"skip_steps = [[1, 5]]\n{recipe.read_text()}")
    assert run("digest", skipping, "--steps", "1:3") == 2
    said = "the recipe's skip_steps leaves the others out, it goes on with step 5, but the last one asked for is 2"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x93\x01\x02\x03", b"\x81\xa5lanes\x80"])
def test_a_damaged_checkpoint_is_refused(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "loader.msgpack").write_bytes(content)
    assert run("digest", recipe, "--resume", tmp_path) == 2
    assert "is damaged or not a checkpoint" in capsys.readouterr().err


def test_data_that_ends_is_said(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once = recipe.with_name("once.toml")
    once.write_text(f"repeat = false\n{recipe.read_text()}")
    whole = [f"{step} {digest}" for step, digest in digests_until_the_end(once)]
    assert run("digest", once, "--steps", "1000", "--ranks", 3) == 2
    said = capsys.readouterr()
    assert said.out.splitlines() == whole
    assert f"the data ends before step {len(whole)}, since the recipe has repeat = false" in said.err
    assert run("run", once, "--steps", 1000, "--workers", 0) == 0
    assert f"the data ended after {len(whole)} of 1000 steps" in flat(capsys.readouterr().out)


def digests_until_the_end(recipe: Path) -> Iterator[tuple[int, str]]:
    with closing(Ranks(recipe, 1, workers=0)) as job:
        while done := job.step():
            yield done


def test_a_save_inside_a_step_keeps_what_was_delivered(recipe: Path, lines: list[str], tmp_path: Path) -> None:
    with closing(Ranks(recipe, 4, workers=0)) as job:
        job.step()
        job.round()
        job.save(tmp_path)
    assert [f"{step} {digest}" for step, digest in digests(recipe, range(3), ranks=3, resume=tmp_path)] == lines[1:3]


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
    assert run("explain", recipe, "--ranks", 3, "--workers", 3) == 0
    text = flat(capsys.readouterr().out)
    for expected in (
        "captions",
        "web",
        "75.0%",
        "8 sequences of 256 tokens (2,048 tokens) from 4 lanes, 2 of each lane",
        "3 of at most 4; each owns 1 or 2 lanes and delivers 4 microbatches of 1 per step",
        "4 of 12 rows are empty, on ranks 0, 1",
        "DecodeImage > ResizeImage > Patchify",
        f"{image_identity()['library']} {image_identity()['version']}",
        "fingerprint",
        "3 workers and one coordinator",
    ):
        assert expected in text
    with Loader(recipe, dp_size=3) as loader:
        assert f"{bytes_text(loader.buffer_bytes)} in all" in text


def test_explain_advises_blocks_for_compressed_sources(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(recipe.parent, tmp_path, dirs_exist_ok=True)
    for shard in (tmp_path / "web").glob("*.jsonl"):
        shard.with_name(f"{shard.name}.gz").write_bytes(gzip.compress(shard.read_bytes()))
    packed = tmp_path / "recipe.toml"
    packed.write_text(packed.read_text().replace("web/*.jsonl", "web/*.jsonl.gz"))
    assert run("explain", packed) == 0
    text = flat(capsys.readouterr().out)
    assert "source 'web' is read in compressed blocks" in text
    assert "source 'captions' is read" not in text
    packed.write_text(packed.read_text() + 'order = "blocks"\n')
    assert run("explain", packed) == 0
    assert "compressed blocks" not in capsys.readouterr().out


def test_index_and_run_end_with_tables(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("index", recipe) == 0
    assert "60" in capsys.readouterr().out
    assert run("run", recipe, "--steps", 2, "--workers", 0) == 0
    text = capsys.readouterr().out
    assert "2 steps" in text
    assert "no bad samples" in text


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
        (("explain", "{recipe}", "--microbatch-size", "0"), "microbatch_size is 0, but must be from 1 to 1024"),
        (("explain", "{recipe}", "--workers", "-1"), "--workers is -1, but must be at least 0"),
        (("index", "{recipe}", "--workers", "0"), "--workers is 0, but must be at least 1"),
        (("run", "{recipe}", "--steps", "0"), "--steps is 0, but must be at least 1"),
        (("run", "{recipe}", "--rank", "1"), "dp_rank is 1, but must be in 0..0"),
        (("digest", "{recipe}", "--ranks", "0"), "ranks is 0, but must be at least 1"),
        (("digest", "{recipe}", "--ledger", "s3://bucket/a"), "the ledger is 's3://bucket/a', but must be a directory"),
        (("inspect", "{recipe}", "--step", f"{10**30}"), f"start_step is {10**30}, but must be an integer from 0 to"),
        (("digest", "{recipe}", "--steps", "3", "--save-at", "4", "--checkpoint", "x"), "--save-at is 4, outside of"),
        (("digest", "{recipe}", "--save-at", "1", "--checkpoint", "/dev/null/x"), "/dev/null/x: Not a directory"),
        (("run",), "Missing from zephon-vl run: RECIPE"),
        (("run", "{recipe}", "--stepz", "3"), "Unrecognized options: --stepz, 3; see zephon-vl run --help"),
        (("run", "{recipe}", "--steps", "x"), "Error parsing --steps"),
        (("walk",), "Unrecognized options: walk; see zephon-vl --help"),
    ],
)
def test_bad_input_ends_in_one_sentence(
    recipe: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    assert run(*(word.format(recipe=recipe) for word in words)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("zephon-vl: ")
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_a_bad_recipe_names_field_value_and_what_is_allowed(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(recipe.read_text().replace("lanes = 4", "lanes = 3"))
    assert run("explain", bad) == 2
    assert "global_batch_size is 8, but must be a multiple of lanes (3)" in capsys.readouterr().err
    for words in (("explain", bad, "--debug"), ("--debug", "explain", bad)):
        assert run(*words) == 2
        assert "Traceback" in capsys.readouterr().err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"zephon-vl {__version__}\n"
    for words in ((), ("--help",)):
        assert run(*words) == 0
        assert "{index,explain,run,digest,inspect,ledger}" in capsys.readouterr().out


def test_help_explain_and_index_load_no_torch(recipe: Path) -> None:
    code = (
        "import sys\n"
        "from zephon_vl.cli.main import main\n"
        f"for words in (['--help'], ['index', {str(recipe)!r}], ['explain', {str(recipe)!r}]):\n"
        "    try:\n"
        "        main(words)\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=True)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Children of this process take SIGINT, also where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_is_one_sentence_and_leaves_no_process(recipe: Path) -> None:
    command = [
        sys.executable,
        "-u",
        "-m",
        "zephon_vl.cli",
        "digest",
        str(recipe),
        "--steps",
        "100000",
        "--workers",
        "1",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0) as job:
        assert job.stdout is not None
        job.stdout.readline()
        os.killpg(job.pid, signal.SIGINT)  # as a terminal does: the workers get it too
        _, error = job.communicate(timeout=60)
    assert job.returncode == 130
    assert error == "zephon-vl: interrupted\n"
    with pytest.raises(ProcessLookupError):
        os.killpg(job.pid, 0)


def test_a_reader_that_goes_away_is_no_fault(recipe: Path) -> None:
    command = [sys.executable, "-m", "zephon_vl.cli", "digest", str(recipe), "--steps", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stderr is not None
        job.stdout.readline()
        job.stdout.close()
        assert job.stderr.read() == ""
    assert job.returncode == 141


def test_values_of_options() -> None:
    assert parse_steps("5") == range(5)
    assert parse_steps("2:9") == range(2, 9)
    assert [parse_bytes(text) for text in ("4GB", "1.5 MiB", "512", "2k", None)] == [
        4 * 10**9,
        3 * 2**19,
        512,
        2000,
        None,
    ]
