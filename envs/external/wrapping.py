"""Wrappers of an environment by name, and those that mend observations no network can read."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium import spaces

from sweepd.envs.external.observations import MASK, is_image
from sweepd.envs.external.wrappers import WRAPPERS, get_part, parts, words_of
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.plugins import Plugin, json_arguments, resolve

KEY = "wrappers"  # among the parameters of an environment, which studies and bundles record
FLAG = "--wrapper"
# Episodes that are begun to see the texts of an environment, and the seconds they may take.
_EPISODES, _SECONDS = 50, 2.0
_MOST_WORDS = 200
_MOST_ITEMS = 32  # of a Sequence that is named in a message

Space = spaces.Space[Any]


def find_wrapper(text: str) -> Plugin:
    """Return what a text names: `NAME {json}`, `MODULE:NAME {json}`, or a registered name.

    Raises:
        InputError: there is no such wrapper, or its arguments are not JSON.
    """
    name, _, given = str(text).partition(" ")
    if name in WRAPPERS:
        arguments = json_arguments(f"{FLAG} {text}", name, given)
        return Plugin(name, name, WRAPPERS[name], arguments)
    found = resolve("wrapper", str(text), WRAPPERS)
    if not callable(found.made):
        raise InputError(f"{FLAG} {text}: {found.made!r} is neither a function nor a class")
    return found


def wrap(env: Any, texts: Sequence[str]) -> Any:
    """Return an environment within wrappers, of which the first one is the innermost.

    Raises:
        InputError: a wrapper does not exist, or does not take the environment or its arguments.
    """
    for text in texts:
        plugin = find_wrapper(text)
        try:
            env = plugin.made(env, **plugin.arguments)
        except InputError as error:
            raise InputError(f"{FLAG} {text}: {error}") from None
        except Exception as error:  # one's own wrapper may raise anything
            raise InputError(f"{FLAG} {text}: {type(error).__name__}: {error}") from error
    return env


def keeps_steps(texts: Sequence[str]) -> bool:
    """Return whether a step of the wrapped environment is always one of the environment itself."""
    # A limit of steps is inside of several agents, whose environments truncate themselves.
    return all(text.partition(" ")[0] in WRAPPERS.keys() - {"agents"} for text in texts)


def flags_of(texts: Sequence[str]) -> str:
    """Return wrappers as flags for a command line."""
    return " ".join(f"{FLAG} {shlex.quote(text)}" for text in texts)


def suggestions(env: Any, space: Space) -> Iterator[list[str]]:
    """Yield wrappers that may make observations readable, the most useful ones first.

    Args:
        env: the environment, some episodes of which are begun if it shows texts.
        space: its observation space, or that of its agents.
    """
    rest, mask = parts(space), isinstance(space, spaces.Dict) and MASK in space.spaces
    if mask:
        rest.pop(MASK)
    if not rest or (mask and len(rest) == 1):
        # The wrappers leave the mask as it is, and take a single part next to it for the whole.
        only = next(iter(rest.values()), space)
        if is_image(only):
            yield from [["uint8"], ["channels-first"], ["channels-first", "uint8"]]
            yield ["flatten"]
        else:
            yield from ([one] for one in _readable(env, only, None))
        return
    made, left_out = [], []
    for key, part in leaves(rest):
        if isinstance(part, _NUMBERS):
            continue
        found = _readable(env, part, key)
        if found:
            made.append(found[0])
        else:
            left_out.append(key)
    images = [key for key, part in leaves(rest) if is_image(part)]
    kept = [key for key, _ in leaves(rest) if key not in left_out]
    select = [_text("select", keys=kept)] if left_out else []
    numbers = [key for key in kept if key not in images]
    if len(images) == 1:
        yield [*made, *select, "planes"]
        yield [_text("select", keys=images)]
        yield [_text("select", keys=images), "uint8"]
    elif numbers and images:
        yield [*made, _text("select", keys=numbers)]
    yield [*made, *select]
    yield [*made, *select, "flatten"]


_NUMBERS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def _text(name: str, **arguments: Any) -> str:
    return f"{name} {json.dumps(arguments)}"


def leaves(rest: Mapping[str, Space], before: str = "") -> Iterator[tuple[str, Space]]:
    """Yield the leaves of the parts of a space with their keys, as wrappers take them."""
    for name, part in rest.items():
        inner = parts(part)
        if inner:
            yield from leaves(inner, f"{before}{name}/")
        else:
            yield f"{before}{name}", part


def _readable(env: Any, space: Space, key: str | None) -> list[str]:
    """Return the wrapper that makes one part readable, if there is one."""
    where = {} if key is None else {"key": key}
    if isinstance(space, spaces.Sequence):
        seen = _seen(env, key)
        longest = max((len(items) for items in seen if hasattr(items, "__len__")), default=1)
        return [_text("pad", **where, length=min(max(1, 2 * longest), _MOST_ITEMS))]
    if isinstance(space, (*_NUMBERS, spaces.Graph, spaces.OneOf)):
        return []
    texts = [text for text in _seen(env, key) if isinstance(text, str)]
    if not texts:
        return []
    longest = max(len(words_of(text)) for text in texts)
    words = sorted({word for text in texts for word in words_of(text)})
    if isinstance(space, spaces.Text) and len(words) > _MOST_WORDS:
        return [_text("tokens", **where)]  # by character
    return [_text("tokens", **where, words=words[:_MOST_WORDS], length=max(1, longest))]


def _seen(env: Any, key: str | None) -> list[Any]:
    """Return the first observations of some episodes, or their parts at a key."""
    path = key.split("/") if key else []
    found: list[Any] = []
    ends = time.monotonic() + _SECONDS
    try:
        for seed in range(_EPISODES):
            if time.monotonic() > ends:
                break
            observation, _ = env.reset(seed=seed)
            agents = [observation] if isinstance(env, gymnasium.Env) else observation.values()
            for own in agents:
                if key is None and isinstance(own, dict) and MASK in own:
                    own = next(part for name, part in own.items() if name != MASK)
                found.append(get_part(own, path))
    except Exception:  # the environment may raise anything; then there is less to suggest
        pass
    return found
