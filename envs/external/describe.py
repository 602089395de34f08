"""What an environment is: its kind, its spaces, and how many rows it has."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from sweepd.envs.core.env_spec import BYTES, FLOAT, EnvSpec
from sweepd.envs.external import roles, wrapping
from sweepd.envs.external.actions import ActionLayout
from sweepd.envs.external.adapters import InfoMask, autoreset_mode
from sweepd.envs.external.agents_view import agents_of
from sweepd.envs.external.guard import inside
from sweepd.envs.external.observations import ObservationLayout, UnfitSpace, shape_of
from sweepd.envs.external.sources import Source
from sweepd.envs.support.errors import InputError

Space = gymnasium.spaces.Space[Any]
_API_HINT = (
    "return what Gymnasium defines (an ended episode is terminated, one cut off by a limit of "
    "steps is truncated), or wrap it by shimmy.GymV21CompatibilityV0"
)


class EnvKind(Enum):
    """The API that an environment follows."""

    SINGLE = "gymnasium.Env"
    MASKED = "gymnasium.Env with masks in info"
    VECTOR = "gymnasium.vector.VectorEnv"
    PARALLEL = "PettingZoo parallel"
    BUFFERED = "PufferLib-style"


@dataclass(frozen=True)
class Description:
    """What an environment is.

    Attributes:
        kind: The API that it follows.
        observations: How one row's observation is laid out.
        actions: How one row's action is laid out.
        spec: What a row is for a learner.
        rows: Rows per environment: agents, or sub-environments of a vector environment.
        limit: See `sources.Made`.
        score_range: The environment's attribute of that name, see `VecEnv.score_range`.
        agents: Names of the agents, where rows are agents of PettingZoo's API.
    """

    kind: EnvKind
    observations: ObservationLayout
    actions: ActionLayout
    spec: EnvSpec
    rows: int
    limit: int | None
    score_range: tuple[float, float] | None = None
    agents: tuple[str, ...] = ()


def describe(source: Source, kwargs: Mapping[str, Any]) -> Description:
    """Make one environment and inspect it; reset and step it once if it is a `gymnasium.Env`.

    Raises:
        InputError: It cannot be made, follows no known API, its agents' spaces differ, or its
            spaces are not supported.
    """
    with inside(source.name):
        return _describe(source, kwargs)


def _describe(source: Source, kwargs: Mapping[str, Any]) -> Description:
    try:
        env, limit = source.make(kwargs)
    except InputError as error:
        raise named_error(source, error) from None
    except Exception as error:  # the user's function may raise anything
        every = {**source.kwargs, **kwargs}
        arguments = f" with {every}" if every else ""
        raise InputError(
            f"{source.name}{arguments} cannot be made: {type(error).__name__}: {error}"
        ) from error
    try:
        kind, observation, action, rows = inspect_env(env)
        if limit is not None and kind not in (EnvKind.SINGLE, EnvKind.MASKED):
            raise InputError(
                f"max_episode_steps={limit} limits single environments, and it made one of the "
                f"kind {kind.value}; limit its episodes inside it"
            )
        actions = ActionLayout(action)
        has_absent_agents = kind in (EnvKind.PARALLEL, EnvKind.BUFFERED) or (
            kind == EnvKind.VECTOR and autoreset_mode(env) != AutoresetMode.SAME_STEP
        )
        observations = laid_out(env, observation, actions)
        spec = spec_of(observations, actions, has_absent_agents=has_absent_agents)
        agents = tuple(map(str, getattr(env, "possible_agents", ())))
        scores = _score_range(env)
        return Description(kind, observations, actions, spec, rows, limit, scores, agents)
    except InputError as error:
        raise named_error(source, error) from None
    finally:
        getattr(env, "close", lambda: None)()


def spec_of(
    observations: ObservationLayout, actions: ActionLayout, *, has_absent_agents: bool = False
) -> EnvSpec:
    """Return what rows with these observations and actions are for a learner."""
    return EnvSpec(
        state_dim=observations.size,
        obs_dtype=FLOAT if observations.image_shape is None else BYTES,
        image_shape=observations.image_shape,
        action_dim=sum(actions.choices) or actions.width,
        action_dims=() if actions.single else actions.choices,
        if_discrete=actions.discrete,
        masked=observations.masked,
        has_absent_agents=has_absent_agents,
    )


def laid_out(env: Any, space: Space, actions: ActionLayout) -> ObservationLayout:
    """Lay out observations; name the wrappers that mend a space where it cannot be read.

    Raises:
        InputError: The space is not supported.
    """
    try:
        return ObservationLayout(space, actions)
    except UnfitSpace as error:
        for texts in wrapping.suggestions(env, space):
            try:
                wrapped = inspect_env(wrapping.wrap(env, texts))[1]
                ObservationLayout(wrapped, actions)
            except InputError:
                continue
            raise InputError(f"{error}; add {wrapping.flags_of(texts)}") from None
        raise


def one_reward(reward: Any) -> float:
    """Return a reward as a number; raise ValueError if it is not one number."""
    try:
        values = np.asarray(reward, np.float64)
    except (ValueError, TypeError):
        values = np.empty(0)
    if values.size != 1:
        raise ValueError(
            f"the reward is {shape_of(reward)}; it must be one number. Environments of several "
            "agents, whose rewards are a list, must follow PettingZoo's API"
        )
    return float(values.reshape(-1)[0])


def _score_range(env: Any) -> tuple[float, float] | None:
    found = getattr(getattr(env, "unwrapped", env), "score_range", None)
    if found is None:
        return None
    try:
        low, high = (float(bound) for bound in found)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(
            f"its score_range is {found!r}; it must be the lowest and the highest possible return "
            "of an episode, such as (0.0, 1.0)"
        )
    return low, high


def named_error(source: Source, error: InputError) -> InputError:
    text = str(error)
    return error if text.startswith(source.name) else InputError(f"{source.name}: {text}")


def inspect_env(env: Any) -> tuple[EnvKind, Space, Space, int]:
    """Return an environment's kind, observation space, action space, and rows."""
    name = type(env).__name__
    if all(hasattr(env, method) for method in ("recv", "send", "async_reset")):
        raise InputError(
            f"it made {name}, an EnvPool, which takes a seed only when it is made: its episodes "
            "cannot be repeated, as trials need; use the Gymnasium id of the environment (gym:ID), "
            "or wrap it in a gymnasium.vector.VectorEnv whose reset(seed=…) makes a new pool"
        )
    if isinstance(env, gymnasium.Env):
        if InfoMask.applies(env, _first_info(env)):
            return EnvKind.MASKED, InfoMask(env).observation_space, env.action_space, 1
        return EnvKind.SINGLE, env.observation_space, env.action_space, 1
    if isinstance(env, VectorEnv):
        return EnvKind.VECTOR, env.single_observation_space, env.single_action_space, env.num_envs
    if hasattr(env, "possible_agents"):
        return EnvKind.PARALLEL, *common_spaces(env), len(env.possible_agents)
    if hasattr(env, "single_observation_space") and hasattr(env, "num_agents"):
        observation = env.single_observation_space
        if isinstance(observation, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
            raise InputError(
                f"its single_observation_space is {observation}; it must be a Box, one array that "
                "it writes into"
            )
        return EnvKind.BUFFERED, observation, env.single_action_space, int(env.num_agents)
    if hasattr(env, "action_space") and hasattr(env, "step"):
        raise InputError(
            f"it made a {name}, which is no gymnasium.Env; an environment of the old package gym "
            "can be wrapped by shimmy (shimmy.GymV21CompatibilityV0 or GymV26CompatibilityV0), "
            "others must be subclasses of gymnasium.Env"
        )
    raise InputError(
        f"it made a {name}, which must be a gymnasium.Env, a gymnasium.vector.VectorEnv, a "
        "PettingZoo environment, or have single_observation_space and num_agents as PufferLib's"
    )


def common_spaces(env: Any) -> tuple[Space, Space]:
    """Return the spaces of a PettingZoo environment's agents, which must all be the same."""
    if not env.possible_agents:
        raise InputError("its possible_agents are empty: it has no agents to train")
    first, *others = env.possible_agents
    observation, action = env.observation_space(first), env.action_space(first)
    for agent in others:
        if env.observation_space(agent) != observation or env.action_space(agent) != action:
            raise InputError(
                f"agents {first!r} and {agent!r} have different spaces, which the package supersuit "
                "pads to the same; add --wrapper supersuit:pad_observations_v0 --wrapper "
                "supersuit:pad_action_space_v0, or train one policy per role: "
                f"{roles.FLAG} {shlex.quote(roles.suggested_roles(env.possible_agents))}"
            )
    return observation, action


def _first_info(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Reset an environment, step it once, and return the `info` of the reset.

    An exception of the environment counts as an empty info: training reports it with its traceback.

    Raises:
        InputError: `reset` or `step` returns what Gym's did before version 0.26.
    """
    try:
        started: Any = env.reset(seed=0)
    except Exception:
        return {}
    if started is None:  # `gymnasium.Env.reset` itself, which the class does not override
        return {}
    if not (isinstance(started, tuple) and len(started) == 2 and isinstance(started[1], dict)):
        raise InputError(
            "its reset does not return (observation, info), but what Gym's did before 0.26; "
            f"{_API_HINT}"
        )
    try:
        stepped: Any = env.step(env.action_space.sample())
    except Exception:  # the action may be illegal in this state
        return dict(started[1])
    if not (isinstance(stepped, tuple) and len(stepped) == 5):
        returned = (
            f"{len(stepped)} values"
            if isinstance(stepped, tuple)
            else f"a {type(stepped).__name__}"
        )
        raise InputError(
            f"its step returns {returned} instead of Gymnasium's 5 (observation, reward, "
            f"terminated, truncated, info); {_API_HINT}"
        )
    try:
        one_reward(stepped[1])
    except ValueError as error:
        several = agents_of(env.action_space) and agents_of(env.observation_space)
        mend = f"; add {wrapping.flags_of(['agents'])}" if several else ""
        raise InputError(f"{error}{mend}") from None
    return dict(started[1])
