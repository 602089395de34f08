"""Leagues of two-player games: both seatings, known equilibria, sampled and deterministic play."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor

from sweepd.agents.policy.duels import Duels, FrozenEntrant, duel_report, play_duels
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member
from sweepd.envs.games.pairings import RandomEntrant, play_pairs, scripted_entrants, tally
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError
from tests.envs.games.toys import RPS, RPS_SCRIPTED, SHOWDOWN, chooser

UNIFORM = chooser((1 / 3, 1 / 3, 1 / 3))


def player(name: str, members: list[dict[str, Tensor]], *, sampled: bool = False) -> FrozenEntrant:
    return FrozenEntrant(name, FrozenPolicy(members), sampled=sampled)


def showdown_players() -> list[FrozenEntrant]:
    bold = chooser((0.5, 0.5), (0.2, 0.8), (0.0, 1.0))
    timid = chooser((1.0, 0.0), (1.0, 0.0), (0.0, 1.0))
    return [
        player("bold", [bold], sampled=True),
        player("timid", [timid]),
        player("always", [chooser((0.0, 1.0), (0.0, 1.0), (0.0, 1.0))]),
    ]


def test_payoffs_are_exactly_zero_sum_for_few_noisy_games() -> None:
    duels = play_duels(SHOWDOWN, SHOWDOWN.params(), showdown_players(), 7, seed=0)
    assert duels.names == ("bold", "timid", "always", "random")
    assert (duels.payoffs == -duels.payoffs.T).all()
    assert (duels.points + duels.points.swapaxes(0, 1) == 1.0).all()
    assert np.abs(duels.payoffs).max() > 0.1


def test_a_deal_in_both_seatings_cancels_the_luck_of_the_cards() -> None:
    # Two deterministic players that act alike get equal points in every deal.
    same = [player(name, [chooser((1.0, 0.0), (0.0, 1.0), (0.0, 1.0))]) for name in ("a", "b")]
    duels = play_duels(SHOWDOWN, SHOWDOWN.params(), same, 50, seed=1)
    assert (duels.points[0, 1] == 0.5).all()
    assert (duels.results[0, 1] != 0.5).any()
    assert (duels.results[1, 0] == 1.0 - duels.results[0, 1][:, ::-1]).all()


def test_points_agree_with_the_payoffs_by_hand() -> None:
    # always against timid: the six deals are equally likely. Timid bets with the high card only:
    # it wins 2 in a third of the deals and loses 1 in two thirds, so its mean return is 0.
    duels = play_duels(SHOWDOWN, SHOWDOWN.params(), showdown_players(), 3000, seed=2)
    assert duels.points[2, 1].mean() == pytest.approx(0.5, abs=0.012)
    # bold against always: with 0.5, 0.8 and 1 bets on the cards 0, 1, 2 it gets
    # (-2 * 0.5 - 0.5) / 3 + (0.8 * 0 - 0.2) / 3 + 2 / 3 = 0.1 on average.
    assert duels.points[0, 2].mean() == pytest.approx(0.5 + 0.1 / 4.0, abs=0.012)


def test_results_of_a_pair_do_not_depend_on_other_pairs() -> None:
    players = [*showdown_players(), RandomEntrant()]
    one = play_pairs(SHOWDOWN, SHOWDOWN.params(), players, [(0, 3)], 20, 5)
    many = play_pairs(SHOWDOWN, SHOWDOWN.params(), players, [(1, 2), (0, 3), (3, 1)], 20, 5)
    assert (one.points[0] == many.points[1]).all()


@pytest.mark.parametrize("changes", [{}, {"discrete": True}, {"keep_mode": False}])
def test_scripted_players_play_hockey_in_every_form(changes: dict[str, bool]) -> None:
    game = get_game("hockey")
    params = game.params(max_timesteps=30, **changes)
    players = [*scripted_entrants(game, params), RandomEntrant()]
    assert [player.names[0] for player in players] == ["weak", "strong", "random"]
    found = play_pairs(game, params, players, [(0, 1), (1, 2)], 3, 0)
    assert found.points.shape == (2, 3, 2)
    assert found.lengths.max() <= 31
    again = play_pairs(game, params, players, [(0, 1), (1, 2)], 3, 0)
    assert (again.points == found.points).all()
    assert (again.lengths == found.lengths).all()


def test_uniform_play_is_the_equilibrium_of_rock_paper_scissors() -> None:
    duels = play_duels(RPS_SCRIPTED, RPS.params(), [], 4, seed=0)
    told = duel_report(duels, members=0)["equilibrium"]["all"]
    assert told["weights"] == pytest.approx({"rock": 1 / 3, "paper": 1 / 3, "scissors": 1 / 3})
    assert told["payoff"] == pytest.approx(0.0)
    assert told["exploitability"]["gain"] == pytest.approx(0.0, abs=1e-9)


def test_a_sampled_uniform_player_is_not_exploitable_and_a_deterministic_one_is() -> None:
    gains = {}
    for sampled in (True, False):
        own = player("uniform", [UNIFORM], sampled=sampled)
        duels = play_duels(RPS_SCRIPTED, RPS.params(), [own], 2000, seed=3)
        told = duel_report(duels, members=1)["equilibrium"]["members"]["exploitability"]
        gains[sampled] = (told["by"], told["gain"], told["low"])
    assert abs(gains[True][1]) < 0.06
    assert gains[False] == ("paper", 1.0, 1.0)  # the first of equal options is rock


def test_samples_have_the_probabilities_of_the_policy() -> None:
    policy = FrozenPolicy([chooser((0.5, 0.3, 0.2))])
    uniforms = torch.rand(
        100_000, policy.uniforms, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    chosen = policy.sample_batch(torch.zeros(100_000, 1), uniforms)
    assert (torch.bincount(chosen) / 1e5).tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.01)
    assert policy.act_batch(torch.zeros(4, 1)).tolist() == [0] * 4

    def legal(_: Tensor) -> Tensor:
        return torch.tensor([[False, True, False]]).expand(100_000, 3)

    assert policy.sample_batch(torch.zeros(100_000, 1), uniforms, legal).unique().tolist() == [1]
    never = FrozenPolicy([chooser((1.0, 0.0, 0.0))])
    top = torch.full((1, 1), 1.0 - 2.0**-53, dtype=torch.float64)
    assert never.sample_batch(torch.zeros(1, 1), top).item() == 0


def test_probabilities_are_those_of_samples() -> None:
    policy = FrozenPolicy([chooser((0.5, 0.3, 0.2)), chooser((0.3, 0.3, 0.4))])
    legal = torch.tensor([[True, True, True], [True, False, True], [False, True, False]])
    found = policy.probabilities(torch.zeros(3, 1), legal)
    assert found.sum(1).tolist() == pytest.approx([1.0] * 3)
    assert found[0].tolist() == pytest.approx([0.4, 0.3, 0.3], abs=1e-6)
    # The mean of 5/7 and 3/7: each member's probabilities among the legal options.
    assert found[1].tolist() == pytest.approx([4 / 7, 0.0, 3 / 7], abs=1e-6)
    assert found[2].tolist() == [0.0, 1.0, 0.0]
    uniforms = (torch.arange(10_000, dtype=torch.float64).unsqueeze(1) + 0.5) / 10_000
    rows = legal[1].expand(10_000, 3)
    drawn = policy.sample_batch(torch.zeros(10_000, 1), uniforms, lambda _: rows)
    assert (torch.bincount(drawn) / 1e4).tolist() == pytest.approx(found[1].tolist(), abs=2e-4)


def test_numbers_are_sampled_with_the_actors_deviation() -> None:
    actor = Member.of_tensors(
        {
            "net.0.weight": torch.zeros(1, 1),
            "net.0.bias": torch.tensor([0.3]),
            "action_std_log": torch.full((1, 1), -1.0),
            "state_avg": torch.zeros(1),
            "state_std": torch.ones(1),
        }
    )
    policy = FrozenPolicy([actor])
    uniforms = torch.rand(
        50_000, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    drawn = policy.sample_batch(torch.zeros(50_000, 1), uniforms).atanh()
    assert drawn.mean().item() == pytest.approx(0.3, abs=0.01)
    assert drawn.std().item() == pytest.approx(np.exp(-1.0), abs=0.01)


def test_values_cannot_be_sampled() -> None:
    units = {"value_avg": torch.zeros(1), "value_std": torch.ones(1)}
    values = Member.of_tensors({**chooser((0.5, 0.5)).tensors, **units})
    with pytest.raises(InputError, match="plays deterministically"):
        player("values", [values], sampled=True)


def test_wrong_players_and_games_are_refused() -> None:
    with pytest.raises(InputError, match="maps 3 numbers to 2 actions"):
        play_duels(RPS, RPS.params(), [showdown_players()[1]], 2, seed=0)
    cartpole = get_game("cartpole")
    with pytest.raises(InputError, match="not a game of two seats"):
        play_pairs(cartpole, cartpole.params(), [RandomEntrant()], [], 2, 0)


def test_a_pair_that_always_wins_is_not_certain_to() -> None:
    results = np.full((2, 2, 20, 2), 0.5)
    results[0, 1], results[1, 0] = 1.0, 0.0
    points = duel_report(Duels(("a", "b"), results), 2)["points"]
    least = 0.025 ** (1 / 20)
    assert np.array(points["low"]) == pytest.approx(np.array([[0.5, least], [0, 0.5]]), abs=0.01)
    assert np.array(points["high"]) == pytest.approx(
        np.array([[0.5, 1], [1 - least, 0.5]]), abs=0.01
    )


def test_the_report_is_json_and_counts_every_game() -> None:
    duels = play_duels(SHOWDOWN, SHOWDOWN.params(), showdown_players(), 6, seed=0)
    told = duel_report(duels, members=3)
    assert told == json.loads(json.dumps(told))
    counted = np.array(told["wins"]) + told["draws"] + told["losses"]
    assert (counted == 12 * (1 - np.eye(4))).all()
    assert (np.array(told["wins"]) == np.array(told["losses"]).T).all()
    assert set(told["ratings"]["players"]) == set(duels.names)
    assert str(tally(np.array([1.0, 1.0, 0.5, 0.0]))) == "2 won, 1 drawn, 1 lost"
