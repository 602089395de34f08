"""Studies of a training function in Python (`--env python:MODULE:NAME`)."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.naming import import_paths
from sweepd.envs.support.plugins import Plugin, resolve
from sweepd.optimize.objectives.command.objective import CommandObjective
from sweepd.optimize.objectives.command.reports import tail_text
from sweepd.optimize.objectives.command.words import split_words
from sweepd.optimize.objectives.objective import Say
from sweepd.optimize.study.record.specs import CommandSpec
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.objects import SPACE

FIND_SECONDS = 30.0  # for a function's suggestions, up to its first report


def arguments_needed(made: Callable[..., Any]) -> int:
    """Return the number of positional arguments that a function cannot do without."""
    try:
        parameters = inspect.signature(made).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in positional and one.default is one.empty for one in parameters)


class FunctionObjective(CommandObjective):
    """Studies of a training function: a program that sweepd starts itself."""

    @property
    def name(self) -> str:
        """The function as MODULE:NAME, or the name under which a package registers it."""
        return self.environment.partition(":")[2]

    def plugins(self, spec: CommandSpec) -> Iterable[tuple[str, str, Plugin]]:  # noqa: ARG002
        return [("function", self.name, self._function())]

    def _function(self) -> Plugin:
        found = resolve("function", self.name)
        if found.name != self.name:
            raise InputError(f"--env {self.environment}: a training function takes no arguments")
        if not callable(found.made) or arguments_needed(found.made) != 1:
            raise InputError(
                f"--env {self.environment}: {found.made!r} is no function of one argument, the trial"
            )
        return found

    def check_command(self) -> None:
        self._function()

    def default_name(self, settings: StudySettings) -> str:  # noqa: ARG002
        """Return the name of the function."""
        return self.name.partition(" ")[0].rpartition(":")[2]

    def find_space(self, say: Say) -> str:
        """Return what the function suggests up to its first report, found by calling it.

        It is called in a process of its own. If it does not report for `FIND_SECONDS`, what it has
        suggested by then is taken.
        """
        with tempfile.TemporaryDirectory() as folder:
            path, log = Path(folder, "space.json"), Path(folder, "log")
            say(f"calling {self.name} for its search space, up to its first report")
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, *split_words(self.command)[1:-1], SPACE, str(path), self.name],
                    env={**os.environ, "PYTHONPATH": import_paths()},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
                try:
                    status = process.wait(FIND_SECONDS)
                except subprocess.TimeoutExpired:
                    say(
                        f"note: {self.name} has not reported after {FIND_SECONDS:.0f} s; its search "
                        "space is what it has suggested so far"
                    )
                    status = 0
                finally:
                    process.kill()
                    process.wait()
            if status:
                raise InputError(
                    f"--env {self.environment}: calling it for its search space fails, so name the "
                    f"parameters with --search-space: {tail_text(log)}"
                )
            entries = json.loads(path.read_text()) if path.exists() else {}
        if not entries:
            raise InputError(
                f"--env {self.environment} suggests no parameter before its first report: call, for "
                'example, trial.suggest_float("lr", 1e-5, 1e-2, log=True), or name the parameters with '
                "--search-space"
            )
        return json.dumps(entries)
