"""Leagues of games of two players against each other: points, ratings and equilibrium.

All pairs play the same deals, each in both seatings (`sweepd.envs.games.pairings`). The payoff of
the restricted game is the share of won games minus that of lost ones, which is exactly zero-sum.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sweepd.agents.policy.equilibrium import equilibrium
from sweepd.agents.policy.exact_league import ExactLeague
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.league import CONFIDENCE, Exploitation, Floats, exploitation, interval
from sweepd.agents.policy.ratings import Ratings, rate
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.vec_env import Legal
from sweepd.envs.games.game import Game
from sweepd.envs.games.game_tree import Behaviour, InformationSets
from sweepd.envs.games.pairings import (
    DETERMINISTIC,
    SAMPLED,
    Act,
    Entrant,
    block_uniforms,
    play_pairs,
    scripted_entrants,
    tally,
)
from sweepd.envs.games.tensor_game import TensorGame
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.intervals import gaffke


class FrozenEntrant(Entrant):
    """A trained player with fixed weights."""

    def __init__(self, name: str, policy: FrozenPolicy, *, sampled: bool = False) -> None:
        """Set up the player. sampled: whether actions are drawn, see `FrozenPolicy.sample_batch`.

        Raises:
            InputError: the policy cannot be sampled.
        """
        self.names, self._policy, self._sampled = (name,), policy, sampled
        if sampled:
            self._policy.check_sampled()

    def sit(self, env: TensorGame, block: int, seed: int) -> Act:
        """See `Entrant.sit`; InputError if the policy does not fit the game."""
        policy = self._policy
        own = policy.state_dim, policy.action_dim, policy.discrete
        fits = env.state_dim, env.action_dim, env.if_discrete
        sizes = env.spec.choices
        if own != fits or tuple(policy.sizes) != sizes:
            several = [
                f" in choices of {list(one)}" if len(one) > 1 else ""
                for one in (policy.sizes, sizes)
            ]
            raise InputError(
                f"{self.names[0]} maps {own[0]} numbers to {own[1]} actions{several[0]}, and "
                f"{env.env_name} has {fits[0]} observations and {fits[1]} actions{several[1]}"
            )
        draw = block_uniforms(block, seed)
        policy.reset()

        def act(obs: Tensor, live: Tensor | None = None, legal: Legal | None = None) -> Tensor:
            if self._sampled:
                actions = policy.sample_batch(obs, draw(obs, policy.uniforms), legal, live)
            else:
                actions = policy.act_batch(obs, legal, live)
            return env.decode(actions)

        return act

    def behaviours(self) -> Mapping[str, Behaviour]:
        """See `Entrant.behaviours`. Of policies of one choice."""
        policy = self._policy
        if len(policy.sizes) != 1:
            return {}
        best = partial(_most_probable, policy)
        known: dict[str, Behaviour] = {DETERMINISTIC: partial(_in_every_set, policy, best)}
        if policy.has_distribution:
            sampled = {SAMPLED: partial(_in_every_set, policy, policy.probabilities)}
            known = sampled | known if self._sampled else known | sampled
        return known


def _in_every_set(
    policy: FrozenPolicy, probabilities: Callable[..., Tensor], sets: InformationSets
) -> Tensor:
    """Return probabilities of options in information sets: a `Behaviour`.

    Args:
        policy: the policy.
        probabilities: of its options, given observations, legal options, and where it acts.
        sets: of one player.
    """
    policy.reset()
    paths, depths = torch.from_numpy(sets.paths), torch.from_numpy(sets.depth)
    found = torch.zeros(sets.legal.shape, dtype=torch.float64)
    # A recurrent policy has seen all that its player passes on the way to a set.
    for depth in range(0 if policy.recurrent else paths.shape[1] - 1, paths.shape[1]):
        passed = paths[:, depth]
        live = depth <= depths
        own = probabilities(sets.observations[passed], sets.legal[passed], live)
        found = torch.where(live.unsqueeze(1), own, found) if policy.recurrent else own
    return found


def _most_probable(policy: FrozenPolicy, obs: Tensor, legal: Tensor, live: Tensor | None) -> Tensor:
    options = policy.act_batch(obs, lambda _: legal, live)
    return torch.nn.functional.one_hot(options.view(-1), legal.shape[1]).double()


@dataclass(frozen=True)
class Duels:
    """The results of all pairs.

    Attributes:
        names: of P players.
        results: (P, P, deals, 2) points of the row player by its seat: 1 won, 0.5 drawn, 0 lost;
            0.5 on the diagonal, where nothing is played.
    """

    names: tuple[str, ...]
    results: Floats

    @property
    def points(self) -> Floats:
        """(P, P, deals), means over both seatings; points[i, j] + points[j, i] is 1."""
        return np.asarray(self.results.mean(-1))

    @property
    def payoffs(self) -> Floats:
        """(P, P), share of won games minus share of lost ones; exactly antisymmetric."""
        means = self.points.mean(-1)
        return np.asarray(means - means.T)

    def ratings(self, anchor: str | None = None) -> Ratings:
        """Return the players' ratings, see `rate`."""
        return rate(self.names, self.points, anchor=anchor)


def play_duels(
    game: Game, params: Any, entrants: Sequence[Entrant], deals: int, seed: int
) -> Duels:
    """Play all pairs; the game's scripted players, or random play, are appended to `entrants`.

    Args:
        game: a game of two seats with outcomes.
        params: its parameters.
        entrants: the players.
        deals: per pair; each is played in both seatings.
        seed: of all random numbers.
    """
    everybody = [*entrants, *scripted_entrants(game, params)]
    names = tuple(name for entrant in everybody for name in entrant.names)
    pairs = list(itertools.combinations(range(len(names)), 2))
    found = play_pairs(game, params, everybody, pairs, deals, derive_seed(seed, "games"))
    results = np.full((len(names), len(names), deals, 2), 0.5)
    for (one, other), points in zip(pairs, found.points, strict=True):
        results[one, other] = points
        # By the other player's own seat: it is first where the pair's first player is second.
        results[other, one] = 1.0 - points[:, ::-1]
    return Duels(names, results)


def duel_report(
    duels: Duels, members: int, exact: ExactLeague | None = None, anchor: str | None = None
) -> dict[str, Any]:
    """Return all results as JSON.

    Args:
        duels: the results.
        members: how many of the first players belong to the population.
        exact: the exact values, if they are known.
        anchor: the player whose rating is 0; None: the mean is 0.
    """
    count = len(duels.names)
    tallies = [[tally(duels.results[i, j]) for j in range(count)] for i in range(count)]
    mean, reach = interval(duels.points)
    low, high = np.clip(mean - reach, 0.0, 1.0), np.clip(mean + reach, 0.0, 1.0)
    # Equal points in all deals, such as 100 wins of 100, have no variance.
    for one, other in np.argwhere(np.ptp(duels.points, axis=-1) == 0.0).tolist():
        if one != other:
            bounds = gaffke(duels.points[one, other], (0.0, 1.0), CONFIDENCE)
            low[one, other], high[one, other] = bounds
    described: dict[str, Any] = {
        "players": list(duels.names),
        "members": members,
        "seats": 2,
        "games": 2 * duels.results.shape[2],
        "confidence": CONFIDENCE,
        "points": {"mean": mean.tolist(), "low": low.tolist(), "high": high.tolist()},
        "ratings": duels.ratings(anchor).to_dict(),
    }
    for name in ("wins", "draws", "losses"):
        described[name] = [
            [getattr(one, name) * (i != j) for j, one in enumerate(row)]
            for i, row in enumerate(tallies)
        ]
    among = {"all": count}
    if 0 < members < count:
        among = {"members": members, **among}
    described["equilibrium"] = {
        who: _equilibrium(duels, size, exact) for who, size in among.items()
    }
    if exact is not None:
        described["exact"] = exact.report()
    return described


def _equilibrium(duels: Duels, among: int, exact: ExactLeague | None) -> dict[str, Any]:
    """Describe the equilibrium among the first players; as `sweepd.agents.policy.league.report`
    does.
    """
    try:
        found = equilibrium(duels.payoffs[:among, :among])
    except RunError as error:
        return {"unsolved": str(error)}
    weights = np.zeros(len(duels.names))
    weights[:among] = found.weights
    # Payoffs per deal: share of won games minus that of lost ones.
    best = exploitation(2.0 * duels.points - 1.0, weights)
    found_exactly = None if exact is None else exact.nash_conv(duels.names, weights)
    return {
        "weights": {
            name: round(float(w), 6) for name, w in zip(duels.names, weights, strict=True) if w
        },
        "payoff": found.payoff,
        "payoff_bound": found.bound,
        "exploitability": dataclasses.asdict(best) | {"by": duels.names[best.by]},
        "nash_conv": found_exactly,
        "verdict": _verdict(duels.names[best.by], best, found_exactly, exact),
    }


def _verdict(
    by: str, best: Exploitation, found_exactly: float | None, exact: ExactLeague | None
) -> str:
    """Say whether a mixture is exploitable; that it is not, only where it was computed exactly."""
    if exact is not None and found_exactly is not None:
        is_exploitable = exact.is_exploitable(found_exactly)
        return f"{'' if is_exploitable else 'not '}exploitable: its NashConv is {found_exactly:.3g}"
    if best.low > 0.0:
        return f"exploitable: {by} gains {best.gain:.3g}"
    return "no player of the league gains against it for certain; others may"
