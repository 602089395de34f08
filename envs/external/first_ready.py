"""Environments stepped one by one, for those whose steps differ much in duration.

The caller acts for those that are ready first, so a slow one delays no other. Which are first
depends on timing.
"""

from __future__ import annotations

import heapq
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.core.sizing import cpu_count
from sweepd.envs.external.describe import Description
from sweepd.envs.external.env_worker import EnvWorkerFailure
from sweepd.envs.external.env_worker_main import DONE, REQUEST, records
from sweepd.envs.external.sharded import Layout, ShardedEnvs, check_workers
from sweepd.envs.external.sources import Source


class FirstReadyEnvs(ShardedEnvs):
    """Environments in env workers that are stepped one by one: call `send` and `receive` in turn.

    An environment is being stepped from `send` until `receive` returns it. `buffers` are the
    caller's own: their rows change only when the environment is received, reset or restored.

    Of W workers, worker w has the environments w, w + W, …, so that environments that belong
    together are spread among all workers. The rows of the shared memory are in the order of the
    workers.
    """

    one_by_one: ClassVar[bool] = True

    def __init__(
        self,
        source: Source,
        env_kwargs: Sequence[Mapping[str, Any]],
        workers: int | None = None,
        *,
        description: Description | None = None,
        step_timeout: float = 20.0,
        resumable: bool = False,
    ) -> None:
        """Start the env workers and make one environment per entry of `env_kwargs`.

        Args:
            source: What makes an environment.
            env_kwargs: Arguments of each environment, which override those of `source`.
            workers: Number of env workers; None: the number of processors of this process.
            description: What `describe` says of the source, if known.
            step_timeout: Seconds without a finished step after which a busy worker counts as hung.
            resumable: Whether `snapshot` will be called.

        Raises:
            InputError: The source cannot be sent to workers.
            RunError: An environment raised.
        """
        total = len(env_kwargs)
        count = min(cpu_count(), total) if workers is None else workers
        check_workers(total, count, here=False)
        own = [range(first, total, count) for first in range(count)]
        order = np.concatenate([np.array(envs) for envs in own])
        super().__init__(
            source,
            [env_kwargs[env] for env in order],
            Layout(0, tuple(map(len, own))),
            description=description,
            step_timeout=step_timeout,
            resumable=resumable,
        )
        self._env_kwargs = list(env_kwargs)
        self._shared = self.buffers  # with the workers
        self.buffers = self._shared.copies()
        self._order = order  # environment at each place of the shared memory
        self._place = np.argsort(order)  # of each environment
        self._rows = self.rows_of(np.arange(total))
        self._stepping = np.zeros(total, dtype=bool)
        self._ready: list[tuple[int, int]] = []  # a heap of (time, environment)
        self._partial = [b""] * count  # beginning of each worker's next record
        self._pending = [0] * count  # steps requested from each worker and not done
        self._since = [0.0] * count  # when each worker last showed progress
        self._poll = select.poll()
        self._index = {worker.wake.fileno(): index for index, worker in enumerate(self._workers)}
        for worker in self._workers:
            self._poll.register(worker.wake, select.POLLIN)

    def send(self, envs: NDArray[np.int64], actions: NDArray[Any]) -> None:
        """Have these environments step.

        Args:
            envs: (k,) environments that are not being stepped and were reset.
            actions: (k * rows per environment, width), as in `ActionLayout`.

        Raises:
            ValueError: Some are being stepped, or one is named twice.
        """
        if self._stepping[envs].any() or len(np.unique(envs)) != len(envs):
            raise ValueError(f"environments {envs.tolist()} are being stepped, or named twice")
        self._stepping[envs] = True
        self._shared.action[self._shared_rows(envs)] = actions
        within, workers = np.divmod(envs, len(self._workers))
        for index in np.unique(workers).tolist():
            own = within[workers == index]
            if not self._pending[index]:
                self._since[index] = time.monotonic()
            self._pending[index] += len(own)
            self._workers[index].send(own.astype(REQUEST).tobytes())

    def receive(self, batch: int | None = None) -> NDArray[np.int64]:
        """Wait for the first `batch` environments that are ready, and copy their rows to `buffers`.

        Args:
            batch: How many; None: all that are ready, at least one.

        Returns:
            (k,) the environments, in the order in which they finished.

        Raises:
            ValueError: Fewer are being stepped.
            RunError: An environment raised, or its worker died or hung; the message says which.
        """
        possible = int(self._stepping.sum())
        if not 1 <= (batch or 1) <= possible:
            raise ValueError(f"{batch or 1} cannot be received: {possible} are being stepped")
        self._guard(lambda: self._gather(batch or 1))
        count = len(self._ready) if batch is None else batch
        envs = np.array([heapq.heappop(self._ready)[1] for _ in range(count)], dtype=np.int64)
        self._stepping[envs] = False
        self.buffers.copy_from(self.rows_of(envs), self._shared, self._shared_rows(envs))
        return envs

    def step(self) -> None:
        """See `ShardedEnvs.step`: waits for all of them."""
        live = np.array([env for env, seed in enumerate(self._seeds) if seed is not None], np.int64)
        self.send(live, self.buffers.action[self.rows_of(live)])
        if len(live):
            self.receive(len(live))

    def rows_of(self, envs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of these environments."""
        if self.rows == 1:
            return envs
        rows: NDArray[np.int64] = envs[:, None] * self.rows + np.arange(self.rows)
        return rows.reshape(-1)

    def _call(
        self, name: str, envs: list[int], argument: Callable[[list[int]], Any] | None
    ) -> list[Any]:
        if self._stepping.any():
            raise ValueError(f"{name} was called while environments are being stepped")
        rows, places = self._rows, self._shared_rows(np.arange(len(self._place)))
        self._shared.copy_from(places, self.buffers, rows)
        given = argument and (lambda some: argument(self._order[some].tolist()))
        results = super()._call(name, self._place[envs].tolist(), given)
        self.buffers.copy_from(rows, self._shared, places)
        return results

    def _shared_rows(self, envs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of these environments in the shared memory."""
        return self.rows_of(self._place[envs])

    def _gather(self, batch: int) -> None:
        """Wait until at least `batch` environments are ready."""
        wait = 0.0  # first take all that has arrived: it may be earlier than what is in the heap
        while True:
            for handle, _ in self._poll.poll(wait * 1000):
                self._take(self._index[handle])
            now = time.monotonic()
            # Also when enough others are ready: a hung worker must not stay unnoticed.
            for index, worker in enumerate(self._workers):
                if self._pending[index] and now - self._since[index] > self._step_timeout:
                    worker.hung(self._step_timeout)
            if len(self._ready) >= batch:
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
            heapq.heappush(self._ready, (finished, worker.setup.number(env)))
        self._pending[index] -= len(done)
        self._since[index] = time.monotonic()

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except EnvWorkerFailure as failure:
            self.close()
            raise self._error(failure) from None
