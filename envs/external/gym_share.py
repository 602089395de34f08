"""Gymnasium environments of one agent each, stepped one after the other into the rows of some buffers.

The same code runs in process and in workers; which rows are stepped where changes nothing.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any, NoReturn

from envs.external.actions import ActionLayout
from envs.external.buffers import Buffers
from envs.external.observations import ObservationLayout
from envs.external.sources import GymSource


class EnvFailure(Exception):
    """An environment raised. row: which one, of its share; text: its traceback."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(row, text)
        self.row, self.text = row, text


class GymShare:
    """`rows` environments. Rows that were never reset are idle: they are not stepped, and show zeros.

    Episodes end by the environment's word or at its limit of steps, and the next one begins in the same step.
    """

    def __init__(
        self,
        source: GymSource,
        own: Sequence[Mapping[str, Any]],
        buffers: Buffers,
        observations: ObservationLayout,
        actions: ActionLayout,
    ) -> None:
        """own: each row's own arguments."""
        self._source, self._actions, self._buffers = source, actions, buffers
        made = [self._make(row, kwargs) for row, kwargs in enumerate(own)]
        self._envs = [env for env, _ in made]
        self._limits = [math.inf if limit is None else limit for _, limit in made]
        self._now = 0  # steps so far
        self._began = [0] * len(made)  # when each row's episode did
        self._deadline = math.inf  # no row reaches its limit before
        self._seen, self._last = observations.writer(buffers.obs), observations.writer(buffers.final)
        self._live: list[int] = []
        self._steps: list[Callable[[Any], Any]] = []
        self._where: slice | list[int] = []  # of the buffers
        buffers.present[:] = True

    def make(self, rows: Sequence[int], own: Mapping[str, Any]) -> None:
        """Make these rows' environments anew; they stay idle until they are reset."""
        for row in rows:
            self._envs[row].close()
            env, limit = self._make(row, own)
            self._envs[row], self._limits[row] = env, math.inf if limit is None else limit
        self._settle([row for row in self._live if row not in set(rows)])

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these rows, with that seed; later ones go on with the environment's own
        generator.
        """
        for row, seed in zip(rows, seeds, strict=True):
            self._begin(row, seed)
        for array in (self._buffers.reward, self._buffers.terminated, self._buffers.truncated):
            array[list(rows)] = 0
        self._settle(sorted({*self._live, *rows}))

    def step(self) -> None:
        """One step of every row that is not idle, with the actions in the buffers."""
        self._now += 1
        results: list[Any] = []
        add = results.append
        try:
            for step, action in zip(self._steps, self._actions.decode(self._buffers.action[self._where]), strict=True):
                add(step(action))
        except Exception:
            self._failed(self._live[len(results)])
        if not results:
            return
        observations, rewards, terminated, truncated, _ = zip(*results, strict=True)
        buffers, where = self._buffers, self._where
        try:
            if len(results) == len(self._envs):
                self._seen.all(observations)
            else:
                for row, observation in zip(self._live, observations, strict=True):
                    self._seen.one(row, observation)
            buffers.reward[where], buffers.terminated[where], buffers.truncated[where] = rewards, terminated, truncated
        except Exception:
            self._failed(self._live[0])
        ended = set(compress(self._live, terminated)).union(compress(self._live, truncated))
        if self._now >= self._deadline:
            late = [row for row in self._live if self._now - self._began[row] >= self._limits[row]]
            buffers.truncated[late] = True
            ended.update(late)
        for row in ended:
            buffers.final[row] = buffers.obs[row]
            self._begin(row, None)
        if self._now >= self._deadline:
            self._plan_deadline()

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()

    def _make(self, row: int, own: Mapping[str, Any]) -> tuple[Any, int | None]:
        try:
            return self._source.make(own)
        except Exception:
            self._failed(row)

    def _begin(self, row: int, seed: int | None) -> None:
        try:
            observation, _ = self._envs[row].reset(seed=seed)
            self._seen.one(row, observation)
        except Exception:
            self._failed(row)
        self._began[row] = self._now

    def _settle(self, live: list[int]) -> None:
        self._live = live
        self._steps = [self._envs[row].step for row in live]
        self._where = slice(None) if len(live) == len(self._envs) else live
        self._plan_deadline()

    def _plan_deadline(self) -> None:
        """Episodes that begin later only move it back."""
        self._deadline = min((self._began[row] + self._limits[row] for row in self._live), default=math.inf)

    def _failed(self, row: int) -> NoReturn:
        raise EnvFailure(row, traceback.format_exc()) from None
