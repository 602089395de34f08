"""What it takes to bring environments back to where they are in their episodes: how those began, and the actions since.

An environment whose random numbers come from Gymnasium's `np_random`, and whose `reset` forgets everything else, is
deterministic from there. Whether one is shows when it has been brought back: it then sees what it saw.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MOST_BYTES = 1 << 26  # of actions; longer episodes can't be brought back
_TIDY = 1024  # steps between two looks at what is no longer needed
UNKNOWN, SEEDED, DRAWN = range(
    3
)  # how an episode began: can't be told; with a seed; from the generator as it was


class Snapshot(NamedTuple):
    """start: (7,) int64, how the episode began, with the seed or the generator's words. actions: (age, width) since."""

    start: NDArray[np.int64]
    actions: NDArray[Any]


class EpisodeLog:
    """Of as many rows as `actions`, (rows, width), has: the array that every step's actions lie in."""

    def __init__(self, actions: NDArray[Any]) -> None:
        self._actions = actions
        self._blocks: deque[NDArray[Any]] = deque(
            maxlen=max(1, _MOST_BYTES // max(1, actions.nbytes))
        )
        self._now = 0  # steps noted in all
        self._starts: list[Any] = [None] * len(actions)  # a seed, or the generator's state
        self._since = [0] * len(
            actions
        )  # steps noted before the first that `blocks` has of the row's episode
        self._before: dict[int, NDArray[Any]] = {}  # actions of restored rows from before that
        self._generators: dict[int, np.random.PCG64 | None] = {}

    def begin(self, row: int, env: Any, seed: int | None) -> None:
        """An episode is about to begin, by `env.reset(seed=seed)`."""
        if seed is not None:
            self._starts[row] = seed
            self._generators.pop(row, None)  # it will get a new one
        else:
            if row not in self._generators:
                self._generators[row] = _generator(env)
            generator = self._generators[row]
            self._starts[row] = (
                None if generator is None else generator.state
            )  # words are made of it when asked for
        self._since[row] = self._now
        self._before.pop(row, None)

    def forget(self, row: int) -> None:
        """The row has another environment now."""
        self._generators.pop(row, None)
        self._starts[row] = None

    def note(self) -> None:
        """The actions of a step of all rows."""
        self._blocks.append(self._actions.copy())
        self._now += 1
        if self._now % _TIDY == 0:
            needed = self._now - min(self._since)
            while len(self._blocks) > needed:
                self._blocks.popleft()

    def snapshot(self, rows: Sequence[int]) -> list[Snapshot]:
        """How these rows came to be where they are."""
        blocks, first = list(self._blocks), self._now - len(self._blocks)
        found = []
        for row in rows:
            start = _start(None if self._since[row] < first else self._starts[row])
            own = [block[row] for block in blocks[max(0, self._since[row] - first) :]]
            actions = np.array(own, self._actions.dtype).reshape(len(own), self._actions.shape[1])
            if row in self._before:
                actions = np.concatenate([self._before[row], actions])
            found.append(Snapshot(start, actions))
        return found

    def restored(self, row: int, snapshot: Snapshot) -> None:
        """The row is where that snapshot says; its episode was begun by `restart`."""
        self._generators.pop(row, None)
        self._starts[row] = _meaning(snapshot.start)
        self._since[row], self._before[row] = self._now, snapshot.actions


def restart(env: Any, start: NDArray[np.int64]) -> Any:
    """Begin an episode as that one began; returns its first observation, or None where that can't be done."""
    meaning = _meaning(start)
    if isinstance(meaning, int):
        return env.reset(seed=meaning)[0]
    generator = _generator(env)
    if meaning is None or generator is None:
        return None
    generator.state = meaning
    return env.reset()[0]


def _generator(env: Any) -> np.random.PCG64 | None:
    """Where an environment's random numbers come from, as far as Gymnasium knows."""
    found = getattr(getattr(env.unwrapped, "np_random", None), "bit_generator", None)
    return found if isinstance(found, np.random.PCG64) else None


def _start(meaning: Any) -> NDArray[np.int64]:
    words = [0] * 6
    if isinstance(meaning, dict):
        inner = meaning["state"]
        for at, whole in enumerate(
            (inner["state"], inner["inc"], meaning["has_uint32"] | meaning["uinteger"] << 64)
        ):
            words[2 * at : 2 * at + 2] = whole & (2**64 - 1), whole >> 64
    elif meaning is not None:
        words[0] = meaning
    how = UNKNOWN if meaning is None else DRAWN if isinstance(meaning, dict) else SEEDED
    return np.array([how, *words], np.uint64).view(np.int64)


def _meaning(start: NDArray[np.int64]) -> Any:
    """A seed, or the state of a generator; None where it isn't known."""
    how, *words = (int(word) for word in start.view(np.uint64))
    if how != DRAWN:
        return words[0] if how == SEEDED else None
    state, increment, more = (words[at] | words[at + 1] << 64 for at in (0, 2, 4))
    inner = {"state": state, "inc": increment}
    return {
        "bit_generator": "PCG64",
        "state": inner,
        "has_uint32": more & 1,
        "uinteger": more >> 64,
    }
