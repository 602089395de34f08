"""Environments whose `reset` and `step` return what Gym's did before version 0.26."""

from __future__ import annotations

from typing import Any

import gymnasium

from envs.support.errors import InputError

_ADVICE = (
    "return what Gymnasium defines (an ended episode is terminated, one cut off by a limit of steps is truncated), or "
    "wrap it by shimmy.GymV21CompatibilityV0"
)


def first_info(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """The `info` of a reset, after which the environment is stepped once. Raises InputError where either returns
    another number of values than Gymnasium's.

    What the environment raises itself is told when it is trained in, with its traceback; here it counts as no info.
    """
    try:
        begun: Any = env.reset(seed=0)
    except Exception:
        return {}
    if begun is None:  # as `gymnasium.Env.reset` itself returns: it was not written yet
        return {}
    if not (isinstance(begun, tuple) and len(begun) == 2 and isinstance(begun[1], dict)):
        raise InputError(
            f"its reset returns no (observation, info), as that of Gym did before 0.26; {_ADVICE}"
        )
    try:
        made: Any = env.step(env.action_space.sample())
    except Exception:  # the action may be illegal in this state
        return dict(begun[1])
    if not (isinstance(made, tuple) and len(made) == 5):
        values = f"{len(made)} values" if isinstance(made, tuple) else f"a {type(made).__name__}"
        raise InputError(
            f"its step returns {values} and not the 5 of Gymnasium (observation, reward, terminated, truncated, info); "
            f"{_ADVICE}"
        )
    return dict(begun[1])
