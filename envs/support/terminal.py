"""A console for text that others wrote: names and reasons are shown as they are, never as markup or commands."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# Control characters of C0 and C1 but tab and newline, and those that turn the direction of writing: a terminal obeys
# them (colours, title, cursor, clipboard), or shows something else than is written.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Terminal(Console):
    """As `rich.console.Console`, without markup in strings (`[red]` is text), and with control characters left out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**({"markup": False} | options))

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As `Console.render`."""
        for segment in super().render(renderable, options):
            if segment.control or not _CONTROL.search(segment.text):
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


def printable(text: str) -> str:
    """`text` without control characters."""
    return _CONTROL.sub("", text)
