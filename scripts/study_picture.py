"""Record a study in a terminal as an animated picture: `python -m scripts.study_picture`.

Runs `sweepd train --env cartpole` in an empty folder and writes docs/images/study.svg: the screens
of the terminal below each other, which a CSS animation shows one after another. Pauses are cut, the
rest is played faster, and the path of the folder is left out; nothing else is changed. Readers
whose system asks for less motion see the last screen.
"""

from __future__ import annotations

import codecs
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fcntl import ioctl
from html import escape
from itertools import pairwise
from pathlib import Path
from termios import TIOCSWINSZ

from rich.color import Color
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI as THEME
from rich.text import Text

IMAGE = Path(__file__).resolve().parent.parent / "docs/images/study.svg"
COMMAND = ("train", "--env", "cartpole", "--n-trials", "8", "--budget", "20_000")
TITLE = "A terminal: sweepd trains eight trials of CartPole at once, and promotes the best one"
COLUMNS, ROWS = 92, 24
# Seconds in the picture: all screens but the last one, the last one, a screen at least; and of the
# recording, the longest pause.
DURATION, LAST, SCREEN, PAUSE = 15.0, 6.0, 0.2, 3.0
CELL, LINE, MARGIN = 7.8, 17, 14  # pixels
WIDTH, HEIGHT = round(COLUMNS * CELL + 2 * MARGIN), ROWS * LINE + 2 * MARGIN
# What rich writes to a terminal besides text and colours.
_CONTROL = re.compile(r"\x1b\[\?\d+[hl]|\x1b\[(?P<count>\d*)(?P<kind>[AK])|\r|(?P<newline>\n)")
_BEGUN = re.compile(r"\x1b[^A-Za-z]*\Z")  # a control sequence of which the end is still to come

Rows = list[Text]


class Screen:
    """A terminal as far as rich uses one: it erases whole lines and moves up."""

    def __init__(self) -> None:
        self._lines, self._row = [""], 0

    def feed(self, text: str) -> None:
        """Print a text. Its control sequences must be complete."""
        place = 0
        for match in _CONTROL.finditer(text):
            self._lines[self._row] += text[place : match.start()]
            place = match.end()
            if match["newline"]:
                self._row += 1
                if self._row == len(self._lines):
                    self._lines.append("")
            elif match["kind"] == "A":
                self._row -= int(match["count"] or 1)
            elif match["kind"] == "K":
                self._lines[self._row] = ""
        self._lines[self._row] += text[place:]

    def rows(self) -> Rows:
        """Return the last rows, as many as the window has; a longer line fills several."""
        texts = [Text.from_ansi(line) for line in self._lines]
        rows = [row for text in texts for row in text.divide(range(COLUMNS, len(text), COLUMNS))]
        while rows and not rows[-1].plain.strip():
            rows.pop()
        return rows[-ROWS:]


def record(words: Sequence[str], folder: Path) -> Iterator[tuple[float, str]]:
    """Run a command in a terminal of its own; yield seconds since its start, and what it prints.

    Raises:
        CalledProcessError: it failed.
    """
    here, there = pty.openpty()
    ioctl(there, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(IMAGE.parents[2])}
    environment.pop("NO_COLOR", None)
    start = time.monotonic()
    process = subprocess.Popen(
        words, cwd=folder, env=environment, stdin=there, stdout=there, stderr=there
    )
    os.close(there)
    decode, rest = codecs.getincrementaldecoder("utf-8")().decode, ""
    with suppress(OSError):  # the terminal is closed when the command ends
        while data := os.read(here, 65_536):
            text = rest + decode(data)
            begun = _BEGUN.search(text)
            rest = begun[0] if begun else ""
            yield time.monotonic() - start, text.removesuffix(rest).replace(f"{folder}/", "")
    os.close(here)
    if code := process.wait():
        raise subprocess.CalledProcessError(code, list(words))


def screens(printed: Iterator[tuple[float, str]], head: str) -> Iterator[tuple[float, Rows]]:
    """Yield every screen that differs from the one before, and the second at which it began.

    Args:
        printed: what `record` yields; it is below the head.
        head: the first line, a prompt and a command.
    """
    screen = Screen()
    screen.feed(f"{head}\n")
    before = screen.rows()
    yield 0.0, before
    for seconds, text in printed:
        screen.feed(text)
        if (rows := screen.rows()) != before:
            yield seconds, rows
            before = rows


def cut(shown: Sequence[tuple[float, Rows]]) -> list[tuple[float, Rows]]:
    """Return the screens of the picture and the seconds at which they begin, the last one among them."""
    pauses = [min(end - begin, PAUSE) for (begin, _), (end, _) in pairwise(shown)]
    speed = max(1.0, sum(pauses) / DURATION)
    kept = [(0.0, shown[0][1])]
    seconds = 0.0
    for pause, (_, rows) in zip(pauses, shown[1:], strict=True):
        seconds += pause / speed
        if seconds - kept[-1][0] >= SCREEN or rows is shown[-1][1]:
            kept.append((seconds, rows))
    return kept


def draw(shown: Sequence[tuple[float, Rows]]) -> str:
    """Return the picture of screens and the seconds at which they begin, as SVG."""
    whole = shown[-1][0] + LAST
    steps = "".join(
        f"{100 * seconds / whole:.2f}% {{ transform: translateY({-i * HEIGHT}px); }}\n"
        for i, (seconds, _) in enumerate(shown)
    )
    last = f"translateY({-(len(shown) - 1) * HEIGHT}px)"
    console = Console(width=COLUMNS)
    pages = "".join(
        f'<g transform="translate({MARGIN} {i * HEIGHT + MARGIN})">\n'
        f"{''.join(_row(row, place, console) for place, row in enumerate(rows))}</g>\n"
        for i, (_, rows) in enumerate(shown)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">
<title>{escape(TITLE)}</title>
<style>
text {{ font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre;
  fill: {_hex(THEME.foreground_color)}; }}
.screens {{ animation: screens {whole:.2f}s step-end infinite; }}
@keyframes screens {{
{steps}100% {{ transform: {last}; }}
}}
@media (prefers-reduced-motion: reduce) {{
  .screens {{ animation: none; transform: {last}; }}
}}
</style>
<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{_hex(THEME.background_color)}"/>
<g class="screens">
{pages}</g>
</svg>
"""


def _row(row: Text, place: int, console: Console) -> str:
    """Return a row of a screen; its parts have places of their own, whatever the font."""
    parts, column = [], 0
    for text, style, _ in row.render(console):
        if text.strip():
            color = style.color if style else None
            looks = f"fill:{_hex(color)};" if color and not color.is_default else ""
            looks += "font-weight:700" if style and style.bold else ""
            parts.append(
                f'<text x="{column * CELL:.1f}" y="{(place + 0.8) * LINE:.1f}"'
                f' textLength="{len(text) * CELL:.1f}" style="{looks}">{escape(text)}</text>\n'
            )
        column += len(text)
    return "".join(parts)


def _hex(color: Color | tuple[int, int, int]) -> str:
    triplet = color.get_truecolor(THEME) if isinstance(color, Color) else color
    return "#{:02x}{:02x}{:02x}".format(*triplet)


def main() -> None:
    """Run the study, and write its picture."""
    with tempfile.TemporaryDirectory() as folder:
        printed = record([sys.executable, "-m", "sweepd", *COMMAND], Path(folder))
        shown = list(screens(printed, f"$ sweepd {' '.join(COMMAND)}"))
    IMAGE.write_text(draw(cut(shown)))
    print(f"{IMAGE}: {IMAGE.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
