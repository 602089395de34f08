"""Sources: what makes an environment, small enough to be sent to another process.

`named_env` finds one by the name that `--env` takes:

* `gym:ID` or `gym:MODULE:ID`: a Gymnasium id, each copy stepped by itself;
* `vector:ID` or `vector:MODULE:ID`: the vector environment registered with the id;
* `pettingzoo:MODULE`: what `MODULE.parallel_env` makes, or `MODULE.env` if there is none;
* `versus:MODULE`: the same, whose two agents play against each other;
* `MODULE:NAME`, `pettingzoo:MODULE:NAME`, `versus:MODULE:NAME`, `vector:MODULE:NAME`: what that
  function or class makes, of any kind that `describe` recognizes.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
from gymnasium.envs.registration import EnvSpec

from sweepd.envs.external import roles, wrapping
from sweepd.envs.external.adapters import ParallelFromAec, parallel_from_aec
from sweepd.envs.external.padding import padded
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.naming import MAIN
from sweepd.envs.support.plugins import find, load

GYM, VECTOR, PETTINGZOO, VERSUS = "gym:", "vector:", "pettingzoo:", "versus:"
PREFIXES = (GYM, VECTOR, PETTINGZOO, VERSUS)
LIMIT = "max_episode_steps"  # an argument of every single environment
SIZE = "num_envs"  # a function with this argument is told how many environments to make at once


class Made(NamedTuple):
    """An environment, and the steps after which its episodes must be truncated from outside.

    `limit` is None where the environment truncates them itself, or has no limit.
    """

    env: Any
    limit: int | None


def spec_of(env_id: str, prefix: str = GYM) -> EnvSpec:
    """Return Gymnasium's spec of an id; for `MODULE:ID`, after importing the module.

    Args:
        env_id: The id.
        prefix: What precedes the id in messages.

    Raises:
        InputError: Gymnasium does not know the id, or the module cannot be imported.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        load(f"{prefix}{env_id}", module)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        unknown = isinstance(
            error, gymnasium.error.NameNotFound | gymnasium.error.NamespaceNotFound
        )
        hint = (
            f"; {prefix}MODULE:ID imports MODULE first, which may register it"
            if unknown and not module
            else ""
        )
        raise InputError(
            f"{prefix}{env_id}: Gymnasium knows no such environment ({error}){hint}"
        ) from error


@dataclass(frozen=True)
class GymSource:
    """A Gymnasium id.

    Attributes:
        env_id: `CartPole-v1`, or `module:Name-v0`.
        kwargs: Arguments of all copies.
        batched: Copies per vector environment (`gymnasium.make_vec`); 0: single environments.
    """

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    batched: int = 0

    @property
    def name(self) -> str:
        """The id with its prefix."""
        return f"{VECTOR if self.batched else GYM}{self.env_id}"

    @property
    def _spec(self) -> EnvSpec | None:
        return gymnasium.registry.get(self.env_id.rpartition(":")[2])

    @property
    def in_main(self) -> bool:
        """Whether the program's main module defines the environment."""
        found = self._spec
        points = (found.entry_point, found.vector_entry_point) if found else ()
        return any(
            point.startswith(f"{MAIN}:")
            if isinstance(point, str)
            else getattr(point, "__module__", "") == MAIN
            for point in points
        )

    @property
    def identity(self) -> str:
        """Tells apart environments of the same name: what makes it, and its module's content."""
        found = self._spec
        point = (found.vector_entry_point if self.batched else found.entry_point) if found else None
        made: Any = point
        if isinstance(point, str):
            try:
                made = gymnasium.envs.registration.load_env_creator(point)
            except Exception:  # importing a module may raise anything; making it will report that
                made = None
        return f"{self.name} {_origin(made)}"

    def __reduce__(self) -> Any:
        # With its registration, which may have been made by a script that workers do not run.
        spec = None if ":" in self.env_id else self._spec
        return _registered, (spec, self.env_id, self.kwargs, self.batched)

    def make(self, overrides: Mapping[str, Any]) -> Made:
        """Make one environment with the common arguments, overridden by `overrides`.

        Single environments are made without Gymnasium's wrappers that only check or count: they
        cost time in every step, and a shard counts the steps and resets in time anyway. A spec with
        wrappers of its own keeps all of them, because its limit counts steps inside those; so does
        an environment in wrappers of others, which may repeat actions.

        Raises:
            InputError: Gymnasium does not know the id.
            Exception: What the environment's constructor raises.
        """
        kwargs = {**self.kwargs, **overrides}
        kwargs.pop(roles.KEY, None)
        wrappers = kwargs.pop(wrapping.KEY, ())
        if self.batched:
            mode = gymnasium.VectorizeMode.VECTOR_ENTRY_POINT
            spec = spec_of(self.env_id, VECTOR)
            batch = gymnasium.make_vec(spec, self.batched, vectorization_mode=mode, **kwargs)
            return Made(wrapping.wrap(batch, wrappers), None)
        spec = spec_of(self.env_id)
        limit = kwargs.pop(LIMIT, None) or spec.max_episode_steps
        outside = not spec.additional_wrappers and wrapping.keeps_steps(wrappers)
        own = -1 if outside else limit
        env = gymnasium.make(spec, max_episode_steps=own, disable_env_checker=True, **kwargs)
        if outside and type(env) is gymnasium.wrappers.OrderEnforcing:
            env = env.env
        return Made(_of_roles(wrapping.wrap(env, wrappers), overrides), limit if outside else None)


def _of_roles(env: Any, params: Mapping[str, Any]) -> Any:
    """Return an environment, padded where its agents have roles: these may have different spaces."""
    return padded(env) if roles.KEY in params and hasattr(env, "possible_agents") else env


def _origin(made: Any) -> str:
    """Return where a function or class comes from, with a hash of its module's file."""
    where = (
        f"{getattr(made, '__module__', '')}:{getattr(made, '__qualname__', type(made).__name__)}"
    )
    try:
        file = inspect.getsourcefile(made)
        content = Path(file).read_bytes() if file else b""
    except (OSError, TypeError):
        return where
    return f"{where} {hashlib.sha256(content).hexdigest()[:16]}"


def _registered(
    spec: EnvSpec | None, env_id: str, kwargs: Mapping[str, Any], batched: int
) -> GymSource:
    if spec is not None:
        gymnasium.registry.setdefault(spec.id, spec)
    return GymSource(env_id, kwargs, batched)


@dataclass(frozen=True)
class FactorySource:
    """A function (or class) that makes one environment of any kind that `describe` recognizes.

    Other processes can use it only if it is importable: defined at the top level of a module.
    """

    factory: Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The function's own `name` attribute, or its module and qualified name."""
        plain = self.factory.func if isinstance(self.factory, functools.partial) else self.factory
        if not isinstance(plain, type) and hasattr(plain, "name"):
            return str(plain.name)
        return f"{plain.__module__}.{getattr(plain, '__qualname__', type(plain).__qualname__)}"

    @property
    def identity(self) -> str:
        """Tells apart environments of the same name: what makes it, and its module's content."""
        plain = self.factory.func if isinstance(self.factory, functools.partial) else self.factory
        return f"{self.name} {_origin(plain.resolve() if isinstance(plain, Imported) else plain)}"

    @property
    def in_main(self) -> bool:
        """Whether the program's main module defines the function."""
        plain = self.factory.func if isinstance(self.factory, functools.partial) else self.factory
        return (plain.module if isinstance(plain, Imported) else plain.__module__) == MAIN

    def make(self, overrides: Mapping[str, Any]) -> Made:
        """Make one environment with the common arguments, overridden by `overrides`.

        `max_episode_steps` is the limit of an episode unless the function has such an argument.
        Raises what the function raises.
        """
        env, limit = self.plain(overrides)
        parallel = parallel_from_aec(env) if ParallelFromAec.applies(env) else env
        return Made(_of_roles(parallel, overrides), limit)

    def plain(self, overrides: Mapping[str, Any]) -> Made:
        """Make one environment as `make` does, an AEC environment as it is."""
        arguments, limit = {**self.kwargs, **overrides}, None
        arguments.pop(roles.KEY, None)
        wrappers = arguments.pop(wrapping.KEY, ())
        if LIMIT in arguments and not _takes(self.factory, LIMIT):
            limit = int(arguments.pop(LIMIT))
        return Made(wrapping.wrap(self.factory(**arguments), wrappers), limit)


Source = GymSource | FactorySource


def open_env(source: Source, params: Mapping[str, Any]) -> Any:
    """Make one environment to look at: an AEC environment as it is. Raises what making it raises."""
    made = source.plain(params) if isinstance(source, FactorySource) else source.make(params)
    return made.env


@dataclass(frozen=True)
class Imported:
    """A function or class by its module and name.

    Unlike the function itself, it can be sent to another process even if the function is a closure.
    """

    module: str
    attribute: str

    @property
    def name(self) -> str:
        """`MODULE:NAME`."""
        return f"{self.module}:{self.attribute}"

    def resolve(self) -> Callable[..., Any]:
        """Import and return the function."""
        found: Callable[..., Any] = getattr(importlib.import_module(self.module), self.attribute)
        return found

    def __call__(self, **kwargs: Any) -> Any:
        return self.resolve()(**kwargs)


@dataclass(frozen=True)
class NamedEnv:
    """An external environment as named by `--env`.

    Attributes:
        name: The name.
        source: What makes it.
        solved: Gymnasium's `reward_threshold`, if the id has one.
    """

    name: str
    source: Source
    solved: float | None = None

    @property
    def single(self) -> bool:
        """Whether it is made copy by copy, each of one row."""
        return isinstance(self.source, GymSource) and not self.source.batched

    def sized(self, params: Mapping[str, Any], num_envs: int) -> Source:
        """Return a source that makes `num_envs` environments at once if it can; else `source`."""
        source = self.source
        if isinstance(source, GymSource):
            return GymSource(source.env_id, source.kwargs, num_envs) if source.batched else source
        return (
            FactorySource(source.factory, {SIZE: num_envs}) if self.takes_size(params) else source
        )

    def takes_size(self, params: Mapping[str, Any]) -> bool:
        """Return whether it can be told how many environments to make, and `params` do not."""
        if isinstance(self.source, GymSource):
            return self.source.batched > 0
        return SIZE not in params and _takes(self.source.factory, SIZE, any_name=False)


def _takes(factory: Callable[..., Any], argument: str, *, any_name: bool = True) -> bool:
    """Return whether a function has this argument, or takes arguments of any name."""
    try:
        arguments = inspect.signature(
            factory.resolve() if isinstance(factory, Imported) else factory
        ).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    variable = any(part.kind is part.VAR_KEYWORD for part in arguments.values())
    return argument in arguments or (any_name and variable)


def named_env(name: str) -> NamedEnv:
    """Find an external environment by name.

    Raises:
        InputError: The name does not exist, or is not that of something callable.
    """
    flag = f"--env {name}"
    if name.startswith(GYM):
        rest = name.removeprefix(GYM)
        try:
            return NamedEnv(name, GymSource(rest), spec_of(rest).reward_threshold)
        except InputError as error:
            raise InputError(f"--env {error}") from None
    if name.startswith(VECTOR):
        return _vector(name, name.removeprefix(VECTOR))
    for prefix in (PETTINGZOO, VERSUS):
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            found = _imported(flag, rest) if ":" in rest else _pettingzoo(flag, prefix, rest)
            return NamedEnv(name, FactorySource(found))
    return NamedEnv(name, FactorySource(_imported(flag, name)))


def made_by(name: str) -> str | None:
    """Return `MODULE:NAME` of what makes an external environment; None of an id whose maker is unnamed."""
    source = named_env(name).source
    if isinstance(source, FactorySource):
        return source.factory.name if isinstance(source.factory, Imported) else None
    spec = spec_of(source.env_id)
    point = spec.vector_entry_point if source.batched else spec.entry_point
    return point if isinstance(point, str) else None


def _vector(name: str, rest: str) -> NamedEnv:
    flag = f"--env {name}"
    module, _, attribute = rest.rpartition(":")
    if module and hasattr(load(flag, module), attribute):
        return NamedEnv(name, FactorySource(_imported(flag, rest)))
    try:
        spec = spec_of(rest, VECTOR)
    except InputError as error:
        raise InputError(f"--env {error}") from None
    if spec.vector_entry_point is None:
        raise InputError(
            f"{flag}: no vector environment is registered with this id (vector_entry_point); use "
            f"{GYM}{rest}, which steps its copies one after the other, in worker processes where "
            "that is faster"
        )
    return NamedEnv(name, GymSource(rest, batched=1), spec.reward_threshold)


def _pettingzoo(flag: str, prefix: str, module: str) -> Imported:
    found = load(flag, module)
    for attribute in ("parallel_env", "env"):
        if callable(getattr(found, attribute, None)):
            return Imported(module, attribute)
    raise InputError(
        f"{flag}: the module {module} has neither parallel_env nor env, as PettingZoo's "
        f"environments have; name what makes one: {prefix}{module}:NAME"
    )


def _imported(flag: str, name: str) -> Imported:
    found = find(flag, name)
    if not callable(found):
        raise InputError(
            f"{flag} is a {type(found).__name__}; it must be a function or class that makes an "
            "environment, or a `Game`, such as `TensorGame.game()` makes"
        )
    module, _, attribute = name.partition(":")
    return Imported(module, attribute)
