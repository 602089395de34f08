"""Requests to a source of bars that are repeated while it is busy or out of reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential,
)

from sweepd.envs.support.errors import RunError
from sweepd.envs.support.retries import error_of

ATTEMPTS = 7
LONGEST_WAIT = 60.0  # seconds between attempts
BACK_OFF = wait_exponential(max=LONGEST_WAIT)
T = TypeVar("T")


class Busy(Exception):
    """The source asks for a retry. wait: seconds; None for exponential back-off."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


def retrying(
    call: Callable[[], T], what: str, sleep: Callable[[float], None], notice: Callable[[str], None]
) -> T:
    """Call until it does not raise Busy.

    Waits 1, 2, 4, … s between attempts, or as long as the source asks for, at most a minute.

    Raises:
        RunError: `ATTEMPTS` attempts failed.
    """

    def pause(state: RetryCallState) -> float:
        asked = getattr(error_of(state), "wait", None)
        return BACK_OFF(state) if asked is None else min(LONGEST_WAIT, asked)

    def announce(state: RetryCallState) -> None:
        seconds = state.next_action.sleep if state.next_action else 0.0
        notice(f"{what}: {error_of(state)}; trying again in {seconds:g} s")

    retrying = Retrying(
        retry=retry_if_exception_type(Busy),
        wait=pause,
        sleep=sleep,
        stop=stop_after_attempt(ATTEMPTS),
        before_sleep=announce,
        reraise=True,
    )
    try:
        return retrying(call)
    except Busy as busy:
        raise RunError(
            f"{what}: {busy}, {ATTEMPTS} times; bars fetched so far are stored, and the same "
            "command continues from there"
        ) from None
