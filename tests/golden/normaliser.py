"""What differs between two runs of the same commands, replaced by names.

Only what depends on the place, the moment or the speed of a run: folders, dates of today, process
ids, random ids, measured times and rates. Numbers that are results stay as they are.
"""

from __future__ import annotations

import datetime as dt
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
Replacement = str | Callable[[re.Match[str]], str]


@dataclass(frozen=True)
class Rule:
    """A pattern of text, and what replaces it."""

    name: str
    pattern: str
    replacement: Replacement


def _date(found: re.Match[str]) -> str:
    """Replace a date of today. The markets of the cases are of 2020."""
    away = dt.date.fromisoformat(found["date"]) - dt.date.today()
    return "<moment>" if abs(away.days) <= 1 else found[0]


def _epoch(found: re.Match[str]) -> str:
    """Replace a number of seconds or milliseconds since the epoch that is of today."""
    seconds = float(found[0]) / (1000.0 if len(found[0].partition(".")[0]) == 13 else 1.0)
    # Quoted, so that JSON stays JSON.
    return '"<moment>"' if abs(seconds - time.time()) < 86_400.0 else found[0]


def _rounded(found: re.Match[str]) -> str:
    return f'{found[1]}": {float(found[2]):.6g}'


RULES = (
    Rule(
        "moments as text",
        r"(?P<date>20\d\d-\d\d-\d\d)([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?(Z|\+00:00)?",
        _date,
    ),
    Rule("moments as numbers", r"(?<![\w.])1\d{9}(\d{3})?(\.\d+)?(?![\w.])", _epoch),
    Rule(
        "time of a worker",
        r"(?<= steps in )[\d:]+ \([\d,]+ steps/s, [\d,.]+ trials/hour",
        "<duration> (<rate> steps/s, <rate> trials/hour",
    ),
    Rule("shares of a worker's time", r"(?<=time spent: ).*", "<shares>"),
    Rule("time of training", r"(?<= after )\d+:\d\d(:\d\d)?(?= \()", "<duration>"),
    Rule(
        "trials per hour",
        r"From [\d.,]+ to [\d.,]+ trials/hour, most recently [\d.,]+, in parts of [\d:]+",
        "From <rate> to <rate> trials/hour, most recently <rate>, in parts of <duration>",
    ),
    Rule("curve of trials per hour", r"(?<=trials/hour)( +)[▁-█].*", r"\1<curve>"),
    Rule("training times of trials", r"(?<=<td>)\d+:\d\d(:\d\d)?(?=</td>)", "<duration>"),
    Rule("training time of a trial", r"(?<=<dt>training time</dt><dd>)[\d:]+", "<duration>"),
    Rule("speed of a trial", r"(?<=<dt>steps/s</dt><dd>)[\d,]+", "<rate>"),
    Rule("who acts", r"(?<=history, with )\S+@[^\s<]+", "<user>@<host>"),
    Rule("progress of a worker, printed by the clock", r"(?m)^<moment> trials \d+/\d+ \(.*\n", ""),
    Rule(
        "process of a trader",
        r'"pid": \d+,(\s+)"host": ".*"',
        r'"pid": "<process>",\1"host": "<host>"',
    ),
    Rule(
        "times of two studies",
        r"(wall-clock time|training time of all trials)(</th>)<td>[^<]+</td><td>[^<]+</td>",
        r"\1\2<td><duration></td><td><duration></td>",
    ),
    Rule("unit of an axis", r"\w+(?= since the first trial began)", "<unit>"),
    # With what follows it, since its length decides where lines are wrapped.
    Rule(
        "age of a trader's state",
        r"\d+\s+(s|min|h)\s+ago;\s+no\s+process\s+trades\s+this\s+slot\.",
        "<age> ago; no process trades this slot.",
    ),
    Rule("width of the last column, which an age may set", r"([━─]|(?<=┃) )\1+(?=[┓┃┩┘])", r"\1"),
    Rule("kind of processor", r"x86_64, MKL [\w,]+, AVX\w+", "<kind of processor>"),
    Rule("process", r"(?<=Process )\d+ on \S+", "<process> on <host>"),
    Rule(
        "measured numbers in JSON",
        r'(?<=")((?:sweepd:)?(?:steps_per_second|seconds)|trials_per_hour|per_hour|beat_age)": [\d.e+-]+',
        r'\1": "<measured>"',
    ),
    # Their last digits depend on the vector instructions of the processor.
    Rule("ratings", r'(?<=")(rating|high|low)": (-?\d+\.\d{8,})', _rounded),
    # A checkpoint has the training time, and so its hash depends on how often the clock was read.
    Rule("hashes of times", r"(checkpoint-\d+-r\d+-)[0-9a-f]{8}", r"\1<hash>"),
    Rule(
        "hashes of checkpoints",
        r'(checkpoint-[^"]*",\s+"rollouts": \d+,\s+"rung": \d+,\s+"sha256": ")[0-9a-f]{64}',
        r"\1<hash>",
    ),
    Rule(
        "bundles that were not kept",
        r'"bundle": "[0-9a-f]{64}"',
        '"bundle": "<hash of a candidate>"',
    ),
    Rule("random ids", r"\b[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}\b", "<id>"),
)


class Normaliser:
    """Applies the rules, and the names of one case.

    Args:
        folder: the folder of the case.
    """

    def __init__(self, folder: Path) -> None:
        self._names = {
            str(folder): "<folder>",
            str(REPOSITORY): "<repository>",
            # The same command, whether the shell finds it or not.
            str(Path(sys.executable).with_name("sweepd")): "sweepd",
            f"{sys.executable} -m sweepd": "sweepd",
            sys.prefix: "<python>",
            f"{Path.home()}/.config": "<home>/.config",
        }

    def name(self, text: str, name: str) -> None:
        """Replace a random or unstable text, such as the id of a study, by a name from now on."""
        self._names[text] = name

    def __call__(self, text: str) -> str:
        """Return the text without what differs between two runs."""
        for found in sorted(self._names, key=len, reverse=True):
            text = text.replace(found, self._names[found])
        for rule in RULES:
            text = re.sub(rule.pattern, rule.replacement, text)
        return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
