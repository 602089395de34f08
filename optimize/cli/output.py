"""Printing plain lines to a console."""

from __future__ import annotations

import functools
from collections.abc import Callable

from rich.console import Console


def line_printer(console: Console) -> Callable[[str], None]:
    """Return a function that prints one line, without wrapping or highlighting it."""
    return functools.partial(console.print, highlight=False, soft_wrap=True)
