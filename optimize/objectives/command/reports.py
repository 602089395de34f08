"""Reports of a program: one JSON object per line, `{"step": 1000, "value": 3.2}`.

Further numbers are curves. All other lines of its output are its log. An attempt is one run of the
program for one seed: after a kill, a further attempt goes on from the program's own checkpoint, or
starts again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_VALUE = b'"value"'
_LONGEST = 2**20  # bytes of a line that is kept while its end is missing
_CHUNK = 2**22  # bytes that are read at once
_DECODER = json.JSONDecoder()


class BadReport(Exception):
    """A report that cannot be used; the message says why."""


@dataclass(frozen=True)
class Report:
    """What a program reports at one step.

    Attributes:
        step: its own count, from 0.
        value: the larger, the better; finite.
        numbers: further numbers by name, those that are finite.
    """

    step: int
    value: float
    numbers: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as it was written."""
        return {"step": self.step, "value": self.value, **self.numbers}


def parse_report(line: bytes) -> Report | None:
    """Return the report in a line of output; None if it is not one.

    Raises:
        BadReport: it has "value", and cannot be used.
    """
    if _VALUE not in line:
        return None
    text = line.decode(errors="replace")
    try:
        # Progress bars write to the same file, so that text may stand before and after the object.
        found, _ = _DECODER.raw_decode(text, text.index("{"))
    except ValueError:
        return None
    if not isinstance(found, dict) or "value" not in found:
        return None
    value, step = found.pop("value"), found.pop("step", None)
    if not _is_number(step) or step < 0 or step != int(step):
        raise BadReport(f"it reported step {step!r}, which is no whole number from 0: {text:.200}")
    if not _is_number(value):
        raise BadReport(f"it reported value {value!r} at step {step}, which is no finite number")
    numbers = {name: float(number) for name, number in found.items() if _is_number(number)}
    return Report(int(step), float(value), numbers)


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


class Tail:
    """Reads the lines that are appended to a file. path: it need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._rest = b""

    def lines(self, *, ended: bool = False) -> list[bytes]:
        """Return the new lines. ended: nothing will be added, so the last line is complete."""
        lines: list[bytes] = []
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                while content := file.read(_CHUNK):
                    self._read += len(content)
                    *complete, self._rest = (self._rest + content).split(b"\n")
                    lines += complete
                    self._rest = self._rest[-_LONGEST:]
        except FileNotFoundError:
            pass
        if ended and self._rest:
            lines.append(self._rest)
            self._rest = b""
        return lines


class Attempt:
    """The reports of one attempt, read from its files while it runs.

    Args:
        paths: files with its reports: its output, and what it appended to `SWEEPD_REPORTS`.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._tails = [Tail(path) for path in paths]
        self.reports: list[Report] = []

    def read(self, *, ended: bool = False) -> None:
        """Read the new reports. ended: the program has ended.

        Raises:
            BadReport: one cannot be used.
        """
        for tail in self._tails:
            for line in tail.lines(ended=ended):
                report = parse_report(line)
                if report is None:
                    continue
                if self.reports and report.step < self.reports[-1].step:
                    raise BadReport(
                        f"it reported step {report.step} after step {self.reports[-1].step}"
                    )
                self.reports.append(report)


def joined(earlier: list[Report], reports: list[Report]) -> list[Report]:
    """Return the reports of earlier attempts, continued by those of a further one.

    What the further attempt did again replaces what was done before.
    """
    if not reports:
        return earlier
    return [report for report in earlier if report.step < reports[0].step] + reports


def tail_text(path: Path, lines: int = 3, most: int = 300) -> str:
    """Return the last lines of a file that are not empty, as one line of at most `most` characters."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            text = file.read().decode(errors="replace").replace("\r", "\n")
    except FileNotFoundError:
        return ""
    last = [line.strip() for line in text.splitlines() if line.strip()][-lines:]
    return " / ".join(last)[-most:]
