"""Studies on games of two players: the objective, the metrics and the league of a trial."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from sweepd.agents.engine.program import Act
from sweepd.agents.policy.league_pictures import equilibrium_words
from sweepd.agents.policy.members import save_members
from sweepd.envs.support.intervals import Floats
from sweepd.optimize.objectives.games.duels import judge_population
from sweepd.optimize.objectives.games.evaluation import GameEvaluation
from sweepd.optimize.objectives.games.objective import GameObjective
from sweepd.optimize.objectives.games.pictures import draw_game
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.space.parsing import load_space
from sweepd.optimize.study.space.search_space import Settings
from sweepd.optimize.study.space.subject import Subject
from tests.agents.policy.test_exact_league import BETS_ALWAYS, BETS_WITH_KINGS, actor
from tests.envs.games.toys import chooser
from tests.optimize.objectives.test_game_study import make_experiment, plan
from tests.optimize.worker.test_batch import advance_to

RPS, SCRIPTED = "tests.envs.games.toys:RPS", "tests.envs.games.toys:RPS_SCRIPTED"
SETTINGS = Settings({}, {}, {})


def evaluation(environment: str, options: list[int], **changes: object) -> GameEvaluation:
    """Evaluate a trial whose members always choose these options."""
    experiment = make_experiment(
        environment, objective="points", seeds=len(options), slots=4, **changes
    )

    def act(obs: Tensor) -> Tensor:
        return torch.tensor([*options, 0, 0][:4]).repeat_interleave(len(obs) // 4)

    found = experiment.evaluate([SETTINGS], [1], [act], 4, lambda: None)[0]
    assert found is not None
    return found


def test_the_objective_is_the_mean_outcome_against_the_scripted_players() -> None:
    found = evaluation(SCRIPTED, [0, 2], episodes=6)
    # Each member draws, wins and loses against one of the three players.
    assert found.scores == (0.5, 0.5)
    assert found.episodes.returns.shape == (2, 18)
    metrics = found.metrics()
    assert (metrics["points_rock"], metrics["points_paper"]) == (0.25, 0.5)
    assert (metrics["won_paper"], metrics["drawn_rock"]) == (0.5, 0.5)
    assert metrics["length"] == 1.0


def test_a_game_without_scripted_players_is_judged_against_random_play() -> None:
    found = evaluation(RPS, [0, 1], episodes=2000)
    assert found.scores == pytest.approx((0.5, 0.5), abs=0.05)
    assert set(found.metrics()) >= {"points_random", "won_random", "drawn_random"}
    assert found.metrics()["drawn_random"] == pytest.approx(1 / 3, abs=0.05)


def test_members_with_actions_that_are_not_finite_have_no_value() -> None:
    experiment = make_experiment(
        "hockey", objective="points", seeds=2, slots=2, episodes=2, env={"max_timesteps": 3}
    )
    bad = experiment.evaluate(
        [SETTINGS], [1], [lambda obs: torch.full((len(obs), 4), torch.nan)], 2, lambda: None
    )
    assert bad == [None]
    good = experiment.evaluate(
        [SETTINGS], [1], [lambda obs: torch.zeros(len(obs), 4)], 2, lambda: None
    )
    assert good[0] is not None
    assert good[0].scores[0] == good[0].scores[1]  # the same games
    assert "2 episodes per opponent (weak, strong)" in " ".join(experiment.describe())


def test_points_are_the_objective_of_games_of_two_players_only() -> None:
    assert GameObjective("hockey").objectives == ("points",)
    assert GameObjective(RPS).objectives == ("points",)
    assert GameObjective("cartpole").objectives == ("return",)
    assert GameObjective("bucket-brigade").objectives == ("return",)


def test_a_trial_keeps_its_league_with_ratings(tmp_path: Path) -> None:
    experiment = make_experiment(SCRIPTED, objective="points", seeds=2, slots=2, episodes=6)
    members = [chooser((1.0, 0.0, 0.0)), chooser((0.0, 1.0, 0.0))]
    found = evaluation(SCRIPTED, [0, 1], episodes=6)
    save_members(tmp_path / "members.safetensors", members)
    experiment.write(tmp_path, found)
    draw_game(experiment.game, experiment.spec, tmp_path, "trial 0")
    for name in experiment.published:
        assert (tmp_path / name).exists(), name
    assert "ratings.png" in experiment.published
    league = json.loads((tmp_path / "league.json").read_text())
    assert league["players"] == ["seed 0", "seed 1", "rock", "paper", "scissors"]
    payoffs = np.array(league["points"]["mean"])
    assert (payoffs + payoffs.T == 1.0).all()
    assert league["ratings"]["players"]["seed 0"]["rating"] == pytest.approx(
        league["ratings"]["players"]["rock"]["rating"], abs=1e-6
    )
    frame = pd.read_parquet(tmp_path / "episodes.parquet")
    assert set(frame["return"]) <= {0.0, 0.5, 1.0}


def test_the_league_of_a_small_game_in_turns_has_exact_values(tmp_path: Path) -> None:
    experiment = make_experiment("kuhn", objective="points", seeds=2, slots=2, episodes=6)
    members = [actor(BETS_ALWAYS), actor(BETS_WITH_KINGS)]

    def act(obs: torch.Tensor, **_: object) -> torch.Tensor:
        return torch.zeros(len(obs), dtype=torch.int64)

    found = experiment.evaluate([SETTINGS], [1], [act], 2, lambda: None)[0]
    assert found is not None
    save_members(tmp_path / "members.safetensors", members)
    experiment.write(tmp_path, found)
    draw_game(experiment.game, experiment.spec, tmp_path, "trial 0")
    league = json.loads((tmp_path / "league.json").read_text())
    known = league["exact"]["nash_conv"]
    assert set(known) == {"seed 0", "seed 1", "random"}
    # Nearly deterministic policies are the same in both kinds of play. A best response to bets on
    # every card bets or calls with the king, folds the jack, and does either with the queen.
    assert known["seed 0"]["sampled"] == pytest.approx(known["seed 0"]["deterministic"], abs=1e-4)
    assert known["seed 0"]["deterministic"] == pytest.approx(2 * 1 / 3)
    for own in league["equilibrium"].values():
        assert own["nash_conv"] > 0.1
        assert own["verdict"].startswith("exploitable")
        assert "exploitable" in equilibrium_words(own)


@pytest.mark.parametrize("name", ["kuhn", "leduc"])
def test_poker_has_its_own_space(name: str) -> None:
    space = load_space("game", Subject(name))
    settings = space.resolve(space.start)
    rows = space.study["n_envs"] * space.study["horizon"]
    assert rows % settings.shape["minibatch"] == 0
    # A game is short and its only reward comes at the end: nothing is discounted.
    assert settings.learner["gamma"] == 1.0
    assert GameObjective(name).objectives == ("points",)


def test_metrics_tell_the_wins_by_seat_and_the_limit() -> None:
    # All players make the same choice at both seats; a game has one decision, which is its limit.
    found = evaluation(SCRIPTED, [0, 2], episodes=6)
    metrics = found.metrics()
    points = found.episodes.returns.reshape(-1, 2)
    assert metrics["won_first_seat"] == (points[:, 0] > 0.5).mean() == 1 / 3
    assert metrics["won_second_seat"] == (points[:, 1] > 0.5).mean() == 1 / 3
    assert metrics["at_limit"] == 1.0


@pytest.mark.parametrize("curriculum", [{}, {"phases": [{"opponents": {"grabber": 1.0}}]}])
def test_curves_of_games_in_turns_have_the_figures_of_play(curriculum: dict[str, object]) -> None:
    experiment = make_experiment(
        "tests.envs.games.toys:NIM", objective="points", curriculum=curriculum
    )
    trainer = Trainer(experiment)
    trial = trainer.start(plan(0))
    advance_to(trainer, [trial], 1)
    taken = trainer.take_curves(trial)
    seats = {"truncated"} if curriculum else {"won_first", "won_second"}
    play = {"illegal", "decisions_per_game", "entropy_0", "entropy_1"} | seats
    for _, values in taken:
        assert set(values) == {*experiment.algorithm.curves, *play}
        assert np.isfinite(list(values.values())).all()
        assert values["illegal"] == 0.0
        assert values["decisions_per_game"] > 0


def fixed_options(options: list[int], slots: int) -> list[Act]:
    """Programs whose members always choose these options."""

    def program(own: list[int]) -> Act:
        filled = torch.tensor([*own, *[0] * (slots - len(own))])
        return lambda obs: filled.repeat_interleave(len(obs) // slots)

    return [program(options[at : at + slots]) for at in range(0, len(options), slots)]


def population(programs: list[Act], slots: int, sizes: tuple[int, int], games: int) -> Floats:
    game = GameObjective(RPS).game
    device, sampled = torch.device("cpu"), hasattr(programs[0], "uniforms")
    return judge_population(
        *(game, game.params(), programs, slots, sizes, games, 1),
        device=device,
        ask=lambda: None,
        sampled=sampled,
    )


def test_a_population_plays_all_pairs_of_its_trials() -> None:
    options = np.array([[0, 1], [1, 2], [2, 1], [0, 0], [1, 1]])  # by trial and member
    # Points of a row's option against a column's: rock, paper, scissors.
    points = np.array([[0.5, 0.0, 1.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.5]])
    expected = [
        np.mean([points[own, other].mean() for j, other in enumerate(options) if j != i])
        for i, own in enumerate(options)
    ]
    for slots in (2, 4, 16):
        programs = fixed_options(options.flatten().tolist(), slots)
        assert population(programs, slots, (5, 2), 6) == pytest.approx(expected)


class Mixed:
    """Two members that draw: one of rock and paper, the other of paper and scissors."""

    uniforms = 1

    def __call__(self, obs: Tensor, uniforms: Tensor) -> Tensor:
        second = (uniforms[:, 0] < 0.5).long()
        return second + torch.tensor([0, 1]).repeat_interleave(len(obs) // 2)


def test_both_players_of_a_game_draw_with_random_numbers_of_their_own() -> None:
    found = population([Mixed()], 2, (2, 1), 4000)
    # Rock loses to paper and beats scissors; paper draws with paper and loses to scissors. With
    # common numbers, the first one would lose every game.
    assert found == pytest.approx([0.375, 0.625], abs=0.03)
