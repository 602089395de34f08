"""What the retries (tenacity) of several places have in common."""

from __future__ import annotations

from tenacity import RetryCallState


def error_of(state: RetryCallState) -> BaseException:
    """Return the error of the attempt that has just failed."""
    error = state.outcome.exception() if state.outcome else None
    assert error is not None  # tenacity asks for it after failures only
    return error
