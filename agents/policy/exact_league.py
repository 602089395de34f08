"""The exact part of a league's report, for games that are small enough to enumerate.

A league knows its own players only, and finds a best response among them. That nobody in it gains
against a policy does not mean that nobody could: here it is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweepd.agents.policy.equilibrium import equilibrium
from sweepd.agents.policy.exact import Plans, expected_returns, mixed, nash_conv, plans
from sweepd.envs.games.game import Game
from sweepd.envs.games.game_tree import Floats, GameTree, game_tree, is_enumerable
from sweepd.envs.games.pairings import KINDS_OF_PLAY, Entrant

# Relative to the game's largest return: less may come from rounding, as frozen policies round their
# probabilities to 1e-6.
EXPLOITABLE = 1e-5


@dataclass(frozen=True)
class ExactLeague:
    """The players of a league with known probabilities of actions.

    Attributes:
        tree: the game.
        plans: by player and kind of play (`Entrant.behaviours`); the first kind is as in the
            league. Players whose probabilities are not known are missing.
    """

    tree: GameTree
    plans: Mapping[str, Mapping[str, Plans]]

    def nash_conv(self, names: Sequence[str], weights: Sequence[float] | Floats) -> float | None:
        """Return the NashConv of a mixture of players as they play in the league.

        None if the probabilities of a player with a positive weight are not known.
        """
        used = {name: own for name, own in zip(names, weights, strict=True) if own > 0.0}
        if not set(used) <= set(self.plans):
            return None
        members = [next(iter(self.plans[name].values())) for name in used]
        return nash_conv(self.tree, mixed(members, list(used.values())))

    def is_exploitable(self, found: float) -> bool:
        """Whether a NashConv is more than a rounding error."""
        return found > EXPLOITABLE * float(np.abs(self.tree.returns).max())

    def report(self) -> dict[str, Any]:
        """Return as JSON every player's NashConv, and the exact restricted games.

        In units of returns. `nash_conv` has a number per player and kind of play. For each kind,
        there is the equilibrium among all players of the exact mean returns over both seats; a
        player without that kind plays as in the league.
        """
        described: dict[str, Any] = {
            "information_sets": [len(sets.before) for sets in self.tree.players],
            "nash_conv": {
                name: {kind: nash_conv(self.tree, own) for kind, own in kinds.items()}
                for name, kinds in self.plans.items()
            },
        }
        described["equilibrium"] = {
            kind: self._restricted(kind)
            for kind in KINDS_OF_PLAY
            if any(kind in kinds for kinds in self.plans.values())
        }
        return described

    def _restricted(self, kind: str) -> dict[str, Any]:
        players = {
            name: kinds.get(kind, next(iter(kinds.values()))) for name, kinds in self.plans.items()
        }
        members = list(players.values())
        first = np.array(
            [
                [expected_returns(self.tree, (own[0], other[1])) for other in members]
                for own in members
            ]
        )
        # The mean over both seats: at the first one against the column's player at the second, and
        # the other way round.
        payoffs = 0.5 * (first[:, :, 0] + first[:, :, 1].T)
        found = equilibrium(payoffs)
        return {
            "payoffs": payoffs.tolist(),
            "weights": {
                name: round(float(own), 6)
                for name, own in zip(players, found.weights, strict=True)
                if own > 0.0
            },
            "nash_conv": nash_conv(self.tree, mixed(members, found.weights)),
        }


def exact_league(game: Game, params: Any, entrants: Sequence[Entrant]) -> ExactLeague | None:
    """Return the exact values of a league; None if the game cannot be enumerated.

    Args:
        game: the game.
        params: its parameters.
        entrants: the league's players.
    """
    if not is_enumerable(game, params):
        return None
    tree = game_tree(game, params)
    known = {
        entrant.names[0]: {
            kind: plans(tree, behaviour) for kind, behaviour in entrant.behaviours().items()
        }
        for entrant in entrants
    }
    return ExactLeague(tree, {name: kinds for name, kinds in known.items() if kinds})
