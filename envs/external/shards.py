"""A shard is the part of the environments that one process steps.

`GymShard` steps Gymnasium environments of one row each; `MultiRowShard` steps all other kinds. Both
read actions from, and write results to, rows of the shared buffers.
"""

from __future__ import annotations

import math
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any, NoReturn

import numpy as np

from sweepd.envs.external.adapters import (
    BufferedAdapter,
    InfoMask,
    ParallelAdapter,
    RowAdapter,
    VectorAdapter,
)
from sweepd.envs.external.describe import Description, EnvKind, one_reward
from sweepd.envs.external.episode_log import EpisodeLog, Snapshot, restart
from sweepd.envs.external.shared_memory import Buffers
from sweepd.envs.external.sources import Made, Source

EnvKwargs = Mapping[str, Any]


class EnvFailure(Exception):
    """An environment raised an exception.

    Attributes:
        env: Index of the environment in its shard.
        text: The traceback.
    """

    def __init__(self, env: int, text: str) -> None:
        super().__init__(env, text)
        self.env, self.text = env, text


def _fail(env: int) -> NoReturn:
    """Raise the exception being handled as the failure of that environment."""
    raise EnvFailure(env, traceback.format_exc()) from None


def _rewards(rows: Sequence[int], rewards: Sequence[Any]) -> list[float]:
    """Return rewards that are arrays or lists of one number as numbers."""
    found = []
    for row, reward in zip(rows, rewards, strict=True):
        try:
            found.append(one_reward(reward))
        except ValueError:
            _fail(row)
    return found


def plain_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what another process can be sent of an `info`: numbers, texts, arrays, and dicts."""
    found: dict[str, Any] = {}
    for name, value in info.items():
        if isinstance(value, Mapping):
            found[str(name)] = plain_info(value)
        elif isinstance(value, bool | int | float | str | np.generic):
            found[str(name)] = value
        elif isinstance(value, np.ndarray) and value.dtype != object:
            found[str(name)] = value.copy()
    return found


class Shard(ABC):
    """Environments that are stepped together, by their index in the shard.

    An environment is idle from its making to its first reset: `step` skips it, and its rows are
    zero. `idle` makes it idle again. Every method raises `EnvFailure` if an environment raises.
    """

    _envs: list[Any]

    @abstractmethod
    def make(self, envs: Sequence[int], kwargs: EnvKwargs) -> None:
        """Replace these environments with new, idle ones made with `kwargs`."""

    @abstractmethod
    def reset(self, envs: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these, with its seed.

        Later episodes are not seeded: they continue the environment's own random numbers.
        """

    @abstractmethod
    def idle(self, envs: Sequence[int]) -> None:
        """Skip these until their next reset. Their observations stay, the other rows are zero."""

    @abstractmethod
    def step(self) -> None:
        """Step every environment that is not idle with the actions in the buffers."""

    @abstractmethod
    def step_one(self, env: int) -> None:
        """Step one environment only."""

    def keep_infos(self, envs: Sequence[int]) -> None:  # noqa: ARG002
        """Keep the last `info` of the next episode of each of these, where `infos` has some."""
        return

    def infos(self, envs: Sequence[int]) -> list[dict[str, Any]]:
        """Return what was kept of each of these."""
        return [{} for _ in envs]

    def snapshot(self, envs: Sequence[int]) -> list[Snapshot | None]:
        """Return what restores each of these; None where nothing can."""
        return [None for _ in envs]

    def restore(self, envs: Sequence[int], snapshots: Sequence[Snapshot | None]) -> list[bool]:  # noqa: ARG002
        """Bring these environments back by replaying their actions.

        Returns:
            False for each that could not be brought back. True does not say that it shows the same
            observation as before: the caller compares them.
        """
        return [False for _ in envs]

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()


def make_shard(
    source: Source,
    env_kwargs: Sequence[EnvKwargs],
    buffers: Buffers,
    description: Description,
    resumable: bool = False,
) -> Shard:
    """Make one environment per entry of `env_kwargs`, which use all rows of `buffers`.

    Args:
        source: What makes an environment.
        env_kwargs: Arguments of each environment, which override those of `source`.
        buffers: `description.rows` rows per environment.
        description: What `describe` says of the source.
        resumable: Whether `snapshot` will be called; if so, actions are recorded.

    Raises:
        EnvFailure: An environment could not be made.
    """
    if description.kind in (EnvKind.SINGLE, EnvKind.MASKED):
        return GymShard(source, env_kwargs, buffers, description, resumable)
    return MultiRowShard(source, env_kwargs, buffers, description)


class GymShard(Shard):
    """Gymnasium environments of one agent each. Environment i is row i.

    An episode ends when the environment says so or at its step limit; the next one begins in the
    same step.
    """

    def __init__(
        self,
        source: Source,
        env_kwargs: Sequence[EnvKwargs],
        buffers: Buffers,
        description: Description,
        resumable: bool,
    ) -> None:
        self._source, self._buffers, self._actions = source, buffers, description.actions
        self._masked = description.kind == EnvKind.MASKED
        made = [self._make(env, kwargs) for env, kwargs in enumerate(env_kwargs)]
        self._envs = [env for env, _ in made]
        self._limits = [math.inf if limit is None else limit for _, limit in made]
        # The age of row i's episode is `_age[i] + _now` steps, so that a step need not touch the
        # ages; no row reaches its limit before `_now` is `_deadline`.
        self._age = [0] * len(made)
        self._now = 0
        self._deadline = math.inf
        self._writer = description.observations.writer(buffers.obs)
        self._log = EpisodeLog(buffers.action) if resumable else None
        self._infos: dict[int, dict[str, Any] | None] = {}  # by row; None until it is there
        self._live: list[int] = []  # rows that are not idle
        self._steps: list[Callable[[Any], Any]] = []  # their `step` methods
        self._where: slice | list[int] = []  # their index into the buffers
        buffers.present[:] = True

    def make(self, envs: Sequence[int], kwargs: EnvKwargs) -> None:
        """See `Shard.make`."""
        for row in envs:
            self._envs[row].close()
            env, limit = self._make(row, kwargs)
            self._envs[row], self._limits[row] = env, math.inf if limit is None else limit
            if self._log:
                self._log.forget(row)
        self._set_live([row for row in self._live if row not in set(envs)])

    def reset(self, envs: Sequence[int], seeds: Sequence[int]) -> None:
        """See `Shard.reset`."""
        for row, seed in zip(envs, seeds, strict=True):
            self._begin(row, seed)
        self._clear(envs)
        self._set_live(sorted({*self._live, *envs}))

    def idle(self, envs: Sequence[int]) -> None:
        """See `Shard.idle`."""
        self._clear(envs)
        self._set_live(sorted({*self._live} - {*envs}))

    def step(self) -> None:
        """See `Shard.step`."""
        self._now += 1
        if self._log:
            self._log.note()
        if self._live:
            self._step(self._live, self._steps, self._where)

    def step_one(self, env: int) -> None:
        """See `Shard.step_one`."""
        self._age[env] += 1
        if self._log:
            self._log.note_one(env)
        self._deadline = min(self._deadline, self._limits[env] - self._age[env])
        self._step([env], [self._envs[env].step], [env])

    def _step(
        self, rows: list[int], steps: list[Callable[[Any], Any]], where: slice | list[int]
    ) -> None:
        """Step the environments of some rows, and begin the next episode where one ends.

        This is the hot path: results are collected as tuples and written into the buffers together.

        Args:
            rows: The rows.
            steps: Their environments' `step` methods.
            where: Their index into the buffers.
        """
        buffers, results = self._buffers, list[Any]()
        add = results.append
        try:
            for step, action in zip(
                steps, self._actions.decode(buffers.action[where]), strict=True
            ):
                add(step(action))
        except Exception:
            _fail(rows[len(results)])  # the one whose result is missing
        observations, rewards, terminated, truncated, infos = zip(*results, strict=True)
        try:
            if len(rows) == len(self._envs):
                self._writer.all(observations)
            else:
                for row, observation in zip(rows, observations, strict=True):
                    self._writer.one(row, observation)
            try:
                buffers.reward[where] = rewards
            except (ValueError, TypeError):  # arrays or lists of one number, or no numbers
                buffers.reward[where] = _rewards(rows, rewards)
            buffers.terminated[where] = terminated
            buffers.truncated[where] = truncated
        except Exception:
            _fail(rows[0])
        ended = {*compress(rows, terminated), *compress(rows, truncated)}
        if self._now >= self._deadline:
            late = [row for row in rows if self._age[row] + self._now >= self._limits[row]]
            buffers.truncated[late] = True
            ended.update(late)
        if self._infos and ended:
            for row, info in zip(rows, infos, strict=True):
                if row in ended and self._infos.get(row, info) is None:
                    self._infos[row] = plain_info(info)
        for row in ended:
            buffers.final[row] = buffers.obs[row]
            self._begin(row, None)
        if self._now >= self._deadline:
            self._set_deadline()

    def keep_infos(self, envs: Sequence[int]) -> None:
        """See `Shard.keep_infos`."""
        self._infos = dict.fromkeys(envs)

    def infos(self, envs: Sequence[int]) -> list[dict[str, Any]]:
        """See `Shard.infos`."""
        return [self._infos.get(row) or {} for row in envs]

    def snapshot(self, envs: Sequence[int]) -> list[Snapshot | None]:
        """See `Shard.snapshot`."""
        return list(self._log.snapshot(envs)) if self._log else [None for _ in envs]

    def restore(self, envs: Sequence[int], snapshots: Sequence[Snapshot | None]) -> list[bool]:
        """See `Shard.restore`."""
        done = [
            snapshot is not None and self._restore(row, snapshot)
            for row, snapshot in zip(envs, snapshots, strict=True)
        ]
        self._set_live(sorted({*self._live, *compress(envs, done)}))
        return done

    def _make(self, row: int, kwargs: EnvKwargs) -> Made:
        try:
            made = self._source.make(kwargs)
            return made._replace(env=InfoMask(made.env)) if self._masked else made
        except Exception:
            _fail(row)

    def _begin(self, row: int, seed: int | None) -> None:
        try:
            if self._log:
                self._log.begin(row, self._envs[row], seed)
            observation, _ = self._envs[row].reset(seed=seed)
            self._writer.one(row, observation)
        except Exception:
            _fail(row)
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
            self._writer.one(row, observation)
        except Exception:
            _fail(row)
        self._age[row] = len(snapshot.actions) - self._now
        if self._log:
            self._log.restored(row, snapshot)
        return True

    def _clear(self, rows: Sequence[int]) -> None:
        """Set what the last step returned of these rows to zero, but for the observations."""
        for array in (self._buffers.reward, self._buffers.terminated, self._buffers.truncated):
            array[list(rows)] = 0

    def _set_live(self, live: list[int]) -> None:
        self._live = live
        self._steps = [self._envs[row].step for row in live]
        self._where = slice(None) if len(live) == len(self._envs) else live
        self._set_deadline()

    def _set_deadline(self) -> None:
        """Find the next step in which an episode may reach its limit.

        Episodes that begin later can only move it back, so it need not be updated for them.
        """
        self._deadline = min(
            (self._limits[row] - self._age[row] for row in self._live), default=math.inf
        )


class MultiRowShard(Shard):
    """Environments of `description.rows` rows each, side by side in the buffers."""

    def __init__(
        self,
        source: Source,
        env_kwargs: Sequence[EnvKwargs],
        buffers: Buffers,
        description: Description,
    ) -> None:
        self._source, self._description = source, description
        rows = description.rows
        self._parts = [buffers.part(env * rows, (env + 1) * rows) for env in range(len(env_kwargs))]
        self._envs = [self._make(env, kwargs) for env, kwargs in enumerate(env_kwargs)]
        self._live: list[int] = []  # environments that are not idle

    def make(self, envs: Sequence[int], kwargs: EnvKwargs) -> None:
        """See `Shard.make`."""
        for env in envs:
            self._envs[env].close()
            self._envs[env] = self._make(env, kwargs)
        self._live = [env for env in self._live if env not in set(envs)]

    def reset(self, envs: Sequence[int], seeds: Sequence[int]) -> None:
        """See `Shard.reset`."""
        for env, seed in zip(envs, seeds, strict=True):
            self._clear(env)
            try:
                self._envs[env].reset(seed)
            except Exception:
                _fail(env)
        self._live = sorted({*self._live, *envs})

    def idle(self, envs: Sequence[int]) -> None:
        """See `Shard.idle`."""
        for env in envs:
            self._clear(env)
        self._live = sorted({*self._live} - {*envs})

    def _clear(self, env: int) -> None:
        """Set what the last step returned of its rows to zero, but for the observations."""
        part = self._parts[env]
        part.reward[:], part.terminated[:], part.truncated[:] = 0.0, False, False

    def step(self) -> None:
        """See `Shard.step`."""
        for env in self._live:
            self.step_one(env)

    def step_one(self, env: int) -> None:
        """See `Shard.step_one`."""
        try:
            self._envs[env].step()
        except Exception:
            _fail(env)

    def _make(self, env: int, kwargs: EnvKwargs) -> RowAdapter:
        what, part, make = self._description, self._parts[env], self._source.make
        try:
            if what.kind == EnvKind.BUFFERED:
                return BufferedAdapter(
                    lambda buf: make({**kwargs, "buf": buf}).env,
                    part,
                    what.observations,
                    what.actions,
                )
            adapter = ParallelAdapter if what.kind == EnvKind.PARALLEL else VectorAdapter
            return adapter(make(kwargs).env, part, what.observations, what.actions)
        except Exception:
            _fail(env)
