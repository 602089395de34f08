"""How often a worker writes: transactions of the study's database, and files made durable."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import torch
from optuna.trial import TrialState

from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.support.terminal import Terminal
from sweepd.optimize.objectives.market.experiment import CryptoExperiment
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.record.specs import CryptoSpec
from sweepd.optimize.study.space.dimension import Dimension
from sweepd.optimize.study.space.search_space import SearchSpace
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.stopping import StopRequest
from sweepd.optimize.worker.telemetry import Telemetry
from sweepd.optimize.worker.worker import Worker, WorkerOptions
from tests.optimize.study_files import make_handle
from tests.optimize.worker.test_batch import make_spec

RUNGS = 3
SHAPE = {"net_width": 8, "net_depth": 1, "minibatch": 16, "epochs": 1}
RATE = Dimension("learning_rate", low=1e-4, high=1e-3, log=True)
TABLES = {
    "shape": {name: Dimension(name, value=value) for name, value in SHAPE.items()},
    "ppo": {"learning_rate": RATE},
    "env": {},
}
# Of all tables of trials; heartbeats, which depend on the clock, write none of them.
CHANGE = re.compile(r"(INSERT INTO|UPDATE|DELETE FROM) trial")


def spec(bars: Bars, rungs: int) -> CryptoSpec:
    return make_spec(bars, rungs=rungs, space=SearchSpace("small", 1, TABLES).to_dict())


def transactions(engine: sa.Engine) -> Counter[str]:
    """Count the transactions that change trials, by "worker" (its main thread) or "records"."""
    counts, changed = Counter[str](), set[str]()

    def name() -> str:
        main = threading.current_thread() is threading.main_thread()
        return "worker" if main else threading.current_thread().name.partition("_")[0]

    def executed(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if CHANGE.match(statement):
            changed.add(name())

    def committed(_: Any) -> None:
        counts[name()] += name() in changed
        changed.discard(name())

    sa.event.listen(engine, "before_cursor_execute", executed)
    sa.event.listen(engine, "commit", committed)
    return counts


def train(handle: StudyHandle, bars: Bars, total: int) -> None:
    cpu = torch.device("cpu")
    trainer = Trainer(CryptoExperiment(handle.spec, bars, cpu))
    telemetry = Telemetry(Terminal(), "s", cpu)
    Worker(handle, trainer, WorkerOptions(total), telemetry, "w", StopRequest(print)).run()
    assert [trial.state for trial in handle.trials()] == [TrialState.COMPLETE] * total


@pytest.mark.parametrize("trials", [1, 3])
def test_a_batch_is_claimed_drawn_reported_kept_and_ended_in_one_transaction_each(
    bars: Bars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: int
) -> None:
    handle = make_handle(tmp_path, spec(bars, RUNGS))
    counts, synced, fsync = transactions(handle.storage.engine), Counter[bool](), os.fsync

    def counted(file: int) -> None:
        synced[Path(os.readlink(f"/proc/self/fd/{file}")).is_dir()] += 1
        fsync(file)

    if Path("/proc/self/fd").exists():
        monkeypatch.setattr(os, "fsync", counted)
    train(handle, bars, trials)
    claimed, drawn, reports, ends, checkpoints = 1, 1, RUNGS, 1, RUNGS - 1
    assert +counts == {"worker": claimed + drawn + reports + ends, "records": checkpoints}
    # Weights, back-test and metrics of a trial.
    files = trials * (checkpoints + 3)
    if synced:
        assert synced == {False: files, True: files}


def test_between_rungs_at_which_no_trial_ends_the_study_is_read_rarely(
    bars: Bars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a pruner, a rung reads no trial at all until what is shown is old."""
    handle = make_handle(tmp_path, spec(bars, RUNGS))
    monkeypatch.setattr("sweepd.optimize.worker.worker.REFRESH_SECONDS", 1000.0)
    reads, read = [], type(handle.storage)._get_trials

    def reading(*arguments: Any, **named: Any) -> Any:
        reads.append(named)
        return read(*arguments, **named)

    monkeypatch.setattr(type(handle.storage), "_get_trials", reading)
    train(handle, bars, 1)
    few = len(reads)
    reads.clear()
    again = make_handle(tmp_path / "again", spec(bars, 1))
    train(again, bars, 1)
    assert len(reads) == few
