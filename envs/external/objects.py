"""Environments as Python objects: the names by which any process can make them again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from sweepd.envs.external.sources import GYM, LIMIT, VECTOR
from sweepd.envs.external.wrappers import WRAPPERS
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.naming import IMPORTING, MAIN, import_paths, main_name, object_name

# Prints the first module after whose import Gymnasium knows an id, "" for none needed.
_REGISTERED_BY = """
import importlib, sys
import gymnasium
for module in ("", *sys.argv[2:]):
    try:
        module and importlib.import_module(module)
    except Exception:
        continue
    if sys.argv[1] in gymnasium.registry:
        print("found:" + module)
        break
"""
_SECONDS = 120  # for that


def environment_name(env: Any, kwargs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of an environment for `--env`, and its arguments.

    Args:
        env: a name; a class or function that makes an environment; a `Game`; or Gymnasium's spec.
        kwargs: arguments of the class or function.

    Raises:
        InputError: another process could not make it; the message says what to do.
    """
    if isinstance(env, EnvSpec):
        env = f"{GYM}{env.id}"
    if isinstance(env, str):
        prefix, _, env_id = env.partition(":")
        found = gymnasium.registry.get(env_id) if f"{prefix}:" in (GYM, VECTOR) else None
        return (env, dict(kwargs)) if found is None else _registered(f"{prefix}:", found, kwargs)
    if not isinstance(env, type) and callable(getattr(env, "step", None)):
        made = type(env).__name__
        raise InputError(
            f"env is an object of {made}, and a study makes many: pass the class or function that "
            f"makes it, env={made}, and its arguments as env_kwargs"
        )
    if not callable(env) and not hasattr(env, "make"):
        raise InputError(
            f"env = {env!r} is no environment: pass a name of --env, a class, or a function that "
            "makes an environment"
        )
    return object_name("env", env), dict(kwargs)


def _registered(
    prefix: str, spec: EnvSpec, kwargs: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the name of an id that this process may have registered by itself.

    `PREFIX:MODULE:ID` where importing a module registers it, else what makes the environment, with
    the arguments and the limit of its registration.
    """
    point = spec.vector_entry_point if prefix == VECTOR else spec.entry_point
    if point is None or (isinstance(point, str) and point.startswith("gymnasium.")):
        return f"{prefix}{spec.id}", dict(kwargs)
    what = f"env {prefix}{spec.id}"
    module, _, attribute = (
        point if isinstance(point, str) else object_name(what, point)
    ).partition(":")
    if module == MAIN:
        module = main_name(what, attribute)
    known = _registering(spec.id, module)
    if known is not None:
        return f"{prefix}{known}:{spec.id}" if known else f"{prefix}{spec.id}", dict(kwargs)
    if spec.additional_wrappers:
        raise InputError(
            f"{what} is registered with additional_wrappers by this process alone: register it where "
            f"its module {module} is imported, so that other processes find it"
        )
    limit = {} if spec.max_episode_steps is None else {LIMIT: spec.max_episode_steps}
    name = f"{VECTOR if prefix == VECTOR else ''}{module}:{attribute}"
    return name, {**limit, **spec.kwargs, **kwargs}


def _registering(env_id: str, module: str) -> str | None:
    """Return the module whose import registers an id in a new process; None if none does.

    "": it is known without an import. Tried are the package and the module of the environment.
    """
    tried = dict.fromkeys((module.partition(".")[0], module))
    variables = {**os.environ, "PYTHONPATH": import_paths(), IMPORTING: "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _REGISTERED_BY, env_id, *tried],
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    found = [line for line in done.stdout.splitlines() if line.startswith("found:")]
    return found[-1].removeprefix("found:") if found else None


def wrapper_texts(wrappers: Sequence[Any]) -> list[str]:
    """Return wrappers as `--wrapper` takes them, the innermost first.

    Args:
        wrappers: names; classes or functions that take an environment; or pairs of one of these and
            a dict of its keyword arguments.

    Raises:
        InputError: another process could not import one; the message says what to do.
    """
    names = {made: name for name, made in WRAPPERS.items()}
    texts = []
    for index, given in enumerate(wrappers):
        what = f"wrappers[{index}]"
        made, kwargs = given if isinstance(given, tuple) and len(given) == 2 else (given, {})
        if not (isinstance(made, str) or callable(made)) or not isinstance(kwargs, Mapping):
            raise InputError(
                f"{what} = {given!r} is no wrapper: pass a class or function that takes an "
                "environment, or a pair of it and a dict of its arguments"
            )
        name = made if isinstance(made, str) else names.get(made) or object_name(what, made)
        texts.append(f"{name} {json_text(what, kwargs)}" if kwargs else name)
    return texts


def json_text(what: str, value: Any) -> str:
    """Return a value as JSON. Raises InputError if it cannot be. what: for the message."""
    try:
        return json.dumps(value, default=_plain)
    except TypeError:
        raise InputError(
            f"{what} = {value!r} cannot be recorded; arguments are numbers, text, true, false, and "
            "lists and dicts of them: write a function that makes the rest"
        ) from None


def parameter_texts(kwargs: Mapping[str, Any]) -> list[str]:
    """Return arguments of an environment as `--env-param` takes them.

    Raises:
        InputError: an argument cannot be written as JSON.
    """
    return [f"{name}={json_text(f'env_kwargs: {name}', value)}" for name, value in kwargs.items()]


def _plain(value: Any) -> Any:
    """Return a number or array of NumPy as one of Python."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError
