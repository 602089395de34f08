"""Equilibria of games given as a matrix of payoffs, by linear programming."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError, RunError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Mixture:
    """weights: (players,), how often each is played; payoff: of the mixture against itself."""

    weights: Floats
    payoff: float


def equilibrium(payoffs: Floats) -> Mixture:
    """A symmetric Nash equilibrium of the game in which player i gets payoffs[i, j] beside player j: the one that pays
    best, where there are several.

    A mixture of which no player gets more than the mixture itself gets. It solves a mixed-integer linear program
    (Sandholm, Gilpin and Conitzer, "Mixed-integer programming methods for finding Nash equilibria", AAAI 2005,
    formulation 1, for the symmetric case): a player is either left out, or doesn't regret to be played. A symmetric
    game always has one (Nash, 1951); where payoffs are zero-sum, it is the maximin mixture.

    payoffs: (players, players). Raises InputError where they are not square and finite.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes long to import

    payoffs = np.asarray(payoffs, dtype=np.float64)
    count = len(payoffs)
    if payoffs.shape != (count, count) or not count or not np.isfinite(payoffs).all():
        raise InputError(f"payoffs must be a square matrix of finite numbers, and have the shape {payoffs.shape}")
    unit = float(np.ptp(payoffs)) or 1.0
    scaled = (payoffs - payoffs.min()) / unit  # from 0 to 1, and so are regrets
    # Unknowns: a weight and a mark "is played" per player, then the mixture's payoff.
    one, none, column = np.eye(count), np.zeros((count, count)), np.ones((count, 1))
    regret = np.hstack([-scaled, none, column])
    constraints = [
        LinearConstraint(np.hstack([column.T, np.zeros((1, count + 1))]), 1.0, 1.0),
        LinearConstraint(regret, 0.0, np.inf),
        LinearConstraint(regret + np.hstack([none, one, 0.0 * column]), -np.inf, 1.0),  # none where it is played
        LinearConstraint(np.hstack([one, -one, 0.0 * column]), -np.inf, 0.0),
    ]
    found = milp(
        np.concatenate([np.zeros(2 * count), [-1.0]]),
        integrality=np.concatenate([np.zeros(count), np.ones(count), [0.0]]),
        bounds=Bounds(0.0, 1.0),
        constraints=constraints,
    )
    if found.x is None:
        raise RunError(f"no equilibrium was found: {found.message}")
    weights = np.where(found.x[count : 2 * count] > 0.5, found.x[:count].clip(0.0), 0.0)
    weights = weights / weights.sum()
    return Mixture(weights, float(weights @ payoffs @ weights))
