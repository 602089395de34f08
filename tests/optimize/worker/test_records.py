"""Files written in the background: order, errors, and recovery after a kill."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import optuna
import pytest
import torch
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import TrialState

from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.support.terminal import Terminal
from sweepd.optimize.objectives.market.experiment import CryptoExperiment
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.sampling.samplers import make_sampler
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker import records
from sweepd.optimize.worker.records import Background
from sweepd.optimize.worker.stopping import StopRequest
from sweepd.optimize.worker.telemetry import Telemetry
from sweepd.optimize.worker.timing import Phases
from sweepd.optimize.worker.worker import Worker, WorkerOptions
from tests.optimize.conftest import Sweepd
from tests.optimize.study_files import make_handle
from tests.optimize.worker.test_batch import make_spec


def test_background_jobs_run_in_order() -> None:
    background, done, gate = Background("test"), list[int](), threading.Event()
    background.submit(lambda: (gate.wait(10), done.append(0))[1])  # type: ignore[func-returns-value]
    for number in range(1, 4):
        background.submit(lambda n=number: done.append(n))  # type: ignore[misc]
    assert done == []
    gate.set()
    background.wait()
    assert done == [0, 1, 2, 3]
    background.close()


def test_the_error_of_a_job_is_raised_once_and_does_not_stop_other_jobs() -> None:
    background, done = Background("test"), list[int]()

    def full() -> None:
        raise OSError("disk full")

    background.submit(full)
    background.submit(lambda: done.append(1))
    with pytest.raises(OSError, match="disk full"):
        background.wait()
    assert done == [1]
    background.wait()
    background.submit(full)
    with pytest.raises(OSError, match="disk full"):
        background.close()


def test_a_nested_phase_interrupts_the_outer_one() -> None:
    phases = Phases()
    began = time.perf_counter()
    with phases("outer"):
        time.sleep(0.02)
        with phases("inner"):
            time.sleep(0.05)
    total = time.perf_counter() - began + 1.0
    assert phases.seconds["inner"] >= 0.05
    assert 0.02 <= phases.seconds["outer"] < 0.05
    assert [name for name, _, _ in phases.shares(total)] == ["other", "inner", "outer"]
    assert sum(share for _, _, share in phases.shares(total)) == pytest.approx(1.0)


def test_samplers_that_share_the_space_propose_what_optunas_own_would() -> None:
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage, study_name="s", direction="maximize")
    shared = IntersectionSearchSpace(include_pruned=True)
    for number in range(25):
        proposals = []
        for sampler in (
            make_sampler("tpe", number, {"kind": "a"}, shared),
            make_sampler("tpe", number, {"kind": "a"}),
        ):
            study = optuna.load_study(study_name="s", storage=storage, sampler=sampler)
            trial = study.ask()
            values = {
                "x": trial.suggest_float("x", 0, 1),
                "kind": trial.suggest_categorical("kind", ["a", "b"]),
            }
            if values["x"] > 0.3:
                values["y"] = trial.suggest_float("y", -1, 1)
            proposals.append(values)
            if len(proposals) == 1:
                study.tell(trial, state=TrialState.FAIL)  # one of each pair counts
            else:
                study.tell(trial, values["x"])
        assert proposals[0] == proposals[1]


def _handle(folder: Path) -> StudyHandle:
    return StudyHandle(open_storage(storage_url(None, folder / "runs"), create=False), "s")


def test_a_checkpoint_that_cannot_be_written_requeues_the_trials(
    market: Path, sweepd: Sweepd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "write_checkpoint", full)
    with pytest.raises(AssertionError, match="No space left"):
        sweepd("train", "--n-trials", 2, "--pruner", "none").finish()
    assert {t.state for t in _handle(market).trials()} == {TrialState.WAITING}
    monkeypatch.undo()
    sweepd("train", "--n-trials", 2, "--pruner", "none").finish()
    assert {t.state for t in _handle(market).trials()} == {TrialState.COMPLETE}


def test_a_trial_that_is_lost_after_an_interruption_is_noticed(bars: Bars, tmp_path: Path) -> None:
    handle, cpu = make_handle(tmp_path, make_spec(bars)), torch.device("cpu")
    worker = Worker(
        handle,
        Trainer(CryptoExperiment(handle.spec, bars, cpu)),
        WorkerOptions(total=1),
        Telemetry(Terminal(), "s", cpu),
        "w",
        StopRequest(print),
    )
    worker.records._lost(7)
    worker._after_interruption([])
    assert not worker.heartbeat.lost
    worker.records._lost(8)
    assert worker.heartbeat.lost == {8}
