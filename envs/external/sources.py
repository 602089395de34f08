"""Where environments come from: a Gymnasium id, or a function that makes one. Small enough to be sent to a process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from envs.errors import InputError
from envs.external.actions import ActionLayout
from envs.external.info_mask import InfoMask, tells
from envs.external.observations import ObservationLayout
from envs.plugins import load

Space = gymnasium.spaces.Space[Any]
SINGLE, PARALLEL, VECTOR, BUFFERED = "gymnasium.Env", "parallel", "gymnasium.vector.VectorEnv", "buffered"
MASKED = "gymnasium.Env with masks in info"


class Made(NamedTuple):
    """limit: steps after which an episode is truncated from outside, None where the environment sees to that itself."""

    env: Any
    limit: int | None


def spec_of(env_id: str) -> EnvSpec:
    """What Gymnasium knows by that id; by `module:id` once that module is imported, which then registers it.

    Raises InputError where it knows nothing.
    """
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            load(f"gym:{env_id}", module)
        return gymnasium.spec(name)
    except InputError:
        raise
    except gymnasium.error.Error as error:
        unheard = isinstance(error, gymnasium.error.NameNotFound | gymnasium.error.NamespaceNotFound)
        hint = "; gym:MODULE:ID imports MODULE first, which may register it" if unheard and not module else ""
        raise InputError(f"gym:{env_id}: Gymnasium knows no such environment ({error}){hint}") from error
    except Exception as error:  # whatever a module raises
        raise InputError(f"gym:{env_id} cannot be imported: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class GymSource:
    """A Gymnasium id (`CartPole-v1`, or `module:Name-v0`) and the arguments that all its copies are made with.

    batched: how many copies at once its own vector environment is asked for (`gymnasium.make_vec`); 0: one at a time.
    """

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    batched: int = 0

    @property
    def name(self) -> str:
        return f"gym:{self.env_id}"

    def make(self, own: Mapping[str, Any]) -> Made:
        """One environment; own: arguments that go before the common ones. Raises InputError where it cannot be made."""
        kwargs = {**self.kwargs, **own}
        try:
            return self._vector(kwargs) if self.batched else self._single(kwargs)
        except InputError:
            raise
        except Exception as error:
            said = f" with {kwargs}" if kwargs else ""
            raise InputError(f"{self.name}{said} cannot be made: {type(error).__name__}: {error}") from error

    def _vector(self, kwargs: dict[str, Any]) -> Made:
        mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
        return Made(gymnasium.make_vec(self.env_id, self.batched, vectorization_mode=mode, **kwargs), None)

    def _single(self, kwargs: dict[str, Any]) -> Made:
        """Gymnasium's wrappers that only check or count are left out where that changes nothing: whoever steps the
        environment resets it in time and counts for itself.
        """
        spec = spec_of(self.env_id)
        limit = kwargs.pop("max_episode_steps", None) or spec.max_episode_steps
        if spec.additional_wrappers:  # the limit counts steps inside of these
            return Made(gymnasium.make(spec, max_episode_steps=limit, disable_env_checker=True, **kwargs), None)
        env = gymnasium.make(spec, max_episode_steps=-1, disable_env_checker=True, **kwargs)
        return Made(env.env if type(env) is gymnasium.wrappers.OrderEnforcing else env, limit)


@dataclass(frozen=True)
class FactorySource:
    """A function (or class) that makes one environment of any kind that `describe` knows.

    It must be importable (defined at the top level of a module) for other processes to call it.
    """

    factory: Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        plain = self.factory.func if isinstance(self.factory, functools.partial) else self.factory
        return f"{plain.__module__}.{getattr(plain, '__qualname__', type(plain).__qualname__)}"

    def make(self, own: Mapping[str, Any]) -> Made:
        """One environment; own: arguments that go before the common ones. Raises whatever the function raises."""
        return Made(self.factory(**{**self.kwargs, **own}), None)


Source = GymSource | FactorySource


@dataclass(frozen=True)
class Description:
    """What an environment is. rows: agents that it always has room for, each a row. limit: see `Made`."""

    kind: str
    observations: ObservationLayout
    actions: ActionLayout
    rows: int
    limit: int | None


def describe(source: Source, own: Mapping[str, Any]) -> Description:
    """Make one and look. Raises InputError where it is of no known kind, its agents' spaces differ, or they are not
    such as can be learned in.
    """
    env, limit = source.make(own)
    try:
        kind, observation, action, rows = _look(env)
        actions = ActionLayout(action)
        return Description(kind, ObservationLayout(observation, actions), actions, rows, limit)
    except InputError as error:
        raise InputError(f"{source.name}: {error}") from None
    finally:
        env.close()


def _look(env: Any) -> tuple[str, Space, Space, int]:
    """Its kind, spaces and rows."""
    if isinstance(env, gymnasium.Env):
        if tells(env):
            return MASKED, InfoMask(env).observation_space, env.action_space, 1
        return SINGLE, env.observation_space, env.action_space, 1
    if isinstance(env, VectorEnv):
        return VECTOR, env.single_observation_space, env.single_action_space, env.num_envs
    if hasattr(env, "possible_agents"):
        return PARALLEL, *_common(env), len(env.possible_agents)
    if hasattr(env, "single_observation_space") and hasattr(env, "num_agents"):
        if isinstance(env.single_observation_space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
            raise InputError(
                f"its single_observation_space is {env.single_observation_space}; it must be a Box, one array that it "
                "writes into"
            )
        return BUFFERED, env.single_observation_space, env.single_action_space, int(env.num_agents)
    raise InputError(
        f"it made a {type(env).__name__}, which must be a gymnasium.Env, a gymnasium.vector.VectorEnv, a PettingZoo "
        "parallel environment, or have single_observation_space and num_agents as PufferLib's"
    )


def _common(env: Any) -> tuple[Space, Space]:
    first, *others = env.possible_agents
    observation, action = env.observation_space(first), env.action_space(first)
    for agent in others:
        if env.observation_space(agent) != observation or env.action_space(agent) != action:
            raise InputError(
                f"agents {first!r} and {agent!r} have different spaces; pad them to one "
                "(supersuit.pad_observations_v0, pad_action_space_v0)"
            )
    return observation, action
