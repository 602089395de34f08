"""Environments stepped one by one, for those whose steps differ much in duration.

There are more of them than a batch takes, and a batch consists of those that are ready first, so a
slow one delays no batch. Which are first depends on timing, so runs are not reproducible; searches,
whose trials must be, step all environments together (`sweepd.envs.external.vec_env`).
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

from sweepd.envs.core.sizing import cpu_count
from sweepd.envs.external.describe import describe
from sweepd.envs.external.env_worker import EnvWorker, EnvWorkerFailure, close_all, why_unpicklable
from sweepd.envs.external.env_worker_main import CALLED, DONE, REQUEST, EnvWorkerSetup, records
from sweepd.envs.external.sharded import even_layout
from sweepd.envs.external.shared_memory import SharedMemory
from sweepd.envs.external.sources import Source
from sweepd.envs.support.errors import InputError, RunError


class ReadyBatch(NamedTuple):
    """Environments that have been stepped (or reset), in the order in which they finished.

    Attributes:
        envs: (k,) int64, the environments.
        rows: (n,) int64, their rows, n = k * rows per environment. All else has one entry per row.
        obs: Structured, as in `Buffers`.
        final: Structured, as in `Buffers`.
        reward: float32.
        terminated: bool.
        truncated: bool.
        present: bool.
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
    """Environments in env workers; call `receive` and `send` in turn.

    An environment is either being stepped, or held by the caller from `receive` to `send`. So the
    reward received with it belongs to the action that was sent to it last.

    Attributes:
        observations: How `ReadyBatch.obs` is laid out.
        actions: How the actions for `send` are laid out.
    """

    def __init__(
        self,
        source: Source,
        env_kwargs: Sequence[Mapping[str, Any]],
        workers: int | None = None,
        *,
        step_timeout: float = 20.0,
    ) -> None:
        """Start the env workers and make one environment per entry of `env_kwargs`.

        Args:
            source: What makes an environment.
            env_kwargs: Arguments of each environment, which override those of `source`.
            workers: Number of env workers; None: the number of processors of this process.
            step_timeout: Seconds without a finished step after which a busy worker counts as hung.

        Raises:
            InputError: The source cannot be sent to workers.
            RunError: An environment raised.
        """
        reason = why_unpicklable(source, env_kwargs)
        if reason:
            raise InputError(f"{source.name} cannot be stepped in workers: {reason}")
        total = len(env_kwargs)
        workers = min(cpu_count(), total) if workers is None else workers
        sizes = even_layout(total, workers, here=False).workers
        what = describe(source, env_kwargs[0])
        self.observations, self.actions = what.observations, what.actions
        self._source, self._rows, self._step_timeout = source, what.rows, step_timeout
        self._worker_of = np.repeat(np.arange(len(sizes)), sizes)
        self._ready: list[tuple[int, int]] = []  # a heap of (time, environment)
        self._held = np.zeros(total, dtype=bool)  # by the caller
        self._partial = [b""] * len(sizes)  # beginning of each worker's next record
        self._pending = [0] * len(sizes)  # steps requested from each worker and not done
        self._since = [0.0] * len(sizes)  # when each worker last showed progress
        memory = SharedMemory(total * what.rows, self.observations, self.actions, len(sizes))
        self._buffers = memory.buffers
        self._workers: list[EnvWorker] = []
        self._end = weakref.finalize(self, close_all, self._workers)
        first = 0
        for index, size in enumerate(sizes):
            setup = EnvWorkerSetup(
                source,
                tuple(env_kwargs[first : first + size]),
                what,
                first=first,
                total=total,
                workers=len(sizes),
                index=index,
                spin=0.0,
                one_by_one=True,
            )
            self._workers.append(EnvWorker(setup, memory))
            first += size
        self._poll = select.poll()
        self._index = {worker.wake.fileno(): index for index, worker in enumerate(self._workers)}
        for worker in self._workers:
            self._poll.register(worker.wake, select.POLLIN)
        self._guard(self._wait_for_start)

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [worker.pid for worker in self._workers]

    def reset(self, seeds: Sequence[int]) -> None:
        """Begin an episode in every environment; `receive` returns them.

        Raises:
            ValueError: An environment is being stepped.
        """
        if any(self._pending):
            raise ValueError("reset was called while environments are being stepped")
        self._ready.clear()
        self._held[:] = False
        for index, worker in enumerate(self._workers):
            own = np.flatnonzero(self._worker_of == index).tolist()
            worker.call("reset", list(range(len(own))), [seeds[env] for env in own])
            self._expect(index, 1)
        self._guard(lambda: self._gather(None))
        now = time.monotonic_ns()
        # All at the same time, so the first batches are in the order of the environments.
        self._ready = [(now, env) for env in range(len(self._worker_of))]

    def receive(self, batch: int) -> ReadyBatch:
        """Wait for, and return copies of, the first `batch` environments that are ready.

        Raises:
            ValueError: The caller holds too many of them.
            RunError: An environment raised, or its worker died or hung; the message says which.
        """
        possible = len(self._worker_of) - int(self._held.sum())
        if not 1 <= batch <= possible:
            raise ValueError(
                f"a batch of {batch} is not possible: {possible} environments are not with the "
                "caller"
            )
        self._guard(lambda: self._gather(batch))
        envs = np.array([heapq.heappop(self._ready)[1] for _ in range(batch)], dtype=np.int64)
        self._held[envs] = True
        rows = self._rows_of(envs)
        b = self._buffers
        return ReadyBatch(
            envs,
            rows,
            b.obs[rows],
            b.final[rows],
            b.reward[rows],
            b.terminated[rows],
            b.truncated[rows],
            b.present[rows],
        )

    def send(self, envs: NDArray[np.int64], actions: NDArray[Any]) -> None:
        """Have these environments step.

        Args:
            envs: (k,) environments that the caller holds.
            actions: (k * rows per environment, width), as in `ActionLayout`.

        Raises:
            ValueError: The caller does not hold all of them, or one is named twice.
        """
        if not self._held[envs].all() or len(np.unique(envs)) != len(envs):
            raise ValueError(f"environments {envs.tolist()} are not all with the caller, once each")
        self._held[envs] = False
        self._buffers.action[self._rows_of(envs)] = actions
        workers = self._worker_of[envs]
        for index in np.unique(workers).tolist():
            own = envs[workers == index] - self._workers[index].setup.first
            self._expect(index, len(own))
            self._workers[index].send(own.astype(REQUEST).tobytes())

    def close(self) -> None:
        """Close the environments and end the workers."""
        self._end()

    def _rows_of(self, envs: NDArray[np.int64]) -> NDArray[np.int64]:
        rows: NDArray[np.int64] = envs[:, None] * self._rows + np.arange(self._rows)
        return rows.reshape(-1)

    def _expect(self, index: int, count: int) -> None:
        if not self._pending[index]:
            self._since[index] = time.monotonic()
        self._pending[index] += count

    def _gather(self, batch: int | None) -> None:
        """Receive records until `batch` are ready; None: until nothing is being stepped."""
        wait = 0.0  # first take all that has arrived: it may be earlier than what is in the heap
        while True:
            for handle, _ in self._poll.poll(wait * 1000):
                self._take(self._index[handle])
            now = time.monotonic()
            # Also when enough others are ready: a hung worker must not stay unnoticed.
            for index, worker in enumerate(self._workers):
                if self._pending[index] and now - self._since[index] > self._step_timeout:
                    worker.hung(self._step_timeout)
            if not any(self._pending) if batch is None else len(self._ready) >= batch:
                return
            wait = min(1.0, self._step_timeout / 4)

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
        done, self._partial[index] = records(self._partial[index] + data, DONE)
        for env, finished in done.tolist():
            if env == CALLED:
                worker.result()
            else:
                heapq.heappush(self._ready, (finished, worker.setup.first + env))
        self._pending[index] -= len(done)
        self._since[index] = time.monotonic()

    def _wait_for_start(self) -> None:
        for worker in self._workers:
            worker.ready()

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except EnvWorkerFailure as failure:
            self.close()
            raise RunError(f"{self._source.name}: {failure}") from None
