"""The random events of a member's future nights, from uniform numbers of its stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sweepd.envs.games.bucket_brigade.rules import night_events
from sweepd.envs.games.bucket_brigade.scenarios import BucketParams
from sweepd.envs.games.drawn_ahead import Numbers

MOST = 1.0 - 2.0**-24  # largest uniform number
_CHUNK = 2**16  # numbers drawn and evaluated at a time, which fit into a processor's cache
# Returns uniform numbers in [0, 1): (nights, H, games) float32, given the nights.
Uniform = Callable[[int], Tensor]
# What `evaluate` does.
Evaluate = Callable[[BucketParams, Tensor], Numbers]


def draw_events(
    params: BucketParams, nights: int, games: int, uniform: Uniform, evaluate: Evaluate
) -> Numbers:
    """Draw the events of nights by name, (nights, H, …, games), and the "starts" after each night."""
    at_once = max(1, _CHUNK // (params.num_houses * games))
    chunks = [
        evaluate(params, uniform(min(at_once, nights - first)))
        for first in range(0, nights, at_once)
    ]
    drawn = {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
    # Games last at least `shortest_game` nights, so at most one begins in that many nights.
    starts = draw_starts(params, -(-nights // params.shortest_game), uniform)
    return drawn | {"starts": starts.repeat_interleave(params.shortest_game, 0)[:nights]}


def side_by_side(members: Sequence[Numbers]) -> Numbers:
    """Return the numbers of several members, (nights, ..., their games); zeros for missing names."""
    names = {name: own for numbers in members for name, own in numbers.items()}

    def part(numbers: Numbers, name: str, like: Tensor) -> Tensor:
        if name in numbers:
            return numbers[name]
        games = next(iter(numbers.values())).shape[-1]
        return like.new_zeros(*like.shape[:-1], games)

    return {
        name: torch.cat([part(numbers, name, like) for numbers in members], -1)
        for name, like in names.items()
    }


def draw_starts(params: BucketParams, rounds: int, uniform: Uniform) -> Tensor:
    """Draw which houses burn when games begin: (rounds, H, games) bool."""
    return uniform(rounds) < params.prob_house_catches_fire


def evaluate(params: BucketParams, uniform: Tensor) -> Numbers:
    """Evaluate one uniform number per house and night, (nights, H, games).

    Drawing is the slowest part, so all events of a house in a night come from one number.
    """
    rest = _rest(uniform, params.prob_house_catches_fire)
    spread = None
    if params.continuous:
        spread = torch.stack([rest, _rest(rest, params.prob_fire_spreads_to_neighbor)], 2)
    found = night_events(params, uniform, rest, spread)._asdict()
    return {name: events for name, events in found.items() if events is not None}


def _rest(uniform: Tensor, chance: float) -> Tensor:
    """Return uniform numbers in [0, 1) that are independent of whether `uniform` is below `chance`.

    Each is the relative position of `uniform` in its part, [0, chance) or [chance, 1).
    """
    below = uniform < chance
    by_chance, by_rest = inverse_shares(chance)
    rest = torch.where(below, uniform * by_chance, (uniform - chance) * by_rest)
    return rest.clamp_max_(MOST)  # rounding may exceed it


def inverse_shares(chance: float) -> tuple[float, float]:
    """Return 1 / chance and 1 / (1 - chance), 1 in place of 1 / 0."""
    return 1.0 / (chance or 1.0), 1.0 / ((1.0 - chance) or 1.0)
