"""Gymnasium environments of one agent each, stepped one after the other into the rows of some buffers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any

from envs.external.actions import ActionLayout
from envs.external.buffers import Buffers
from envs.external.episode_log import EpisodeLog, Snapshot, restart
from envs.external.info_mask import InfoMask
from envs.external.observations import ObservationLayout
from envs.external.share import failed
from envs.external.sources import Made, Source


class GymShare:
    """See `Share`. Environment i is row i of the buffers.

    Episodes end by the environment's word or at its limit of steps, and the next one begins in the same step.
    """

    def __init__(
        self,
        source: Source,
        own: Sequence[Mapping[str, Any]],
        buffers: Buffers,
        observations: ObservationLayout,
        actions: ActionLayout,
        resumable: bool = False,
        masked: bool = False,
    ) -> None:
        """own: each environment's own arguments. resumable: whether to keep what `snapshot` needs. masked: whether
        `info` has masks.
        """
        self._source, self._actions, self._buffers, self._masked = source, actions, buffers, masked
        made = [self._make(env, kwargs) for env, kwargs in enumerate(own)]
        self._envs = [env for env, _ in made]
        self._limits = [math.inf if limit is None else limit for _, limit in made]
        self._age = [0] * len(made)  # of each row's episode, in steps, when `_now` was 0
        self._now = 0  # steps since then
        self._deadline = math.inf  # no row reaches its limit before
        self._seen, self._last = (
            observations.writer(buffers.obs),
            observations.writer(buffers.final),
        )
        self._log = EpisodeLog(buffers.action) if resumable else None
        self._live: list[int] = []
        self._steps: list[Callable[[Any], Any]] = []
        self._where: slice | list[int] = []  # of the buffers
        buffers.present[:] = True

    def make(self, envs: Sequence[int], own: Mapping[str, Any]) -> None:
        for row in envs:
            self._envs[row].close()
            env, limit = self._make(row, own)
            self._envs[row], self._limits[row] = env, math.inf if limit is None else limit
            if self._log:
                self._log.forget(row)
        self._settle([row for row in self._live if row not in set(envs)])

    def reset(self, envs: Sequence[int], seeds: Sequence[int]) -> None:
        for row, seed in zip(envs, seeds, strict=True):
            self._begin(row, seed)
        for array in (self._buffers.reward, self._buffers.terminated, self._buffers.truncated):
            array[list(envs)] = 0
        self._settle(sorted({*self._live, *envs}))

    def step(self) -> None:
        self._now += 1
        if self._log:
            self._log.note()
        results: list[Any] = []
        add = results.append
        try:
            for step, action in zip(
                self._steps, self._actions.decode(self._buffers.action[self._where]), strict=True
            ):
                add(step(action))
        except Exception:
            failed(self._live[len(results)])
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
            buffers.reward[where], buffers.terminated[where], buffers.truncated[where] = (
                rewards,
                terminated,
                truncated,
            )
        except Exception:
            failed(self._live[0])
        ended = set(compress(self._live, terminated)).union(compress(self._live, truncated))
        if self._now >= self._deadline:
            late = [row for row in self._live if self._age[row] + self._now >= self._limits[row]]
            buffers.truncated[late] = True
            ended.update(late)
        for row in ended:
            buffers.final[row] = buffers.obs[row]
            self._begin(row, None)
        if self._now >= self._deadline:
            self._plan_deadline()

    def step_one(self, env: int) -> None:
        buffers = self._buffers
        self._age[env] += 1
        try:
            action = self._actions.decode(buffers.action[env : env + 1])[0]
            observation, reward, terminated, truncated, _ = self._envs[env].step(action)
            truncated = truncated or self._age[env] + self._now >= self._limits[env]
            self._seen.one(env, observation)
            buffers.reward[env], buffers.terminated[env], buffers.truncated[env] = (
                reward,
                terminated,
                truncated,
            )
        except Exception:
            failed(env)
        if terminated or truncated:
            buffers.final[env] = buffers.obs[env]
            self._begin(env, None)

    def snapshot(self, envs: Sequence[int]) -> list[Snapshot | None]:
        return list(self._log.snapshot(envs)) if self._log else [None for _ in envs]

    def restore(self, envs: Sequence[int], snapshots: Sequence[Snapshot | None]) -> list[bool]:
        done = []
        for row, snapshot in zip(envs, snapshots, strict=True):
            done.append(snapshot is not None and self._restore(row, snapshot))
        self._settle(
            sorted(
                {*self._live, *(row for row, restored in zip(envs, done, strict=True) if restored)}
            )
        )
        return done

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _make(self, row: int, own: Mapping[str, Any]) -> Made:
        try:
            made = self._source.make(own)
            return made._replace(env=InfoMask(made.env)) if self._masked else made
        except Exception:
            failed(row)

    def _begin(self, row: int, seed: int | None) -> None:
        try:
            if self._log:
                self._log.begin(row, self._envs[row], seed)
            observation, _ = self._envs[row].reset(seed=seed)
            self._seen.one(row, observation)
        except Exception:
            failed(row)
        self._age[row] = -self._now

    def _restore(self, row: int, snapshot: Snapshot) -> bool:
        env = self._envs[row]
        try:
            observation = restart(env, snapshot.start)
            for action in self._actions.decode(snapshot.actions):
                observation, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    return False
            if observation is None:
                return False
            self._seen.one(row, observation)
        except Exception:
            failed(row)
        self._age[row] = len(snapshot.actions) - self._now
        if self._log:
            self._log.restored(row, snapshot)
        return True

    def _settle(self, live: list[int]) -> None:
        self._live = live
        self._steps = [self._envs[row].step for row in live]
        self._where = slice(None) if len(live) == len(self._envs) else live
        self._plan_deadline()

    def _plan_deadline(self) -> None:
        """Episodes that begin later only move it back."""
        self._deadline = min(
            (self._limits[row] - self._age[row] for row in self._live), default=math.inf
        )
