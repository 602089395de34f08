"""A training function as a program of a study: `python -m sweepd.function MODULE:NAME`.

`sweepd train --env python:MODULE:NAME` and `sweepd.create_study(objective=function)` start it once per
trial and seed, as they start any program (docs/how_to/training_functions.md). This module imports only
the standard library and what the function's module imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweepd import program
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.naming import IMPORTING
from sweepd.envs.support.plugins import resolve
from sweepd.optimize.objectives.command.supervisor import AGAIN
from sweepd.optimize.study.space.objects import (
    SPACE,
    Entry,
    Suggesting,
    check_unconditional,
    first_value,
    random_value,
)

ATTRIBUTES = "attributes.json"  # in `out_dir`: what `set_user_attr` was given
_LOOKS, _LOOK_SECONDS = 8, 5.0  # further calls with other values; seconds after which none begins


class Trial(Suggesting):
    """What a training function gets: a trial in the style of Optuna's.

    `Trial({"lr": 0.1})` calls the function by hand; reports are then printed.

    Args:
        params: values by name; None: those of the study's trial.

    Attributes:
        params: the trial's parameters by name.
        number: number of the trial.
        seed: seed of this run, 0 … 2³¹ − 1; a trial may run several times with other seeds.
    """

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        self.params: dict[str, Any] = program.params() if params is None else dict(params)
        self.number = int(os.environ.get("SWEEPD_TRIAL", "0"))
        self.seed = int(os.environ.get("SWEEPD_SEED", "0"))
        self._attributes: dict[str, Any] = {}
        self._reported: dict[str, Any] = {}
        self._last: tuple[int, float] | None = None
        self._asks = self._asked = False  # whether it asks for an end; whether it is to end

    def suggest(self, name: str, entry: Entry) -> Any:
        """Return the trial's value of a parameter.

        Raises:
            InputError: the search space does not have it, or has a value that is not suggested.
        """
        if name not in self.params:
            raise InputError(
                f"{name!r} is suggested, and the search space has only {', '.join(self.params)}: "
                "suggest all parameters before the first report, or name them in search_space"
            )
        value = self.params[name]
        if "low" in entry:
            fits = not isinstance(value, str) and entry["low"] <= value <= entry["high"]
        else:
            fits = value in entry.get("choices", [entry.get("value")])
        if not fits:
            raise InputError(
                f"the search space has {name} = {value!r}, and the function suggests {entry}: "
                "make them the same"
            )
        return value

    def report(self, value: float, step: int) -> None:
        """Report the value at a step; the larger, the better.

        Args:
            value: finite, or the trial fails.
            step: a whole number from 0 that does not decrease; the study's budget counts these steps.
        """
        self._last, self._reported = (int(step), float(value)), dict(self._attributes)
        numbers = {
            name: float(number)
            for name, number in self._attributes.items()
            if isinstance(number, int | float) and name not in ("step", "value")
        }
        program.report(int(step), float(value), **numbers)

    def should_prune(self) -> bool:
        """Return whether the trial is to end now: it is pruned, or its worker stops.

        Save what is to go on in `checkpoint_dir` before, and raise `optuna.TrialPruned` or return.
        A function that never calls this is ended in the middle.
        """
        self._asks = True
        return self._asked

    def set_user_attr(self, key: str, value: Any) -> None:
        """Keep a value: numbers as metrics of the trial, all in `attributes.json` in `out_dir`.

        Args:
            key: its name.
            value: what JSON can hold.
        """
        self._attributes[key] = value
        (self.out_dir / ATTRIBUTES).write_text(json.dumps(self._attributes, indent=1))

    @property
    def user_attrs(self) -> dict[str, Any]:
        """What `set_user_attr` was given."""
        return dict(self._attributes)

    @property
    def checkpoint_dir(self) -> Path:
        """Folder that is kept until the trial ends, also when it is stopped and goes on."""
        return program.checkpoint_dir()

    @property
    def out_dir(self) -> Path:
        """Folder of the files that are kept."""
        return program.out_dir()

    def _finish(self, value: Any) -> None:
        """Report what the function returned, as its last value."""
        if value is None and self._last is None:
            raise InputError("the function neither returned a value nor reported one")
        if isinstance(value, tuple | list):
            value = self._first_of(value)
        step, last = (1, None) if self._last is None else self._last
        value = last if value is None else float(value)
        if value != last or self._attributes != self._reported:
            self.report(value, step)

    def _first_of(self, values: Sequence[Any]) -> Any:
        """Keep the values after the first of several, in the order of `--also`; return the first."""
        names = json.loads(os.environ.get("SWEEPD_ALSO", "[]"))
        if len(values) != 1 + len(names):
            has = f"{1 + len(names)}: the objective and {', '.join(names)}" if names else "one"
            raise InputError(f"the function returned {len(values)} values, and the study has {has}")
        for name, value in zip(names, values[1:], strict=True):
            self.set_user_attr(name, float(value))
        return values[0]

    def _stop(self, *_: Any) -> None:
        """Ask the function to end; if it never asks, end it."""
        self._asked = True
        if not self._asks:
            raise SystemExit(AGAIN)


class _Found(BaseException):
    """A function has reported: its parameters are known."""


class SpaceTrial(Trial):
    """Records what a function suggests up to its first report. draw: a value of an entry."""

    def __init__(
        self, draw: Callable[[Entry], Any], write: Callable[[dict[str, Entry]], None]
    ) -> None:
        super().__init__({})
        self.entries: dict[str, Entry] = {}
        self._draw, self._write = draw, write

    def suggest(self, name: str, entry: Entry) -> Any:
        """Record an entry."""
        if self.entries.setdefault(name, entry) != entry:
            raise InputError(f"{name!r} is suggested twice, as {self.entries[name]} and as {entry}")
        if name not in self.params:
            self.params[name] = self._draw(entry)
            self._write(self.entries)
        return self.params[name]

    def report(self, value: float, step: int) -> None:  # noqa: ARG002
        """End the function."""
        raise _Found

    def should_prune(self) -> bool:
        """End the function."""
        raise _Found


def load_function(name: str) -> Callable[[Any], Any]:
    """Import a training function, telling its script that it is only imported."""
    os.environ[IMPORTING] = "1"
    try:
        found: Callable[[Any], Any] = resolve("function", name).made
    finally:
        del os.environ[IMPORTING]
    return found


def train(name: str) -> int:
    """Run a training function for the trial of this process; return the exit code."""
    function, trial = load_function(name), Trial()
    signal.signal(signal.SIGTERM, trial._stop)
    try:
        value = function(trial)
    except Exception as error:
        if type(error).__name__ != "TrialPruned":
            raise
        if not trial._asked:
            at = "" if trial._last is None else f" at step {trial._last[0]}"
            print(f"the function raised TrialPruned{at} without should_prune()", file=sys.stderr)
            return 1
        return AGAIN
    if trial._asked:
        return AGAIN
    trial._finish(value)
    return 0


def find_space(name: str, path: Path) -> None:
    """Write what a training function suggests to a file, as far as it is known.

    Raises:
        InputError: its suggestions depend on each other.
    """
    function = load_function(name)

    def run(draw: Callable[[Entry], Any], write: Callable[[dict[str, Entry]], None]) -> SpaceTrial:
        trial = SpaceTrial(draw, write)
        with contextlib.suppress(_Found):
            function(trial)
        return trial

    def write(entries: dict[str, Entry]) -> None:
        path.with_suffix(".new").write_text(json.dumps(entries))
        path.with_suffix(".new").replace(path)

    begun, numbers = time.monotonic(), random.Random(0)
    first = run(first_value, write)
    for _ in range(_LOOKS):
        if time.monotonic() - begun > _LOOK_SECONDS:
            break
        try:
            other = run(lambda entry: random_value(numbers, entry), lambda _: None)
        except Exception:  # values that the function cannot use will fail their trials
            break
        check_unconditional(f"--env python:{name}", first.entries, other.entries)


def main(arguments: list[str]) -> int:
    """Run a training function, or find its parameters; return the exit code."""
    try:
        if arguments[0] == SPACE:
            with tempfile.TemporaryDirectory() as folder:
                os.environ |= {"SWEEPD_OUT": folder, "SWEEPD_CHECKPOINT_DIR": folder}
                find_space(arguments[2], Path(arguments[1]))
            return 0
        return train(arguments[0])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return InputError.exit_code


if __name__ == "__main__":
    # Under its own name, so that what the function imports of it is the same.
    from sweepd.function import main as main_of_module

    sys.exit(main_of_module(sys.argv[1:]))
