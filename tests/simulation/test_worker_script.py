"""The scripted worker does to the study what a real worker does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

from optuna.trial import TrialState

from sweepd.optimize.objectives.command.run import CommandRun
from sweepd.optimize.study.database.storage import StudyStorage, TrialWrite
from sweepd.optimize.study.record.keys import CHECKPOINT_KEY
from sweepd.optimize.worker import lifecycle
from sweepd.optimize.worker import worker as real
from tests.optimize.objectives.command.programs import command_study, work_on
from tests.simulation import worker as simulated
from tests.simulation.scheduler import Scheduler, Tape

PROGRAM = """
for step in (1, 2):
    report(step, 0.5)
"""
FUNCTIONS = ("register_worker", "recover_stale", "claim_closing", "leave")


@contextmanager
def noted(modules: Sequence[Any]) -> Iterator[tuple[list[str], dict[int, list[str]]]]:
    """Note what a worker calls: for the study, in order, and for each trial by row id."""
    life: list[str] = []
    trials: dict[int, list[str]] = {}

    def note(word: str, rows: Sequence[int]) -> None:
        life.append(word)
        for row in rows:
            trials.setdefault(row, []).append(word)

    def function(name: str, called: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            note(name, ())
            return called(*arguments, **named)

        return wrapped

    def method(name: str) -> Callable[..., Any]:
        called = getattr(StudyStorage, name)
        signature = inspect.signature(inspect.unwrap(called))

        def wrapped(*arguments: Any, **named: Any) -> Any:
            found = called(*arguments, **named)
            given = signature.bind(*arguments, **named).arguments
            if name == "claim_new" and found:
                note("claim", found)
            elif name == "claim_waiting" and found:
                note("claim", [given["trial_id"]])
            elif name == "set_trial_state_values" and given["state"] == TrialState.WAITING:
                note("put back", [given["trial_id"]])
            elif name == "write":
                for word, rows in _words(given["writes"]):
                    note(word, rows)
            return found

        return wrapped

    with ExitStack() as stack:
        for name in ("claim_new", "claim_waiting", "set_trial_state_values", "write"):
            stack.enter_context(patch.object(StudyStorage, name, method(name)))
        for module in modules:
            for name in FUNCTIONS:
                if (known := getattr(module, name, None)) is not None:
                    stack.enter_context(patch.object(module, name, function(name, known)))
        yield life, trials


def _words(writes: Sequence[TrialWrite]) -> list[tuple[str, list[int]]]:
    """Return what is written to which trials."""
    kinds: dict[str, Callable[[TrialWrite], object]] = {
        "parameters": lambda one: one.params,
        "report": lambda one: one.report,
        "checkpoint": lambda one: CHECKPOINT_KEY in one.attributes,
        "end": lambda one: one.end,
    }
    found = {word: [w.trial_id for w in writes if is_one(w)] for word, is_one in kinds.items()}
    return [(word, rows) for word, rows in found.items() if rows]


def _collapsed(life: Sequence[str]) -> list[str]:
    """Return the words without repetitions of one: another worker's trials are waited for."""
    return [word for word, _ in groupby(life)]


def _real(folder: Path) -> tuple[list[str], list[list[str]]]:
    handle = command_study(folder, PROGRAM, budget=2, rungs=2, trials_per_batch=2)
    with noted([lifecycle, real]) as (life, trials):
        work_on(handle, 2, run=CommandRun)
    return life, list(trials.values())


def test_a_real_worker_calls_what_the_script_calls(tmp_path: Path) -> None:
    life, trials = _real(tmp_path)
    with noted([simulated]) as (own, own_trials):
        simulated.World(Scheduler(Tape()), None, alone=True).run()
    expected = ["claim", "parameters", "report", "checkpoint", "report", "end"]
    assert trials == [expected] * 2
    assert list(own_trials.values()) == [expected] * 3
    # A program's study without a report is not closed. The script has a second batch.
    assert _collapsed(life) == [
        "register_worker",
        "recover_stale",
        *expected,
        "recover_stale",
        "leave",
    ]
    batch = ["recover_stale", *expected]
    assert own == ["register_worker", *batch * 2, "recover_stale", "claim_closing", "leave"]
