"""`sweepd run CONFIG`: a study of one trial with the parameters of a file."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.policy.members import load_members
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.support.errors import InputError, RunError
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.specs import CryptoSpec
from sweepd.optimize.study.study import StudyHandle
from tests.optimize.conftest import Sweepd, search_app
from tests.optimize.study_files import killed_at_checkpoint

CONFIG: dict[str, Any] = {
    "data": {"dir": "bars"},
    "cv": {"scheme": "kfold", "groups": 3},
    "train": {
        "budget": 192,
        "rungs": 3,
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


def written(folder: Path, name: str = "one", **changes: Any) -> str:
    """Write a file of a run, with changed tables; return its name."""
    tables = {table: CONFIG.get(table, {}) | changes.get(table, {}) for table in CONFIG | changes}
    lines = []
    for table, own in tables.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in own.items())]
    (folder / f"{name}.toml").write_text("\n".join(lines))
    return f"{name}.toml"


def run(*words: object) -> str:
    """Run in this process; return what was printed. Raises what the command raised."""
    result = CliRunner().invoke(search_app(), ["run", *map(str, words), "--gpu", "cpu"])
    if result.exception is not None:
        raise result.exception
    return result.output


def handle_of(out: Path, name: str = "run-one") -> StudyHandle:
    return StudyHandle(open_storage(storage_url(None, out), create=False), name)


def members(handle: StudyHandle) -> list[Mapping[str, Tensor]]:
    loaded = load_members(handle.trial_dir(0) / "members.safetensors")
    return [member.tensors for member in loaded]


@pytest.fixture
def folder(market: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(market)
    return market


def test_a_run_is_a_study_of_one_trial_and_repeats_itself(folder: Path) -> None:
    text = run(written(folder))
    handle = handle_of(folder / "runs" / "run-one")
    [trial] = handle.trials()
    assert f"results in {handle.trial_dir(0)}" in text
    assert trial.params == {}
    spec = handle.spec
    assert isinstance(spec, CryptoSpec)
    assert (spec.budget, spec.rungs, spec.num_envs, spec.horizon) == (192, 3, 2, 16)
    assert handle.space.resolve({}).learner["learning_rate"] == 1e-3
    assert handle.space.resolve({}).env["action_scale"] == 0.3
    run("one.toml", "--out", "again")
    other = handle_of(folder / "again")
    assert other.trials()[0].value == trial.value
    for ours, theirs in zip(members(handle), members(other), strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    run(written(folder, train={"seed": 1}), "--out", "seed")
    assert handle_of(folder / "seed").trials()[0].value != trial.value


def test_a_run_continues_with_bars_that_have_moved(folder: Path) -> None:
    run(written(folder))
    (folder / "bars").rename(folder / "moved")
    assert "results in" in run(written(folder, data={"dir": "moved"}))
    with pytest.raises(InputError, match="moved"):
        run(written(folder, data={"dir": "moved", "tickers": ["X/USDT"]}))


def test_costs_are_those_of_the_study(folder: Path) -> None:
    run(written(folder, env={"fee": 0.01}))
    assert handle_of(folder / "runs" / "run-one").spec.env["fee"] == 0.01


def test_the_same_command_continues_a_killed_run_exactly(folder: Path, sweepd: Sweepd) -> None:
    written(folder, train={"budget": 2_400, "rungs": 6})
    sweepd("run", "one.toml", "--gpu", "cpu", "--out", "whole").finish()
    whole = handle_of(folder / "whole")
    with killed_at_checkpoint("cut/**/checkpoint-*"):
        sweepd("run", "one.toml", "--gpu", "cpu", "--out", "cut").finish(-signal.SIGKILL)
    text = sweepd("run", "one.toml", "--gpu", "cpu", "--out", "cut").finish()
    assert "results in" in text
    handle = handle_of(folder / "cut")
    complete = [trial for trial in handle.trials() if trial.value is not None]
    assert [trial.value for trial in complete] == [whole.trials()[0].value]
    # A finished run is shown again, and nothing is trained.
    assert "results in" in sweepd("run", "one.toml", "--gpu", "cpu", "--out", "cut").finish()
    assert len(handle_of(folder / "cut").trials()) == len(handle.trials())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ppo": {"learning_rate": 2e-3}}, "space.ppo.learning_rate.value = 0.001"),
        ({"env": {"fee": 0.5}}, "env.fee = 0.0025"),
        ({"cv": {"groups": 4}}, "cv.groups = 3"),
        ({"train": {"holdout": 0.2}}, "holdout = 0.1"),
        ({"train": {"seed": 9}}, "seed = 0"),
    ],
)
def test_a_run_with_other_settings_is_not_continued(
    folder: Path, change: dict[str, Any], message: str
) -> None:
    run(written(folder))
    with pytest.raises(InputError, match=message) as refused:
        run(written(folder, **change))
    assert "--study-name run-one-2" in str(refused.value)


def test_a_setting_that_left_the_file_is_compared_too(folder: Path) -> None:
    run(written(folder, train={"seed": 3}))
    with pytest.raises(InputError, match="seed = 3, and now it is 0"):
        run(written(folder))
    run("one.toml", "--study-name", "run-one-2")
    assert handle_of(folder / "runs" / "run-one", "run-one-2").spec.seed == 0


def test_a_run_may_start_from_other_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(written(folder, "source", train={"seed": 5}))
    source = handle_of(folder / "runs" / "run-source", "run-source")
    given = members(source)
    lent: list[Any] = []
    import_actor = PPO.import_actor

    def recording(ppo: PPO, slot: int, actor: Mapping[str, Tensor]) -> None:
        import_actor(ppo, slot, actor)
        lent.append(ppo.export_member(slot))

    monkeypatch.setattr(PPO, "import_actor", recording)
    start = source.trial_dir(0)
    run(written(folder), "--start-from", start)
    for (actor, critic), theirs in zip(lent[:3], given, strict=True):
        assert all(torch.equal(actor[name], theirs[name]) for name in theirs)
        assert torch.equal(critic["state_avg"], theirs["state_avg"])
    from_members = handle_of(folder / "runs" / "run-one").trials()[0].value
    run("one.toml")  # continued without the flag, or with the same weights
    run("one.toml", "--start-from", start)
    with pytest.raises(InputError, match=r"this run began with .* --out"):
        run("one.toml", "--start-from", "elsewhere")
    run("one.toml", "--out", "fresh")
    assert handle_of(folder / "fresh").trials()[0].value != from_members
    with pytest.raises(InputError, match="this run began with new networks"):
        run("one.toml", "--out", "fresh", "--start-from", start)


def test_a_run_may_start_from_the_newest_checkpoint_of_a_trial(
    folder: Path, sweepd: Sweepd
) -> None:
    written(folder, "source", train={"seed": 5, "budget": 2_400, "rungs": 6})
    with killed_at_checkpoint("runs/**/checkpoint-*.safetensors"):
        sweepd("run", "source.toml", "--gpu", "cpu").finish(-signal.SIGKILL)
    found = sorted((folder / "runs").rglob("checkpoint-*.safetensors"))
    trial = folder / "trial"
    trial.mkdir()
    (trial / "checkpoint-000000002-r000-aa.safetensors").touch()
    shutil.copy(found[0], trial / "checkpoint-000000012-r003-aa.safetensors")
    run(written(folder), "--start-from", "trial")
    run("one.toml", "--out", "fresh")
    started, fresh = (handle_of(folder / out) for out in ("runs/run-one", "fresh"))
    assert started.trials()[0].value != fresh.trials()[0].value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trian": {}}, "[trian] is not a table"),
        ({"ppo": {"lr": 1}}, "[ppo] lr is not known"),
        ({"ppo": {"clip": -1.0}}, "[ppo] clip must be above 0, not -1.0"),
        ({"env": {"action_scale": 3.0}}, "action_scale"),
        ({"shape": {"net_width": "wide"}}, "[shape] net_width"),
        ({"train": {"budget": 0}}, "[train] budget = 0 should be at least 1"),
        ({"train": {"budget": True}}, "[train] budget = True should be a whole number"),
        ({"train": {"budgt": 5}}, "[train] budgt is not known; did you mean budget?"),
        ({"env": {"fee": "high"}}, "[env] fee = 'high' should be a number"),
        ({"cv": {"groups": 2.5}}, "[cv] groups = 2.5 should be a whole number"),
        ({"data": {"tickers": "BTC/USDT"}}, "[data] tickers = 'BTC/USDT' should be a list"),
        ({"data": {"dir": 3}}, "dir = 3 should be a path"),
        ({"data": {"dir": ""}}, "[data] dir is missing"),
        ({"train": {"seed": "x"}}, "[train] seed = 'x' should be a whole number"),
        ({"train": {"holdout": "x"}}, "[train] holdout = 'x' should be a number"),
        ({"train": {"start_from": "nowhere"}}, "nowhere"),
        ({"cv": {"scheme": "x"}}, "choose one of"),
        ({"shape": {"minibatch": 4096}}, "minibatch 4096"),
    ],
)
def test_a_config_with_a_mistake_is_refused_and_leaves_no_study(
    folder: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as refused:
        run(written(folder, **change))
    assert message in str(refused.value)
    with pytest.raises(InputError):
        handle_of(folder / "runs" / "run-one")


def test_files_that_are_no_config_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml"):
        run("none.toml")
    (folder / "wrong.toml").write_text("train = 3\n")
    with pytest.raises(InputError, match=r"\[train\] = 3 should be a table"):
        run("wrong.toml")


def test_daily_bars_have_the_recipe_of_daily_studies(folder: Path) -> None:
    write_bars(make_demo_market(timeframe="1d", bars=2_000), folder / "daily")
    train = {k: v for k, v in CONFIG["train"].items() if k != "recipe"} | {"rungs": 1}
    lines = ["[data]", 'dir = "daily"', 'timeframe = "1d"', "[cv]", 'scheme = "single"', "[train]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in (train | {"budget": 64}).items()]
    lines += ["[shape]", "net_width = 8", "minibatch = 16"]
    (folder / "one.toml").write_text("\n".join(lines))
    run("one.toml")
    spec = handle_of(folder / "runs" / "run-one").spec
    assert isinstance(spec, CryptoSpec)
    assert spec.recipe["name"] == "short"


def test_divergence_is_a_fault_of_the_run(folder: Path) -> None:
    with pytest.raises(RunError, match=r"the run failed: .*diverged"):
        run(written(folder, ppo={"learning_rate": 1e38}))
