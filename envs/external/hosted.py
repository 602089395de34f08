"""Environments wherever they are stepped: a share in this process, the others in workers.

With no workers it is the plain loop. Every environment has its own random numbers and its own rows, so who steps it
changes nothing.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.external import handoff
from envs.external.buffers import Memory
from envs.external.driver import Worker, WorkerFailure, close_all, unsendable
from envs.external.episode_log import Snapshot
from envs.external.guard import guarded
from envs.external.share import EnvFailure, Share, make_share
from envs.external.sources import Description, Source, describe
from envs.external.worker import Setup
from envs.support.errors import InputError, RunError

SPIN = 200e-6  # seconds that driver and workers look for each other's word before they sleep


@dataclass(frozen=True)
class Layout:
    """Who steps how many environments: this process (`here`), and each worker."""

    here: int
    workers: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        return self.here + sum(self.workers)

    def __str__(self) -> str:
        if not self.workers:
            return "all in this process"
        return f"{self.here} in this process, {' + '.join(map(str, self.workers))} in workers"


def split(envs: int, workers: int, here: bool) -> Layout:
    """As evenly as it goes among so many workers, and this process too if `here`; it has the fewest."""
    parts = workers + here
    least, more = divmod(envs, parts)
    sizes = [least + (part >= parts - more) for part in range(parts)]
    return Layout(sizes[0] if here else 0, tuple(size for size in sizes[here:] if size))


class HostedEnvs:
    """`len(own)` environments of one source; `buffers` has what their rows saw last, and takes their actions.

    observations, actions: how these are laid out in the buffers. rows: of each environment.
    """

    def __init__(
        self,
        source: Source,
        own: Sequence[Mapping[str, Any]],
        layout: Layout | None = None,
        *,
        description: Description | None = None,
        patience: float = 20.0,
        restarts: int = 0,
        spin: float = SPIN,
        resumable: bool = False,
    ) -> None:
        """own: each environment's own arguments. layout: who steps what; None: all in this process. description: what
        `describe` says of the source, where that is known. patience: seconds after which a worker that isn't done with
        a step counts as hung. restarts: how often, in all, a share whose environment raised, or whose worker died or
        hung, is made anew; its rows then show a truncated episode and a new one. spin: see `SPIN`.
        resumable: whether `snapshot` is going to be asked for.

        Raises RunError with what happened where that is exceeded, InputError where the source cannot be sent to
        workers or has spaces that cannot be learned in.
        """
        guarded()
        layout = layout or Layout(len(own))
        if layout.total != len(own):
            raise ValueError(
                f"the layout has {layout.total} environments, and there are {len(own)}"
            )
        description = description or describe(source, own[0])
        reason = unsendable(source, own) if layout.workers else ""
        if reason:
            raise InputError(f"{source.name} cannot be stepped in workers: {reason}")
        self._source, self._own, self._kind, self.rows = (
            source,
            list(own),
            description.kind,
            description.rows,
        )
        self.observations, self.actions = description.observations, description.actions
        self._patience, self._restarts, self._spin, self._resumable = (
            patience,
            restarts,
            spin,
            resumable,
        )
        self._seeds: list[int | None] = [None] * len(own)
        self._memory = Memory(
            len(own) * self.rows, self.observations, self.actions, len(layout.workers)
        )
        self.layout, self.buffers = layout, self._memory.buffers
        self.observations.allow_all(self.buffers.obs)  # of idle rows
        self._firsts = [
            layout.here + sum(layout.workers[:index]) for index in range(len(layout.workers))
        ]
        self._workers: list[Worker] = []
        self._leave = weakref.finalize(self, close_all, self._workers)
        try:
            for index in range(len(layout.workers)):  # they get ready side by side
                self._workers.append(self._start(index))
            self._share = self._make_share()
            for worker in self._workers:
                worker.ready()
        except (EnvFailure, WorkerFailure) as failure:
            self.close()
            raise self._error(failure) from None

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [worker.pid for worker in self._workers]

    def make(self, envs: Sequence[int], own: Mapping[str, Any]) -> None:
        """Make these environments anew, with arguments of their own; they stay idle until they are reset."""
        for env in envs:
            self._own[env], self._seeds[env] = own, None
        self._everywhere("make", list(envs), lambda _: own)

    def reset(self, envs: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these, with that seed."""
        for env, seed in zip(envs, seeds, strict=True):
            self._seeds[env] = seed
        self._everywhere("reset", list(envs), lambda some: [self._seeds[env] for env in some])

    def step(self) -> None:
        """One step of every environment that is not idle."""
        for worker in self._workers:
            worker.step()
        if self.layout.here:
            try:
                self._share.step()
            except EnvFailure as failure:
                self._failed(None, failure)
        for index, worker in enumerate(self._workers):
            try:
                worker.finish(self._patience)
            except WorkerFailure as failure:
                self._failed(index, failure)

    def snapshot(self, envs: Sequence[int]) -> list[Snapshot | None]:
        """What it takes to bring these back to where they are; None where that can't be told."""
        return self._everywhere("snapshot", list(envs), None)

    def restore(self, envs: Sequence[int], snapshots: Sequence[Snapshot | None]) -> list[bool]:
        """Bring these back there, by the same actions; False where that can't be done, and where they then see
        something else than `buffers` said when this was called.
        """
        rows = [slice(env * self.rows, (env + 1) * self.rows) for env in envs]
        expected = [self.buffers.obs[own].tobytes() for own in rows]
        by_env = dict(zip(envs, snapshots, strict=True))
        done: list[bool] = self._everywhere(
            "restore", list(envs), lambda some: [by_env[env] for env in some]
        )
        for env in envs:
            self._seeds[env] = self._seeds[env] or 0  # no longer idle
        return [
            restored and self.buffers.obs[own].tobytes() == seen
            for restored, own, seen in zip(done, rows, expected, strict=True)
        ]

    def close(self) -> None:
        """Close the environments and end the workers."""
        if self._leave.alive:
            self._leave()
            if hasattr(self, "_share"):
                self._share.close()

    def _make_share(self) -> Share:
        """This process's."""
        own = self._own[: self.layout.here]
        rows = self.buffers.part(0, len(own) * self.rows)
        return make_share(
            self._source,
            own,
            rows,
            self.observations,
            self.actions,
            self._kind,
            self.rows,
            self._resumable,
        )

    def _start(self, index: int) -> Worker:
        first = self._firsts[index]
        own = tuple(self._own[first : first + self.layout.workers[index]])
        setup = Setup(
            self._source,
            own,
            self.observations,
            self.actions,
            self._kind,
            self.rows,
            first,
            len(self._own),
            len(self.layout.workers),
            index,
            self._spin,
            handoff.ORDERED,
            resumable=self._resumable,
        )
        return Worker(setup, self._memory)

    def _range(self, index: int | None) -> range:
        """The environments of a worker, or of this process."""
        if index is None:
            return range(self.layout.here)
        return range(self._firsts[index], self._firsts[index] + self.layout.workers[index])

    def _everywhere(
        self, name: str, envs: list[int], what: Callable[[list[int]], Any] | None
    ) -> list[Any]:
        """Call that method of every share that has some of these environments, with theirs and `what(theirs)`.

        Returns what it returned for each of them.
        """
        asked, results = [], dict.fromkeys(envs)
        for index, worker in enumerate(self._workers):
            own = self._range(index)
            some = [env for env in envs if env in own]
            if some:
                worker.call(
                    name, [env - own.start for env in some], *([what(some)] if what else [])
                )
                asked.append((index, worker, some))
        some = [env for env in envs if env < self.layout.here]
        try:
            if some:
                returned = getattr(self._share, name)(some, *([what(some)] if what else []))
                results |= dict(zip(some, returned or [], strict=False))
        except EnvFailure as failure:
            self._failed(None, failure)
        for index, worker, some in asked:
            try:
                results |= dict(
                    zip(some, worker.finish(max(self._patience, 60.0)) or [], strict=False)
                )
            except WorkerFailure as failure:
                self._failed(index, failure)
        return list(results.values())

    def _failed(self, index: int | None, failure: Exception) -> None:
        """Make the share of a worker, or of this process, anew; or end."""
        if not self._restarts:
            self.close()
            raise self._error(failure)
        self._restarts -= 1
        logging.getLogger(__name__).warning(
            "%s\n(made anew; %d more times)", self._error(failure), self._restarts
        )
        envs = self._range(index)
        rows = slice(envs.start * self.rows, envs.stop * self.rows)
        last = self.buffers.obs[rows].copy()
        live = [env for env in envs if self._seeds[env] is not None]
        try:
            if index is None:
                self._share = self._make_share()
            else:
                self._workers[index] = self._start(index)
                self._workers[index].ready()
        except (EnvFailure, WorkerFailure) as again:
            self.close()
            raise self._error(again) from None
        self.reset(live, [_following(self._seeds[env], env) for env in live])
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


def _following(seed: int | None, env: int) -> int:
    """Another seed, the same one whenever it is asked for."""
    return int(np.random.SeedSequence((seed or 0, env)).generate_state(1)[0] >> 1)
