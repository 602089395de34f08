"""Reports of leagues in games small enough to enumerate, and what they say about exploitability."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from agents.policy.duels import FrozenEntrant, duel_report, play_duels
from agents.policy.exact import mixed, nash_conv, plans
from agents.policy.exact_league import exact_league
from agents.policy.frozen import FrozenPolicy
from agents.policy.members import Member
from envs.games.game_tree import game_tree
from envs.games.pairings import Entrant, RandomEntrant
from envs.games.registry import get_game
from tests.agents.policy.test_exact import open_spiel_policy
from tests.envs.games.toys import RPS_SCRIPTED

KUHN = get_game("kuhn")
# Logit of a bet by card J, Q, K, at every decision.
BETS_WITH_KINGS = (-30.0, -30.0, 30.0)
BETS_ALWAYS = (30.0, 30.0, 30.0)


def actor(bets: Sequence[float]) -> Member:
    """A linear policy of Kuhn poker that looks at its card only."""
    weight = torch.zeros(2, KUHN.make([KUHN.params()], 1, together=1, device="cpu").state_dim)
    weight[1, 2:5] = torch.tensor(bets)
    columns = weight.shape[1]
    return {
        "net.0.weight": weight,
        "net.0.bias": torch.zeros(2),
        "state_avg": torch.zeros(columns),
        "state_std": torch.ones(columns),
    }


def report(entrants: Sequence[Entrant], deals: int = 30) -> dict[str, Any]:
    duels = play_duels(KUHN, KUHN.params(), list(entrants), deals, seed=1)
    exact = exact_league(KUHN, KUHN.params(), [*entrants, RandomEntrant()])
    return duel_report(duels, len(entrants), exact)


def players(all_bets: Mapping[str, Sequence[float]], *, sampled: bool) -> list[FrozenEntrant]:
    return [
        FrozenEntrant(name, FrozenPolicy([actor(bets)]), sampled=sampled)
        for name, bets in all_bets.items()
    ]


def test_every_player_has_the_nash_conv_of_both_kinds_of_play() -> None:
    torch.manual_seed(0)
    own = {"one": torch.randn(3).tolist(), "two": torch.randn(3).tolist()}
    entrants = players(own, sampled=False)
    told = report(entrants)
    assert told == json.loads(json.dumps(told))
    assert told["exact"]["information_sets"] == [6, 6]
    found = told["exact"]["nash_conv"]
    assert set(found) == {"one", "two", "random"}
    assert found["random"] == {"sampled": pytest.approx(11 / 12)}
    theirs = pytest.importorskip(
        "open_spiel.python.algorithms.exploitability", reason="OpenSpiel is not installed"
    )
    for entrant in entrants:
        behaviours = entrant.behaviours()
        assert list(behaviours) == ["deterministic", "sampled"]
        for kind, behaviour in behaviours.items():
            game, table = open_spiel_policy("kuhn", (behaviour, behaviour))
            wanted = theirs.nash_conv(game, table)
            assert found[entrant.names[0]][kind] == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("sampled", [False, True])
def test_a_pool_that_finds_nothing_does_not_make_a_policy_unexploitable(sampled: bool) -> None:
    # Alone, a member is the equilibrium among the members, and no member gains against it.
    told = report(players({"kings": BETS_WITH_KINGS}, sampled=sampled))
    alone = told["equilibrium"]["members"]
    assert alone["weights"] == {"kings": 1.0}
    assert alone["exploitability"]["low"] <= 0.0
    # It folds to every bet without a king, so every bet takes its ante in two of three deals.
    assert alone["nash_conv"] > 0.3
    assert alone["verdict"].startswith("exploitable: its NashConv is")


def test_only_an_equilibrium_is_called_not_exploitable() -> None:
    tree = game_tree(KUHN, KUHN.params())

    def behaviour(observations: Tensor, legal: Tensor) -> Tensor:
        """Kuhn's equilibrium with alpha 0."""
        del legal
        third = 1 / 3
        first = {0: (0.0, 0.0), 1: (0.0, third), 2: (0.0, 1.0)}
        second = {0: (third, 0.0), 1: (0.0, third), 2: (1.0, 1.0)}
        bets = []
        for seen in observations.tolist():
            card = seen[2:5].index(1.0)
            bets.append(first[card][any(seen[7:])] if seen[0] else second[card][seen[6] == 1.0])
        bet = torch.tensor(bets, dtype=torch.float64)
        return torch.stack((1.0 - bet, bet), 1)

    class Equilibrium(RandomEntrant):
        names = ("equilibrium",)

        def behaviours(self) -> dict[str, Any]:
            return {"sampled": behaviour}

    exact = exact_league(KUHN, KUHN.params(), [Equilibrium(), RandomEntrant()])
    assert exact is not None
    assert nash_conv(tree, plans(tree, behaviour)) == pytest.approx(0.0, abs=1e-12)
    described = exact.report()["equilibrium"]["sampled"]
    assert described["weights"] == {"equilibrium": 1.0}
    assert not exact.is_exploitable(described["nash_conv"])
    duels = play_duels(KUHN, KUHN.params(), [Equilibrium()], 10, seed=0)
    told = duel_report(duels, 1, exact)["equilibrium"]["members"]
    assert told["verdict"].startswith("not exploitable: its NashConv is")


def test_a_mixture_is_what_the_league_would_draw_for_a_game() -> None:
    told = report(players({"kings": BETS_WITH_KINGS, "all": BETS_ALWAYS}, sampled=True), 200)
    mixture = told["equilibrium"]["members"]
    tree = game_tree(KUHN, KUHN.params())
    own = {"kings": BETS_WITH_KINGS, "all": BETS_ALWAYS}
    members = [
        plans(tree, FrozenPolicy([actor(own[name])]).probabilities) for name in mixture["weights"]
    ]
    weights = list(mixture["weights"].values())
    assert mixture["nash_conv"] == pytest.approx(nash_conv(tree, mixed(members, weights)), abs=1e-5)
    payoffs = torch.tensor(told["exact"]["equilibrium"]["sampled"]["payoffs"])
    assert torch.allclose(payoffs, -payoffs.T)


def test_other_games_have_no_exact_values() -> None:
    assert exact_league(RPS_SCRIPTED, RPS_SCRIPTED.params(), [RandomEntrant()]) is None
    duels = play_duels(RPS_SCRIPTED, RPS_SCRIPTED.params(), [], 4, seed=0)
    told = duel_report(duels, members=0)
    assert "exact" not in told
    assert told["equilibrium"]["all"]["nash_conv"] is None
    assert "not exploitable" not in told["equilibrium"]["all"]["verdict"]
