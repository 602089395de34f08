"""Environments that are stepped one by one, whichever is ready first: for those whose steps take unevenly long.

There are more of them than a batch takes, so that a slow one keeps nobody waiting. Which come first is a matter of
time, so no two runs are alike; searches, whose trials must be repeatable, step all together (`envs.external.vec_env`).
"""

from __future__ import annotations

import heapq
import select
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.core.sizing import cpu_count
from envs.external.buffers import Memory
from envs.external.driver import Worker, WorkerFailure, close_all, unsendable
from envs.external.hosted import split
from envs.external.sources import Source, describe
from envs.external.worker import ASKED, CALLED, DONE, Setup, records
from envs.support.errors import InputError, RunError


class Ready(NamedTuple):
    """Environments that have done their step (or were reset), in the order in which they did.

    envs: (k,) int64. rows: (k * rows per environment,) int64, their rows, and the index of everything else, copies of
    what lies in the buffers: obs, final as structured rows; reward; terminated, truncated, present.
    """

    envs: NDArray[np.int64]
    rows: NDArray[np.int64]
    obs: NDArray[Any]
    final: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    present: NDArray[np.bool_]


class FirstReadyEnvs:
    """`len(own)` environments in workers. By turns, `receive` the first that are ready and `send` them their actions.

    An environment is always in one place: being stepped, or with the caller from `receive` until `send`. So the reward
    that comes with it is that of the action it was sent last. observations, actions: how these are laid out.
    """

    def __init__(
        self,
        source: Source,
        own: Sequence[Mapping[str, Any]],
        workers: int | None = None,
        *,
        patience: float = 20.0,
    ) -> None:
        """own: each environment's own arguments. workers: None: as many as there are processors for this process.
        patience: seconds after which a worker with work that has done no step counts as hung. Raises InputError where
        the source cannot be sent to workers, RunError where an environment raises.
        """
        reason = unsendable(source, own)
        if reason:
            raise InputError(f"{source.name} cannot be stepped in workers: {reason}")
        if workers is not None and not 1 <= workers <= len(own):
            raise InputError(
                f"{workers} workers for {len(own)} environments are not possible; from 1 to {len(own)} are"
            )
        what = describe(source, own[0])
        sizes = split(len(own), min(workers or cpu_count(), len(own)), here=False).workers
        self.observations, self.actions = what.observations, what.actions
        self._source, self._rows, self._patience = source, what.rows, patience
        memory = Memory(len(own) * what.rows, self.observations, self.actions, len(sizes))
        self._buffers = memory.buffers
        self._workers: list[Worker] = []
        self._leave = weakref.finalize(self, close_all, self._workers)
        self._worker_of, self._ready = (
            np.repeat(np.arange(len(sizes)), sizes),
            list[tuple[int, int]](),
        )
        self._held = np.zeros(len(own), dtype=bool)  # with the caller
        self._left = [b""] * len(sizes)  # of a record that has come in part
        self._busy, self._since = (
            [0] * len(sizes),
            [0.0] * len(sizes),
        )  # steps asked of each, and its last sign of life
        first = 0
        for index, size in enumerate(sizes):
            setup = Setup(
                source,
                tuple(own[first : first + size]),
                self.observations,
                self.actions,
                what.kind,
                what.rows,
                first,
                len(own),
                len(sizes),
                index,
                spin=0.0,
                one_by_one=True,
            )
            self._workers.append(Worker(setup, memory))
            first += size
        self._poll = select.poll()
        self._index = {worker.wake.fileno(): index for index, worker in enumerate(self._workers)}
        for worker in self._workers:
            self._poll.register(worker.wake, select.POLLIN)
        self._guard(self._get_ready)

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [worker.pid for worker in self._workers]

    def reset(self, seeds: Sequence[int]) -> None:
        """Begin an episode in every environment; they come with `receive`. Only where none is being stepped."""
        if any(self._busy):
            raise ValueError("reset was called while environments are being stepped")
        self._ready.clear()
        self._held[:] = False
        for index, worker in enumerate(self._workers):
            own = np.flatnonzero(self._worker_of == index).tolist()
            worker.call("reset", list(range(len(own))), [seeds[env] for env in own])
            self._expect(index, 1)
        self._guard(lambda: self._gather(None))
        now = time.monotonic_ns()
        self._ready = [(now, env) for env in range(len(self._worker_of))]

    def receive(self, batch: int) -> Ready:
        """The first `batch` environments that are ready; waits until there are so many. Raises RunError with what
        happened where an environment raises, or its worker dies or hangs.
        """
        possible = len(self._worker_of) - int(self._held.sum())
        if not 1 <= batch <= possible:
            raise ValueError(
                f"a batch of {batch} can't come: {possible} environments are not with the caller"
            )
        self._guard(lambda: self._gather(batch))
        envs = np.array([heapq.heappop(self._ready)[1] for _ in range(batch)], dtype=np.int64)
        self._held[envs] = True
        rows = (envs[:, None] * self._rows + np.arange(self._rows)).reshape(-1)
        b = self._buffers
        copies = (
            array[rows]
            for array in (b.obs, b.final, b.reward, b.terminated, b.truncated, b.present)
        )
        return Ready(envs, rows, *copies)

    def send(self, envs: NDArray[np.int64], actions: NDArray[Any]) -> None:
        """Have these environments step with these actions, (rows, width) as `ActionLayout` says."""
        if not self._held[envs].all() or len(np.unique(envs)) != len(envs):
            raise ValueError(f"environments {envs.tolist()} are not all with the caller, once each")
        self._held[envs] = False
        rows = (envs[:, None] * self._rows + np.arange(self._rows)).reshape(-1)
        self._buffers.action[rows] = actions
        owners = self._worker_of[envs]
        for index in np.unique(owners).tolist():
            own = envs[owners == index] - self._workers[index].setup.first
            self._expect(index, len(own))
            self._workers[index].send(own.astype(ASKED).tobytes())

    def close(self) -> None:
        """Close the environments and end the workers."""
        self._leave()

    def _expect(self, index: int, count: int) -> None:
        if not self._busy[index]:
            self._since[index] = time.monotonic()
        self._busy[index] += count

    def _gather(self, batch: int | None) -> None:
        """Take what has come, until there are `batch` ready; None: until nothing is being stepped."""
        wait = 0.0  # first what is there already: it may be earlier than what was seen before
        while True:
            for handle, _ in self._poll.poll(wait * 1000):
                self._take(self._index[handle])
            now = time.monotonic()
            for index, worker in enumerate(self._workers):  # also where enough others are ready
                if self._busy[index] and now - self._since[index] > self._patience:
                    worker.hung(self._patience)
            if not any(self._busy) if batch is None else len(self._ready) >= batch:
                return
            wait = min(1.0, self._patience / 4)

    def _take(self, index: int) -> None:
        worker = self._workers[index]
        try:
            data = worker.wake.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            worker.died()
        done, self._left[index] = records(self._left[index] + data, DONE)
        for env, at in done.tolist():
            if env == CALLED:
                worker.result()
            else:
                heapq.heappush(self._ready, (at, worker.setup.first + env))
        self._busy[index] -= len(done)
        self._since[index] = time.monotonic()

    def _get_ready(self) -> None:
        for worker in self._workers:
            worker.ready()

    def _guard(self, what: Callable[[], None]) -> None:
        try:
            what()
        except WorkerFailure as failure:
            self.close()
            raise RunError(f"{self._source.name}: {failure}") from None
