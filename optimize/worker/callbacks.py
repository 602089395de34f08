"""Callbacks of a study that runs in this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

Tell = Callable[..., None]  # name of a method of `sweepd.Callback`, and its arguments but the study


def silent(event: str, *arguments: Any) -> None:
    """Do nothing: a study without callbacks."""


def teller(callbacks: Sequence[object], study: object, say: Callable[[str], None]) -> Tell:
    """Return what calls a method of all callbacks.

    Args:
        callbacks: in the order in which they are called.
        study: what they are told about.
        say: prints what one has raised.
    """

    def tell(event: str, *arguments: Any) -> None:
        for callback in callbacks:
            try:
                getattr(callback, event)(study, *arguments)
            except Exception as error:  # the user's code may raise anything; training goes on
                last = traceback.extract_tb(error.__traceback__)[-1]
                say(
                    f"warning: {type(callback).__name__}.{event} raised {type(error).__name__}: "
                    f"{error} ({last.filename}:{last.lineno}); the study goes on"
                )

    return tell
