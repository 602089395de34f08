"""Performs a night: does what `sweepd.deploy.night.machine` says, and writes a row after each step.

A kill at any instant leaves a row or none; the next start does the steps without one. Effects come
before their rows, and can be repeated.
"""

from __future__ import annotations

import dataclasses
import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sweepd.deploy.night.config import NightConfig
from sweepd.deploy.night.machine import MOST_FAILURES, Done, Perform, Settle, is_over, next_step
from sweepd.deploy.night.processes import Commands, Stopped
from sweepd.deploy.night.records import Name, Night, NightOutcome, NightStep, NightStore, Outcome
from sweepd.deploy.registry.database import utc_text
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.errors import InputError, RunError, TryAgainLater
from sweepd.envs.support.supervisor import Supervisor


@dataclass(frozen=True)
class Result:
    """What a step did. facts: as of `NightStep`."""

    outcome: Outcome
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Context:
    """What a step may use.

    Attributes:
        config: the night's settings.
        night: its row.
        rows: its steps that are over, by name.
        registry: where the slot is.
        commands: runs commands of sweepd.
        until: when the step must end, seconds since the epoch; None: no deadline.
        now: the present time, seconds since the epoch.
    """

    config: NightConfig
    night: Night
    rows: Mapping[Name, NightStep]
    registry: Registry
    commands: Commands
    until: float | None
    now: Callable[[], float]

    def run(self, name: str, words: Sequence[str], *, check: bool = False) -> str:
        """Run a command of sweepd, and return what it prints.

        Args:
            name: of the files with its messages.
            words: the command and its arguments.
            check: it is a check, of which exit code 1 with output is an answer, too.

        Raises:
            InputError: it refused its input.
            RunError: it failed. At the step's deadline, it may end as it likes.
        """
        ended = self.commands.run(name, words, self.until)
        if ended.code == InputError.exit_code:
            raise InputError(ended.said)
        if check and ended.code == 1 and ended.output:
            return ended.output
        if ended.code and (self.until is None or self.now() < self.until):
            raise RunError(ended.said or f"sweepd {words[0]} ended with exit code {ended.code}")
        return ended.output

    def run_json(self, name: str, words: Sequence[str], *, check: bool = False) -> dict[str, Any]:
        """The same for a command with --json."""
        found: dict[str, Any] = json.loads(self.run(name, words, check=check))
        return found


class Step(Protocol):
    """Does a step of a night; its effect can be repeated."""

    def __call__(self, context: Context) -> Result:
        """Do it.

        Raises:
            InputError: the input is wrong; the step is refused.
            RunError: it failed, and is tried again.
        """


class NightShell:
    """Performs nights of a slot.

    Args:
        registry: where the slot is.
        steps: what does each step.
        commands: runs commands of sweepd.
        supervisor: is told that this process is alive.
        tell: receives a line about each step.
        now: the present time, seconds since the epoch.
    """

    def __init__(
        self,
        registry: Registry,
        steps: Mapping[Name, Step],
        commands: Commands,
        supervisor: Supervisor,
        tell: Callable[[str], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._registry, self._steps, self._commands = registry, steps, commands
        self._supervisor, self._tell, self._now = supervisor, tell, now
        self.store = NightStore(registry.database)

    def run(self, config: NightConfig, name: str) -> NightOutcome:
        """Begin or continue a night, and return how it ended.

        Args:
            config: settings of a new night; one that has begun keeps its own.
            name: the night's UTC day.

        Raises:
            TryAgainLater: a step failed, and is tried again at the next start.
            Stopped: this process was asked to stop.
            NightReplaced: another process continues the night.
        """
        night = self.store.begin(config.slot, name, config.record, utc_text(self._now()))
        if night.outcome is not None:
            return night.outcome
        self._commands.end_left_over()
        while not self._commands.stopping:
            found = self._advance(night)
            if found is not None:
                return found
        raise Stopped

    def _advance(self, night: Night) -> NightOutcome | None:
        """Do one step; return the outcome of the night if there is none left."""
        nights = self.store.nights(night.slot)
        [present] = [one for one in nights if one.night == night.night]
        night = dataclasses.replace(present, token=night.token)
        rows = {row.step: row for row in self.store.steps(night.slot, night.night)}
        config = NightConfig.of(night.config)
        began = self._now()
        what = next_step(config, night, rows, over=is_over(night, nights, began))
        if isinstance(what, Done):
            self.store.end(night, what.outcome, utc_text(began))
            return what.outcome
        if isinstance(what, Settle):
            self._write(night, what.step, began, Result(what.outcome, {"reason": what.reason}))
            return None
        self._supervisor.alive(lambda: f"the night's {what.step}")
        context = Context(
            config, night, rows, self._registry, self._commands, what.until, self._now
        )
        try:
            result = self._steps[what.step](context)
        except InputError as error:
            result = Result("refused", {"reason": str(error)})
        except Stopped:
            raise
        except Exception as error:
            # Also a fault of ours: the other steps are done, and the report says so.
            expected = isinstance(error, RunError | OSError)
            if not expected:
                self._tell(traceback.format_exc())
            self._failed(night, what, str(error) if expected else repr(error))
            return None
        self._write(night, what.step, began, result)
        return None

    def _failed(self, night: Night, what: Perform, problem: str) -> None:
        """Count a failure; the next start tries again, unless there were too many."""
        if self.store.fail(night, problem) < MOST_FAILURES:
            raise TryAgainLater(
                f"night {night.night} of {night.slot}: {what.step} failed ({problem}); the same "
                "command tries again"
            )

    def _write(self, night: Night, step: Name, began: float, result: Result) -> None:
        now = self._now()
        row = NightStep(
            night.slot,
            night.night,
            step,
            utc_text(now),
            now - began,
            result.outcome,
            dict(result.facts),
        )
        self.store.write(night, row)
        reason = row.facts.get("reason")
        self._tell(f"{step}: {row.outcome}" + (f": {reason}" if reason else ""))
