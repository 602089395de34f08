"""A market, a space and a study small enough to train in seconds, and the same as separate processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from envs.crypto.bars import Bars, write_bars
from envs.crypto.demo_market import make_planted_market

optuna.logging.set_verbosity(optuna.logging.WARNING)
ROOT = Path(__file__).resolve().parents[2]

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
# sweepd's search commands alone: what the entry point does with errors, without the packages that optimize must not import.
DRIVER = """
import sys
import torch
import typer
from envs.errors import InputError, RunError
from optimize.commands import search_commands
torch.set_num_threads(1)
app = typer.Typer(pretty_exceptions_enable=False)
search_commands(app)
try:
    app()
except InputError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
except RunError as error:
    print(error, file=sys.stderr)
    sys.exit(1)
"""


@pytest.fixture(scope="session")
def bars() -> Bars:
    return make_planted_market(3, assets=2, bars=3_300)


@pytest.fixture
def market(tmp_path: Path, bars: Bars) -> Path:
    """A folder with the tiny market, and the tiny space beside it."""
    write_bars(bars, tmp_path / "bars")
    (tmp_path / "tiny.toml").write_text(SPACE)
    return tmp_path


Sweepd = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def sweepd(market: Path) -> Sweepd:
    """Start a command in the market's folder: sweepd("train", "--n-trials", 3). Popen, output and errors as text."""

    def start(*arguments: object, small: bool = True) -> subprocess.Popen[str]:
        words = [str(a) for a in arguments]
        if small and words[0] == "train":
            words = ["train", "--data-dir", "bars", "--search-space", "tiny.toml", "--cv", "kfold", "--groups", "3", "--holdout", "0.1",
                     "--budget", "192", "--rungs", "3", "--horizon", "16", "--n-envs", "2", "--slots", "4", "--trials-per-batch", "3",
                     "--threads", "1", "--gpu", "cpu", "--study-name", "s", *words[1:]]
        return subprocess.Popen([sys.executable, "-c", DRIVER, *words], cwd=market, text=True, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    return start
