"""Real nights as a user starts them: a study that trains, and a kill in its middle."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sweepd.deploy.gates import named_trial
from sweepd.deploy.promotion.studies import find_study
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.optimize.study.record.database import open_to_read, storage_url, study_exists
from tests.deploy.builders import reverting_market
from tests.optimize.study_files import wait_for

SLOT, BEFORE, NIGHT = "crypto-1h", "20200101", "20200102"
CONFIG = """
slot = "crypto-1h"
[bars]
source = "folder"
dir = "bars"
tickers = ["TEST0/USDT", "TEST1/USDT"]
timeframe = "1h"
[study]
n-trials = 3
hours = 1
search-space = "demo"
budget = 2000
rungs = 2
groups = 3
cv = "single"
n-envs = 8
threads = 1
trials-per-batch = 1
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "sweepd", *words]


def loop(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("loop", "night.toml", *words),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def trials(folder: Path, night: str) -> list[tuple[Any, ...]]:
    study = find_study(f"{SLOT}-{night}", storage_url(None, folder / "runs"), folder / "runs")
    found = [(trial.number, trial.state, trial.params, trial.values) for trial in study.trials()]
    return found


def shown(folder: Path, night: str) -> dict[str, Any]:
    done = loop(folder, "--night", night, "--report", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def steps(content: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The rows without times and places."""
    places = ("free", "used", "deadline", "bytes", "folder", "kinds")
    return [
        (row["step"], row["outcome"], {k: v for k, v in row["facts"].items() if k not in places})
        for row in content["steps"]
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_night_is_killed_while_it_trains_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "slot"
    folder.mkdir()
    write_bars(reverting_market(1, assets=2, bars=1500), folder / "bars")
    (folder / "night.toml").write_text(CONFIG)

    # The first night: the slot has no champion yet.
    done = loop(folder, "--night", BEFORE)
    assert done.returncode == 0, done.stderr
    assert shown(folder, BEFORE)["outcome"] == "done"
    registry, storage = Registry(folder / "deployments"), storage_url(None, folder / "runs")
    champion = named_trial(f"{SLOT}-{BEFORE}#2", storage, folder / "runs")
    registry.promote(SLOT, champion, expected=None, reason="test", data_dir=str(folder / "bars"))
    registry.database.engine.dispose()

    # The next one in a copy, undisturbed.
    alone = tmp_path / "alone"
    shutil.copytree(folder, alone)
    assert loop(alone, "--night", NIGHT).returncode == 0
    wanted = trials(alone, NIGHT)
    assert len(wanted) == 3
    assert wanted[0][2] == trials(folder, BEFORE)[2][2]  # trial 0 has the champion's parameters

    process = subprocess.Popen(
        command("loop", "night.toml", "--night", NIGHT),
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def training() -> bool:
        return study_exists(open_to_read(storage), f"{SLOT}-{NIGHT}") and any(
            state.name == "RUNNING" for _, state, *_ in trials(folder, NIGHT)
        )

    wait_for(training, 120)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    # Its worker goes on; the next start ends it first, and then continues.
    done = loop(folder, "--night", NIGHT)
    assert done.returncode == 0, done.stderr
    assert trials(folder, NIGHT) == wanted
    assert steps(shown(folder, NIGHT)) == steps(shown(alone, NIGHT))
    again = loop(folder, "--night", NIGHT)
    assert again.returncode == 0
    assert "study: done" not in again.stdout  # it is over
