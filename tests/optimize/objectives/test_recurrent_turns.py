"""A study of recurrent networks on a game in turns, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from optuna.trial import TrialState
from typer.testing import CliRunner

from sweepd.agents.policy.members import load_members
from sweepd.optimize.study.record.trials import TrialRecord
from tests.optimize.conftest import search_app
from tests.optimize.study_files import open_handle

SPACE = """
name = "memory"
version = 1
[shape]
net_width = { value = 8 }
net_depth = { value = 1 }
minibatch = { value = 64 }
epochs = { value = 1 }
recurrent = { choices = ["", "gru", "lstm"], start = "gru" }
bptt = { value = 4 }
[ppo]
[env]
"""


def test_a_study_searches_networks_with_and_without_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the exact NashConv of both kinds, and players of the league of other kinds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.toml").write_text(SPACE)
    words = "train --env kuhn --study-name s --n-trials 5 --seeds 1 --slots 2 --n-envs 16"
    words += " --opponents league=0.5,self=0.25,past=0.25 --trials-per-batch 1 --horizon 8"
    words += " --budget 512 --rungs 1 --episodes 4 --look-steps 2 --sampler random --pruner none"
    words += " --threads 1 --gpu cpu --search-space space.toml --no-auto-deploy"
    result = CliRunner().invoke(search_app(), words.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    handle, cells = open_handle(tmp_path), []
    for trial in handle.trials():
        assert trial.state == TrialState.COMPLETE
        [member] = load_members(handle.trial_dir(trial.number) / "members.safetensors")
        assert member.spec.cell == trial.params["recurrent"]
        cells.append(member.spec.cell)
        record = TrialRecord.from_attributes(trial.user_attrs)
        assert record.nash_conv is not None
        assert 0.0 < record.nash_conv < 4.0
    assert cells[0] == "gru"
    assert len(set(cells)) > 1
