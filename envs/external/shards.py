"""A shard is the part of the environments that one process steps.

`GymShard` steps Gymnasium environments of one row each; `MultiRowShard` steps all other kinds. Both
read actions from, and write results to, rows of the shared buffers.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any, NoReturn, Protocol

from envs.external.adapters import (
    BufferedAdapter,
    InfoMask,
    ParallelAdapter,
    RowAdapter,
    VectorAdapter,
)
from envs.external.describe import Description, EnvKind
from envs.external.episode_log import EpisodeLog, Snapshot, restart
from envs.external.shared_memory import Buffers
from envs.external.sources import Made, Source

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


class Shard(Protocol):
    """Environments that are stepped together, by their index in the shard.

    An environment is idle from its making to its first reset: `step` skips it, and its rows are
    zero. Every method raises `EnvFailure` if an environment raises.
    """

    def make(self, envs: Sequence[int], kwargs: EnvKwargs) -> None:
        """Replace these environments with new, idle ones made with `kwargs`."""

    def reset(self, envs: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these, with its seed.

        Later episodes are not seeded: they continue the environment's own random numbers.
        """

    def step(self) -> None:
        """Step every environment that is not idle with the actions in the buffers."""

    def step_one(self, env: int) -> None:
        """Step one environment only."""

    def snapshot(self, envs: Sequence[int]) -> list[Snapshot | None]:
        """Return what restores each of these; None where nothing can."""

    def restore(self, envs: Sequence[int], snapshots: Sequence[Snapshot | None]) -> list[bool]:
        """Bring these environments back by replaying their actions.

        Returns:
            False for each that could not be brought back. True does not say that it shows the same
            observation as before: the caller compares them.
        """

    def close(self) -> None:
        """Close the environments."""


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


class GymShard:
    """A `Shard` of Gymnasium environments of one agent each. Environment i is row i.

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
        for array in (self._buffers.reward, self._buffers.terminated, self._buffers.truncated):
            array[list(envs)] = 0
        self._set_live(sorted({*self._live, *envs}))

    def step(self) -> None:
        """See `Shard.step`."""
        self._now += 1
        if self._log:
            self._log.note()
        # This loop is the hot path: bound methods are prepared in `_set_live`, and results are
        # collected as tuples and written into the buffers together.
        results: list[Any] = []
        add = results.append
        try:
            for step, action in zip(
                self._steps, self._actions.decode(self._buffers.action[self._where]), strict=True
            ):
                add(step(action))
        except Exception:
            _fail(self._live[len(results)])  # the one whose result is missing
        if not results:
            return
        observations, rewards, terminated, truncated, _ = zip(*results, strict=True)
        buffers, where = self._buffers, self._where
        try:
            if len(results) == len(self._envs):
                self._writer.all(observations)
            else:
                for row, observation in zip(self._live, observations, strict=True):
                    self._writer.one(row, observation)
            buffers.reward[where], buffers.terminated[where], buffers.truncated[where] = (
                rewards,
                terminated,
                truncated,
            )
        except Exception:
            _fail(self._live[0])
        ended = set(compress(self._live, terminated)).union(compress(self._live, truncated))
        if self._now >= self._deadline:
            late = [row for row in self._live if self._age[row] + self._now >= self._limits[row]]
            buffers.truncated[late] = True
            ended.update(late)
        for row in ended:
            buffers.final[row] = buffers.obs[row]
            self._begin(row, None)
        if self._now >= self._deadline:
            self._set_deadline()

    def step_one(self, env: int) -> None:
        """See `Shard.step_one`."""
        buffers = self._buffers
        self._age[env] += 1
        try:
            action = self._actions.decode(buffers.action[env : env + 1])[0]
            observation, reward, terminated, truncated, _ = self._envs[env].step(action)
            truncated = truncated or self._age[env] + self._now >= self._limits[env]
            self._writer.one(env, observation)
            buffers.reward[env], buffers.terminated[env], buffers.truncated[env] = (
                reward,
                terminated,
                truncated,
            )
        except Exception:
            _fail(env)
        if terminated or truncated:
            buffers.final[env] = buffers.obs[env]
            self._begin(env, None)

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

    def close(self) -> None:
        """See `Shard.close`."""
        for env in self._envs:
            env.close()

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


class MultiRowShard:
    """A `Shard` of environments of `description.rows` rows each, side by side in the buffers."""

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
            part = self._parts[env]
            part.reward[:], part.terminated[:], part.truncated[:] = 0.0, False, False
            try:
                self._envs[env].reset(seed)
            except Exception:
                _fail(env)
        self._live = sorted({*self._live, *envs})

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

    def snapshot(self, envs: Sequence[int]) -> list[Snapshot | None]:
        """See `Shard.snapshot`. None can be restored."""
        return [None for _ in envs]

    def restore(self, envs: Sequence[int], snapshots: Sequence[Snapshot | None]) -> list[bool]:  # noqa: ARG002
        """See `Shard.restore`. None can be restored."""
        return [False for _ in envs]

    def close(self) -> None:
        """See `Shard.close`."""
        for env in self._envs:
            env.close()

    def _make(self, env: int, kwargs: EnvKwargs) -> RowAdapter:
        try:
            return self._adapter(kwargs, self._parts[env])
        except Exception:
            _fail(env)

    def _adapter(self, kwargs: EnvKwargs, part: Buffers) -> RowAdapter:
        kind, layouts = (
            self._description.kind,
            (self._description.observations, self._description.actions),
        )
        if kind == EnvKind.BUFFERED:
            return BufferedAdapter(
                lambda buf: self._source.make({**kwargs, "buf": buf}).env, part, *layouts
            )
        adapter = ParallelAdapter if kind == EnvKind.PARALLEL else VectorAdapter
        return adapter(self._source.make(kwargs).env, part, *layouts)
