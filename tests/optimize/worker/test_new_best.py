"""`on_new_best` is called between batches, and training continues."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest
import torch
from rich.console import Console

from sweepd.envs.crypto.data.bars import load_bars
from sweepd.optimize.objectives.market.experiment import CryptoExperiment
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.lifecycle import work
from sweepd.optimize.worker.worker import WorkerOptions
from tests.optimize.conftest import Sweepd
from tests.optimize.study_files import open_handle


@pytest.mark.slow
def test_on_new_best_is_called_once_per_new_best_trial(market: Path, sweepd: Sweepd) -> None:
    sweepd("train", "--n-trials", 3, "--seed", 1, "--pruner", "none").finish()
    handle = open_handle(market)
    experiment = CryptoExperiment(
        handle.spec, load_bars(market / "bars", "1h"), torch.device("cpu")
    )
    before, heard = handle.best_trial(), []

    def hear(told: StudyHandle) -> None:
        best = told.best_trial()
        assert best is not None
        heard.append(best.number)

    console = Console(file=io.StringIO())
    work(handle, Trainer(experiment), WorkerOptions(9), console, on_new_best=hear)
    assert before is not None
    values = [trial.value or 0.0 for trial in handle.trials()]
    assert heard
    assert before.number not in heard  # it existed before this worker started
    told = [values[number] for number in (before.number, *heard)]
    assert all(later > earlier for earlier, later in itertools.pairwise(told))
