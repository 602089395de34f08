"""Where environments come from: makers of one environment, small enough to be sent to another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium

from envs.errors import InputError


class Made(NamedTuple):
    """limit: steps after which an episode is truncated from outside, None where the environment sees to that itself."""

    env: Any
    limit: int | None


@dataclass(frozen=True)
class GymSource:
    """A Gymnasium id (`CartPole-v1`, or `module:Name-v0`) and the arguments that all its copies are made with."""

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"gym:{self.env_id}"

    def make(self, own: Mapping[str, Any]) -> Made:
        """One environment; own: further arguments, before the common ones. Raises InputError where it cannot be made.

        Gymnasium's wrappers that only check or count are left out where that changes nothing: whoever steps the
        environment resets it in time and counts for itself.
        """
        kwargs = {**self.kwargs, **own}
        try:
            spec = gymnasium.spec(self.env_id)
            limit = kwargs.pop("max_episode_steps", None) or spec.max_episode_steps
            if spec.additional_wrappers:  # the limit counts steps inside of these
                return Made(gymnasium.make(spec, max_episode_steps=limit, disable_env_checker=True, **kwargs), None)
            env = gymnasium.make(spec, max_episode_steps=-1, disable_env_checker=True, **kwargs)
        except Exception as error:
            said = f" with {kwargs}" if kwargs else ""
            raise InputError(f"{self.name}{said} cannot be made: {type(error).__name__}: {error}") from error
        if type(env) is gymnasium.wrappers.OrderEnforcing:
            env = env.env
        return Made(env, limit)
