"""A market, a search space and the flags of a study that trains in seconds."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import alembic.command
import matplotlib.backends.backend_agg
import matplotlib.figure
import numpy as np
import optuna
import pytest
import torch
import torch.utils.tensorboard
import typer
from numpy.typing import NDArray

from sweepd.commands import build_app
from sweepd.envs.crypto.data.bars import Bars, write_bars
from sweepd.envs.crypto.data.demo_market import make_planted_market
from sweepd.envs.crypto.features import Recipe, register_recipe
from sweepd.envs.support.errors import InputError, RunError
from sweepd.optimize.cli import doctor, pause, profile, run, status, train
from sweepd.optimize.cli.hooks import Hooks
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.recovery.heartbeat import Heartbeat
from sweepd.optimize.study.sampling import race

# Modules that the commands import late. Importing them here saves time in each forked process.
PRELOADED = (
    alembic.command,
    matplotlib.backends.backend_agg,
    matplotlib.figure,
    torch.utils.tensorboard,
    race,
    train,
    profile,
    run,
    status,
    pause,
    doctor,
)
optuna.logging.set_verbosity(optuna.logging.WARNING)


def _last_return(bars: Bars) -> NDArray[np.float64]:
    change = np.zeros_like(bars.close)
    change[1:] = 100.0 * np.log(bars.close[1:] / bars.close[:-1])
    return change


# A short memory means short purges, so that folds fit into a few hundred bars.
RECIPE = register_recipe(Recipe("tiny-test", 1, 8, ("last_return",), (), _last_return))

SPACE = """
name = "tiny"
version = 1
[shape]
net_width = { choices = [8, 16] }
net_depth = { value = 1 }
minibatch = { choices = [16, 32] }
epochs = { value = 2 }
[ppo]
learning_rate = { low = 1e-4, high = 2e-3, log = true }
one_minus_gamma = { low = 0.02, high = 0.08 }
target_kl = { low = 0.005, high = 0.05, log = true, off = 0.0 }
lr_schedule = { choices = ["constant", "linear"] }
[env]
action_scale = { low = 0.1, high = 0.3 }
time_decay_floor = { low = 0.2, high = 1.0 }
lookback = { low = 1, high = 2 }
"""
TRAIN = (
    "--data-dir",
    "bars",
    "--recipe",
    "tiny-test",
    "--search-space",
    "tiny.toml",
    "--cv",
    "kfold",
    "--groups",
    "3",
    "--holdout",
    "0.1",
    "--budget",
    "192",
    "--rungs",
    "3",
    "--horizon",
    "16",
    "--n-envs",
    "2",
    "--slots",
    "4",
    "--trials-per-batch",
    "3",
    "--threads",
    "1",
    "--gpu",
    "cpu",
    "--study-name",
    "s",
)
# Flags with which a trial's parameters and end do not depend on the other trials.
INDEPENDENT = ("--pruner", "none", "--sampler", "random")


def search_app() -> typer.Typer:
    """The commands without the functions of the packages that optimize must not import."""
    return build_app(Hooks())


def run_command(words: list[str], folder: Path, output: Path) -> None:
    """Run a command as the entry point does, in a forked process."""
    os.chdir(folder)
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    torch.set_num_threads(1)
    code = 0
    try:
        search_app()(words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    except (InputError, RunError) as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)


class Running:
    """A command in a forked process, which starts faster than a new interpreter."""

    def __init__(self, words: list[str], folder: Path, output: Path) -> None:
        self.output = output
        output.touch()
        self.process = multiprocessing.get_context("fork").Process(
            target=run_command, args=(words, folder, output)
        )
        self.process.start()

    def signal(self, signum: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signum)

    @property
    def ended(self) -> bool:
        return not self.process.is_alive()

    def finish(self, code: int = 0, seconds: float = 120.0) -> str:
        """Wait for the end, check the exit code, and return everything that was printed."""
        self.process.join(seconds)
        text = self.output.read_text() if self.output.exists() else ""
        assert self.process.exitcode == code, f"exit code {self.process.exitcode}\n{text}"
        return text


Sweepd = Callable[..., Running]


def run_tiny_study(folder: Path) -> None:
    """Run a study of one trial of the tiny market in this process, in a folder."""
    write_bars(make_planted_market(3, assets=2, bars=700), folder / "bars")
    (folder / "tiny.toml").write_text(SPACE)
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        search_app()(["train", *TRAIN, "--n-trials", "1"], standalone_mode=False)


@pytest.fixture(autouse=True, scope="session")
def studies_run_before(warmed_up: None) -> None:
    """Most tests of this folder fork processes that run a study."""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, on each of the two engines."""
    if request.param == "sqlite":
        return storage_url(str(tmp_path / "s.db"), tmp_path)
    return str(request.getfixturevalue("postgresql_database"))


@pytest.fixture
def storage(url: str) -> StudyStorage:
    return open_storage(url)


@pytest.fixture(scope="session")
def bars() -> Bars:
    return make_planted_market(3, assets=2, bars=700)


@pytest.fixture
def market(tmp_path: Path, bars: Bars) -> Path:
    """A folder with the tiny market and the tiny search space."""
    write_bars(bars, tmp_path / "bars")
    (tmp_path / "tiny.toml").write_text(SPACE)
    return tmp_path


@pytest.fixture
def frequent_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers report their state five times per second."""
    monkeypatch.setattr(
        "sweepd.optimize.worker.worker.Heartbeat",
        lambda storage, name, _, *rest: Heartbeat(storage, name, 0.2, *rest),
    )


@pytest.fixture
def sweepd(market: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweepd]:
    """Start a command in the market's folder, for example sweepd("train", "--n-trials", 3).

    The flags of a tiny study are inserted after `train`.
    """
    started: list[Running] = []
    outputs = tmp_path_factory.mktemp("output")

    def start(command: str, *arguments: object) -> Running:
        words = [command, *(TRAIN if command == "train" else ()), *map(str, arguments)]
        started.append(Running(words, market, outputs / f"{len(started)}.txt"))
        return started[-1]

    yield start
    for running in started:
        running.process.kill()
        running.process.join()
