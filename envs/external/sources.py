"""Where environments come from: a Gymnasium id, or a function that makes one. Small enough to be sent to a process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv

from envs.external.actions import ActionLayout
from envs.external.aec import ParallelFromAec, is_aec
from envs.external.info_mask import InfoMask, tells
from envs.external.observations import ObservationLayout
from envs.external.old_api import first_info
from envs.support.errors import InputError
from envs.support.plugins import load

Space = gymnasium.spaces.Space[Any]
SINGLE, PARALLEL, VECTOR, BUFFERED = (
    "gymnasium.Env",
    "parallel",
    "gymnasium.vector.VectorEnv",
    "buffered",
)
MASKED = "gymnasium.Env with masks in info"


class Made(NamedTuple):
    """limit: steps after which an episode is truncated from outside, None where the environment sees to that itself."""

    env: Any
    limit: int | None


def spec_of(env_id: str, prefix: str = "gym:") -> EnvSpec:
    """What Gymnasium knows by that id; by `module:id` once that module is imported, which then registers it.

    prefix: before the id in messages. Raises InputError where it knows nothing.
    """
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            load(f"{prefix}{env_id}", module)
        return gymnasium.spec(name)
    except InputError:
        raise
    except gymnasium.error.Error as error:
        unheard = isinstance(
            error, gymnasium.error.NameNotFound | gymnasium.error.NamespaceNotFound
        )
        hint = (
            f"; {prefix}MODULE:ID imports MODULE first, which may register it"
            if unheard and not module
            else ""
        )
        raise InputError(
            f"{prefix}{env_id}: Gymnasium knows no such environment ({error}){hint}"
        ) from error
    except Exception as error:  # whatever a module raises
        raise InputError(
            f"{prefix}{env_id} cannot be imported: {type(error).__name__}: {error}"
        ) from error


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
        return f"{'vector' if self.batched else 'gym'}:{self.env_id}"

    def make(self, own: Mapping[str, Any]) -> Made:
        """One environment; own: arguments that go before the common ones. Raises InputError where it cannot be made."""
        kwargs = {**self.kwargs, **own}
        try:
            return self._vector(kwargs) if self.batched else self._single(kwargs)
        except InputError:
            raise
        except Exception as error:
            said = f" with {kwargs}" if kwargs else ""
            raise InputError(
                f"{self.name}{said} cannot be made: {type(error).__name__}: {error}"
            ) from error

    def _vector(self, kwargs: dict[str, Any]) -> Made:
        mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
        spec = spec_of(self.env_id, "vector:")
        return Made(gymnasium.make_vec(spec, self.batched, vectorization_mode=mode, **kwargs), None)

    def _single(self, kwargs: dict[str, Any]) -> Made:
        """Gymnasium's wrappers that only check or count are left out where that changes nothing: whoever steps the
        environment resets it in time and counts for itself.
        """
        spec = spec_of(self.env_id)
        limit = kwargs.pop("max_episode_steps", None) or spec.max_episode_steps
        if spec.additional_wrappers:  # the limit counts steps inside of these
            return Made(
                gymnasium.make(spec, max_episode_steps=limit, disable_env_checker=True, **kwargs),
                None,
            )
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
        if not isinstance(plain, type) and hasattr(plain, "name"):
            return str(plain.name)
        return f"{plain.__module__}.{getattr(plain, '__qualname__', type(plain).__qualname__)}"

    def make(self, own: Mapping[str, Any]) -> Made:
        """One environment; own: arguments that go before the common ones. Raises whatever the function raises."""
        env = self.factory(**{**self.kwargs, **own})
        return Made(ParallelFromAec(env) if is_aec(env) else env, None)


Source = GymSource | FactorySource


@dataclass(frozen=True)
class Description:
    """What an environment is.

    rows: the most agents that it can hold, each a row. limit: see `Made`. has_absent_agents: whether
    rows may be without an agent.
    """

    kind: str
    observations: ObservationLayout
    actions: ActionLayout
    rows: int
    limit: int | None
    has_absent_agents: bool


def describe(source: Source, own: Mapping[str, Any]) -> Description:
    """Make one and look: reset it, and where it is a `gymnasium.Env` step it once.

    Raises InputError where it cannot be made, is of no known kind, its agents' spaces differ, or they are not such as
    can be learned in.
    """
    try:
        env, limit = source.make(own)
    except InputError as error:
        raise _named(source, error) from None
    except Exception as error:  # whatever a function of the user's raises
        said = f" with {dict(own)}" if own else ""
        raise InputError(
            f"{source.name}{said} cannot be made: {type(error).__name__}: {error}"
        ) from error
    try:
        kind, observation, action, rows = _look(env)
        actions = ActionLayout(action)
        has_absent_agents = kind in (PARALLEL, BUFFERED) or (
            kind == VECTOR and autoreset_mode(env) != AutoresetMode.SAME_STEP
        )
        return Description(
            kind, ObservationLayout(observation, actions), actions, rows, limit, has_absent_agents
        )
    except InputError as error:
        raise _named(source, error) from None
    finally:
        getattr(env, "close", lambda: None)()


def autoreset_mode(env: Any) -> AutoresetMode:
    """When a vector environment begins the next episode: in the next step where it doesn't say, as Gymnasium's do."""
    return AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))


def _named(source: Source, error: InputError) -> InputError:
    text = str(error)
    return error if text.startswith(source.name) else InputError(f"{source.name}: {text}")


def _look(env: Any) -> tuple[str, Space, Space, int]:
    """Its kind, spaces and rows."""
    name = type(env).__name__
    if all(hasattr(env, method) for method in ("recv", "send", "async_reset")):
        raise InputError(
            f"it made {name}, an EnvPool, which takes a seed only when it is made: its games cannot be repeated, as "
            "trials need; use the Gymnasium id of the environment (gym:ID), or wrap it in a gymnasium.vector.VectorEnv "
            "whose reset(seed=…) makes a new pool"
        )
    if isinstance(env, gymnasium.Env):
        if tells(env, first_info(env)):
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
    if hasattr(env, "action_space") and hasattr(env, "step"):
        raise InputError(
            f"it made a {name}, which is no gymnasium.Env; an environment of the old package gym can be wrapped by "
            "shimmy (shimmy.GymV21CompatibilityV0 or GymV26CompatibilityV0), others must be subclasses of gymnasium.Env"
        )
    raise InputError(
        f"it made a {name}, which must be a gymnasium.Env, a gymnasium.vector.VectorEnv, a PettingZoo "
        "environment, or have single_observation_space and num_agents as PufferLib's"
    )


def _common(env: Any) -> tuple[Space, Space]:
    if not env.possible_agents:
        raise InputError("its possible_agents are empty; there is nobody to play it")
    first, *others = env.possible_agents
    observation, action = env.observation_space(first), env.action_space(first)
    for agent in others:
        if env.observation_space(agent) != observation or env.action_space(agent) != action:
            raise InputError(
                f"agents {first!r} and {agent!r} have different spaces; pad them to one "
                "(supersuit.pad_observations_v0, pad_action_space_v0)"
            )
    return observation, action
