"""Faults that the simulation must find: each is the real code, or the script, with one change.

A mutant replaces a piece of a function's text. The code of the function is exchanged, not the
function, so that every module that has imported it gets the mutant.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from sweepd.deploy.night import machine
from sweepd.deploy.night.records import NightStore
from sweepd.deploy.night.shell import NightShell
from sweepd.deploy.trading.live.machine import Machine
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.recovery import registration, stale_trials
from sweepd.optimize.study.recovery.heartbeat import Heartbeat
from tests.simulation.worker import ScriptedWorker, Training


@dataclass(frozen=True)
class Mutant:
    """A change of one function.

    Attributes:
        name: what is wrong.
        what: the simulation that finds it.
        function: the function.
        old: a piece of its text, which occurs once.
        new: the text in its place.
    """

    name: str
    what: str
    function: Callable[..., Any]
    old: str
    new: str

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Return a context in which the function has the change."""
        function = inspect.unwrap(self.function)
        assert isinstance(function, FunctionType)
        text = textwrap.dedent(inspect.getsource(function))
        assert text.count(self.old) == 1, f"{self.name}: {self.old!r} is in {text}"
        changed: dict[str, Any] = {}
        source = "from __future__ import annotations\n" + text.replace(self.old, self.new)
        exec(compile(source, f"<{self.name}>", "exec"), function.__globals__, changed)
        code, function.__code__ = (
            function.__code__,
            inspect.unwrap(changed[function.__name__]).__code__,
        )
        try:
            yield
        finally:
            function.__code__ = code


MUTANTS = (
    Mutant(
        "the first beat is outside of the claim",
        "worker",
        StudyStorage.claim_new,
        """        first = {"worker": worker, "beat": self.now(session), "tries": 0, "rung": 0}
""",
        """        session.commit()
        first = {"worker": worker, "beat": self.now(session), "tries": 0, "rung": 0}
""",
    ),
    Mutant(
        "no token is checked",
        "worker",
        StudyStorage.lost_of,
        "state == TrialState.RUNNING and token == held[trial_id]",
        "state == TrialState.RUNNING",
    ),
    Mutant(
        "results are written without a look at the owner",
        "worker",
        StudyStorage.write,
        " for one in writes if one.trial_id not in lost}",
        " for one in writes}",
    ),
    Mutant(
        "the total is one too many",
        "worker",
        StudyStorage.claim_new,
        "min(total, number + count)",
        "min(total + 1, number + count)",
    ),
    Mutant(
        "an end does not release the trial",
        "worker",
        StudyStorage.write,
        "where(ended).values(**RELEASED)",
        "where(ended).values(tries=0)",
    ),
    Mutant(
        "the grace period is too short",
        "worker",
        stale_trials.recover_stale,
        "now - attempt.beat > grace",
        "now - attempt.beat > grace / 3",
    ),
    Mutant(
        "heartbeats leave the trials out",
        "worker",
        Heartbeat.beat,
        "if not stalled:",
        "if stalled:",
    ),
    Mutant(
        "several workers close the study",
        "worker",
        registration.claim_closing,
        "        return False\n",
        "        pass\n",
    ),
    Mutant(
        "a trial that is claimed again is dropped for an earlier loss",
        "worker",
        ScriptedWorker._work,
        "self.heartbeat.lost.difference_update(plan.trial_id for plan in plans)",
        "pass",
    ),
    Mutant(
        "a checkpoint is recorded before its file is written",
        "worker",
        ScriptedWorker._checkpoints,
        """            self.world.write_file(path, training)
""",
        """            recorded = {CHECKPOINT_KEY: {"path": path}}
            self.storage.write([TrialWrite(plan.trial_id, recorded)])
            self.world.write_file(path, training)
""",
    ),
    Mutant(
        "a trial's numbers depend on its attempt",
        "worker",
        Training.train,
        "{self.plan.seed}",
        "{self.plan.seed} {self.checkpoint}",
    ),
    Mutant(
        "a night's row is written by a process that was replaced",
        "night",
        NightStore._writing,
        "found is None or found.token != night.token",
        "found is None",
    ),
    Mutant(
        "the row of a step is written before its effect",
        "night",
        NightShell._advance,
        """        result = self._steps[what.step](context)
""",
        """        facts = {"study": "s", "deadline": 0.0, "enters": False, "passes": False, "why": ""}
        result = Result("done", facts | {"reason": "", "finished": 0})
        if what.step in ("bars", "check", "disk"):
            self._write(night, what.step, began, result)
            self._steps[what.step](context)
            return None
        result = self._steps[what.step](context)
""",
    ),
    Mutant(
        "the steps of a night are done in another order after a failure",
        "night",
        machine.next_step,
        "step = next((name for name in wanted if name not in rows), None)",
        "left = [name for name in wanted if name not in rows]\n"
        "    step = left[-1 if night.failures else 0] if left else None",
    ),
    Mutant(
        "an order is sent before it is committed",
        "trader",
        Machine._bar_closed,
        "return [commit, *told, *self._sent(self.entry.orders), *self._effects(), *looks]",
        "return [*self._sent(self.entry.orders), commit, *told, *self._effects(), *looks]",
    ),
    Mutant(
        "a start does not ask which orders arrived",
        "trader",
        Machine._started,
        "asked = [Ask(self.own.open, self._late is not None)] if self.own.open else []",
        "asked = []",
    ),
    Mutant(
        "a start sends orders that arrived again",
        "trader",
        Machine._found,
        " if order.client_id in event.missing",
        "",
    ),
    Mutant(
        "results that are known at once are not stored",
        "trader",
        Machine._filled,
        "return [commit, *map(_trade, event.fills)]",
        "return list(map(_trade, event.fills))",
    ),
    Mutant(
        "a trader writes after it was replaced",
        "trader",
        TraderStore._writing,
        "trader.token != token",
        "False",
    ),
)
