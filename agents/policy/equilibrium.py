"""Symmetric equilibria of matrix games, by linear and mixed-integer programming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.support.errors import InputError, RunError

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


def equilibrium(payoffs: Floats) -> Mixture:
    """Return the symmetric Nash equilibrium with the highest payoff.

    In the game, player i gets payoffs[i, j] against player j. In an equilibrium, no player gets
    more against the mixture than the mixture itself does. Every symmetric game has one (Nash,
    1951). If payoffs are zero-sum, it is the maximin mixture, found by a linear program; else by a
    mixed-integer linear program (Sandholm, Gilpin and Conitzer, "Mixed-integer programming methods
    for finding Nash equilibria", AAAI 2005, formulation 1, in its symmetric case): each player has
    weight 0 or regret 0.

    Args:
        payoffs: (players, players).

    Returns:
        The equilibrium; if the mixed-integer program takes longer than TIME_LIMIT, the best one
            found until then (`Mixture.proven`).

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
    found = _best_paid(scaled)
    # A player is in the support if its indicator is 1; the solver's tolerance leaves small weights
    # on others.
    weights = np.where(found.x[count : 2 * count] > 0.5, found.x[:count].clip(0.0), 0.0)
    weights = weights / weights.sum()
    payoff = bound = float(weights @ payoffs @ weights)
    if found.status != 0 and found.mip_dual_bound is not None:
        # The program minimises the negative scaled payoff; convert its bound back.
        bound = max(payoff, payoffs.min() - unit * found.mip_dual_bound)
    return Mixture(weights, payoff, bound)


def _maximin(payoffs: Floats) -> Floats:
    """Return (players,), the mixture with the largest minimum payoff over all opponents.

    With weights w and payoffs A, maximise v subject to wᵀA ≥ v for every opponent, Σw = 1, w ≥ 0
    (von Neumann, 1928). Only for payoffs from 0 to 1, which bound v.
    """
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


def _best_paid(payoffs: Floats) -> Any:
    """Maximise the payoff over all symmetric equilibria of payoffs A from 0 to 1.

    Unknowns are a weight w_i and an indicator b_i in {0, 1} per player, then the payoff v.
    Player i's regret is v - (A w)_i, at most 1.

    Returns:
        SciPy's result; its x holds w, b and v.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    count = len(payoffs)
    one, none, column = np.eye(count), np.zeros((count, count)), np.ones((count, 1))
    regret = np.hstack([-payoffs, none, column])
    indicator = np.hstack([none, one, 0.0 * column])
    constraints = [
        # Σ w_i = 1
        LinearConstraint(np.hstack([column.T, np.zeros((1, count + 1))]), 1.0, 1.0),
        # v ≥ (A w)_i: no player gets more against the mixture than the mixture does.
        LinearConstraint(regret, 0.0, np.inf),
        # regret_i ≤ 1 - b_i: a player that may have weight has no regret.
        LinearConstraint(regret + indicator, -np.inf, 1.0),
        # w_i ≤ b_i: only such players have weight.
        LinearConstraint(np.hstack([one, -one, 0.0 * column]), -np.inf, 0.0),
    ]
    found = milp(
        np.concatenate([np.zeros(2 * count), [-1.0]]),
        integrality=np.concatenate([np.zeros(count), np.ones(count), [0.0]]),
        bounds=Bounds(0.0, 1.0),
        constraints=constraints,
        options={"time_limit": TIME_LIMIT},
    )
    if found.x is None:
        limit = (
            f" within {TIME_LIMIT:g} s among {count} players"
            if found.status == 1
            else f": {found.message}"
        )
        raise RunError(f"no equilibrium was found{limit}")
    return found
