"""Numbers that must fit each other: environments, horizon, minibatches, budget and rungs.

A rollout has num_envs x horizon transitions. Minibatches divide it, so that every transition is learned from in every
epoch, and the budget holds at least one rollout per rung. Automatic values are fitted to the given ones; where both
were given and do not fit, the combination is refused with its valid neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from envs.support.errors import InputError
from optimize.study.search_space import Dimension, SearchSpace

UPDATES_PER_FOLD = 100


def neighbours(size: int, transitions: int) -> tuple[int, int]:
    """The divisors of `transitions` next to `size`: the largest not above it and the smallest not below it (the largest
    there is, where none is).
    """
    divisors = sorted(
        {
            d
            for n in range(1, math.isqrt(transitions) + 1)
            if transitions % n == 0
            for d in (n, transitions // n)
        }
    )
    below = [d for d in divisors if d <= size]
    return below[-1], next((d for d in divisors if d >= size), transitions)


def fit_minibatch(size: int, transitions: int) -> int:
    """The divisor of `transitions` nearest to `size` by ratio, the smaller of equals."""
    below, above = neighbours(size, transitions)
    return below if size / below <= above / size or above < size else above


def env_unit(sizes: Sequence[int], horizon: int) -> int:
    """Of how many environments a multiple is needed, for all minibatches to divide a rollout."""
    together = math.lcm(*sizes)
    return together // math.gcd(together, horizon)


def most_envs(budget: int, horizon: int, sizes: Sequence[int]) -> int:
    """The most environments per member that leave about `UPDATES_PER_FOLD` rollouts in the budget: the multiple that
    all minibatches fit, nearest to that bound, or the bound itself where even one such multiple is far above it.
    """
    bound = budget / (UPDATES_PER_FOLD * horizon)
    unit = env_unit(sizes, horizon)
    return unit * round(bound / unit) or max(1, int(bound))


def fewest_envs(budget: int, horizon: int, sizes: Sequence[int]) -> int:
    """From where on every minibatch fits into a rollout, as far as the bound allows: fewer would be a smaller search,
    not only a slower one.
    """
    return min(
        most_envs(budget, horizon, sizes),
        max(env_unit(sizes, horizon), -(-max(sizes, default=1) // horizon)),
    )


def multiple(num_envs: int, unit: int) -> int:
    """The largest multiple of `unit` that is not above `num_envs`; `unit` where there is none."""
    return max(unit, num_envs // unit * unit)


def fit_num_envs(num_envs: int, unit: int, environment: str, *, fixed: bool) -> tuple[int, str]:
    """`num_envs` as a multiple of the `unit` environments that can only be made together, and a sentence where it was
    raised to one. fixed: it was given as a flag, so it is not raised.

    Raises InputError if it is fixed and not a multiple.
    """
    if num_envs % unit == 0:
        return num_envs, ""
    above = -(-num_envs // unit) * unit
    reason = f"--env {environment} makes {unit} environments together, and --n-envs {num_envs} is not a multiple"
    if not fixed:
        return above, f"{reason}; it is raised to {above}"
    below = above - unit
    raise InputError(f"{reason}; use {f'{below} or ' if below else ''}{above}")


def fit_budget(
    budget: int, rungs: int, num_envs: int, horizon: int, *, fixed: bool
) -> tuple[int, str]:
    """The budget, raised to one rollout per rung where it holds less, and a sentence where it was.

    fixed: the budget and the other numbers were given as flags, so it is not raised. Raises InputError if it is fixed
    and too small.
    """
    rollout = num_envs * horizon
    least = rungs * rollout
    if budget >= least:
        return budget, ""
    short = (
        f"--budget {budget:,} holds less than one rollout for each of {rungs} rungs "
        f"({num_envs} envs x {horizon} steps = {rollout:,} a rollout)"
    )
    if not fixed:
        return least, f"{short}; it is {least:,} now"
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
    """Shape parameters with a minibatch that divides a rollout, where it is one that has to: in epochs over it."""
    if "epochs" not in shape:
        return dict(shape)
    return {**shape, "minibatch": fit_minibatch(shape["minibatch"], transitions)}


def fit_space(space: SearchSpace, transitions: int) -> tuple[SearchSpace, str]:
    """The space with minibatches that divide a rollout of `transitions`, and a sentence where some did not."""
    sizes = space.minibatches
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
        f"minibatch {_listed(sizes)} of the space became {_listed(fitted)}: a rollout has {transitions:,} transitions "
        "(num_envs x horizon), and minibatches must divide it"
    )
    return replace(space, tables={**space.tables, "shape": shape}), note


def refuse_misfit(sizes: Sequence[int], num_envs: int, horizon: int, source: str) -> None:
    """Raise InputError, naming the valid neighbours, where a minibatch does not divide a rollout. source: where the
    minibatches were chosen.
    """
    transitions = num_envs * horizon
    for size in sizes:
        if transitions % size:
            below, above = neighbours(size, transitions)
            either = str(below) if above <= below else f"{below} or {above}"
            unit = env_unit(sizes, horizon)
            fewer = num_envs // unit * unit
            envs = f"{fewer} or {fewer + unit}" if fewer else str(unit)
            raise InputError(
                f"minibatch {size} of {source} does not divide the {num_envs} envs x {horizon} steps = {transitions:,} "
                f"transitions of a rollout; use a minibatch of {either}, or {envs} envs"
            )


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))
