"""Studies whose members draw their actions in evaluations (`--play sampled`), and NashConv."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from sweepd.agents.policy.members import save_members
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.games.evaluation import GameEvaluation
from sweepd.optimize.objectives.games.pictures import draw_game
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.table import check_request
from sweepd.optimize.study.record.specs import GameSpec, StudySpec
from sweepd.optimize.study.record.trials import TrialRecord
from tests.agents.policy.test_exact_league import BETS_ALWAYS, BETS_WITH_KINGS, actor
from tests.envs.games.toys import chooser
from tests.extra import with_extra
from tests.optimize.conftest import Running
from tests.optimize.objectives.test_game_study import (
    make_experiment,
    make_spec,
    plan,
    same_alone_in_a_batch_and_after_a_stop,
    to_the_end,
)
from tests.optimize.study_files import open_handle
from tests.optimize.worker.test_batch import advance_to

SCRIPTED = "tests.envs.games.toys:RPS_SCRIPTED"
# A game in turns with masks, one whose seats move at once, one with several choices and masks, one
# of a single player, one of numbers, and one of several players.
GAMES: dict[str, dict[str, Any]] = {
    "leduc": {"objective": "points"},
    SCRIPTED: {"objective": "points"},
    "tests.envs.games.toys:NIM": {"objective": "points"},
    "cartpole": {},
    "hockey": {"objective": "points", "env": {"max_timesteps": 90}},
    "bucket-brigade": {"env": {"scenario": "v2_minimal", "max_nights": 12}},
}


@pytest.mark.parametrize("game", with_extra(GAMES, ("hockey",)))
def test_sampled_results_are_the_same_alone_in_a_batch_and_after_a_stop(game: str) -> None:
    experiment = make_experiment(game, play="sampled", episodes=6, **GAMES[game])
    in_company = same_alone_in_a_batch_and_after_a_stop(experiment)
    plain = Trainer(make_experiment(game, episodes=6, **GAMES[game]))
    deterministic = to_the_end(plain, [plain.start(plan(1))])[1]
    assert deterministic[2] == in_company[1][2]  # training is the same
    assert deterministic[1] != in_company[1][1]


@pytest.mark.parametrize("play", ["sampled", "deterministic"])
def test_mixed_strategies_are_judged_by_what_they_draw(play: Any) -> None:
    """Untrained members of rock, paper, scissors choose nearly uniformly, or always one option."""
    experiment = make_experiment(SCRIPTED, objective="points", play=play, episodes=600)
    trainer = Trainer(experiment)
    [found] = trainer.evaluate([trainer.start(plan(0))])
    assert isinstance(found, GameEvaluation)
    points = found.episodes.returns.reshape(2, 3, 600).mean(2)  # by member and opponent
    if play == "sampled":
        assert points == pytest.approx(0.5, abs=0.2)
        assert np.isin(found.episodes.returns, (0.0, 0.5, 1.0)).all()
    else:
        assert np.isin(points, (0.0, 0.5, 1.0)).all()
        assert (np.sort(points, 1) == (0.0, 0.5, 1.0)).all()
    said = "in sampled play" in " ".join(experiment.describe())
    assert said == ("sampled play" in experiment.spec.about) == (play == "sampled")


def test_the_members_exact_nash_conv_is_a_metric(tmp_path: Path) -> None:
    experiment = make_experiment("kuhn", objective="points", seeds=2, play="sampled", episodes=6)
    trainer = Trainer(experiment)
    training = trainer.start(plan(0))
    advance_to(trainer, [training], 1)
    [found] = trainer.evaluate([training])
    assert isinstance(found, GameEvaluation)
    members = trainer.actors(training)
    save_members(tmp_path / "members.safetensors", members)
    experiment.write(tmp_path, found)
    draw_game(experiment.game, experiment.spec, tmp_path, "trial 0")
    exact = json.loads((tmp_path / "league.json").read_text())["exact"]["nash_conv"]
    own = [exact[f"seed {member}"] for member in (0, 1)]
    assert list(found.nash_conv) == [values["sampled"] for values in own]
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["nash_conv"] == np.mean(found.nash_conv) == found.record.nash_conv
    assert metrics["nash_conv_least"] == min(found.nash_conv)
    other = make_experiment("kuhn", objective="points", seeds=2, episodes=6)
    [plain] = Trainer(other).evaluate([training])
    assert isinstance(plain, GameEvaluation)
    assert list(plain.nash_conv) == [values["deterministic"] for values in own]


def test_a_known_nash_conv_and_games_without_one() -> None:
    experiment = make_experiment("kuhn", objective="points", seeds=2, slots=2, play="sampled")
    bare = GameEvaluation(0.5, 0.5, (0.5, 0.5), (), _episodes())
    found = experiment.with_exact(bare, lambda: [actor(BETS_ALWAYS), actor(BETS_WITH_KINGS)])
    assert found.nash_conv[0] == pytest.approx(2 / 3, abs=1e-4)

    def members() -> list[Any]:
        raise AssertionError("nothing is exported for games that cannot be enumerated")

    card_game = make_experiment(SCRIPTED, objective="points", seeds=2, slots=2)
    without = card_game.with_exact(bare, members)
    assert "nash_conv" not in without.metrics()
    assert without.record.nash_conv is None
    with_key = TrialRecord(nash_conv=0.25).to_attributes(make_spec("kuhn"))
    assert with_key == {"sweepd:nash_conv": 0.25}
    assert TrialRecord.from_attributes(with_key).nash_conv == 0.25


def _episodes() -> Any:
    experiment = make_experiment(SCRIPTED, objective="points", seeds=2, slots=2, episodes=2)

    def act(obs: Tensor) -> Tensor:
        return torch.zeros(len(obs), dtype=torch.int64)

    [found] = experiment.evaluate([plan(0).settings], [1], [act], 2, lambda: None)
    assert found is not None
    return found.episodes


def test_the_league_of_a_trial_plays_as_its_study(tmp_path: Path) -> None:
    uniform = chooser((1.0, 1.0, 1.0))
    won = {}
    for play in ("sampled", "deterministic"):
        experiment = make_experiment(SCRIPTED, objective="points", seeds=2, slots=2, play=play)
        folder = tmp_path / play
        folder.mkdir()
        bare = GameEvaluation(0.5, 0.5, (0.5, 0.5), (), _episodes())
        save_members(folder / "members.safetensors", [uniform, uniform])
        experiment.write(folder, bare)
        draw_game(experiment.game, experiment.spec, folder, play)
        league = json.loads((folder / "league.json").read_text())
        won[play] = league["wins"][0][league["players"].index("scissors")] / league["games"]
    assert won["deterministic"] == 1.0  # the first of equal options is rock
    assert 0.1 < won["sampled"] < 0.6


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"env": "hockey", "algo": "sac"}, "--play sampled is for --algo ppo"),
        ({"env": "cartpole", "algo": "d3qn"}, "--algo d3qn is judged as it acts"),
        ({"env": "crypto", "given": {"play"}}, "--play is for games"),
    ],
)
def test_play_that_means_nothing_is_refused(changes: dict[str, Any], sentence: str) -> None:
    objective = {"hockey": "points", "cartpole": "return"}.get(changes["env"], "information-ratio")
    with pytest.raises(InputError, match=sentence):
        check_request(Request(play="sampled", objective=objective, **changes))


def test_studies_of_before_are_deterministic() -> None:
    described = json.loads(make_spec("kuhn", play="sampled").to_json())
    assert StudySpec.from_json(json.dumps(described)) == make_spec("kuhn", play="sampled")
    del described["play"]
    before = StudySpec.from_json(json.dumps(described))
    assert isinstance(before, GameSpec)
    assert before.play == "deterministic"


def test_a_study_keeps_its_play_and_records_the_nash_conv(tmp_path: Path) -> None:
    text = (
        "train --env kuhn --n-trials 1 --budget 1024 --rungs 2 --n-envs 16 --horizon 16 --seeds 2 "
        "--episodes 4 --threads 1 --gpu cpu --pruner none --study-name s --search-space s.toml"
    )
    words = text.split()
    (tmp_path / "s.toml").write_text(
        'name = "s"\nversion = 1\n[study]\nplay = "sampled"\n[shape]\nminibatch = { value = 64 }\n'
    )
    out = Running(words, tmp_path, tmp_path / "out.txt").finish()
    assert "--play sampled" in out
    assert "in sampled play" in out
    assert "the same for all trials, sampled play" in out
    assert "exact NashConv" in out
    handle = open_handle(tmp_path)
    [trial] = handle.trials()
    record = TrialRecord.from_attributes(trial.user_attrs)
    assert record.metrics is not None
    assert trial.user_attrs["sweepd:nash_conv"] == record.metrics["nash_conv"] > 0.0
    events = next((handle.run_dir / "tensorboard").rglob("events*")).parent
    assert [step for step, _ in _scalars(events, "test/nash_conv")] == [512, 1024]
    status = Running(["status"], tmp_path, tmp_path / "status.txt").finish()
    assert "sampled play" in status
    Running(words, tmp_path, tmp_path / "joined.txt").finish()
    other = [*words, "--play", "deterministic"]
    refused = Running(other, tmp_path, tmp_path / "refused.txt").finish(2)
    assert 'created with play = "sampled", and now it is "deterministic"' in refused


def _scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(point.step, point.value) for point in events.Scalars(name)]
