"""A training run outside a study."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.native.choice import chosen
from sweepd.agents.policy.frozen import load_members
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.native.build import TORCH, VARIABLE
from sweepd.envs.support.errors import InputError, RunError
from sweepd.optimize.worker.batch import Interrupted, Trainer
from sweepd.optimize.worker.pace import CheckpointPace
from sweepd.optimize.worker.run import run
from tests.optimize.conftest import search_app

CONFIG: dict[str, Any] = {
    "cv": {"scheme": "kfold", "groups": 3},
    "train": {
        "budget": 128,
        "rungs": 2,
        "horizon": 16,
        "num_envs": 2,
        "holdout": 0.1,
        "recipe": "tiny-test",
        "threads": 1,
    },
    "shape": {"net_width": 8, "net_depth": 1, "minibatch": 16, "epochs": 2},
    "ppo": {"learning_rate": 1e-3},
    "env": {"action_scale": 0.3},
}


def with_train(**changes: Any) -> dict[str, Any]:
    return {**CONFIG, "train": {**CONFIG["train"], **changes}}


def test_a_run_returns_its_results_and_repeats_itself(bars: Bars, tmp_path: Path) -> None:
    first = run(CONFIG, bars=bars)
    again = run(with_train(out=str(tmp_path / "out")), bars=bars)
    assert len(first.evaluation.scores) == len(first.members) == 3
    assert len(first.rung_values) == 2
    assert (first.evaluation.final, first.evaluation.scores, first.rung_values) == (
        again.evaluation.final,
        again.evaluation.scores,
        again.rung_values,
    )
    assert first.evaluation.paths.returns.tobytes() == again.evaluation.paths.returns.tobytes()
    stored = load_members(tmp_path / "out" / "members.safetensors")
    for ours, theirs in zip(first.members, stored, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "members.safetensors",
        "paths.parquet",
        "equity.png",
        "metrics.json",
        "config.json",
        "spec.json",
        "checkpoint.safetensors",
    }
    assert run(with_train(seed=1), bars=bars).evaluation.final != first.evaluation.final


def test_an_interrupted_run_continues_exactly(bars: Bars, tmp_path: Path) -> None:
    whole = run(CONFIG, bars=bars)
    out = str(tmp_path / "out")
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked == 2

    with pytest.raises(Interrupted):
        run(with_train(out=out), bars=bars, stop=stop)
    said: list[str] = []
    resumed = run(with_train(out=out, start_from=out), bars=bars, say=said.append)
    assert any("going on from" in line for line in said)
    assert resumed.evaluation.paths.returns.tobytes() == whole.evaluation.paths.returns.tobytes()


def test_a_run_continues_with_the_kernels_of_its_checkpoint(
    bars: Bars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "out")
    again = with_train(out=out, start_from=out)
    # Kernels of another version: refused on every machine.
    monkeypatch.setattr("sweepd.optimize.worker.freeze.chosen", lambda *_: "native of before")
    run(with_train(out=out), bars=bars)
    monkeypatch.undo()
    with pytest.raises(InputError, match="was trained with the kernels 'native of before', and "):
        run(again, bars=bars)
    # Weights alone may be taken from any kernels: another seed, another run.
    run(with_train(start_from=out, seed=1), bars=bars)
    monkeypatch.setenv(VARIABLE, TORCH)
    with pytest.raises(InputError, match=f"{VARIABLE}={TORCH} forbids them: unset it"):
        run(again, bars=bars)
    run(with_train(out=out), bars=bars)
    run(again, bars=bars)


def test_a_run_of_torch_is_not_continued_by_native_kernels(
    bars: Bars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "out")
    monkeypatch.setenv(VARIABLE, TORCH)
    run(with_train(out=out), bars=bars)
    monkeypatch.delenv(VARIABLE)
    if chosen("ppo", "fp32", torch.device("cpu")) == TORCH:
        pytest.skip("no native kernels")
    with pytest.raises(InputError, match=f"kernels 'torch', and {VARIABLE}={TORCH} is not set"):
        run(with_train(out=out, start_from=out), bars=bars)


def test_a_run_may_start_from_other_weights(
    bars: Bars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = run(with_train(out=str(tmp_path / "source"), seed=5), bars=bars)
    lent: list[Any] = []
    import_actor = PPO.import_actor

    def recording(ppo: PPO, slot: int, actor: Mapping[str, Tensor]) -> None:
        import_actor(ppo, slot, actor)
        lent.append(ppo.export_member(slot))

    monkeypatch.setattr(PPO, "import_actor", recording)
    from_members = run(
        with_train(start_from=str(tmp_path / "source" / "members.safetensors")), bars=bars
    )
    for (actor, critic), given in zip(lent[:3], source.members, strict=True):
        assert all(torch.equal(actor[name], given[name]) for name in given)
        assert torch.equal(critic["state_avg"], given["state_avg"])
    assert from_members.evaluation.final != run(CONFIG, bars=bars).evaluation.final
    lent.clear()
    from_checkpoint = run(
        with_train(start_from=str(tmp_path / "source")), bars=bars
    )  # of a run with another seed
    assert len(lent) >= 3
    assert from_checkpoint.evaluation.final == from_members.evaluation.final
    trial = tmp_path / "trial"  # of a study: its newest checkpoint is taken
    trial.mkdir()
    (trial / "checkpoint-000000002-r000-aa.safetensors").touch()
    shutil.copy(
        tmp_path / "source" / "checkpoint.safetensors",
        trial / "checkpoint-000000012-r003-aa.safetensors",
    )
    assert (
        run(with_train(start_from=str(trial)), bars=bars).evaluation.final
        == from_members.evaluation.final
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trian": {}}, "[trian] is not a table"),
        ({"ppo": {"lr": 1}}, "[ppo] lr is not known"),
        ({"ppo": {"clip": -1.0}}, "clip"),
        ({"env": {"action_scale": 3.0}}, "action_scale"),
        ({"shape": {"net_width": "wide"}}, "[shape] net_width"),
        ({"train": {"budget": 0}}, "[train] budget = 0 should be at least 1"),
        ({"train": {"budget": True}}, "[train] budget = True should be a whole number"),
        ({"train": {"budgt": 5}}, "[train] budgt is not known; did you mean budget?"),
        ({"train": 3}, "[train] = 3 should be a table"),
        ({"env": {"fee": "high"}}, "[env] fee = 'high' should be a number"),
        ({"env": {"fee": float("nan")}}, "[env] fee = nan should be a finite number"),
        ({"cv": {"groups": 2.5}}, "[cv] groups = 2.5 should be a whole number"),
        ({"data": {"tickers": "BTC/USDT"}}, "[data] tickers = 'BTC/USDT' should be a list"),
        ({"train": {"seed": "x"}}, "[train] seed = 'x' should be a whole number"),
        ({"train": {"holdout": "x"}}, "[train] holdout = 'x' should be a number"),
        ({"train": {"start_from": "nowhere", "recipe": "tiny-test"}}, "nowhere"),
        ({"cv": {"scheme": "x"}}, "choose one of"),
        ({"shape": {"minibatch": 4096}}, "minibatch 4096"),
    ],
)
def test_a_config_with_a_mistake_is_refused(
    bars: Bars, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as refused:
        run({**CONFIG, **change}, bars=bars)
    assert message in str(refused.value)


def test_daily_bars_have_the_recipe_of_daily_studies(tmp_path: Path) -> None:
    train = {k: v for k, v in CONFIG["train"].items() if k != "recipe"}
    daily = {**CONFIG, "train": {**train, "out": str(tmp_path), "rungs": 1, "budget": 64}}
    run(daily, bars=make_demo_market(timeframe="1d"))
    assert json.loads((tmp_path / "config.json").read_text())["train"]["recipe"] == "short"


def test_a_folder_of_bars_that_is_no_path_is_refused() -> None:
    with pytest.raises(InputError, match="dir = 3 should be a path"):
        run({"data": {"dir": 3}})


def test_divergence_is_a_fault_of_the_run(bars: Bars, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Trainer.advance

    def broken(self: Trainer, trainings: Any) -> None:
        advance(self, trainings)
        trainings[0].fault = "diverged: says the test"

    monkeypatch.setattr(Trainer, "advance", broken)
    with pytest.raises(RunError, match="diverged"):
        run(CONFIG, bars=bars)


def test_divergence_is_reported_even_if_a_checkpoint_is_due(
    bars: Bars, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointPace, "due", lambda _: True)
    with pytest.raises(RunError, match="diverged"):
        run({**with_train(out=str(tmp_path / "out")), "ppo": {"learning_rate": 1e38}}, bars=bars)


def test_a_diverged_and_interrupted_run_leaves_no_checkpoint(bars: Bars, tmp_path: Path) -> None:
    config = with_train(out=str(tmp_path / "out"), rungs=1, budget=32)  # a single rollout
    with pytest.raises(RunError, match="diverged"):
        run({**config, "ppo": {"learning_rate": 1e38}}, bars=bars, stop=lambda: True)
    assert not (tmp_path / "out" / "checkpoint.safetensors").exists()


def test_the_command_runs_a_file(market: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(market)
    (market / "mine.toml").write_text(
        '[data]\ndir = "bars"\n[cv]\nscheme = "single"\ngroups = 4\n'
        "[train]\nbudget = 64\nrungs = 1\nhorizon = 16\nnum_envs = 2\n"
        'recipe = "tiny-test"\nthreads = 1\n[shape]\nnet_width = 8\nminibatch = 16\nepochs = 1\n'
    )
    result = CliRunner().invoke(
        search_app(), ["run", "mine.toml", "--gpu", "cpu"], catch_exceptions=False
    )
    assert "results in runs/run-mine" in result.output
    assert (market / "runs" / "run-mine" / "members.safetensors").exists()
    (market / "wrong.toml").write_text('[train]\nbudget = "many"\n')
    wrong = CliRunner().invoke(search_app(), ["run", "wrong.toml"])
    assert isinstance(wrong.exception, InputError)
    assert str(wrong.exception) == ("wrong.toml: [train] budget = 'many' should be a whole number")
    missing = CliRunner().invoke(search_app(), ["run", "none.toml"])
    assert isinstance(missing.exception, InputError)
