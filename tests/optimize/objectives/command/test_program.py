"""`sweepd.report` and its companions, in programs and by hand."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import sweepd
from sweepd.app import main
from sweepd.optimize.study.record.trials import TrialRecord
from tests.optimize.objectives.command.programs import command_study, work_on


def test_a_program_reports_with_the_helper(tmp_path: Path) -> None:
    text = f"""
sys.path.insert(0, {str(Path(sweepd.__file__).parents[1])!r})
import sweepd
kept = sweepd.checkpoint_dir() / "last"
sweepd.report(1, sweepd.params()["lr"], loss=2)
kept.touch()
(sweepd.out_dir() / "model").write_text("x")
# Importing the helper changes neither threads nor modes nor pages, and imports nothing heavy.
assert not {{"OPENBLAS_NUM_THREADS", "MKL_CBWR", "THP_MEM_ALLOC_ENABLE"}} & set(env)
assert not {{"torch", "numpy", "optuna"}} & set(sys.modules), sorted(sys.modules)
"""
    handle = command_study(tmp_path, text)
    work_on(handle, 1)
    [trial] = handle.trials()
    assert trial.value == trial.params["lr"], TrialRecord.from_attributes(trial.user_attrs).reason
    files = json.loads((handle.trial_dir(0) / "manifest.json").read_text())["files"]
    assert [own["path"] for own in files] == ["seed-0/out/model"]


def test_by_hand_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    sweepd.report(np.int64(3), np.float32(0.5), loss=np.float64(1))
    assert json.loads(capsys.readouterr().out) == {"step": 3, "value": 0.5, "loss": 1.0}
    assert sweepd.params() == {}
    assert sweepd.checkpoint_dir() == sweepd.out_dir() == Path(".")
    assert sys.modules["sweepd.program"].__file__


def test_a_command_of_sweepd_as_program_computes_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEPD_PARAMS", "{}")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setattr("sweepd.app.begin_loading", lambda: None)
    monkeypatch.setattr("sweepd.commands.run", lambda: None)
    main()
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
