"""Symmetric equilibria of games given as a matrix of payoffs, by linear programming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.support.errors import InputError, RunError

Floats = NDArray[np.float64]
TIME_LIMIT = 20.0  # seconds: the time that a mixed-integer program takes grows exponentially with the players


@dataclass(frozen=True)
class Mixture:
    """weights: (players,), how often each is played; payoff: of the mixture against itself. bound: no equilibrium pays
    more; equal to `payoff` where that was proven, higher where the time limit ended the search before.
    """

    weights: Floats
    payoff: float
    bound: float

    @property
    def proven(self) -> bool:
        """Whether no equilibrium pays more."""
        return self.bound <= self.payoff


def equilibrium(payoffs: Floats, time_limit: float | None = None) -> Mixture:
    """A symmetric Nash equilibrium of the game in which player i gets payoffs[i, j] beside player j: the one that pays
    best, where there are several.

    A mixture of which no player gets more than the mixture itself gets. A symmetric game always has one (Nash, 1951).
    Where payoffs are zero-sum, it is the maximin mixture, which a linear program finds. Otherwise it is found by a
    mixed-integer linear program (Sandholm, Gilpin and Conitzer, "Mixed-integer programming methods for finding Nash
    equilibria", AAAI 2005, formulation 1, for the symmetric case): a player is either left out, or doesn't regret to be
    played.

    payoffs: (players, players). time_limit: seconds for the mixed-integer program (None: TIME_LIMIT); what was found by
    then is returned, whether or not another one pays more (`Mixture.proven`). Raises InputError where payoffs are not
    square and finite, RunError where no equilibrium was found in time.
    """
    payoffs = np.asarray(payoffs, dtype=np.float64)
    count = len(payoffs)
    if payoffs.shape != (count, count) or not count or not np.isfinite(payoffs).all():
        raise InputError(
            f"payoffs must be a square matrix of finite numbers, and have the shape {payoffs.shape}"
        )
    unit = float(np.ptp(payoffs)) or 1.0
    scaled = (payoffs - payoffs.min()) / unit  # from 0 to 1, and so are regrets
    if np.ptp(scaled + scaled.T) < 1e-9:
        weights = _maximin(scaled)
        payoff = float(weights @ payoffs @ weights)
        return Mixture(weights, payoff, payoff)
    found = _best_paid(scaled, TIME_LIMIT if time_limit is None else time_limit)
    weights = np.where(found.x[count : 2 * count] > 0.5, found.x[:count].clip(0.0), 0.0)
    weights = weights / weights.sum()
    payoff = float(weights @ payoffs @ weights)
    solved = found.status == 0 or found.mip_dual_bound is None
    return Mixture(
        weights,
        payoff,
        payoff if solved else max(payoff, payoffs.min() - unit * found.mip_dual_bound),
    )


def _maximin(payoffs: Floats) -> Floats:
    """(players,): the mixture whose least payoff over all players is the largest."""
    from scipy.optimize import linprog  # takes long to import

    count = len(payoffs)
    found = linprog(  # unknowns: a weight per player, then the least payoff
        np.concatenate([np.zeros(count), [-1.0]]),
        A_ub=np.hstack([-payoffs.T, np.ones((count, 1))]),
        b_ub=np.zeros(count),
        A_eq=np.concatenate([np.ones(count), [0.0]])[None],
        b_eq=[1.0],
        bounds=(0.0, 1.0),
    )
    if found.x is None:
        raise RunError(f"no equilibrium was found: {found.message}")
    weights: Floats = np.asarray(found.x[:count], dtype=np.float64).clip(0.0)
    return np.asarray(weights / weights.sum())


def _best_paid(payoffs: Floats, time_limit: float) -> Any:
    """SciPy's result; its x: a weight and a mark "is played" per player, then the mixture's payoff."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    count = len(payoffs)
    one, none, column = np.eye(count), np.zeros((count, count)), np.ones((count, 1))
    regret = np.hstack([-payoffs, none, column])
    constraints = [
        LinearConstraint(np.hstack([column.T, np.zeros((1, count + 1))]), 1.0, 1.0),
        LinearConstraint(regret, 0.0, np.inf),
        LinearConstraint(
            regret + np.hstack([none, one, 0.0 * column]), -np.inf, 1.0
        ),  # none where it is played
        LinearConstraint(np.hstack([one, -one, 0.0 * column]), -np.inf, 0.0),
    ]
    found = milp(
        np.concatenate([np.zeros(2 * count), [-1.0]]),
        integrality=np.concatenate([np.zeros(count), np.ones(count), [0.0]]),
        bounds=Bounds(0.0, 1.0),
        constraints=constraints,
        options={"time_limit": time_limit},
    )
    if found.x is None:
        limit = (
            f" within {time_limit:g} s among {count} players"
            if found.status == 1
            else f": {found.message}"
        )
        raise RunError(f"no equilibrium was found{limit}")
    return found
