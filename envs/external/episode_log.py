"""How each environment's current episode began and the actions since, to restore it by replay.

Replay is exact for environments that draw their random numbers from Gymnasium's `np_random` and
whose `reset` clears everything else. Whether an environment is one of them is only known after the
replay: its observation is then the same as before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MAX_BYTES = 1 << 26  # of recorded actions; longer episodes cannot be restored
_TRIM_INTERVAL = 1024  # steps between two removals of actions that are no longer needed
# How an episode began: unknown; with a seed; or without one, from the generator's state.
UNKNOWN, SEEDED, DRAWN = range(3)


class Snapshot(NamedTuple):
    """What restores one environment.

    Attributes:
        start: (7,) int64: how the episode began, then the seed or the generator's state.
        actions: (age, width), the actions since.
    """

    start: NDArray[np.int64]
    actions: NDArray[Any]


class EpisodeLog:
    """Records how the episodes of single-row environments began, and their actions."""

    def __init__(self, actions: NDArray[Any]) -> None:
        """actions: (rows, width), the array in which every step's actions are written."""
        self._actions = actions
        self._blocks: deque[NDArray[Any]] = deque(
            maxlen=max(1, _MAX_BYTES // max(1, actions.nbytes))
        )
        self._now = 0  # steps recorded
        self._starts: list[Any] = [None] * len(actions)  # each row's seed or generator state
        # Value of `_now` when the row's episode began or was restored; its actions until it was
        # restored are in `_before`.
        self._since = [0] * len(actions)
        self._before: dict[int, NDArray[Any]] = {}
        # Actions of steps of one row alone, since its episode began or was restored.
        self._alone: dict[int, list[NDArray[Any]]] = {}
        self._generators: dict[int, np.random.PCG64 | None] = {}

    def begin(self, row: int, env: Any, seed: int | None) -> None:
        """Record the start of an episode; call this before `env.reset(seed=seed)`."""
        if seed is not None:
            self._starts[row] = seed
            self._generators.pop(row, None)  # the reset creates a new one
        else:
            if row not in self._generators:
                self._generators[row] = _generator(env)
            generator = self._generators[row]
            self._starts[row] = None if generator is None else generator.state
        self._since[row] = self._now
        self._before.pop(row, None)
        self._alone.pop(row, None)

    def forget(self, row: int) -> None:
        """Forget a row whose environment has been replaced."""
        self._generators.pop(row, None)
        self._starts[row] = None

    def note(self) -> None:
        """Record the actions of a step of all rows."""
        self._blocks.append(self._actions.copy())
        self._now += 1
        if self._now % _TRIM_INTERVAL == 0:
            needed = self._now - min(self._since)
            while len(self._blocks) > needed:
                self._blocks.popleft()

    def note_one(self, row: int) -> None:
        """Record the action of a step of one row; all steps are then recorded so."""
        actions = self._alone.setdefault(row, [])
        if len(actions) == self._blocks.maxlen:
            self._starts[row] = None  # too long to be restored
            return
        actions.append(self._actions[row].copy())

    def snapshot(self, rows: Sequence[int]) -> list[Snapshot]:
        """Return what restores these rows."""
        blocks, first = list(self._blocks), self._now - len(self._blocks)
        found = []
        for row in rows:
            start = _start(None if self._since[row] < first else self._starts[row])
            own = [block[row] for block in blocks[max(0, self._since[row] - first) :]]
            own += self._alone.get(row, ())
            actions = np.array(own, self._actions.dtype).reshape(len(own), self._actions.shape[1])
            if row in self._before:
                actions = np.concatenate([self._before[row], actions])
            found.append(Snapshot(start, actions))
        return found

    def restored(self, row: int, snapshot: Snapshot) -> None:
        """Record that a row was restored from that snapshot, its episode begun by `restart`."""
        self._generators.pop(row, None)
        self._starts[row] = _meaning(snapshot.start)
        self._since[row], self._before[row] = self._now, snapshot.actions
        self._alone.pop(row, None)


def restart(env: Any, start: NDArray[np.int64]) -> Any:
    """Begin an episode in the same way; return its first observation, or None if not possible."""
    meaning = _meaning(start)
    if isinstance(meaning, int):
        return env.reset(seed=meaning)[0]
    generator = _generator(env)
    if meaning is None or generator is None:
        return None
    generator.state = meaning
    return env.reset()[0]


def _generator(env: Any) -> np.random.PCG64 | None:
    """Return the bit generator of an environment's `np_random`, if it is a PCG64."""
    found = getattr(getattr(env.unwrapped, "np_random", None), "bit_generator", None)
    return found if isinstance(found, np.random.PCG64) else None


def _start(meaning: Any) -> NDArray[np.int64]:
    """Encode how an episode began as in `Snapshot.start`.

    A generator's state is three numbers of at most 128 bits, stored as two words each.
    """
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
    """Decode what `_start` encoded: a seed, a generator's state, or None if unknown."""
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
