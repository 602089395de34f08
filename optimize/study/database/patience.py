"""Retries of database operations while the database is unavailable.

Causes are a stopped server, a lost network, a locked file, an exhausted pool or a full disk. Every
operation of the study's storage is one transaction, so a failed one can be retried as a whole.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from sweepd.envs.support.errors import TryAgainLater
from sweepd.envs.support.retries import error_of
from sweepd.optimize.study.record.database import is_away, reason_of

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 15.0
ASKED_TO_STOP = 5.0  # seconds for which operations are retried once the worker was asked to stop

P = ParamSpec("P")
T = TypeVar("T")


class Patience:
    """Retries with increasing pauses for `limit` seconds (0: no retries), and counts the retries.

    Attributes:
        limit: seconds after which an unavailable database is an error.
        retries: number of retries so far.
        say: prints a line when waiting begins and when it ends.
        stopping: returns whether the worker was asked to stop; called several times per second.
    """

    def __init__(self, limit: float = 0.0) -> None:
        self.limit = limit
        self.retries = 0
        self.say: Callable[[str], None] = lambda _: None
        self.stopping: Callable[[], bool] = lambda: False
        self._inside = threading.local()

    def __call__(self, operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of the operation.

        Raises:
            TryAgainLater: the database is still unavailable after `limit` seconds.
        """
        # Inside a larger operation, which fails as a whole and is retried as a whole.
        if not self.limit or getattr(self._inside, "active", False):
            return operation(*args, **kwargs)
        self._inside.active = True
        try:
            return self._retry(functools.partial(operation, *args, **kwargs))
        finally:
            self._inside.active = False

    def _retry(self, operation: Callable[[], T]) -> T:
        retrying = Retrying(
            retry=retry_if_exception(is_away),
            # Random, so that many workers do not return at the same moment.
            wait=wait_random_exponential(FIRST_PAUSE, LONGEST_PAUSE),
            sleep=self._wait,
            stop=self._stop,
            before_sleep=self._count,
            retry_error_callback=_give_up,
        )
        began = time.monotonic()
        result = retrying(operation)
        if retrying.statistics["attempt_number"] > 1:
            self.say(f"the database is available again after {time.monotonic() - began:.0f} s")
        return result

    def _stop(self, state: RetryCallState) -> bool:
        away = state.seconds_since_start or 0.0
        return away > (min(self.limit, ASKED_TO_STOP) if self.stopping() else self.limit)

    def _count(self, state: RetryCallState) -> None:
        self.retries += 1
        if state.attempt_number == 1:
            self.say(
                f"the database is unavailable ({reason_of(error_of(state))}); retrying for "
                f"{self.limit:.0f} s"
            )

    def _wait(self, seconds: float) -> None:
        began = time.monotonic()
        while True:
            # A request to stop shortens the pause in progress.
            left = began + (min(seconds, 0.5) if self.stopping() else seconds) - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.1))


def _give_up(state: RetryCallState) -> NoReturn:
    error = error_of(state)
    raise TryAgainLater(
        f"the database was unavailable for {state.seconds_since_start or 0.0:.0f} s "
        f"({reason_of(error)}); after a restart, the worker resumes from the last checkpoints"
    ) from error


def patient(*names: str) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that retries these methods by the object's `patience`."""

    def decorate(owner: type[T]) -> type[T]:
        for name in names:
            setattr(owner, name, _patient_method(getattr(owner, name)))
        return owner

    return decorate


def _patient_method(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def tried(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.patience(method, self, *args, **kwargs)

    return tried
