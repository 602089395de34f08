"""The lines of `sweepd doctor --env NAME` about the spaces of an environment of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gymnasium import spaces

from sweepd.envs.external.actions import ActionLayout
from sweepd.envs.external.describe import inspect_env, laid_out
from sweepd.envs.external.guard import inside
from sweepd.envs.external.observations import MASK, ObservationLayout, UnfitSpace, is_image, short
from sweepd.envs.external.sources import Source, named_env, open_env
from sweepd.envs.external.wrappers import parts
from sweepd.envs.external.wrapping import KEY, flags_of, leaves
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import counted
from sweepd.optimize.cli.findings import Finding

Space = spaces.Space[Any]
_MEND = "; add "  # before the flags that a message names


def examine_spaces(name: str, params: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each part of the observations, and for the actions.

    Yields nothing if the environment cannot be made: that is another check.

    Args:
        name: of the environment, as `--env` takes it.
        params: its arguments, with its wrappers.
    """
    named = named_env(name)
    source = named.sized(params, 1)
    wrappers = list(params.get(KEY, ()))
    plain = {name: value for name, value in params.items() if name != KEY}
    try:
        with inside(source.name):
            observation, action = _spaces(source, plain)
            wrapped = observation if not wrappers else _spaces(source, dict(params))[0]
    except Exception:  # the user's function may raise anything
        return
    try:
        actions = ActionLayout(action)
        yield Finding(True, "action space", short(action))
    except InputError as error:
        yield Finding(False, "action space", str(error), "wrap the environment's actions")
        return
    problem = _problem(source, dict(params), wrapped, actions)
    shown = {name: part for name, part in parts(observation).items() if name != MASK}
    for key, part in leaves(shown or {"": observation}):
        unfit = _unfit(part, alone=len(shown) < 2)
        subject = f"observation {key}".rstrip()
        if not unfit:
            yield Finding(True, subject, _read_as(part))
        elif problem is None:
            found = f"{unfit}; wrapped by {flags_of(wrappers)}"
            yield Finding(True, subject, found, wrapped=True)
        else:
            yield Finding(False, subject, unfit, _advice(problem))
    if problem is not None and wrappers:
        yield Finding(False, "wrapped observations", problem.partition(_MEND)[0], _advice(problem))
    elif wrappers:
        found = f"{short(wrapped)}, by {flags_of(wrappers)}"
        yield Finding(True, "wrapped observations", found, wrapped=True)


def _spaces(source: Source, params: Mapping[str, Any]) -> tuple[Space, Space]:
    env = open_env(source, params)
    try:
        _, observation, action, _ = inspect_env(env)
        return observation, action
    finally:
        getattr(env, "close", lambda: None)()


def _problem(
    source: Source, params: Mapping[str, Any], space: Space, actions: ActionLayout
) -> str | None:
    """Return why networks cannot read the wrapped observations, with the flags that mend it."""
    env = open_env(source, params)
    try:
        with inside(source.name):
            laid_out(env, space, actions)
    except InputError as error:
        return str(error)
    finally:
        getattr(env, "close", lambda: None)()
    return None


def _advice(problem: str) -> str:
    flags = problem.partition(_MEND)[2]
    return f"add {flags}" if flags else "convert it by a wrapper of your own, --wrapper MODULE:NAME"


def _unfit(part: Space, *, alone: bool) -> str:
    """Return why a part of an observation cannot be read as it is; "" if it can."""
    try:
        ObservationLayout(part)
    except UnfitSpace as error:
        if is_image(part):
            return str(error).removeprefix("an observation space is ")
        return f"{short(part)}: no network reads such a space"
    if is_image(part) and not alone:
        return "an image next to other observations"
    return ""


def _read_as(part: Space) -> str:
    layout = ObservationLayout(part)
    if layout.image_shape is not None:
        return f"{short(part)}: read as an image of {' x '.join(map(str, layout.image_shape))}"
    hot = ", one-hot" if any(leaf.choices for leaf in layout.leaves) else ""
    return f"{short(part)}: {counted(layout.size, 'column')}{hot}"
