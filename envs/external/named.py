"""External environments by the names that `--env` takes:

* `gym:ID` or `gym:MODULE:ID`: a Gymnasium id, stepped copy by copy;
* `vector:ID` or `vector:MODULE:ID`: the vector environment that is registered with the id;
* `pettingzoo:MODULE`: what `MODULE.parallel_env` makes, or `MODULE.env` where there is none, as PettingZoo names them;
* `MODULE:NAME`, and `pettingzoo:MODULE:NAME`, `vector:MODULE:NAME`: what that function or class makes, of any kind.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from envs.external.sources import FactorySource, GymSource, Source, spec_of
from envs.support.errors import InputError
from envs.support.plugins import find, load

GYM, VECTOR, PETTINGZOO = "gym:", "vector:", "pettingzoo:"
PREFIXES = (GYM, VECTOR, PETTINGZOO)
SIZE = "num_envs"  # the argument by which a function is told how many environments to make at once


@dataclass(frozen=True)
class Imported:
    """A function or class of a module, by name: so it can be sent to another process even where it is a closure."""

    module: str
    attribute: str

    @property
    def name(self) -> str:
        """`MODULE:NAME`."""
        return f"{self.module}:{self.attribute}"

    def resolve(self) -> Callable[..., Any]:
        """The function itself."""
        found: Callable[..., Any] = getattr(importlib.import_module(self.module), self.attribute)
        return found

    def __call__(self, **kwargs: Any) -> Any:
        return self.resolve()(**kwargs)


@dataclass(frozen=True)
class NamedEnv:
    """An external environment as `--env` names it. source: what makes one. solved: Gymnasium's `reward_threshold`."""

    name: str
    source: Source
    solved: float | None = None

    @property
    def single(self) -> bool:
        """Whether it is stepped copy by copy, a row each."""
        return isinstance(self.source, GymSource) and not self.source.batched

    def sized(self, params: Mapping[str, Any], num_envs: int) -> Source:
        """What makes `num_envs` environments at once, where it can be told how many; otherwise just `source`."""
        source = self.source
        if isinstance(source, GymSource):
            return GymSource(source.env_id, source.kwargs, num_envs) if source.batched else source
        return (
            FactorySource(source.factory, {SIZE: num_envs}) if self.takes_size(params) else source
        )

    def takes_size(self, params: Mapping[str, Any]) -> bool:
        """Whether it can be told how many environments to make at once (and `params` don't say so already)."""
        if isinstance(self.source, GymSource):
            return self.source.batched > 0
        factory = self.source.factory
        try:
            arguments = inspect.signature(
                factory.resolve() if isinstance(factory, Imported) else factory
            ).parameters
        except (TypeError, ValueError):  # of some functions written in C
            return False
        return SIZE in arguments and SIZE not in params


def named_env(name: str) -> NamedEnv:
    """Raises InputError where there is nothing of that name, or what there is makes no environments."""
    flag = f"--env {name}"
    if name.startswith(GYM):
        rest = name.removeprefix(GYM)
        try:
            return NamedEnv(name, GymSource(rest), spec_of(rest).reward_threshold)
        except InputError as error:
            raise InputError(f"--env {error}") from None
    if name.startswith(VECTOR):
        return _vector(name, name.removeprefix(VECTOR))
    if name.startswith(PETTINGZOO):
        rest = name.removeprefix(PETTINGZOO)
        return NamedEnv(
            name, FactorySource(_imported(flag, rest) if ":" in rest else _pettingzoo(flag, rest))
        )
    return NamedEnv(name, FactorySource(_imported(flag, name)))


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
            f"{flag}: no vector environment is registered with this id (vector_entry_point); use {GYM}{rest}, whose "
            "copies are stepped one by one, in workers where that is faster"
        )
    return NamedEnv(name, GymSource(rest, batched=1), spec.reward_threshold)


def _pettingzoo(flag: str, module: str) -> Imported:
    found = load(flag, module)
    for attribute in ("parallel_env", "env"):
        if callable(getattr(found, attribute, None)):
            return Imported(module, attribute)
    raise InputError(
        f"{flag}: the module {module} has neither parallel_env nor env, as PettingZoo's environments have; name what "
        f"makes one: {PETTINGZOO}{module}:NAME"
    )


def _imported(flag: str, name: str) -> Imported:
    found = find(flag, name)
    if not callable(found):
        raise InputError(
            f"{flag} is a {type(found).__name__}; it must be a function or class that makes an environment, or a "
            "`Game`, such as `TensorGame.game()` makes"
        )
    module, _, attribute = name.partition(":")
    return Imported(module, attribute)
