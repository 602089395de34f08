"""Nights of one slot, simulated: the real machine, shell and rows, with virtual steps.

Two machines share a registry in memory, and a timer starts the loop on both every day. Each
transaction and each part of a step is an effect. On one machine a lock lets one process work; the
token in the night's row keeps the machines apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import sqlalchemy as sa

from sweepd.deploy.night.config import NightConfig
from sweepd.deploy.night.machine import STEPS, Name, steps_of, which_nights
from sweepd.deploy.night.processes import Stopped
from sweepd.deploy.night.records import NIGHT_STEPS, NIGHTS, Night, NightStep, NightStore, Outcome
from sweepd.deploy.night.shell import Context, NightShell, Result, Step
from sweepd.envs.support.errors import RunError
from tests.simulation import invariants
from tests.simulation.memory import MemoryRegistry
from tests.simulation.scheduler import Fault, Process, Scheduler

SLOT, TOTAL = "s", 4
DAY, DAYS = 86_400.0, 2
TRIAL_SECONDS = 900.0
RESTART = 60.0
MOST_STARTS = 40  # of one machine in one night
CONFIG = NightConfig.of(
    {
        "slot": SLOT,
        "bars": {"dir": "d", "tickers": ["A"], "timeframe": "1h"},
        "study": {"n_trials": TOTAL, "hours": 2.0},
        "arena": {},
    }
)


Rows = tuple[dict[str, Night], dict[tuple[str, str], NightStep]]


class World:
    """Two machines that do the nights of one slot.

    Args:
        scheduler: decides what happens.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.database = MemoryRegistry(
            scheduler, rows=self.rows, check=self.check_write, reads=True
        )
        self.store = NightStore(self.database)
        self.trials: Counter[str] = Counter()  # finished ones by study
        self.entered: set[str] = set()  # nights whose candidate is in the arena
        self.effects: set[tuple[str, str]] = set()  # steps of nights that were performed
        self.tokens: dict[str, str] = {}  # by process: of the night that it works on
        self._holders: dict[str, Process] = {}  # of the lock, by machine
        self._steps: Mapping[Name, Step] = {name: self._step(name) for name in STEPS}

    def run(self) -> None:
        """Run all nights. Raises Violation."""
        for day in range(DAYS):
            for host in ("a", "b"):
                self._start(host, day * DAY, day=day)
        self.scheduler.run()
        with self.database.engine.connect() as connection:
            nights, steps = self.rows(connection)
        invariants.require(nights, "no night has begun")
        for night in nights.values():
            done = [name for one, name in steps if one == night.night]
            invariants.night_is_whole(night, done, steps_of(CONFIG))
        if not self.scheduler.tape.taken:
            ends = [night.outcome for night in nights.values()]
            invariants.require(ends == ["done"] * DAYS, f"undisturbed nights ended as {ends}")

    def _start(self, host: str, after: float, *, day: int, starts: int = 0) -> None:
        process = Process(f"{host}.{day}.{starts}", host)
        finished = []

        def work() -> None:
            if self._loop(process):
                finished.append(True)
            process.dead = True

        def ended() -> None:
            if not finished and starts < MOST_STARTS:
                self._start(host, RESTART, day=day, starts=starts + 1)

        process.ended = ended
        self.scheduler.spawn(process, work, after)

    def _loop(self, process: Process) -> bool:
        """Do what `sweepd loop` does; return whether no later start is needed."""
        holder = self._holders.get(process.host)
        if holder is not None and not holder.dead:
            return False  # exit code 75
        self._holders[process.host] = process
        commands = _Commands(process)
        supervisor = SimpleNamespace(alive=lambda _: None)
        registry = SimpleNamespace(database=self.database)
        given = cast("tuple[Any, Any, Any]", (registry, commands, supervisor))
        shell = NightShell(
            given[0],
            self._steps,
            given[1],
            given[2],
            self.scheduler.say,
            lambda: self.scheduler.clock,
        )
        shell.store = _NotedStore(self)
        try:
            for name in which_nights(self.store.nights(SLOT), None, self.scheduler.clock):
                shell.run(CONFIG, name)
        except (RunError, Stopped) as error:
            self.scheduler.say(f"ends: {error}")
            return False
        return True

    # -- rows

    @staticmethod
    def rows(connection: sa.Connection) -> Rows:
        """Return all nights by name, and all steps by night and name."""
        nights = NIGHTS.read(connection, NIGHTS.select().order_by(NIGHTS.c.night))
        steps = NIGHT_STEPS.read(connection, NIGHT_STEPS.select())
        return {one.night: one for one in nights}, {(one.night, one.step): one for one in steps}

    def check_write(self, before: Rows, after: Rows) -> None:
        """Check what the running process is about to commit."""
        name = self.scheduler.process.name
        token = self.tokens.get(name)
        for key, row in before[1].items():
            invariants.require(after[1].get(key) == row, f"{name} has changed the row of {key}")
        for key in after[1].keys() - before[1].keys():
            row = after[1][key]
            owner = before[0][row.night].token
            invariants.require(token == owner, f"{name} wrote {key} after it was replaced")
            performed = row.outcome != "done" or key in self.effects
            invariants.require(performed, f"the row of {key} was written before its effect")
            invariants.in_order(row.step, [s for n, s in before[1] if n == row.night], STEPS)
            if row.step == "study" and "study" in row.facts:  # else its time was over before
                found = self.trials[row.facts["study"]]
                recorded = row.facts["finished"]
                text = f"{recorded} trials are recorded of a study that has {found}"
                invariants.require(recorded == found, text)
        for night, old in before[0].items():
            new = after[0][night]
            kept = (old.started, old.config) == (new.started, new.config)
            invariants.require(kept, f"{name} began night {night} a second time")
            if old.ended is not None:
                same = (old.outcome, old.ended) == (new.outcome, new.ended)
                invariants.require(same, f"{name} ended night {night} a second time")

    # -- steps

    def _step(self, name: Name) -> Step:
        def perform(context: Context) -> Result:
            night = context.night.night
            parts = {"study": self._train, "admit": self._admit}
            result = parts.get(name, self._other)(context, name)
            if result.outcome != "late" or name == "study":
                self.effects.add((night, name))
            return result

        return perform

    def _effect(self, context: Context, step: str) -> None:
        """A part of a step; RunError if it fails."""
        fault = self.scheduler.effect(step)
        night = context.night.night
        with self.database.engine.connect() as connection:
            nights, steps = self.rows(connection)
        if nights[night].token == context.night.token:  # otherwise it finds out when it writes
            done = (night, step) in steps
            invariants.require(not done, f"{step} of {night} was done again after its row")
            later = step != "report" and any(one > night for one in nights)
            invariants.require(not later, f"{step} of {night} was done after the next night began")
        if fault is Fault.REFUSED or self.scheduler.now < self.scheduler.full_until:
            raise RunError(f"{step} failed")

    def _other(self, context: Context, name: str) -> Result:
        self._effect(context, name)
        night = context.night.night
        if name == "begin":
            deadline = context.now() + 7200.0
            return Result("done", {"study": f"{SLOT}-{night}", "deadline": deadline})
        if name == "stage":
            return Result("done", {"enters": True, "passes": True, "why": "", "reason": ""})
        return Result("done", {})

    def _train(self, context: Context, name: str) -> Result:
        study, until = context.rows["begin"].facts["study"], context.until
        assert until is not None
        while self.trials[study] < TOTAL and context.now() < until:
            self.scheduler.wait(TRIAL_SECONDS)
            if context.commands.stopping:
                raise Stopped
            self._effect(context, name)
            if self._owns(context):  # else the study's own fences decide: `tests.simulation.worker`
                self.trials[study] += 1
        outcome: Outcome = "done" if self.trials[study] == TOTAL else "late"
        return Result(outcome, {"study": study, "finished": self.trials[study]})

    def _admit(self, context: Context, name: str) -> Result:
        self._effect(context, name)
        self.entered.add(context.night.night)  # the registry's challengers are a set
        return Result("done", {})

    def _owns(self, context: Context) -> bool:
        with self.database.engine.connect() as connection:
            nights, _ = self.rows(connection)
        return nights[context.night.night].token == context.night.token


class _NotedStore(NightStore):
    """Notes the token under which a process works."""

    def __init__(self, world: World) -> None:
        super().__init__(world.database)
        self._world = world

    def begin(self, slot: str, night: str, config: dict[str, Any], now: str) -> Night:
        found = super().begin(slot, night, config, now)
        self._world.tokens[self._world.scheduler.process.name] = found.token
        return found


class _Commands:
    """In place of `Commands`: a command ends with the process that has started it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def stopping(self) -> bool:
        return self._process.stopping

    def end_left_over(self) -> None:
        pass


def simulate(scheduler: Scheduler) -> None:
    """Simulate nights. Raises Violation."""
    World(scheduler).run()
