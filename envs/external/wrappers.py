"""Wrappers that turn observations into what networks read: Gymnasium's under short names, and more.

Each is a function of an environment and keyword arguments, which `--wrapper 'NAME {json}'` names:
`sweepd.wrappers.one_hot(env, key="cards")` is `--wrapper 'one-hot {"key": "cards"}'`. They take a
`gymnasium.Env` or an environment of PettingZoo, whose agents' observations are then all converted.
A wrapper of one's own, `MODULE:NAME`, is any function or class that takes an environment.

Where observations are a Dict with an `action_mask`, the mask stays as it is. This module imports no
torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, create_empty_array
from numpy.typing import NDArray

from sweepd.envs.external.agents_view import ParallelFromTuples, agents_view, is_pettingzoo
from sweepd.envs.external.observations import MASK, OBSERVATION, is_image, short
from sweepd.envs.support.errors import InputError

Space = spaces.Space[Any]
# Codes of `tokens` below those of the vocabulary.
NO_TOKEN, UNKNOWN = 0, 1
MOST_COLUMNS = 100_000  # of one-hot observations
MOST_PLANES = 64  # of numbers that are added to an image
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Conversion:
    """How observations of one space become observations of another.

    Attributes:
        space: the new space.
        apply: converts one observation.
    """

    space: Space
    apply: Callable[[Any], Any]


def flatten(env: Any) -> Any:
    """Make one vector of all numbers and choices: Gymnasium's `FlattenObservation`.

    Choices become one-hot. It says that an image shall be read as numbers, by a network without
    convolutions.
    """
    return _observing(env, "flatten", _flat)


def one_hot(env: Any, key: str | None = None, sizes: Sequence[int] | None = None) -> Any:
    """Make one-hot columns of choices, or of whole numbers in a Box such as a grid of ids.

    Args:
        env: the environment.
        key: what is converted, such as "image" or "player/cards"; None: the whole observation.
        sizes: of a Box, the number of values from its `low` on, for each position of the last axis;
            None: those of its bounds.
    """
    return _observing(env, "one-hot", lambda space: _one_hot(space, sizes), key)


def tokens(
    env: Any, key: str | None = None, words: Sequence[str] | None = None, length: int | None = None
) -> Any:
    """Make choices of a text: one per token, which networks read one-hot.

    A token that is not in the vocabulary has the code 1, and places after the end of the text have
    0. Tokens after `length` are left out.

    Args:
        env: the environment.
        key: what is converted, such as "mission"; None: the whole observation.
        words: the vocabulary; upper and lower case are the same. None: the characters of the
            `gymnasium.spaces.Text`.
        length: number of tokens; None: 16 words, or as many characters as the space has at most.
    """
    return _observing(env, "tokens", lambda space: _tokens(space, words, length), key)


def select(env: Any, keys: Sequence[str]) -> Any:
    """Keep some parts of a Dict or Tuple; of one key, its value alone.

    Args:
        env: the environment.
        keys: of the parts that stay, such as "image" or "player/cards".
    """
    return _observing(env, "select", lambda space: _select(space, keys))


def channels_first(env: Any, key: str | None = None) -> Any:
    """Make (channels, height, width) of an image; channels of stacked frames follow each other."""
    return _observing(env, "channels-first", _channels_first, key)


def uint8(env: Any, key: str | None = None) -> Any:
    """Make bytes from 0 to 255 of an image of floats, from the lower to the upper bound of its Box."""
    return _observing(env, "uint8", _uint8, key)


def planes(
    env: Any, image: str | None = None, low: float | None = None, high: float | None = None
) -> Any:
    """Make one image of an image and numbers: every number is a plane of one value, 0 to 255.

    So a network with convolutions reads both. Choices are one-hot planes.

    Args:
        env: the environment, whose observations are a Dict or Tuple.
        image: key of the image; None: that of the only one.
        low: the number that becomes 0; None: the lower bound of its Box. Smaller ones are clipped.
        high: the number that becomes 255; None: the upper bound of its Box.
    """
    return _observing(env, "planes", lambda space: _planes(space, image, low, high))


def pad(env: Any, length: int, key: str | None = None) -> Any:
    """Make `length` items of a Sequence, with zeros after its end, and the number of its items.

    Args:
        env: the environment.
        length: number of items; those after it are left out.
        key: what is converted; None: the whole observation.
    """
    return _observing(env, "pad", lambda space: _pad(space, length), key)


def frame_stack(env: Any, frames: int = 4) -> Any:
    """Show the latest frames: Gymnasium's `FrameStackObservation`.

    Frames of an image become its channels (`channels_first`). At the beginning of an episode, the
    first frame is repeated.
    """
    if not isinstance(env, gymnasium.Env):
        raise InputError(
            "the wrapper frame-stack is for a gymnasium.Env; for one of PettingZoo, "
            "supersuit:frame_stack_v1 is"
        )
    single = env.observation_space
    stacked = gymnasium.wrappers.FrameStackObservation(env, int(frames))
    if not isinstance(single, spaces.Box) or len(single.shape) not in (2, 3):
        return stacked
    return _observing(stacked, "frame-stack", _channels_first)


def agents(env: Any) -> Any:
    """Make PettingZoo's parallel API of a `gymnasium.Env` of several agents.

    Its observation and action spaces are a Tuple with one space for each agent, and its rewards are
    a list.
    """
    return ParallelFromTuples(env)


WRAPPERS: dict[str, Callable[..., Any]] = {
    "flatten": flatten,
    "one-hot": one_hot,
    "tokens": tokens,
    "select": select,
    "channels-first": channels_first,
    "uint8": uint8,
    "planes": planes,
    "pad": pad,
    "frame-stack": frame_stack,
    "agents": agents,
}


def _observing(
    env: Any, name: str, convert: Callable[[Space], Conversion], key: str | None = None
) -> Any:
    """Return an environment whose observations are converted, those at `key` only."""

    def of(space: Space) -> Conversion:
        return _beside_mask(space, lambda rest: _at(rest, _path(key), convert))

    try:
        if isinstance(env, gymnasium.Env):
            made = of(env.observation_space)
            return gymnasium.wrappers.TransformObservation(env, made.apply, made.space)
        if is_pettingzoo(env):
            return agents_view(env, {a: of(env.observation_space(a)) for a in env.possible_agents})
    except InputError as error:
        where = f" at {key}" if key else ""
        raise InputError(f"the wrapper {name}{where}: {error}") from None
    raise InputError(
        f"the wrapper {name} is for a gymnasium.Env and for environments of PettingZoo, and got a "
        f"{type(env).__name__}; wrap the single environments instead (gym:ID)"
    )


def _path(key: str | None) -> tuple[str, ...]:
    return tuple(key.split("/")) if key else ()


def part_of(space: Space, path: Sequence[str]) -> Space:
    """Return the part of a Dict or Tuple space at a path.

    Raises:
        InputError: there is none.
    """
    for step in path:
        inner: Any = None
        if isinstance(space, spaces.Dict):
            inner = space.spaces.get(step)
        elif isinstance(space, spaces.Tuple) and step.isdecimal() and int(step) < len(space):
            inner = space[int(step)]
        if inner is None:
            known = ", ".join(parts(space)) or f"none in {space}"
            raise InputError(f"there is no part {step!r}; there are: {known}")
        space = inner
    return space


def parts(space: Space) -> dict[str, Space]:
    """Return the parts of a Dict or Tuple space by key; {} for other spaces."""
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    if isinstance(space, spaces.Tuple):
        return {str(index): part for index, part in enumerate(space)}
    return {}


def get_part(observation: Any, path: Sequence[str]) -> Any:
    """Return the part of an observation at a path."""
    for step in path:
        observation = observation[step if isinstance(observation, Mapping) else int(step)]
    return observation


def _at(space: Space, path: tuple[str, ...], convert: Callable[[Space], Conversion]) -> Conversion:
    """Convert one part of a space."""
    if not path:
        return convert(space)
    inner = _at(part_of(space, path[:1]), path[1:], convert)
    if isinstance(space, spaces.Dict):
        name = path[0]
        return Conversion(
            spaces.Dict({**space.spaces, name: inner.space}),
            lambda seen: {**seen, name: inner.apply(seen[name])},
        )
    index, others = int(path[0]), list(parts(space).values())
    others[index] = inner.space
    return Conversion(
        spaces.Tuple(others),
        lambda seen: (*seen[:index], inner.apply(seen[index]), *seen[index + 1 :]),
    )


def _beside_mask(space: Space, convert: Callable[[Space], Conversion]) -> Conversion:
    """Convert an observation without its action mask, which stays next to the result."""
    if not isinstance(space, spaces.Dict) or MASK not in space.spaces:
        return convert(space)
    rest = {name: part for name, part in space.items() if name != MASK}
    alone = next(iter(rest)) if len(rest) == 1 else None
    inner = convert(spaces.Dict(rest) if alone is None else rest[alone])
    named = alone or OBSERVATION

    def apply(seen: Any) -> Any:
        own = {name: seen[name] for name in rest} if alone is None else seen[alone]
        return {named: inner.apply(own), MASK: seen[MASK]}

    return Conversion(spaces.Dict({named: inner.space, MASK: space[MASK]}), apply)


def _flat(space: Space) -> Conversion:
    try:
        made: Any = spaces.flatten_space(space)
    except NotImplementedError:
        made = None
    if not isinstance(made, spaces.Box):
        raise InputError(f"{short(space)} has no fixed number of columns")
    return Conversion(made, lambda seen: spaces.flatten(space, seen))


def _one_hot(space: Space, sizes: Sequence[int] | None) -> Conversion:
    if isinstance(space, spaces.Discrete):
        counts, start = np.array([space.n]), np.array([space.start])
    elif isinstance(space, spaces.MultiDiscrete):
        counts = space.nvec.reshape(-1)
        start = np.broadcast_to(space.start, space.nvec.shape).reshape(-1)
    elif isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.integer):
        start = space.low.reshape(-1).astype(np.int64)
        counts = space.high.reshape(-1).astype(np.int64) - start + 1
        if sizes is not None:
            if not space.shape or len(sizes) != space.shape[-1] or min(sizes) < 1:
                raise InputError(
                    f"sizes {list(sizes)} must be a number of values for each of the "
                    f"{space.shape[-1] if space.shape else 0} positions of the last axis"
                )
            counts = np.broadcast_to(np.array(sizes), space.shape).reshape(-1)
    else:
        raise InputError(
            f"{short(space)} has no choices; it must be Discrete, MultiDiscrete or a Box of whole "
            "numbers"
        )
    columns = int(counts.sum())
    if columns > MOST_COLUMNS:
        raise InputError(
            f"{short(space)} has {columns:,} columns one-hot; at most {MOST_COLUMNS:,}: give "
            "sizes, the number of values for each position of the last axis"
        )
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))

    def apply(seen: Any) -> NDArray[np.uint8]:
        option = np.asarray(seen).reshape(-1).astype(np.int64) - start
        if ((option < 0) | (option >= counts)).any():
            at = int(np.flatnonzero((option < 0) | (option >= counts))[0])
            raise ValueError(
                f"one-hot: value {option[at] + start[at]} at position {at} is not one of the "
                f"{counts[at]} from {start[at]}"
            )
        columns_of = np.zeros(columns, np.uint8)
        columns_of[first + option] = 1
        return columns_of

    return Conversion(spaces.Box(0, 1, (columns,), np.uint8), apply)


def words_of(text: Any) -> list[str]:
    """Return the words and punctuation marks of a text, in lower case."""
    return _WORD.findall(str(text).lower())


def _tokens(space: Space, words: Sequence[str] | None, length: int | None) -> Conversion:
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.Dict | spaces.Tuple):
        raise InputError(f"{short(space)} is no text")
    split: Callable[[Any], Sequence[str]] = words_of
    if words is None:
        if not isinstance(space, spaces.Text):
            raise InputError(
                f"{short(space)} does not say of which characters it consists; give words, the "
                "vocabulary"
            )
        split, vocabulary = str, sorted(space.character_set)
        length = length or space.max_length
    else:
        vocabulary = list(dict.fromkeys(word.lower() for word in words))
        if split_up := [word for word in vocabulary if words_of(word) != [word]]:
            raise InputError(f"{split_up[0]!r} of words is not one word")
    count = 16 if length is None else int(length)
    if count < 1:
        raise InputError(f"length {length} must be at least 1")
    code = {word: UNKNOWN + 1 + index for index, word in enumerate(vocabulary)}

    def apply(seen: Any) -> NDArray[np.int64]:
        found = np.full(count, NO_TOKEN)
        own = [code.get(word, UNKNOWN) for word in split(seen)[:count]]
        found[: len(own)] = own
        return found

    return Conversion(spaces.MultiDiscrete([len(code) + 2] * count), apply)


def _select(space: Space, keys: Sequence[str]) -> Conversion:
    if isinstance(keys, str) or not keys:
        raise InputError(f'keys {keys!r} must be a list, like ["image"]')
    paths = [_path(key) for key in keys]
    found = {key: part_of(space, path) for key, path in zip(keys, paths, strict=True)}
    if len(paths) == 1:
        return Conversion(found[keys[0]], lambda seen: get_part(seen, paths[0]))
    pairs = list(zip(keys, paths, strict=True))
    return Conversion(
        spaces.Dict(found), lambda seen: {key: get_part(seen, path) for key, path in pairs}
    )


def _image_box(space: Space) -> spaces.Box:
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3, 4):
        raise InputError(f"{short(space)} is no image, a Box of (height, width[, channels])")
    return space


def _channels_first(space: Space) -> Conversion:
    box = _image_box(space)

    def apply(seen: Any) -> NDArray[Any]:
        image = np.asarray(seen)
        if image.ndim == 2:
            return image[None]
        if image.shape[-1] < image.shape[-3]:  # the channels are the fewest
            image = np.moveaxis(image, -1, -3)
        return np.ascontiguousarray(image.reshape(-1, *image.shape[-2:]))

    low, high = apply(box.low), apply(box.high)
    return Conversion(spaces.Box(low, high, low.shape, box.dtype.type), apply)


def _uint8(space: Space) -> Conversion:
    box = _image_box(space)
    if not box.is_bounded() or (box.high <= box.low).any():
        raise InputError(
            f"{short(space)} has no bounds, so that nothing says which numbers are 0 and 255; give "
            "the environment's Box bounds, or use the wrapper flatten"
        )
    scale = 255.0 / (box.high.astype(np.float64) - box.low)

    def apply(seen: Any) -> NDArray[np.uint8]:
        scaled = (np.asarray(seen, np.float64) - box.low) * scale
        return np.rint(np.clip(scaled, 0, 255)).astype(np.uint8)

    return Conversion(spaces.Box(0, 255, box.shape, np.uint8), apply)


def _planes(space: Space, image: str | None, low: float | None, high: float | None) -> Conversion:
    found = parts(space)
    images = [key for key, part in found.items() if is_image(part)]
    if image is None and len(images) != 1:
        raise InputError(
            f"{short(space)} has {len(images)} images; give image, the key of one, after the "
            "wrapper select"
        )
    key = images[0] if image is None else image
    whole = _channels_first(part_of(space, (key,)))
    pixels = whole if whole.space.dtype == np.uint8 else _uint8(whole.space)
    rest = {name: part for name, part in found.items() if name != key}
    if other := [name for name, part in rest.items() if is_image(part)]:
        raise InputError(f"{other[0]} is an image, too; leave it out by the wrapper select")
    flat = _flat(spaces.Dict(rest))
    box = flat.space
    assert isinstance(box, spaces.Box)
    floor = box.low.astype(np.float64) if low is None else np.full(box.shape, float(low))
    ceiling = box.high.astype(np.float64) if high is None else np.full(box.shape, float(high))
    if not (np.isfinite(floor).all() and np.isfinite(ceiling).all() and (ceiling > floor).all()):
        raise InputError(
            "numbers without bounds become planes only with low and high, the numbers that become "
            "0 and 255"
        )
    if box.shape[0] > MOST_PLANES:
        raise InputError(
            f"{box.shape[0]} numbers would be as many planes; at most {MOST_PLANES}: keep the "
            "image and fewer numbers by the wrapper select"
        )
    channels, height, width = pixels.space.shape or ()

    def apply(seen: Any) -> NDArray[np.uint8]:
        numbers = flat.apply({name: get_part(seen, (name,)) for name in rest}).astype(np.float64)
        scaled = np.clip((numbers - floor) / (ceiling - floor), 0, 1) * 255
        made = np.empty((channels + len(numbers), height, width), np.uint8)
        own = whole.apply(get_part(seen, (key,)))
        made[:channels] = own if pixels is whole else pixels.apply(own)
        made[channels:] = np.rint(scaled)[:, None, None]
        return made

    return Conversion(spaces.Box(0, 255, (channels + box.shape[0], height, width), np.uint8), apply)


def _pad(space: Space, length: int) -> Conversion:
    if not isinstance(space, spaces.Sequence):
        raise InputError(f"{short(space)} is no Sequence")
    if int(length) < 1:
        raise InputError(f"length {length} must be at least 1")
    try:
        items = batch_space(space.feature_space, int(length))
        create_empty_array(space.feature_space, int(length))
    except (TypeError, ValueError):
        items = None
    if not isinstance(items, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        raise InputError(f"the items {short(space.feature_space)} of a Sequence are no numbers")

    def apply(seen: Any) -> dict[str, Any]:
        own = [np.asarray(item) for item in seen][: int(length)]
        made = np.zeros(items.shape, items.dtype)
        made[: len(own)] = np.array(own).reshape(len(own), *made.shape[1:])
        return {"items": made, "count": len(own)}

    # Zeros after the end need not be in the space of an item.
    padded = items
    if isinstance(items, spaces.Box):
        zero = np.zeros((), items.dtype)
        padded = spaces.Box(
            np.minimum(items.low, zero), np.maximum(items.high, zero), items.shape, items.dtype.type
        )
    elif isinstance(items, spaces.MultiDiscrete):
        padded = spaces.MultiDiscrete(items.nvec + np.maximum(items.start, 0))
    return Conversion(
        spaces.Dict({"items": padded, "count": spaces.Discrete(int(length) + 1)}), apply
    )
