"""Fit numbers to each other: environments, horizon, minibatches, budget and rungs.

A rollout has num_envs x horizon transitions. Minibatches must divide it, so that every epoch uses
every transition, and the budget must contain at least one rollout per rung. Automatic values are
fitted to given ones. Given values that do not fit are refused, with the nearest valid values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.space.dimension import Dimension
from sweepd.optimize.study.space.search_space import SearchSpace

UPDATES_PER_FOLD = 100


def neighbours(size: int, transitions: int) -> tuple[int, int]:
    """Return the divisors of `transitions` next to `size`.

    Returns:
        The largest divisor that is at most `size`, and the smallest that is at least `size`
        (`transitions` if there is none).
    """
    divisors = sorted(
        {
            d
            for n in range(1, math.isqrt(transitions) + 1)
            if transitions % n == 0
            for d in (n, transitions // n)
        }
    )
    below = [d for d in divisors if d <= size]  # never empty: 1 divides
    return below[-1], next((d for d in divisors if d >= size), transitions)


def fit_minibatch(size: int, transitions: int) -> int:
    """Return the divisor of `transitions` that is nearest by ratio, the smaller of a tie."""
    below, above = neighbours(size, transitions)
    return below if size / below <= above / size or above < size else above


def env_unit(sizes: Sequence[int], horizon: int) -> int:
    """Return the unit of which num_envs must be a multiple for all minibatches to fit."""
    # s divides n * h for every minibatch s if and only if L = lcm of all s does, that is if n is a
    # multiple of L / gcd(L, h).
    together = math.lcm(*sizes)
    return together // math.gcd(together, horizon)


def most_envs(budget: int, horizon: int, sizes: Sequence[int]) -> int:
    """Return the upper limit of environments per member.

    The budget must contain about `UPDATES_PER_FOLD` rollouts. The result is the multiple of
    `env_unit` nearest to that bound, or the bound itself if the smallest multiple is far above it.
    """
    bound = budget / (UPDATES_PER_FOLD * horizon)
    unit = env_unit(sizes, horizon)
    return unit * round(bound / unit) or max(1, int(bound))


def fewest_envs(budget: int, horizon: int, sizes: Sequence[int]) -> int:
    """Return the fewest environments for which every minibatch fits, at most `most_envs`.

    Fewer environments would restrict the search space.
    """
    return min(
        most_envs(budget, horizon, sizes),
        # The largest minibatch must fit into one rollout.
        max(env_unit(sizes, horizon), -(-max(sizes, default=1) // horizon)),
    )


def multiple(num_envs: int, unit: int) -> int:
    """Return the largest multiple of `unit` that is at most `num_envs`, at least `unit`."""
    return max(unit, num_envs // unit * unit)


def fit_num_envs(num_envs: int, unit: int, environment: str, *, fixed: bool) -> tuple[int, str]:
    """Fit the number of environments to environments that are created `unit` at a time.

    Args:
        num_envs: the number that was asked for.
        unit: number of environments that can only be created together.
        environment: name of the environment.
        fixed: whether the number was given as a flag, so that it must not be raised.

    Returns:
        The number and a message if it was raised, else "".

    Raises:
        InputError: the number is fixed and not a multiple.
    """
    if num_envs % unit == 0:
        return num_envs, ""
    above = -(-num_envs // unit) * unit
    reason = (
        f"--env {environment} creates {unit} environments together, and --n-envs {num_envs} is not "
        "a multiple"
    )
    if not fixed:
        return above, f"{reason}; it was raised to {above}"
    below = above - unit
    raise InputError(f"{reason}; use {f'{below} or ' if below else ''}{above}")


def fit_budget(
    budget: int, rungs: int, num_envs: int, horizon: int, *, fixed: bool
) -> tuple[int, str]:
    """Raise the budget to one rollout per rung if it is smaller.

    Args:
        budget: environment steps per member.
        rungs: number of rungs.
        num_envs: environments per member.
        horizon: steps per rollout and environment.
        fixed: whether the numbers were given as flags, so that the budget must not be raised.

    Returns:
        The budget and a message if it was raised, else "".

    Raises:
        InputError: the budget is fixed and too small.
    """
    rollout = num_envs * horizon
    least = rungs * rollout
    if budget >= least:
        return budget, ""
    short = (
        f"--budget {budget:,} holds less than one rollout for each of {rungs} rungs "
        f"({num_envs} envs x {horizon} steps = {rollout:,} per rollout)"
    )
    if not fixed:
        return least, f"{short}; it was raised to {least:,}"
    others = {
        "--n-envs": budget // (rungs * horizon),
        "--horizon": budget // (rungs * num_envs),
        "--rungs": budget // rollout,
    }
    smaller = " or ".join(f"{flag} {most}" for flag, most in others.items() if most >= 1)
    raise InputError(
        f"{short}; give at least --budget {least}" + (f", or at most {smaller}" if smaller else "")
    )


def fit_shape(shape: Mapping[str, int], transitions: int) -> dict[str, int]:
    """Return the shape with a minibatch that divides a rollout, if the algorithm has epochs."""
    if "epochs" not in shape:
        return dict(shape)
    return {**shape, "minibatch": fit_minibatch(shape["minibatch"], transitions)}


def fit_space(space: SearchSpace, transitions: int) -> tuple[SearchSpace, str]:
    """Return the space with minibatches that divide a rollout, and a message if some did not.

    Args:
        space: the search space.
        transitions: transitions per rollout.
    """
    sizes = space.minibatches
    # Two sizes may be fitted to the same divisor; a repeated choice would be drawn more often.
    fitted = list(dict.fromkeys(fit_minibatch(size, transitions) for size in sizes))
    if fitted == list(sizes):
        return space, ""
    if len(fitted) > 1:
        start = space.tables["shape"]["minibatch"].start
        fitted_start = None if start is None else fit_minibatch(int(start), transitions)
        dimension = Dimension("minibatch", choices=tuple(fitted), start=fitted_start)
    else:
        dimension = Dimension("minibatch", value=fitted[0])
    shape = {**space.tables["shape"], "minibatch": dimension}
    note = (
        f"minibatch {_listed(sizes)} of the space became {_listed(fitted)}: a rollout has "
        f"{transitions:,} transitions (num_envs x horizon), and minibatches must divide it"
    )
    return replace(space, tables={**space.tables, "shape": shape}), note


def refuse_misfit(sizes: Sequence[int], num_envs: int, horizon: int, source: str) -> None:
    """Raise InputError with the nearest valid values if a minibatch does not divide a rollout.

    Args:
        sizes: the minibatches.
        num_envs: environments per member.
        horizon: steps per rollout and environment.
        source: where the minibatches were chosen, for the message.
    """
    transitions = num_envs * horizon
    for size in sizes:
        if transitions % size:
            below, above = neighbours(size, transitions)
            either = str(below) if above <= below else f"{below} or {above}"
            raise InputError(
                f"minibatch {size} of {source} does not divide the {num_envs} envs x {horizon} "
                f"steps = {transitions:,} transitions of a rollout; use a minibatch of {either} there, "
                f"or --n-envs {nearest_envs(sizes, num_envs, horizon)}"
            )


def nearest_envs(sizes: Sequence[int], num_envs: int, horizon: int) -> str:
    """Return the numbers of environments next to `num_envs` whose rollouts all sizes divide."""
    unit = env_unit(sizes, horizon)
    fewer = num_envs // unit * unit
    return f"{fewer} or {fewer + unit}" if fewer else str(unit)


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))
