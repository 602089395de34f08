"""Objectives that are functions of evaluation episodes: `--objective MODULE:NAME`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import sweepd
from sweepd.envs.external.sharded import Layout
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError, RunError
from sweepd.optimize.objectives.games.judging import game_objective
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.table import check_request
from sweepd.optimize.study.record.keys import FLAGS_KEY
from tests.test_study_in_python import GAME

TEXT = """
import gymnasium
import numpy as np

class Costly(gymnasium.Env):
    "An episode of 3 to 6 steps; the last info tells the steps and the number of ones."
    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(0.0, 9.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_, self.ones = 0, 0
        self.end = int(self.np_random.integers(3, 7))
        return np.zeros(1, np.float32), {"begun": True}
    def step(self, action):
        self.step_ += 1
        self.ones += int(action)
        info = {"steps": self.step_, "deep": {"ones": np.int64(self.ones)}, "env": self}
        return np.full(1, self.step_, np.float32), 1.0, self.step_ == self.end, False, info

seen = []

def careful(returns, lengths, infos, weight=0.5):
    seen.append((returns, lengths, infos))
    assert [info["steps"] for info in infos] == lengths.tolist()
    return returns.mean() - weight * returns.std() - sum(info["deep"]["ones"] for info in infos)

def nothing(returns, lengths, infos):
    return float("nan")

def raises(returns, lengths, infos):
    raise KeyError("cost")

def two(returns, lengths):
    return 0.0
"""
SMALL: dict[str, Any] = {n: v for n, v in GAME.items() if n not in ("env", "pruner")}
SMALL |= {"episodes": 8, "search_space": {"clip": (0.1, 0.3), "minibatch": 64}}


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "judged_here.py").write_text(TEXT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPD_STORAGE", raising=False)
    import judged_here  # type: ignore[import-not-found]

    yield judged_here
    sys.modules.pop("judged_here", None)


def test_a_study_is_judged_by_a_function(
    module: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = sweepd.create_study(
        "s", env=module.Costly, objective=module.careful, n_trials=3, **SMALL | {"seeds": 1}
    )
    spec = study._handle.spec
    assert (spec.objective, spec.sampler) == ("judged_here:careful", "race")
    assert study.run()
    used = study.optuna.user_attrs[FLAGS_KEY]["plugins"]["objective"]
    assert (used["name"], len(used["sha256"])) == ("judged_here:careful", 64)
    row = study.trials().loc[0]
    episodes = pd.read_parquet(study.trial_dir(0) / "episodes.parquet")
    returns = episodes["return"].to_numpy()
    ours = [call for call in module.seen if np.array_equal(call[0], returns)]
    assert ours, "it is called with the episodes that are written down"
    ones = sum(info["deep"]["ones"] for info in ours[0][2])
    assert row["value"] == pytest.approx(returns.mean() - 0.5 * returns.std() - ones)
    assert row["scores_0"] == row["value"]
    assert row["metrics_mean"] == pytest.approx(returns.mean())
    assert "begun" not in ours[0][2][0]
    assert "env" not in ours[0][2][0]
    # A change of the function is said when a worker joins; another function is another study.
    (tmp_path / "judged_here.py").write_text(f"{TEXT}\n# changed\n")
    capsys.readouterr()
    sweepd.create_study("s")
    assert "note: --objective judged_here:careful has changed since" in capsys.readouterr().out
    with pytest.raises(InputError, match='objective = "judged_here:careful", and now it is'):
        sweepd.create_study("s", objective=module.nothing)


def test_values_of_several_seeds_have_an_interval_over_seeds(module: Any) -> None:
    arguments = 'judged_here:careful {"weight": 2.0}'
    study = sweepd.create_study(
        "s", env=module.Costly, objective=arguments, n_trials=1, **SMALL | {"sampler": "random"}
    )
    assert study.run()
    row = study.trials().loc[0]
    assert row["value"] == pytest.approx((row["scores_0"] + row["scores_1"]) / 2)
    attributes = study.optuna.trials[0].user_attrs
    assert attributes["sweepd:rung_2_interval"]["value"] == pytest.approx(row["value"])
    assert "sweepd:rung_2_blocks" not in attributes
    returns, lengths, infos = module.seen[-1]
    again = module.careful(returns, lengths, infos, weight=2.0)
    assert again == row["scores_1"]


def test_last_infos_are_those_of_the_first_episode_with_and_without_workers(module: Any) -> None:
    for layout in (Layout(4), Layout(1, (2, 1))):
        env = ExternalVecEnv(module.Costly, 2, 2, layout=layout)
        env.reset(3)
        env.keep_infos()
        assert env.infos(0) == [{}, {}]
        lengths = torch.zeros(4, dtype=torch.int64)
        alive = torch.ones(4, dtype=torch.bool)
        for _ in range(20):  # several episodes
            step = env.step(torch.ones(4, dtype=torch.int64))
            lengths += alive
            alive &= ~step.terminated
        found = [*env.infos(0), *env.infos(1)]
        assert [info["steps"] for info in found] == lengths.tolist()
        assert [info["deep"]["ones"] for info in found] == lengths.tolist()
        env.close()


@pytest.mark.parametrize(
    ("env", "objective", "words"),
    [
        ("cartpole", "judged_here:two", "function of the returns, lengths and infos of episodes"),
        ("cartpole", "judged_here:no", "has nothing called 'no'"),
        ("cartpole", "best", "--objective 'best' is not known; choose return"),
        ("kuhn", "judged_here:careful", "games of two players are judged by their outcomes"),
        (
            "crypto",
            "judged_here:careful",
            "is a function of episodes, and --env crypto is no game; choose one of information",
        ),
        ("command:true", "judged_here:careful", "and --env command:true is no game; choose value"),
    ],
)
def test_other_objectives_are_refused(env: str, objective: str, words: str) -> None:
    space = "wide" if env == "crypto" else "game"
    with pytest.raises(InputError, match=words):
        check_request(Request(env=env, objective=objective, search_space=space))


def test_a_function_that_fails_stops_the_worker_with_its_reason() -> None:
    game = get_game("cartpole")
    episodes = np.ones(2), np.ones(2, np.int64), [{}, {}]
    for name, words in (
        ("raises", "--objective judged_here:raises raised KeyError: 'cost'"),
        ("nothing", "judged_here:nothing returned nan, which is no finite number"),
    ):
        judge = game_objective(game, f"judged_here:{name}")
        assert judge is not None
        with pytest.raises(RunError, match=words):
            judge(*episodes)
    assert game_objective(game, "return") is None


def test_games_of_tensors_have_empty_infos(module: Any) -> None:
    module.careful = lambda returns, lengths, infos: len(infos) + 0 * (returns + lengths).sum()
    study = sweepd.create_study(
        "s", env="cartpole", objective="judged_here:careful", n_trials=1, **SMALL
    )
    assert study.run()
    assert study.trials().loc[0, "value"] == 8
