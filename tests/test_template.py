"""Workers are forked from a template: what it loads is loaded once, and how they end is still seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from test_determinism import digest_of_step, run
from tiny_corpus import build_tiny_corpus

from zephon_vl import Loader, ZephonError
from zephon_vl.errors import WorkerError

_STEPS = 3


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def reference(recipe: Path) -> list[str]:
    return run(recipe, _STEPS, workers=0)


@pytest.fixture
def with_pipeline(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes a recipe whose pipeline has this body of `preload`."""

    def write(body: str) -> Path:
        (tmp_path / "own_pipeline.py").write_text(
            "import os\n"
            "from zephon_vl.errors import RecipeError\n"
            "from zephon_vl.pipelines.vision_language import VisionLanguagePipeline\n"
            "class Own(VisionLanguagePipeline):\n"
            "    def preload(self, recipe, vocabulary):\n"
            f"        {body}\n"
            "pipeline = Own()\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        path = recipe.with_name(f"{tmp_path.name}.toml")
        path.write_text('pipeline = "own_pipeline:pipeline"\n' + recipe.read_text())
        return path

    return write


def template_of(loader: Loader) -> psutil.Process:
    """The one child of the coordinator that is no worker."""
    children = psutil.Process(loader.coordinator_pid).children()
    (template,) = [child for child in children if child.pid not in loader.worker_pids]
    return template


def test_what_workers_share_is_loaded_once(with_pipeline: Callable[[str], Path], tmp_path: Path) -> None:
    record = tmp_path / "pids"
    recipe = with_pipeline(f"open({str(record)!r}, 'a').write(f'{{os.getpid()}} ')")
    with Loader(recipe, workers=3) as loader:
        next(loader)
        kill_a_worker(loader)
        assert record.read_text().split() == [str(template_of(loader).pid)]
        assert {psutil.Process(pid).ppid() for pid in loader.worker_pids} == {loader.coordinator_pid}


def test_a_killed_template_does_not_matter(recipe: Path, reference: list[str]) -> None:
    with Loader(recipe, workers=2, prefetch=1) as loader:
        digests = [digest_of_step([loader])]
        template_of(loader).kill()
        assert digests + [digest_of_step([loader]) for _ in range(_STEPS - 1)] == reference


def test_restarts_are_counted_on_after_the_template_was_killed(recipe: Path) -> None:
    with Loader(recipe, workers=2, prefetch=1) as loader:
        next(loader)
        kill_a_worker(loader)
        template_of(loader).kill()
        first = loader.coordinator_pid
        while loader.coordinator_pid == first:
            next(loader)
        kill_a_worker(loader)
        assert loader.stats.worker_restarts == 2


def kill_a_worker(loader: Loader) -> None:
    """Read on until another one has taken its place."""
    before, workers = loader.stats.worker_restarts, len(loader.worker_pids)
    os.kill(loader.worker_pids[0], signal.SIGKILL)
    while loader.stats.worker_restarts == before or len(loader.worker_pids) < workers:
        next(loader)


def test_a_trainer_that_ignores_its_children(recipe: Path, reference: list[str]) -> None:
    """The disposition is inherited, and would hide how a worker ended."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with Loader(recipe, workers=2) as loader:
            digests = [digest_of_step([loader])]
            os.kill(loader.worker_pids[0], signal.SIGKILL)
            assert digests + [digest_of_step([loader]) for _ in range(_STEPS - 1)] == reference
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise RecipeError('buy a bigger vocabulary')", "^buy a bigger vocabulary$"),
        ("raise MemoryError('too large')", "the process that forks the workers failed:(.|\n)*MemoryError: too large"),
        ("raise SystemExit(3)", "the process that forks the workers failed:(.|\n)*SystemExit: 3"),
        ("os._exit(3)", "or the one that it forks workers from, died 4 times in a row"),
        (
            "import threading; threading.Thread(target=threading.Event().wait, name='mine', daemon=True).start()",
            r"^pipeline 'own_pipeline:pipeline' started threads .* \(mine\)",
        ),
    ],
)
def test_what_fails_in_the_template_is_told(with_pipeline: Callable[[str], Path], body: str, told: str) -> None:
    with Loader(with_pipeline(body), workers=1) as loader, pytest.raises(ZephonError, match=told):
        next(loader)


@pytest.fixture
def with_operator(recipe: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Writes a recipe with an operator whose `measure` first does this."""

    def write(body: str) -> Path:
        (tmp_path / "own.py").write_text(
            "import os, sys, time\n"
            "from zephon_vl import Operator\n"
            "class Own(Operator):\n"
            "    calls = 0\n"
            "    def measure(self, sample, context):\n"
            "        self.calls += 1\n"
            f"        {body}\n"
            "        return sample\n"
        )
        path = recipe.with_name(f"{tmp_path.name}.toml")
        path.write_text(f'{recipe.read_text()}\n[[operators]]\nuse = "{tmp_path}/own.py:Own"\n')
        return path

    return write


def test_an_operator_that_exits_is_told(with_operator: Callable[[str], Path]) -> None:
    with (
        Loader(with_operator("sys.exit(5)"), workers=1) as loader,
        pytest.raises(WorkerError, match=r"a worker failed on a task:(.|\n)*sys.exit\(5\)(.|\n)*SystemExit: 5"),
    ):
        next(loader)


def test_a_worker_is_replaced_though_its_helper_lives_and_helpers_leave_no_zombies(
    with_operator: Callable[[str], Path], tmp_path: Path
) -> None:
    """A forked helper holds the worker's channel open, and its end comes to the coordinator, which adopts it."""
    body = (
        f"if self.calls == 1 and not os.path.exists({str(tmp_path / 'helper')!r}) and not (pid := os.fork()): "
        f"open({str(tmp_path / 'helper')!r}, 'w').write(f'{{os.getppid()}} {{os.getpid()}}'); "
        "time.sleep(60); os._exit(0)"
    )
    with Loader(with_operator(body), workers=1) as loader:
        next(loader)
        worker, helper = (int(pid) for pid in (tmp_path / "helper").read_text().split())
        try:
            assert loader.worker_pids == [worker]
            kill_a_worker(loader)
            assert psutil.Process(helper).ppid() == loader.coordinator_pid
        finally:
            os.kill(helper, signal.SIGKILL)
        while psutil.pid_exists(helper):
            next(loader)


def test_what_the_template_has_printed_is_not_printed_again_by_workers(
    with_pipeline: Callable[[str], Path],
    with_operator: Callable[[str], Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with_operator("print('', end='', flush=True)")
    path = with_pipeline("print('preloaded')")
    with path.open("a") as file:
        file.write(f'\n[[operators]]\nuse = "{tmp_path}/own.py:Own"\n')
    with Loader(path, workers=2) as loader:
        next(loader)
    assert capfd.readouterr().out.count("preloaded") == 1


_MANY = """
import sys, time
from zephon_vl import Loader
sys.path.insert(0, sys.argv[2])
loader = Loader(sys.argv[1], workers=300)
loader.start()
print(loader.coordinator_pid, flush=True)
time.sleep(60)
"""


def test_many_workers_of_a_template_that_is_not_ready_end_with_the_trainer(
    with_pipeline: Callable[[str], Path], tmp_path: Path
) -> None:
    """More of them than the template's channel holds: the coordinator must not wait for it."""
    recipe = with_pipeline("import time; time.sleep(60)")
    command = [sys.executable, "-c", _MANY, str(recipe), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        coordinator = psutil.Process(int(trainer.stdout.readline()))
        while coordinator.num_fds() < 280:
            assert trainer.poll() is None
        left = [coordinator, *coordinator.children()]
        trainer.kill()
    assert not psutil.wait_procs(left, timeout=30)[1]


_DEADLY = """
import os, signal
from zephon_vl import Operator

class Deadly(Operator):
    def __init__(self, deaths, times, end):
        self.deaths, self.times, self.end = deaths, times, end

    def measure(self, sample, context):
        if (context.source_index, context.epoch, context.index) == (0, 0, 7):
            with open(self.deaths, "r+") as file:
                if len(file.read()) < self.times:
                    file.write("x")
                    file.flush()
                    os.kill(os.getpid(), self.end)
        return sample
"""


# Of several samples in one task it is not known at the first death which one it was.
@pytest.mark.parametrize(
    ("end", "times", "bad"),
    [
        (signal.SIGSEGV, 1 + 2, 1),
        (signal.SIGSEGV, 1 + 1, 0),
        (signal.SIGKILL, 1 + 5, 1),
        (signal.SIGKILL, 1 + 4, 0),
    ],
)
def test_a_sample_is_given_up_for_crashes_sooner_than_for_kills(
    recipe: Path, reference: list[str], tmp_path: Path, end: signal.Signals, times: int, bad: int
) -> None:
    (tmp_path / "deadly.py").write_text(_DEADLY)
    deaths = tmp_path / "deaths"
    deaths.touch()
    path = recipe.with_name(f"{tmp_path.name}.toml")
    path.write_text(
        f'{recipe.read_text()}\n[[operators]]\nuse = "{tmp_path}/deadly.py:Deadly"\n'
        f'deaths = "{deaths}"\ntimes = {times}\nend = {int(end)}\n'
    )
    with Loader(path, workers=2) as loader:
        digests = [digest_of_step([loader]) for _ in range(_STEPS)]
        assert loader.stats.worker_restarts == len(deaths.read_text()) == times
        assert sum(loader.stats.bad.values()) == bad
        assert (digests == reference) == (not bad)


def test_workers_do_not_share_the_state_of_global_generators(
    with_pipeline: Callable[[str], Path], tmp_path: Path
) -> None:
    """They decide nothing that a recipe promises, but a user's code may draw from them."""
    recipe = with_pipeline("import numpy.random, random; random.seed(1); numpy.random.seed(1)")
    (tmp_path / "drawing.py").write_text(
        "import os, random\n"
        "import numpy as np\n"
        "from zephon_vl import Operator\n"
        "class Draw(Operator):\n"
        "    def __init__(self, directory):\n"
        "        self.path = f'{directory}/drawn-{os.getpid()}'\n"
        "        with open(self.path, 'w') as file:\n"
        "            file.write(f'{random.random()} {np.random.random()}')\n"
        "    def measure(self, sample, context):\n"
        "        return sample\n"
    )
    with recipe.open("a") as file:
        file.write(f'\n[[operators]]\nuse = "{tmp_path}/drawing.py:Draw"\ndirectory = "{tmp_path}"\n')
    with Loader(recipe, workers=3) as loader:
        drawn: list[list[str]] = []
        while len(drawn) < 3:
            next(loader)
            drawn = [found for path in tmp_path.glob("drawn-*") if len(found := path.read_text().split()) == 2]
    assert len({value for values in drawn for value in values}) == 6
