"""Reports of leagues in games small enough to enumerate, and what they say about exploitability."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sweepd.agents.policy.duels import FrozenEntrant, duel_report, play_duels
from sweepd.agents.policy.exact import mixed, nash_conv, plans
from sweepd.agents.policy.exact_league import exact_league
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member
from sweepd.envs.games.game_tree import Behaviour, InformationSets, game_tree
from sweepd.envs.games.pairings import Entrant, RandomEntrant, uniform_behaviour
from sweepd.envs.games.registry import get_game
from tests.agents.policy.test_exact import (
    most_probable,
    open_spiel_mixture,
    open_spiel_policy,
    random_behaviour,
)
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
    return Member.of_tensors(
        {
            "net.0.weight": weight,
            "net.0.bias": torch.zeros(2),
            "state_avg": torch.zeros(columns),
            "state_std": torch.ones(columns),
        }
    )


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


def equilibrium(sets: InformationSets) -> Tensor:
    """Kuhn's equilibrium in which the first player never bluffs."""
    third = 1 / 3
    first = {0: (0.0, 0.0), 1: (0.0, third), 2: (0.0, 1.0)}
    second = {0: (third, 0.0), 1: (0.0, third), 2: (1.0, 1.0)}
    bets = []
    for seen in sets.observations.tolist():
        card = seen[2:5].index(1.0)
        bets.append(first[card][any(seen[7:])] if seen[0] else second[card][seen[6] == 1.0])
    bet = torch.tensor(bets, dtype=torch.float64)
    return torch.stack((1.0 - bet, bet), 1)


def test_only_an_equilibrium_is_called_not_exploitable() -> None:
    tree = game_tree(KUHN, KUHN.params())

    class Equilibrium(RandomEntrant):
        def behaviours(self) -> dict[str, Any]:
            return {"sampled": equilibrium}

    exact = exact_league(KUHN, KUHN.params(), [Equilibrium("equilibrium"), RandomEntrant()])
    assert exact is not None
    assert nash_conv(tree, plans(tree, equilibrium)) == pytest.approx(0.0, abs=1e-12)
    described = exact.report()["equilibrium"]["sampled"]
    assert described["weights"] == {"equilibrium": 1.0}
    assert not exact.is_exploitable(described["nash_conv"])
    duels = play_duels(KUHN, KUHN.params(), [Equilibrium("equilibrium")], 10, seed=0)
    told = duel_report(duels, 1, exact)["equilibrium"]["members"]
    assert told["verdict"].startswith("not exploitable: its NashConv is")


def test_a_mixture_is_what_the_league_would_draw_for_a_game() -> None:
    told = report(players({"kings": BETS_WITH_KINGS, "all": BETS_ALWAYS}, sampled=True), 200)
    mixture = told["equilibrium"]["members"]
    tree = game_tree(KUHN, KUHN.params())
    own = {"kings": BETS_WITH_KINGS, "all": BETS_ALWAYS}
    members = [
        plans(tree, players({name: own[name]}, sampled=True)[0].behaviours()["sampled"])
        for name in mixture["weights"]
    ]
    weights = list(mixture["weights"].values())
    assert mixture["nash_conv"] == pytest.approx(nash_conv(tree, mixed(members, weights)), abs=1e-5)
    payoffs = torch.tensor(told["exact"]["equilibrium"]["sampled"]["payoffs"])
    assert torch.allclose(payoffs, -payoffs.T)


class Drawn(RandomEntrant):
    """A player with random probabilities, which the league knows."""

    def __init__(self, name: str, seed: int, *, sampled: bool) -> None:
        self.names = (name,)
        behaviour = random_behaviour(seed, sharp=3.0)
        kinds = {"sampled": behaviour, "deterministic": most_probable(behaviour)}
        # The first kind is as in the league.
        self._kinds = kinds if sampled else dict(reversed(kinds.items()))

    def behaviours(self) -> dict[str, Behaviour]:
        return self._kinds


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [False, pytest.param(True, marks=pytest.mark.extra)])
# With seed 4, three policies of Leduc poker are in the exact equilibrium.
@pytest.mark.parametrize(("name", "seed"), [("kuhn", 0), ("leduc", 4)])
def test_a_league_calls_exploitable_what_open_spiel_exploits(
    name: str, seed: int, sampled: bool
) -> None:
    game = get_game(name)
    entrants = [Drawn(f"{index}", seed + index, sampled=sampled) for index in range(4)]
    exact = exact_league(game, game.params(), [*entrants, RandomEntrant()])
    assert exact is not None
    described = duel_report(play_duels(game, game.params(), entrants, 5, seed=0), 4, exact)
    own = {entrant.names[0]: entrant.behaviours() for entrant in entrants}
    own["random"] = {"sampled": uniform_behaviour}

    def theirs(weights: Mapping[str, float], kind: str | None) -> float:
        """OpenSpiel's NashConv of a mixture; without a kind, of players as in the league."""
        members = []
        for player in weights:
            as_in_league = next(iter(own[player].values()))
            members.append(own[player].get(kind, as_in_league) if kind else as_in_league)
        shares = np.array(list(weights.values()))
        return open_spiel_mixture(name, members, shares / shares.sum())

    # The report rounds weights to 1e-6.
    for found in described["equilibrium"].values():
        wanted = theirs(found["weights"], None)
        assert found["nash_conv"] == pytest.approx(wanted, abs=1e-4)
        assert wanted > 0.01
        assert found["verdict"].startswith("exploitable: its NashConv is")
    supports = [len(own["weights"]) for own in described["exact"]["equilibrium"].values()]
    assert max(supports) == (3 if name == "leduc" else 1)
    for kind, found in described["exact"]["equilibrium"].items():
        wanted = theirs(found["weights"], kind)
        assert found["nash_conv"] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("share", [1e-3, 1e-4])
def test_an_equilibrium_with_a_small_share_of_mistakes_is_exploitable(share: float) -> None:
    def behaviour(sets: InformationSets) -> Tensor:
        return (1 - share) * equilibrium(sets) + share * uniform_behaviour(sets)

    class Mistaken(RandomEntrant):
        names = ("mistaken",)

        def behaviours(self) -> dict[str, Behaviour]:
            return {"sampled": behaviour}

    exact = exact_league(KUHN, KUHN.params(), [Mistaken()])
    duels = play_duels(KUHN, KUHN.params(), [Mistaken()], 10, seed=0)
    told = duel_report(duels, 1, exact)["equilibrium"]["members"]
    wanted = open_spiel_mixture("kuhn", [behaviour], np.ones(1))
    assert 0 < wanted < share
    assert told["nash_conv"] == pytest.approx(wanted, abs=1e-9)
    assert told["verdict"].startswith("exploitable: its NashConv is")


def test_other_games_have_no_exact_values() -> None:
    assert exact_league(RPS_SCRIPTED, RPS_SCRIPTED.params(), [RandomEntrant()]) is None
    duels = play_duels(RPS_SCRIPTED, RPS_SCRIPTED.params(), [], 4, seed=0)
    told = duel_report(duels, members=0)
    assert "exact" not in told
    assert told["equilibrium"]["all"]["nash_conv"] is None
    assert "not exploitable" not in told["equilibrium"]["all"]["verdict"]
