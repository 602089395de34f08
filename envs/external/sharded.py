"""Environments split into shards: one in this process, the others in env workers.

Without workers this is a plain loop. Every environment has random numbers and rows of its own, so
its results do not depend on which process steps it.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sweepd.envs.external import shared_memory
from sweepd.envs.external.describe import Description, describe
from sweepd.envs.external.env_worker import EnvWorker, EnvWorkerFailure, close_all, why_unpicklable
from sweepd.envs.external.env_worker_main import EnvWorkerSetup
from sweepd.envs.external.episode_log import Snapshot
from sweepd.envs.external.guard import note
from sweepd.envs.external.shards import EnvFailure, Shard, make_shard
from sweepd.envs.external.shared_memory import SharedMemory
from sweepd.envs.external.sources import Source
from sweepd.envs.support.errors import InputError, RunError

SPIN = 200e-6  # seconds that parent and workers poll each other's state before they sleep
_CALL_TIMEOUT = 60.0  # seconds; at least that much for a call, which may make or reset many


@dataclass(frozen=True)
class Layout:
    """Sizes of the shards: in this process (`here`), and in each env worker."""

    here: int
    workers: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """The number of environments."""
        return self.here + sum(self.workers)

    def __str__(self) -> str:
        if not self.workers:
            return "all in this process"
        return f"{self.here} in this process, {' + '.join(map(str, self.workers))} in workers"


def even_layout(envs: int, workers: int, *, here: bool = True) -> Layout:
    """Split environments as evenly as possible among env workers, and this process if `here`.

    Where shards differ in size, this process has one of the smaller ones.

    Raises:
        InputError: There would be a shard without environments.
    """
    check_workers(envs, workers, here=here)
    parts = workers + here
    least, more = divmod(envs, parts)
    sizes = [least + (part >= parts - more) for part in range(parts)]
    return Layout(sizes[0] if here else 0, tuple(sizes[here:]))


def check_workers(envs: int, workers: int, *, here: bool) -> None:
    """Raise InputError if a worker, or this process if `here`, would have no environments."""
    fewest, most = int(not here), envs - here
    if not fewest <= workers <= most:
        raise InputError(
            f"{workers} workers for {envs} environments are not possible; from {fewest} to {most} "
            "are"
        )


class ShardedEnvs:
    """Environments of one source, stepped together through shared buffers.

    Write actions into `buffers.action`, call `step`, and read the results from `buffers`.
    Environments are idle (not stepped, their rows zero) until they are first reset, and again
    after `idle`.

    Attributes:
        buffers: Rows of all environments.
        observations: How `buffers.obs` is laid out.
        actions: How `buffers.action` is laid out.
        rows: Rows per environment.
        layout: Sizes of the shards.
        one_by_one: Whether workers are told which environment to step.
    """

    one_by_one: ClassVar[bool] = False

    def __init__(
        self,
        source: Source,
        env_kwargs: Sequence[Mapping[str, Any]],
        layout: Layout | None = None,
        *,
        description: Description | None = None,
        step_timeout: float = 20.0,
        restarts: int = 0,
        resumable: bool = False,
    ) -> None:
        """Start the env workers and make one environment per entry of `env_kwargs`.

        Args:
            source: What makes an environment.
            env_kwargs: Arguments of each environment, which override those of `source`.
            layout: Sizes of the shards; None: all in this process.
            description: What `describe` says of the source, if known.
            step_timeout: Seconds after which a worker that has not finished a step counts as hung.
            restarts: How many times in all a shard is restarted after an exception in an
                environment, or the death or hang of a worker. Its rows then show a truncated
                episode and a new one.
            resumable: Whether `snapshot` will be called.

        Raises:
            RunError: A shard failed more often than that.
            InputError: The source cannot be sent to workers, or its spaces are not supported.
        """
        self._note = note(source.name)
        layout = layout or Layout(len(env_kwargs))
        if layout.total != len(env_kwargs):
            raise ValueError(
                f"the layout has {layout.total} environments, and there are {len(env_kwargs)}"
            )
        self._what = what = description or describe(source, env_kwargs[0])
        reason = why_unpicklable(source, env_kwargs) if layout.workers else ""
        if reason:
            raise InputError(f"{source.name} cannot be stepped in workers: {reason}")
        self._source, self._env_kwargs = source, list(env_kwargs)
        self._step_timeout, self._restarts = step_timeout, restarts
        self._resumable = resumable
        self._seeds: list[int | None] = [None] * len(env_kwargs)  # None: idle
        self.layout, self.rows = layout, what.rows
        self.observations, self.actions = what.observations, what.actions
        self._memory = SharedMemory(
            len(env_kwargs) * what.rows, what.observations, what.actions, len(layout.workers)
        )
        self.buffers = self._memory.buffers
        self.observations.allow_all(self.buffers.obs)  # masks of idle rows
        self._firsts = [
            layout.here + sum(layout.workers[:index]) for index in range(len(layout.workers))
        ]
        self._workers: list[EnvWorker] = []
        self._end = weakref.finalize(self, close_all, self._workers)
        self._start_shards()

    def _start_shards(self) -> None:
        """Make all environments; the workers make theirs at the same time as this process."""
        try:
            for index in range(len(self.layout.workers)):
                self._workers.append(self._start(index))
            self._shard = self._make_shard()
            for worker in self._workers:
                worker.ready()
        except (EnvFailure, EnvWorkerFailure) as failure:
            self.close()
            raise self._error(failure) from None

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [worker.pid for worker in self._workers]

    def make(self, envs: Sequence[int], kwargs: Mapping[str, Any]) -> None:
        """Replace these environments with new, idle ones made with `kwargs`."""
        for env in envs:
            self._env_kwargs[env], self._seeds[env] = kwargs, None
        self._call("make", list(envs), lambda _: kwargs)

    def reset(self, envs: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these, with its seed."""
        for env, seed in zip(envs, seeds, strict=True):
            self._seeds[env] = seed
        self._call("reset", list(envs), lambda some: [self._seeds[env] for env in some])

    def idle(self, envs: Sequence[int]) -> None:
        """Make these environments idle until their next reset. Their observations stay."""
        live = [env for env in envs if self._seeds[env] is not None]
        for env in live:
            self._seeds[env] = None
        if live:
            self._call("idle", live, None)

    def step(self) -> None:
        """Step every environment that is not idle."""
        # Workers first, so that they step at the same time as this process's own shard.
        for worker in self._workers:
            worker.step()
        if self.layout.here:
            self._note[0] = 1
            try:
                self._shard.step()
            except EnvFailure as failure:
                self._restart(None, failure)
            finally:
                self._note[0] = 0
        for index, worker in enumerate(self._workers):
            try:
                worker.finish(self._step_timeout)
            except EnvWorkerFailure as failure:
                self._restart(index, failure)

    def keep_infos(self) -> None:
        """Keep the last `info` of the next episode of every environment."""
        self._call("keep_infos", list(range(len(self._env_kwargs))), None)

    def infos(self, envs: Sequence[int]) -> list[dict[str, Any]]:
        """Return what was kept of each of these."""
        return [found or {} for found in self._call("infos", list(envs), None)]

    def snapshot(self, envs: Sequence[int]) -> list[Snapshot | None]:
        """Return what restores each of these; None where nothing can."""
        return self._call("snapshot", list(envs), None)

    def restore(self, envs: Sequence[int], snapshots: Sequence[Snapshot | None]) -> list[bool]:
        """Bring these environments back by replaying their actions.

        Returns:
            Whether each now shows the observation that `buffers` had when this was called.
        """
        rows = [slice(env * self.rows, (env + 1) * self.rows) for env in envs]
        expected = [self.buffers.obs[of_env].tobytes() for of_env in rows]
        by_env = dict(zip(envs, snapshots, strict=True))
        done: list[bool] = self._call(
            "restore", list(envs), lambda some: [by_env[env] for env in some]
        )
        for env in envs:
            self._seeds[env] = self._seeds[env] or 0  # not None: it is no longer idle
        return [
            restored and self.buffers.obs[of_env].tobytes() == seen
            for restored, of_env, seen in zip(done, rows, expected, strict=True)
        ]

    def close(self) -> None:
        """Close the environments and end the workers."""
        if self._end.alive:
            self._end()
            if hasattr(self, "_shard"):
                self._shard.close()

    def _make_shard(self) -> Shard:
        """Make the shard of this process."""
        env_kwargs = self._env_kwargs[: self.layout.here]
        buffers = self.buffers.part(0, len(env_kwargs) * self.rows)
        return make_shard(self._source, env_kwargs, buffers, self._what, self._resumable)

    def _start(self, index: int) -> EnvWorker:
        envs = self._envs_of(index)
        setup = EnvWorkerSetup(
            self._source,
            tuple(self._env_kwargs[envs.start : envs.stop]),
            self._what,
            first=envs.start,
            total=len(self._env_kwargs),
            workers=len(self.layout.workers),
            index=index,
            spin=SPIN,
            ordered=shared_memory.ORDERED,
            one_by_one=self.one_by_one,
            resumable=self._resumable,
        )
        return EnvWorker(setup, self._memory)

    def _envs_of(self, index: int | None) -> range:
        """Return the environments of a worker, or of this process."""
        if index is None:
            return range(self.layout.here)
        return range(self._firsts[index], self._firsts[index] + self.layout.workers[index])

    def _call(
        self, name: str, envs: list[int], argument: Callable[[list[int]], Any] | None
    ) -> list[Any]:
        """Call a method of every shard that has some of these environments.

        Args:
            name: The method's name.
            envs: Environments that the call is about.
            argument: Returns the second argument from the shard's part of `envs`.

        Returns:
            The result for each environment.
        """
        # All workers are called before the first result is awaited. An environment whose shard
        # failed and was restarted keeps the result None.
        called, results = [], dict.fromkeys(envs)
        for index, worker in enumerate(self._workers):
            own = self._envs_of(index)
            some = [env for env in envs if env in own]
            if some:
                worker.call(
                    name, [env - own.start for env in some], *([argument(some)] if argument else [])
                )
                called.append((index, worker, some))
        some = [env for env in envs if env < self.layout.here]
        self._note[0] = 1
        try:
            if some:
                returned = getattr(self._shard, name)(some, *([argument(some)] if argument else []))
                results |= dict(zip(some, returned or [], strict=False))
        except EnvFailure as failure:
            self._restart(None, failure)
        finally:
            self._note[0] = 0
        for index, worker, some in called:
            try:
                returned = worker.finish(max(self._step_timeout, _CALL_TIMEOUT))
                results |= dict(zip(some, returned or [], strict=False))
            except EnvWorkerFailure as failure:
                self._restart(index, failure)
        return list(results.values())

    def _restart(self, index: int | None, failure: Exception) -> None:
        """Restart the failed shard of a worker or of this process, or raise RunError."""
        if not self._restarts:
            self.close()
            raise self._error(failure)
        self._restarts -= 1
        logging.getLogger(__name__).warning(
            "%s\n(restarted; %d restarts left)", self._error(failure), self._restarts
        )
        envs = self._envs_of(index)
        rows = slice(envs.start * self.rows, envs.stop * self.rows)
        # The last observation known, which becomes the final one of the episodes that are cut off.
        last = self.buffers.obs[rows].copy()
        live = [env for env in envs if self._seeds[env] is not None]
        try:
            if index is None:
                self._shard = self._make_shard()
            else:
                self._workers[index] = self._start(index)
                self._workers[index].ready()
        except (EnvFailure, EnvWorkerFailure) as again:
            self.close()
            raise self._error(again) from None
        # Another seed: with the same one, an environment could fail in the same way again.
        self.reset(live, [_next_seed(self._seeds[env], env) for env in live])
        buffers = self.buffers
        buffers.final[rows] = last
        buffers.reward[rows], buffers.terminated[rows] = 0.0, False
        for env in live:
            buffers.truncated[env * self.rows : (env + 1) * self.rows] = True

    def _error(self, failure: Exception) -> RunError:
        text = str(failure)
        if isinstance(failure, EnvFailure):
            text = f"environment {failure.env} raised:\n{failure.text.rstrip()}"
        return RunError(f"{self._source.name}: {text}")


def _next_seed(seed: int | None, env: int) -> int:
    """Return another seed, always the same one for the same arguments."""
    return int(np.random.SeedSequence((seed or 0, env)).generate_state(1)[0] >> 1)
