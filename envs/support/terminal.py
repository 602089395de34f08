"""A console that prints untrusted text, such as names and reasons, without interpreting it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# Control characters of C0 and C1 except tab and newline, and bidirectional overrides. A terminal
# obeys them (colours, title, cursor, clipboard) or displays other text than is there.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


# In a notebook, rich would make an output of every line.
_PLAIN = {"markup": False, "emoji": False, "highlight": False, "force_jupyter": False}


class Terminal(Console):
    """A `rich.console.Console` for plain text: no control characters, markup, emoji, highlighting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**(_PLAIN | options))

    def print_line(self, text: str, style: str = "") -> None:
        """Print one line without wrapping it."""
        self.print(text, style=style, soft_wrap=True)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as `Console.render` does, without control characters."""
        for segment in super().render(renderable, options):
            if segment.control or not _CONTROL.search(segment.text):
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


def screen(width: int = 160) -> Terminal:
    """Return a console of standard output for tables.

    Args:
        width: columns of output that is not a terminal, which has no width of its own.
    """
    return Terminal() if sys.stdout.isatty() else Terminal(width=width)


def printable(text: str) -> str:
    """Return `text` without control characters."""
    return _CONTROL.sub("", text)
