"""Studies on Bucket Brigade: the league of a trial, heuristic players, a drill."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sweepd.envs.games.bucket_brigade.scenarios import scenario
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.games import league_artifacts
from sweepd.optimize.objectives.games.evaluation import GameEvaluation
from sweepd.optimize.objectives.games.experiment import GameExperiment
from sweepd.optimize.objectives.games.pictures import draw_game
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.space.parsing import load_space
from sweepd.optimize.study.space.search_space import SearchSpace, Settings
from sweepd.optimize.study.space.subject import Subject
from sweepd.optimize.study.study import Plan
from tests.optimize.objectives.test_game_study import make_experiment, plan
from tests.optimize.worker.test_batch import advance_to

GAME = {"env": {"scenario": "v2_minimal", "max_nights": 12}}


def heuristics(environment: str = "bucket-brigade", **changes: Any) -> GameExperiment:
    subject = Subject(environment, "heuristic")
    space = SearchSpace("none", 1, {table: {} for table in subject.tables}, subject).to_dict()
    settings: dict[str, Any] = {
        "algorithm": "heuristic",
        "space": space,
        "budget": 1,
        "rungs": 1,
        "num_envs": 1,
    }
    return make_experiment(environment, **{**settings, "horizon": 1, **changes})


def test_a_complete_trial_leaves_a_league(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(league_artifacts, "ROUNDS", 1)
    experiment = make_experiment("bucket-brigade", **GAME)
    players = experiment.game.players
    few = lambda params, seed: dict(list(players(params, seed).items())[:2])  # noqa: E731
    experiment.game = dataclasses.replace(experiment.game, players=few)
    trainer = Trainer(experiment)
    training = trainer.start(plan(0))
    advance_to(trainer, [training], 1)
    trainer.write(training, tmp_path, trainer.evaluate([training])[0])
    draw_game(experiment.game, experiment.spec, tmp_path, "a title")
    assert all((tmp_path / name).exists() for name in experiment.published)
    league = json.loads((tmp_path / "league.json").read_text())
    assert league["players"][:3] == ["seed 0", "seed 1", "random"]
    assert sum(league["equilibrium"]["members"]["weights"].values()) == pytest.approx(1.0, abs=1e-5)
    assert (tmp_path / "league.png").read_bytes().startswith(b"\x89PNG")
    assert "league.json" not in make_experiment("cartpole").published


def test_trials_of_heuristics_are_only_evaluated_and_reproducible(tmp_path: Path) -> None:
    experiment = heuristics(episodes=16, **GAME)
    trainer = Trainer(experiment)
    plans = [
        Plan(n, n, {}, Settings({}, {"work": work}, {}), n)
        for n, work in enumerate((0.9, 0.1, 0.5))
    ]
    trainings = [trainer.start(one) for one in plans]
    advance_to(trainer, trainings, 1)
    scores = [e.scores for e in trainer.evaluate(trainings) if isinstance(e, GameEvaluation)]
    assert len(set(scores)) == 3
    assert sum(scores[0]) > sum(scores[1])
    again = Trainer(experiment)
    resumed = again.start(plans[2])
    resumed.members = trainings[2].members
    alone = again.evaluate([resumed])[0]
    assert isinstance(alone, GameEvaluation)
    assert alone.scores == scores[2]
    kept = trainer.write(trainings[2], tmp_path, alone)
    assert (tmp_path / "members.safetensors").exists()
    assert kept.path.endswith("members.safetensors")
    assert "league.json" not in experiment.published
    with pytest.raises(
        InputError, match="--algo heuristic plays bucket-brigade alone, not --env cartpole"
    ):
        heuristics("cartpole")


def test_the_space_of_bucket_brigade_trains_in_a_short_run() -> None:
    space = load_space("game", Subject("bucket-brigade"))
    resolved = space.resolve(space.start)
    drill = scenario("rest_trap", **resolved.env)
    assert drill.prob_house_catches_fire > scenario("rest_trap").prob_house_catches_fire
    experiment = make_experiment(
        "bucket-brigade", env={"scenario": "rest_trap"}, space=space.to_dict()
    )
    env = experiment.training_env(2, 1)
    experiment.seat(env, 0, 0, resolved)
    assert env._params[0] == drill  # type: ignore[attr-defined]
    assert torch.isfinite(env.observe()).all()
