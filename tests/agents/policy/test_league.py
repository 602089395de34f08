"""Leagues: payoffs by a plain loop, equilibria of games that were solved by hand."""

from __future__ import annotations

import dataclasses
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from sweepd.agents.policy.equilibrium import equilibrium
from sweepd.agents.policy.league import (
    Matches,
    Players,
    exploitation,
    interval,
    play_matches,
    report,
)
from sweepd.agents.policy.league_pictures import equilibrium_words
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.players import ScriptedPolicy
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError, RunError

BUCKET = get_game("bucket-brigade")
ALONE = dataclasses.replace(BUCKET, players=lambda _params, _seed: {})
PARAMS = BUCKET.params("positional_default", min_nights=2, max_nights=6)  # no two seats alike


def stationed(obs: Tensor) -> Tensor:
    """Work at the house next to its own, and signal it."""
    agent = obs[:, -4:].argmax(1)
    return torch.stack([agent + 1, torch.ones_like(agent), torch.ones_like(agent)], 1)


def two_players() -> list[Players]:
    seen = BucketBrigade(PARAMS, 4).encoder
    specialist = ScriptedPolicy("specialist", seen, 0)  # without any chance
    both = Players(
        ("resting", "stationed"),
        lambda obs: torch.cat([rest(obs.chunk(2)[0]), stationed(obs.chunk(2)[1])]),
    )
    return [both, Players(("specialist",), specialist)]


def rest(obs: Tensor) -> Tensor:
    return torch.zeros(len(obs), 3, dtype=torch.int64)


def test_payoffs_equal_games_played_sequentially() -> None:
    games, seed = 8, 3
    matches = play_matches(ALONE, PARAMS, two_players(), games, seed)
    acts = [rest, stationed, two_players()[1].act]
    assert matches.names == ("resting", "stationed", "specialist")
    for row in range(3):
        for column in range(3):
            env = BucketBrigade(PARAMS, 4 * games)
            obs = env.reset([derive_seed(seed, "games")])
            returns, over = [[0.0] * 4 for _ in range(games)], [False] * games
            while not all(over):
                who = [
                    [row if seat == game % 4 else column for seat in range(4)]
                    for game in range(games)
                ]
                one_by_one = [acts[who[r // 4][r % 4]](obs[r : r + 1]) for r in range(4 * games)]
                step = env.step(torch.cat(one_by_one))
                obs, rewards = step.obs, step.reward.double() * env.reward_unit
                for game in range(games):
                    for seat in range(4):
                        returns[game][seat] += (
                            0.0 if over[game] else float(rewards[4 * game + seat])
                        )
                    over[game] |= bool((step.terminated | step.truncated)[4 * game])
            own = [returns[game][game % 4] for game in range(games)]
            assert matches.own[row, column].tolist() == pytest.approx(own, abs=1e-6)
            assert matches.team[row, column].tolist() == pytest.approx(
                [sum(one) for one in returns], abs=1e-6
            )


def test_baseline_players_join_the_league_and_its_report_is_json() -> None:
    told = report(play_matches(BUCKET, PARAMS, two_players()[:1], 4, 0), members=2)
    assert told == json.loads(json.dumps(told))
    assert told["players"][:4] == ["resting", "stationed", "random", "rest"]
    size = len(told["players"])
    assert np.array(told["own"]["low"]).shape == (size, size)
    assert set(told["equilibrium"]["members"]["weights"]) <= {"resting", "stationed"}
    assert told["equilibrium"]["all"]["exploitability"]["gain"] == pytest.approx(0.0, abs=1e-3)


def test_pairs_with_equal_games_have_no_interval() -> None:
    own = np.array([[[1.0, 1.0, 1.0], [1.0, 2.0, 3.0]], [[0.0, 0.0, 1.0], [2.0, 2.0, 2.0]]])
    told = report(Matches(("a", "b"), 2, own, own), members=1)
    assert json.loads(json.dumps(told["own"])) == told["own"]
    for end in ("low", "high"):
        [[first, second], [third, fourth]] = told["own"][end]
        assert first is fourth is None
        assert np.isfinite([second, third]).all()


@pytest.mark.parametrize(("game", "games"), [("cartpole", 4), ("bucket-brigade", 6)])
def test_a_league_needs_several_seats_and_whole_rounds(game: str, games: int) -> None:
    found = get_game(game)
    with pytest.raises(InputError, match="seats"):
        play_matches(found, found.params(), [], games, 0)


# Equilibria.


@pytest.mark.parametrize(
    ("payoffs", "weights", "payoff"),
    [
        ([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], [1 / 3, 1 / 3, 1 / 3], 0.0),  # rock, paper, scissors
        ([[0, -1, 2], [1, 0, -1], [-2, 1, 0]], [0.25, 0.5, 0.25], 0.0),  # rock wins twice as much
        ([[3, 0], [5, 1]], [0.0, 1.0], 1.0),  # the prisoners' dilemma: both confess
        (
            [[-1, 2], [0, 1]],
            [0.5, 0.5],
            0.5,
        ),  # hawks and doves, where a fight costs twice what is fought about
        (
            [[4, 0], [3, 2]],
            [1.0, 0.0],
            4.0,
        ),  # the stag hunt has three: the best-paid one is to hunt the stag
        ([[7.0]], [1.0], 7.0),
        ([[2.0, 2.0], [2.0, 2.0]], None, 2.0),
    ],
)
def test_equilibria_of_games_solved_by_hand(
    payoffs: list[list[float]], weights: list[float] | None, payoff: float
) -> None:
    found = equilibrium(np.array(payoffs, dtype=np.float64))
    assert found.payoff == pytest.approx(payoff, abs=1e-6)
    assert weights is None or found.weights.tolist() == pytest.approx(weights, abs=1e-6)


def test_no_player_gains_by_leaving_an_equilibrium() -> None:
    for seed in range(8):
        payoffs = np.random.default_rng(seed).normal(1000.0, 300.0, (7, 7))
        found = equilibrium(payoffs)
        assert found.weights.sum() == pytest.approx(1.0)
        assert (found.weights >= 0.0).all()
        assert (payoffs @ found.weights).max() == pytest.approx(found.payoff, abs=1e-2)


def test_zero_sum_games_of_many_players_are_solved_quickly() -> None:
    half = np.random.default_rng(0).normal(size=(40, 40))
    payoffs = (
        500.0 + half - half.T
    )  # the maximin mixture is optimal; a mixed-integer program would take minutes
    began = time.monotonic()
    found = equilibrium(payoffs)
    assert time.monotonic() - began < 10.0
    assert found.proven
    assert found.payoff == pytest.approx(500.0)
    assert (found.weights > 0.0).sum() > 10
    assert (payoffs @ found.weights).max() == pytest.approx(500.0, abs=1e-6)


def test_equilibrium_search_stops_at_the_time_limit_and_reports_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    half = rng.normal(size=(30, 30))
    payoffs = half - half.T + 0.01 * rng.normal(size=(30, 30))  # not zero-sum, and hard
    monkeypatch.setattr("sweepd.agents.policy.equilibrium.TIME_LIMIT", 0.2)
    began = time.monotonic()
    with pytest.raises(RunError, match=r"no equilibrium was found within 0\.2 s among 30 players"):
        equilibrium(payoffs)
    assert time.monotonic() - began < 10.0
    own = payoffs[..., None] + np.zeros(2)
    told = report(Matches(tuple(map(str, range(30))), 2, own, own), members=0)
    assert told["equilibrium"] == {
        "all": {"unsolved": "no equilibrium was found within 0.2 s among 30 players"}
    }
    assert equilibrium_words(told["equilibrium"]["all"]).startswith("no equilibrium was found")
    stopped = SimpleNamespace(x=np.array([0.0, 1.0, 0.0, 1.0, 0.2]), status=1, mip_dual_bound=-0.8)
    monkeypatch.setattr("sweepd.agents.policy.equilibrium._best_paid", lambda *_: stopped)
    found = equilibrium(np.array([[3.0, 0.0], [5.0, 1.0]]))
    assert (found.payoff, found.bound, found.proven) == (1.0, 4.0, False)
    words = {"weights": {"b": 1.0}, "payoff": found.payoff, "payoff_bound": found.bound}
    assert (
        equilibrium_words(words)
        == "b 100%; it pays 1 (stopped by its time limit; none pays more than 4)"
    )


@pytest.mark.parametrize("payoffs", [np.zeros((2, 3)), np.zeros((0, 0)), np.full((2, 2), np.nan)])
def test_payoffs_must_be_square_and_finite(payoffs: np.ndarray) -> None:
    with pytest.raises(InputError, match="payoffs must be a square matrix"):
        equilibrium(payoffs)


def test_exploitation_is_the_gain_of_the_best_response() -> None:
    """Rock against 2/3 scissors and 1/3 paper wins 2/3 - 1/3; the mixture itself gets 0."""
    matrix = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
    noise = np.array([-0.5, 0.5, -0.5, 0.5])
    own = matrix[..., None] + noise * np.array([1.0, 0.0, 0.0]).reshape(3, 1, 1)
    found = exploitation(own, np.array([0.0, 1 / 3, 2 / 3]))
    assert found.by == 0
    assert found.gain == pytest.approx(1 / 3)
    error = 1.959964 * np.std(noise, ddof=1) / 2  # of the differences game by game
    assert found.high - found.gain == pytest.approx(error, rel=1e-5)
    assert found.low == pytest.approx(1 / 3 - error, rel=1e-5)


def test_intervals_cover_the_mean() -> None:
    draws = np.random.default_rng(0).normal(5.0, 2.0, (2000, 50))
    mean, reach = interval(draws)
    assert 0.93 < (np.abs(mean - 5.0) < reach).mean() < 0.96
