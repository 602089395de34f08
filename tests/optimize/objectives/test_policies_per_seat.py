"""Studies whose search space chooses between one policy for both seats and one for each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from optuna.trial import TrialState
from typer.testing import CliRunner

from sweepd.agents.policy.members import load_members
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.scaling import random_play
from sweepd.envs.support.errors import InputError
from tests.optimize.conftest import search_app
from tests.optimize.study_files import open_handle

SPACE = """
name = "seats"
version = 1
[shape]
net_width = { value = 8 }
net_depth = { value = 1 }
minibatch = { value = 64 }
epochs = { value = 1 }
policies = POLICIES
[ppo]
[env]
"""
BOTH = '{ choices = ["shared", "per-seat"], start = "START" }'


def train(folder: Path, env: str, policies: str) -> tuple[int, str]:
    """Run a small study; return the exit code and what it printed."""
    (folder / "space.toml").write_text(SPACE.replace("POLICIES", policies))
    words = f"train --env {env} --study-name s --n-trials 2 --seeds 1 --slots 2 --n-envs 16"
    words += " --trials-per-batch 1 --horizon 4 --budget 128 --rungs 1 --episodes 4 --look-steps 2"
    words += " --sampler random --pruner none --threads 1 --gpu cpu --search-space space.toml"
    result = CliRunner().invoke(search_app(), [*words.split(), "--no-auto-deploy"])
    if isinstance(result.exception, InputError):
        return result.exception.exit_code, str(result.exception)
    return result.exit_code, result.output


@pytest.mark.parametrize("start", ["shared", "per-seat"])
def test_a_study_searches_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = train(tmp_path, "kuhn", BOTH.replace("START", start))
    assert code == 0, said
    assert "policies=" in said
    handle, found = open_handle(tmp_path), []
    for trial in handle.trials():
        assert trial.state == TrialState.COMPLETE
        [member] = load_members(handle.trial_dir(trial.number) / "members.safetensors")
        found.append(trial.params["policies"])
        assert (member.spec.seat_column is not None) == (found[-1] == "per-seat")
    assert found[0] == start


@pytest.mark.parametrize(
    ("env", "policies", "words"),
    [
        (
            "cartpole",
            BOTH.replace("START", "shared"),
            "needs a game in turns whose observations tell the seat",
        ),
        ("kuhn", '{ value = "both" }', "must be one of shared, per-seat, not 'both'"),
        (
            "kuhn",
            BOTH.replace("START", "shared") + '\nrecurrent = { choices = ["", "gru"] }',
            "a recurrent member has one policy for both seats",
        ),
    ],
)
def test_what_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str, policies: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = train(tmp_path, env, policies)
    assert code == 2
    assert words in said
    assert "\n" not in said


def test_random_play_leaves_the_column_that_tells_the_seat_as_it_is() -> None:
    game = get_game("tests.envs.games.toys:NIM")
    look = random_play(game.make([game.params()], 16, together=1, device="cpu"), 0, steps=20)
    assert (float(look.avg[4]), float(look.std[4])) == (0.0, 1.0)
    assert bool((look.std[:4] != 1.0).all())
    assert torch.equal(look.avg[:3] > 0.0, torch.ones(3, dtype=torch.bool))
