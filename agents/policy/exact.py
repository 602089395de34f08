"""Exact values of policies in games in turns that are small enough to enumerate.

NashConv is what both players together would gain by best responses to each other's policies
(Lanctot et al., 2017): 0 exactly in a Nash equilibrium. A behaviour is what the policy does in one
information set; a plan is the whole policy of a seat in sequence form
(`sweepd.envs.games.game_tree`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sweepd.envs.games.game_tree import EMPTY, Behaviour, Floats, GameTree, InformationSets
from sweepd.envs.support.errors import InputError

# (sequences,), probability that the player makes the sequence, by seat.
Plans = tuple[Floats, Floats]
_TOLERANCE = 1e-6  # of probabilities: those of policies in float32 are rounded


def plans(tree: GameTree, behaviour: Behaviour) -> Plans:
    """Return the plans of one policy at both seats.

    Raises:
        InputError: the behaviour's numbers are not probabilities of legal options.
    """
    first, second = (_plan(sets, behaviour) for sets in tree.players)
    return first, second


def _plan(sets: InformationSets, behaviour: Behaviour) -> Floats:
    shares = behaviour(sets).double().cpu().numpy()
    legal = sets.legal.numpy()
    if shares.shape != legal.shape:
        raise InputError(f"probabilities must have the shape {legal.shape}, not {shares.shape}")
    sums = shares.sum(1)
    # Written so that NaN is refused, too.
    if not ((shares >= 0.0).all() and (np.abs(sums - 1.0) <= _TOLERANCE).all()):
        raise InputError("probabilities must be at least 0 and sum to 1 in every information set")
    if shares[~legal].any():
        raise InputError("the policy chooses illegal options")
    plan = np.ones(sets.sequences)
    own = plan[1:].reshape(shares.shape)  # a view
    for depth in range(int(sets.depth.max(initial=-1)) + 1):
        at = sets.depth == depth
        own[at] = plan[sets.before[at], None] * shares[at] / sums[at, None]
    return plan


def mixed(members: Sequence[Plans], weights: Sequence[float] | Floats) -> Plans:
    """Return the plans of a mixture, of which one policy is drawn for a whole game.

    Its plan is the mean of the plans; the mean of the behaviours would be another policy, because
    a player that has made some decisions is more likely to be one that makes them.

    Args:
        members: plans of the policies.
        weights: their probabilities.

    Raises:
        InputError: weights are not probabilities.
    """
    shares = np.asarray(weights, dtype=np.float64)
    if shares.shape != (len(members),) or (shares < 0.0).any():
        raise InputError(f"weights must be {len(members)} numbers, at least 0")
    if not abs(shares.sum() - 1.0) <= _TOLERANCE:
        raise InputError(f"weights must sum to 1, not {shares.sum()}")
    shares = shares / shares.sum()
    first, second = (shares @ np.stack([own[seat] for own in members]) for seat in (0, 1))
    return first, second


def expected_returns(tree: GameTree, pair: Plans) -> Floats:
    """Return (2,), the expected returns of both seats: pair[0] plays the first, pair[1] the second.

    For two policies, `pair` is (plans(tree, one)[0], plans(tree, other)[1]).
    """
    reached = tree.chance * pair[0][tree.sequences[:, 0]] * pair[1][tree.sequences[:, 1]]
    return np.asarray(reached @ tree.returns)


def best_response(tree: GameTree, pair: Plans, seat: int) -> float:
    """Return the largest expected return of a seat against the other seat's plan."""
    other = 1 - seat
    reached = tree.chance * pair[other][tree.sequences[:, other]]
    sets = tree.players[seat]
    # What the seat gets for making a sequence: first from the ends alone; then, from the last
    # decisions to the first ones, with the best decision in every information set that follows.
    values = np.bincount(
        tree.sequences[:, seat], reached * tree.returns[:, seat], minlength=sets.sequences
    )
    own = values[1:].reshape(-1, sets.options)  # a view
    legal = sets.legal.numpy()
    for depth in range(int(sets.depth.max(initial=-1)), -1, -1):
        at = sets.depth == depth
        best = np.where(legal[at], own[at], -np.inf).max(1)
        np.add.at(values, sets.before[at], best)
    return float(values[EMPTY])


def nash_conv(tree: GameTree, pair: Plans) -> float:
    """Return the sum over both seats of what a best response gains, in units of returns.

    Args:
        tree: the game.
        pair: the plans of both seats: of one policy, of two, or of a mixture. At the two seats,
            mixtures are drawn independently.
    """
    gains = [best_response(tree, pair, seat) for seat in (0, 1)] - expected_returns(tree, pair)
    return float(gains.sum())
