"""Symmetric equilibria of matrix games, by linear and mixed-integer programming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.support.errors import InputError, RunError

Floats = NDArray[np.float64]
# Seconds. The time of a mixed-integer program grows exponentially with the number of players.
TIME_LIMIT = 20.0


@dataclass(frozen=True)
class Mixture:
    """A mixed strategy.

    Attributes:
        weights: (players,), the probability of each.
        payoff: of the mixture against itself.
        bound: upper bound on the payoff of all equilibria; equal to `payoff` if that was proven,
            higher if the time limit ended the search.
    """

    weights: Floats
    payoff: float
    bound: float

    @property
    def proven(self) -> bool:
        """Whether no equilibrium has a higher payoff."""
        return self.bound <= self.payoff


def equilibrium(payoffs: Floats, time_limit: float | None = None) -> Mixture:
    """Return the symmetric Nash equilibrium with the highest payoff.

    In the game, player i gets payoffs[i, j] against player j. In an equilibrium, no player gets
    more against the mixture than the mixture itself does. Every symmetric game has one (Nash,
    1951). If payoffs are zero-sum, it is the maximin mixture, found by a linear program; else by a
    mixed-integer linear program (Sandholm, Gilpin and Conitzer, "Mixed-integer programming methods
    for finding Nash equilibria", AAAI 2005, formulation 1, in its symmetric case): each player has
    weight 0 or regret 0.

    Args:
        payoffs: (players, players).
        time_limit: seconds for the mixed-integer program; None: TIME_LIMIT. When it is over, the
            best equilibrium found is returned (`Mixture.proven`).

    Raises:
        InputError: payoffs are not square and finite.
        RunError: no equilibrium was found in time.
    """
    payoffs = np.asarray(payoffs, dtype=np.float64)
    count = len(payoffs)
    if payoffs.shape != (count, count) or not count or not np.isfinite(payoffs).all():
        raise InputError(
            f"payoffs must be a square matrix of finite numbers, and have the shape {payoffs.shape}"
        )
    unit = float(np.ptp(payoffs)) or 1.0
    scaled = (payoffs - payoffs.min()) / unit  # from 0 to 1, like the regrets
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
    """Return (players,), the mixture with the largest minimum payoff over all opponents."""
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
    """Return SciPy's result; its x is a weight and an indicator per player, then the payoff."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    count = len(payoffs)
    one, none, column = np.eye(count), np.zeros((count, count)), np.ones((count, 1))
    regret = np.hstack([-payoffs, none, column])
    constraints = [
        LinearConstraint(np.hstack([column.T, np.zeros((1, count + 1))]), 1.0, 1.0),
        LinearConstraint(regret, 0.0, np.inf),
        LinearConstraint(
            regret + np.hstack([none, one, 0.0 * column]), -np.inf, 1.0
        ),  # regret 0 where it is played
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
