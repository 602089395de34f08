"""`sweepd export` on studies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import sweepd
from sweepd.agents.policy.members import Member
from sweepd.commands import build_app
from sweepd.deploy.export.command import Format
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import FakeStudy, random_actor
from tests.deploy.games.players import BAD, GOOD, study_of
from tests.optimize.objectives.command.programs import command_study, work_on
from tests.test_study_in_python import GAME

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = {**GAME, "env": "gym:CartPole-v1", "n_envs": 2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the study `cartpole` of two trials."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("SWEEPD_STORAGE", raising=False)
        sweepd.create_study("cartpole", n_trials=2, **SETTINGS).run()
        yield folder


@pytest.fixture
def folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    monkeypatch.delenv("SWEEPD_STORAGE", raising=False)
    return trained


def export(*words: str) -> Result:
    result = CliRunner().invoke(build_app(), ["export", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def refuse(*words: str) -> str:
    with pytest.raises(InputError) as refused:
        CliRunner().invoke(build_app(), ["export", *words], catch_exceptions=False)
    return str(refused.value)


@pytest.mark.usefixtures("folder")
def test_json_has_every_recorded_number() -> None:
    trial = sweepd.load_study("cartpole").optuna.trials[1]
    found = json.loads(export("cartpole#1", "--to", "json").stdout)
    assert (found["study"], found["trial"], found["state"]) == ("cartpole", 1, "COMPLETE")
    assert found["value"] == trial.value
    for name in ("seed", "shape"):
        assert found[name] == trial.user_attrs[f"sweepd:{name}"]
    assert found["ppo"] == trial.user_attrs["sweepd:ppo_params"]
    assert (found["environment"], found["budget"]) == ("gym:CartPole-v1", 512)


@pytest.mark.parametrize("to", [Format.SB3, Format.ZOO3, Format.CLEANRL])
def test_parameters_go_to_standard_output_and_notes_to_standard_error(
    folder: Path, to: str
) -> None:
    result = export("cartpole#0", "--to", to)
    assert "CartPole-v1" in result.stdout
    assert result.stderr.startswith("popart_beta = 0.05")
    export("cartpole#0", "--to", to, "--out", f"own.{to}")
    assert (folder / f"own.{to}").read_text() == result.stdout


@pytest.mark.usefixtures("folder")
def test_a_study_without_a_number_is_its_best_trial() -> None:
    best = sweepd.load_study("cartpole").best_trial
    assert best is not None
    found = json.loads(export("cartpole", "--to", "json").stdout)
    assert found["trial"] == best


@pytest.mark.usefixtures("folder")
def test_a_policy_acts_as_in_python() -> None:
    assert export("cartpole#0", "--to", "torch").stdout.split() == [
        "cartpole-0.pt2",
        "cartpole-0.safetensors",
    ]
    policy = sweepd.load_policy(sweepd.load_study("cartpole"), 0)
    obs = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    act = torch.export.load("cartpole-0.pt2").module()
    expected = [policy.action(row) for row in obs]
    assert act(torch.from_numpy(obs)).tolist() == expected
    export("cartpole#0", "--to", "torch", "--member", "1", "--out", "one.pt2")
    one = torch.export.load("one.pt2").module()
    assert one(torch.from_numpy(obs)).tolist() == [policy.member(1).action(row) for row in obs]


def test_the_ensemble_of_a_market_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    market = FakeStudy(tmp_path)
    actors = [random_actor(market.state_dim, 3, seed) for seed in (1, 2)]
    own: dict[str, Any] = {"sweepd:ppo_params": {"clip": 0.2}}
    market.add(1.0, actors, **own)
    where = ("--storage", market.storage)
    export("fake#0", "--to", "torch", *where)
    policy = sweepd.load_policy(market_study(market), 0)
    obs = np.random.default_rng(0).normal(size=(50, market.state_dim)).astype(np.float32)
    found = torch.export.load("fake-0.pt2").module()(torch.from_numpy(obs)).numpy()
    expected = np.stack([policy.act(row) for row in obs])
    np.testing.assert_allclose(found, expected, atol=2e-6)


def market_study(market: FakeStudy) -> Any:
    return sweepd.load_study(market.name, storage=market.storage)


def test_wrong_input_is_refused_with_what_would_be_right(folder: Path) -> None:
    assert "has no such trial; it has 2, numbered from 0" in refuse("cartpole#7", "--to", "json")
    assert "has no such trial" in refuse("cartpole#best", "--to", "json")
    assert "there are: cartpole" in refuse("carpole", "--to", "json")
    assert "--member 1 is for --to onnx and torch" in refuse(
        "cartpole", "--to", "json", "--member", "1"
    )
    assert "members 0 to 1" in refuse("cartpole#0", "--to", "torch", "--member", "2")
    assert "must end in .pt2" in refuse("cartpole#0", "--to", "torch", "--out", "policy.pt")
    (folder / "file").touch()
    assert "cannot be written" in refuse("cartpole#0", "--to", "sb3", "--out", "file/x.py")
    assert "cannot be written" in refuse("cartpole#0", "--to", "torch", "--out", "file/x.pt2")
    unknown = CliRunner().invoke(build_app(), ["export", "cartpole", "--to", "keras"])
    assert unknown.exit_code == 2
    assert "sb3" in unknown.stderr


def test_what_policies_cannot_be_exported_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study_of(tmp_path / "studies", [GOOD, BAD], make=recurrent)
    where = ("--storage", f"sqlite:///{tmp_path}/studies/studies.db")
    assert "recurrent networks" in refuse("short#0", "--to", "torch", *where)
    study_of(tmp_path / "studies", [GOOD, BAD])
    assert "has not recorded its lr_schedule" in refuse("short#0", "--to", "sb3", *where)


def test_a_policy_that_is_played_sampled_is_exported_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study_of(tmp_path / "studies", [GOOD, BAD], play="sampled")
    where = ("--storage", f"sqlite:///{tmp_path}/studies/studies.db")
    assert "the most probable ones" in export("short#0", "--to", "torch", *where).stderr


def recurrent(push: Any) -> Member:
    """A member with a cell before its last layer."""
    generator = torch.Generator().manual_seed(len(push))
    sizes = {"net.0": (4, 4), "net.2": (2, 4)}
    member = {"state_avg": torch.zeros(4), "state_std": torch.ones(4)}
    for name, size in sizes.items():
        member[f"{name}.weight"] = torch.randn(size, generator=generator)
        member[f"{name}.bias"] = torch.zeros(size[0])
    for part in ("ih", "hh"):
        member[f"rnn.weight_{part}"] = torch.randn(12, 4, generator=generator)
        member[f"rnn.bias_{part}"] = torch.zeros(12)
    return Member.of_tensors(member)


@pytest.mark.slow
def test_parameters_are_exported_without_torch(folder: Path) -> None:
    code = """
import sys
from typer.testing import CliRunner
from sweepd.commands import build_app
for to in ("sb3", "zoo3", "cleanrl", "json"):
    result = CliRunner().invoke(build_app(), ["export", "cartpole", "--to", to])
    assert result.exit_code == 0, result.output
sys.exit("torch" in sys.modules)
"""
    path = {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, env=os.environ | path)


def test_a_program_has_parameters_and_no_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    handle = command_study(tmp_path, "report(1, params['lr'])")
    work_on(handle, 1)
    where = ("--storage", handle.storage.url)
    name = f"{handle.name}#0"
    found = json.loads(export(name, "--to", "json", *where).stdout)
    assert found["params"] == handle.trials()[0].params
    assert "what it wrote into SWEEPD_OUT" in refuse(name, "--to", "onnx", *where)
    assert "command has no counterpart" in refuse(name, "--to", "sb3", *where)
