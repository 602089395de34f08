"""A function is called between batches after a new best trial, and training continues."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest
import torch
from rich.console import Console

from envs.crypto.data.bars import load_bars
from optimize.experiments.crypto import CryptoExperiment
from optimize.study.study import StudyHandle, best_trial
from optimize.worker.lifecycle import work
from optimize.worker.worker import WorkerOptions
from tests.optimize.conftest import Sweepd
from tests.optimize.study_files import open_handle


@pytest.mark.slow
def test_a_new_best_trial_is_told_once_between_batches(market: Path, sweepd: Sweepd) -> None:
    sweepd("train", "--n-trials", 3, "--pruner", "none").finish()
    handle = open_handle(market)
    experiment = CryptoExperiment(
        handle.spec, load_bars(market / "bars", "1h"), torch.device("cpu")
    )
    before, heard = best_trial(handle), []

    def hear(told: StudyHandle) -> None:
        best = best_trial(told)
        assert best is not None
        heard.append(best.number)

    work(handle, experiment, WorkerOptions(9), Console(file=io.StringIO()), on_new_best=hear)
    assert before is not None
    values = [trial.value or 0.0 for trial in handle.trials()]
    assert heard
    assert before.number not in heard  # that one was there before this worker began
    told = [values[number] for number in (before.number, *heard)]
    assert all(later > earlier for earlier, later in itertools.pairwise(told))
