"""`sweepd status`: live, dead and hung workers, and the exit code."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sweepd.optimize.cli.status import show, study_status
from tests.optimize.conftest import Sweepd
from tests.optimize.study_files import open_handle, training_begun, wait_for

ENDLESS = ("--budget", 200_000, "--pruner", "none")
STUDY_KEYS = {
    "study",
    "healthy",
    "unhealthy",
    "run_dir",
    "about",
    "paused",
    "trials",
    "total",
    "done",
    "rungs",
    "steps_per_second",
    "trials_per_hour",
    "eta_seconds",
    "best",
    "leading",
    "gate",
    "workers",
    "storage_retries",
    "failures",
}
WORKER_KEYS = {
    "worker",
    "host",
    "pid",
    "status",
    "state",
    "beat_age",
    "trials",
    "rung",
    "device",
    "device_workers",
    "num_envs",
    "total",
    "steps_per_trial",
    "steps_per_second",
    "pace",
    "work_since_rung",
    "trials_per_hour",
    "finished",
    "resident_bytes",
    "recycled",
    "gpu",
    "storage_retries",
}


def _json(text: str) -> dict[str, Any]:
    [found] = json.loads(text)
    return dict(found)


def _age_beats(folder: Path, seconds: float) -> None:
    with (
        closing(sqlite3.connect(folder / "runs" / "sweepd.db", timeout=2)) as connection,
        connection,
    ):
        connection.execute("UPDATE sweepd_workers SET beat = beat - ?", (seconds,))


@pytest.mark.usefixtures("frequent_beats")
def test_keys_are_those_documented(market: Path, sweepd: Sweepd) -> None:
    documented = (
        Path(__file__).resolve().parents[3] / "docs" / "reference" / "status.md"
    ).read_text()
    worker = sweepd("train", "--n-trials", 3, *ENDLESS)
    wait_for(lambda: training_begun(market))
    wait_for(lambda: _json(sweepd("status", "--json").finish())["steps_per_second"] > 0, 60)
    found = _json(sweepd("status", "--json", "--study-name", "s").finish())
    assert set(found) == STUDY_KEYS
    [seen] = found["workers"]
    assert set(seen) >= WORKER_KEYS
    assert set(seen) <= WORKER_KEYS | {"memory_kills", "boot", "control_group"}
    assert [key for key in sorted(STUDY_KEYS | WORKER_KEYS) if f"`{key}`" not in documented] == []
    assert found["healthy"] is True
    assert (seen["status"], seen["state"], seen["trials"], seen["pid"]) == (
        "alive",
        "training",
        [0, 1, 2],
        worker.process.pid,
    )
    assert (found["total"], found["done"], found["trials"]["RUNNING"]) == (3, 0, 3)
    assert seen["resident_bytes"] > 2**20
    text = sweepd("status").finish()
    for piece in (
        "0 of 3 done: 3 running",
        "training · trials 0, 1, 2, rung 1 of 3",
        "steps/s · ",
        "ETA ",
    ):
        assert piece in text
    worker.signal(signal.SIGTERM)
    worker.finish()
    # Stopped with trials left: no worker is alive, so the study is unhealthy.
    text = sweepd("status").finish(1)
    assert "no worker is alive, but 3 trials are left" in text
    assert "worker     none" in text


def test_killed_workers_are_dead_and_silent_ones_stale(market: Path, sweepd: Sweepd) -> None:
    worker = sweepd("train", "--n-trials", 2, *ENDLESS)
    wait_for(lambda: training_begun(market))

    def suspend() -> bool:
        worker.signal(signal.SIGSTOP)
        try:
            _age_beats(market, 200.0)
        except sqlite3.OperationalError:  # suspended in the middle of a transaction
            worker.signal(signal.SIGCONT)
            return False
        return True

    wait_for(suspend)
    out = sweepd("status").finish(1)
    assert "stale, was training" in out
    assert "is running, but its last heartbeat is 20" in out
    worker.signal(signal.SIGKILL)
    worker.finish(-signal.SIGKILL)
    found = _json(sweepd("status", "--json").finish(1))
    assert [w["status"] for w in found["workers"]] == ["dead"]
    assert found["unhealthy"] == ["no worker is alive, but 2 trials are left"]
    assert found["steps_per_second"] == 0
    # A paused study is healthy, even after a worker died.
    sweepd("pause", "s", "--wait", 0).finish()
    assert "paused" in sweepd("status").finish(0)
    assert _json(sweepd("status", "--json").finish(0))["paused"]["by"]


def test_failures_have_reasons(market: Path, sweepd: Sweepd) -> None:
    sweepd("train", "--n-trials", 1, "--trials-per-batch", 1).finish()
    assert "1 of 1 done" in sweepd("status").finish(0)
    handle = open_handle(market)
    handle.study.enqueue_trial({"net_width": 3})
    handle.ask_batch(1, "w", total=2)
    [failure] = study_status(handle)["failures"]
    assert failure["trial"] == 1
    assert "'3' not in (8, 16)" in failure["reason"]
    assert f"trial 1: {failure['reason']}"[:40] in sweepd("status").finish(0)
    assert show(study_status(handle))


@pytest.mark.parametrize("words", [("--study-name", "none"), ("--storage", "none.db")])
def test_missing_studies_are_wrong_input(sweepd: Sweepd, words: tuple[str, ...]) -> None:
    sweepd("train", "--n-trials", 1, "--trials-per-batch", 1).finish()
    assert "none" in sweepd("status", *words).finish(2)
