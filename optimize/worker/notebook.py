"""The progress of a study in a notebook: one output that is updated in place."""

from __future__ import annotations

import importlib
import io
import sys
import time
from collections import deque
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from sweepd.envs.support.terminal import Terminal

EVERY = 1.0  # seconds between two updates
WIDTH = 96  # columns
LINES = 5  # newest lines below the progress
PAGE = (
    "<pre style=\"line-height:1.2;font-family:Menlo,Consolas,'DejaVu Sans Mono',monospace\">"
    "{code}</pre>"
)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookOutput:
    """An output of the running cell, and the newest lines below it."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._lines: deque[str] = deque(maxlen=LINES)
        self._shown = float("-inf")

    def line(self, text: str) -> None:
        """Add a line, which the next update shows."""
        self._lines.append(text)

    def due(self) -> bool:
        """Return whether the last update is old enough for another one."""
        return time.monotonic() - self._shown >= EVERY

    def show(self, progress: RenderableType) -> None:
        """Show the progress in place of what was shown before."""
        lines = Text("\n".join(self._lines), style="dim", no_wrap=True, overflow="ellipsis")
        page = Terminal(file=io.StringIO(), width=WIDTH, record=True, color_system="truecolor")
        page.print(Group(progress, lines))
        content = {
            "text/html": page.export_html(code_format=PAGE, inline_styles=True, clear=False),
            "text/plain": page.export_text(),
        }
        if self._handle is None:
            ipython = importlib.import_module("IPython.display")  # the kernel's
            self._handle = ipython.display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
        self._shown = time.monotonic()
