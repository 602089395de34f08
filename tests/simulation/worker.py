"""Workers of one study, simulated: the real claims, heartbeats, recovery and results, without training.

The real `StudyHandle`, `StudyStorage`, `Heartbeat`, `recover_stale`, `register_worker` and
`claim_closing` work on SQLite in memory. Each transaction is an effect. SQLite runs one transaction
that writes at a time, so every interleaving of the workers is one of whole transactions.
`ScriptedWorker` calls them as `Worker.run` does (`test_worker_script.py` compares the two); training
is a wait, after which a trial's state is a hash of its former state.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import random
import signal
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import optuna
import sqlalchemy as sa
import tenacity
from optuna.trial import TrialState
from sqlalchemy.orm import scoped_session, sessionmaker

from sweepd.envs.support.errors import RunError
from sweepd.optimize.study.database import patience, storage
from sweepd.optimize.study.database.patience import Patience
from sweepd.optimize.study.database.storage import StudyStorage, TrialLost, TrialWrite
from sweepd.optimize.study.record.database import StudyDatabase, explicit_transactions
from sweepd.optimize.study.record.keys import CHECKPOINT_KEY
from sweepd.optimize.study.record.specs import CommandSpec
from sweepd.optimize.study.recovery import heartbeat, registration
from sweepd.optimize.study.recovery.heartbeat import Heartbeat
from sweepd.optimize.study.recovery.registration import claim_closing, leave, register_worker
from sweepd.optimize.study.recovery.stale_trials import recover_stale
from sweepd.optimize.study.recovery.stall import Progress
from sweepd.optimize.study.study import Plan, RungReport, StudyHandle, create_study
from tests.simulation import invariants
from tests.simulation.invariants import Actor, TrialRecord
from tests.simulation.scheduler import Fault, Process, Scheduler, Tape, VirtualTime

TRIALS, BATCH, RUNGS = 3, 2, 2
BEAT, GRACE, STALL = 20.0, 60.0, 200.0  # seconds
RUNG_SECONDS, STEPS = 45.0, 3  # of training up to a rung, in which a worker looks at its heartbeats
PATIENCE = 100.0
RESTART = 5.0  # seconds until a supervisor starts a process that has ended again
REPLACED = (
    74.6  # when a new worker is started on the machine of the first one, which looks soon after
)
WAITING = 25.0  # between two looks for trials, where others train the last ones
CLOSING = 30.0  # that it takes to close the study
URL = "sqlite:///file:simulation?mode=memory&cache=shared&uri=true"


class Database:
    """The study's database in memory, and a copy of it as it is before a run."""

    def __init__(self) -> None:
        self.raw = self._connect()
        self.raw.isolation_level = None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():  # of the pool, which is replaced below
            warnings.simplefilter("ignore", sa.exc.SADeprecationWarning)
            self.storage = StudyStorage(URL)
        engine = sa.create_engine(URL, creator=self._connect, poolclass=sa.NullPool)
        explicit_transactions(engine, "BEGIN IMMEDIATE")
        self.storage.engine = engine
        self.storage.scoped_session = scoped_session(sessionmaker(bind=engine))
        assert create_study(self.storage, "s", _spec(), Path("runs"), {})
        self._empty = sqlite3.connect(":memory:")
        self.raw.backup(self._empty)

    @staticmethod
    def _connect() -> sqlite3.Connection:
        path = URL.removeprefix("sqlite:///").removesuffix("&uri=true")
        return sqlite3.connect(path, uri=True, check_same_thread=False)

    def reset(self) -> None:
        """Restore the study without trials."""
        self._empty.backup(self.raw)

    def opened(self) -> StudyStorage:
        """Return a storage as a new process has it; opening one takes much longer."""
        own = StudyStorage.__new__(StudyStorage)  # `copy` opens the database again
        own.__dict__.update(self.storage.__dict__)
        own.patience = Patience(PATIENCE)
        own._tokens, own._gone, own._studies = {}, set(), {}
        return own

    def trials(self) -> dict[int, TrialRecord]:
        """Return all trials by row id."""

        def rows(query: str) -> dict[int, tuple[Any, ...]]:
            found: dict[int, tuple[Any, ...]] = {}
            for trial, *rest in self.raw.execute(query):
                found[trial] = (*found.get(trial, ()), tuple(rest))
            return found

        rungs = rows(
            "SELECT trial_id, step, intermediate_value FROM trial_intermediate_values ORDER BY step"
        )
        values = rows("SELECT trial_id, value FROM trial_values ORDER BY objective")
        params = rows("SELECT trial_id, param_name, param_value FROM trial_params ORDER BY 2")
        kept = rows(
            "SELECT trial_id, json_extract(value_json, '$.path') FROM trial_user_attributes "
            f"WHERE key = '{CHECKPOINT_KEY}'"
        )
        query = (
            "SELECT trials.trial_id, number, state, coalesce(token, ''), coalesce(worker, ''), "
            "coalesce(beat, 0.0) FROM trials LEFT JOIN sweepd_attempts USING (trial_id)"
        )
        return {
            trial: TrialRecord(
                number,
                state,
                token,
                worker,
                beat,
                params=tuple(f"{name} {value!r}" for name, value in params.get(trial, ())),
                rungs=rungs.get(trial, ()),
                values=tuple(value for (value,) in values.get(trial, ())),
                checkpoint=kept[trial][0][0] if trial in kept else "",
            )
            for trial, number, state, token, worker, beat in self.raw.execute(query)
        }


@functools.cache
def database() -> Database:
    """The database of this process: creating one takes half a second."""
    return Database()


def _spec() -> CommandSpec:
    return CommandSpec(
        environment="command:train",
        algorithm="command",
        env={},
        budget=RUNGS,
        rungs=RUNGS,
        num_envs=1,
        horizon=1,
        slots=BATCH,
        trials_per_batch=BATCH,
        objective="value",
        sampler="random",
        pruner="none",
        seed=0,
        space={"name": "s", "version": 1, "params": {"lr": {"low": 0.0, "high": 1.0}}},
        threads=1,
        seeds=1,
    )


@dataclass
class Training:
    """A trial in training.

    Attributes:
        plan: the trial.
        rung: rungs that it has reached.
        state: what it has learned, as text.
    """

    plan: Plan
    rung: int = 0
    state: str = ""
    checkpoint: str = ""

    def train(self) -> None:
        """Train to the next rung."""
        text = f"{self.plan.seed} {self.plan.params} {self.state}"
        self.state = hashlib.sha256(text.encode()).hexdigest()
        self.rung += 1

    @property
    def value(self) -> float:
        return int(self.state[:8], 16) / 2**32


@dataclass
class World:
    """Workers on two machines, one of which is replaced by a new one, and the database that they share.

    Attributes:
        scheduler: decides what happens.
        undisturbed: results of a run without faults; None: this is that run.
        alone: whether there is one worker only, and it is not replaced.
        files: content of the checkpoint files by path, in a folder that both machines have.
        closed: how often a worker has closed the study.
        taken: how often a worker has lost a trial.
    """

    scheduler: Scheduler
    undisturbed: dict[int, TrialRecord] | None
    alone: bool = False
    files: dict[str, Training] = field(default_factory=dict)
    closed: int = 0
    taken: int = 0

    def __post_init__(self) -> None:
        self.database = database()
        self.database.reset()
        self.processes: dict[int, Process] = {}  # by pid
        self.storages: dict[str, StudyStorage] = {}  # by process
        self._present: dict[str, Process] = {}  # by slot: what its supervisor watches over
        self._done: set[str] = set()  # slots whose process has found the study complete
        self._fault = Fault.NONE
        self._committed: Actor | None = None
        self._before: dict[int, TrialRecord] = {}
        self._latest: dict[int, tuple[float, float]] = {}  # by row: a beat, latest clock since then

    # -- processes

    def run(self) -> dict[int, TrialRecord]:
        """Run until all workers have ended; return the trials. Raises Violation."""
        with self._virtual():
            self._start("w0", "a", 0.0)
            if not self.alone:
                self._start("w1", "b", 0.0)
                self._start("w0", "a", REPLACED)
            self.scheduler.run()
        self._observe()
        found = self.database.trials()
        if self.undisturbed is not None:
            invariants.none_lost(found.values(), self.undisturbed.values(), TRIALS)
        invariants.require(self.closed, "nobody has closed the study")
        if not self.scheduler.tape.taken:
            invariants.require(not self.taken, "an undisturbed worker has lost a trial")
        return found

    def _start(self, slot: str, host: str, after: float = RESTART) -> None:
        pid = len(self.processes) + 1
        process = Process(f"{slot}.{pid}", host)
        self.processes[pid] = process

        def work() -> None:
            self._present[slot] = process
            own = self.storages[process.name] = self.database.opened()
            done = ScriptedWorker(self, process, own).run()
            process.dead = True  # the heartbeat's thread is a daemon
            if done:
                self._done.add(slot)

        def ended() -> None:
            """Start it again if it was killed, has failed or was asked to stop."""
            if slot not in self._done and self._present.get(slot, process) is process:
                self._start(slot, host)

        process.ended = ended
        self.scheduler.spawn(process, work, after)

    # -- the database

    def begin(self, _: sa.Connection) -> None:
        """Before a transaction: wait for its turn, and look at what the last one has changed."""
        scheduler = self.scheduler
        self._fault = scheduler.effect("transaction")
        self._observe()
        if self._fault is Fault.REFUSED:
            raise _error("database is locked")

    def commit(self, connection: sa.Connection) -> None:
        """In place of a commit, or before it."""
        process, raw = self.scheduler.process, connection.connection
        if self.scheduler.now < self.scheduler.full_until and _writes(raw):
            raise _error("database or disk is full")
        if _writes(raw):
            self._committed = Actor(process.name, self.storages[process.name].held())
        if self._fault is Fault.ANSWER_LOST:
            raw.commit()
            raise _error("connection lost")

    def _observe(self) -> None:
        """Check the invariants after the last transaction."""
        actor, self._committed = self._committed, None
        clock = self.scheduler.clock
        if actor is not None:
            trials = self.database.trials()
            invariants.exact_total(trials.values(), TRIALS)
            for row in self._before.keys() | trials.keys():
                before, after = self._before.get(row), trials.get(row)
                if before != after:
                    stale = functools.partial(self._stale, row)
                    invariants.one_owner(row, before, after, actor, stale)
                    self.taken += _was_taken(row, before, after, actor)
            for trial in trials.values():
                invariants.checkpoint_is_whole(trial, self.files)
            self._before = trials
        for row, trial in self._before.items():
            beat, latest = self._latest.get(row, (0.0, 0.0))
            latest = max(latest, clock) if beat == trial.beat else clock
            self._latest[row] = trial.beat, latest

    def _stale(self, row: int, trial: TrialRecord) -> bool:
        # By any reading of the clock since that beat: the recovery reads it in a transaction before.
        _, latest = self._latest[row]
        return self.is_dead(trial.worker) or latest - trial.beat > GRACE

    def is_dead(self, worker: str) -> bool:
        """Return whether the process of a worker has ended."""
        return next(one.dead for one in self.processes.values() if one.name == worker)

    def check_closing(self, worker: str) -> None:
        """Check that no other worker that lives and sends heartbeats closes the study."""
        query = "SELECT worker, beat FROM sweepd_workers WHERE state = 'closing'"
        for other, beat in self.database.raw.execute(query):
            silent = self.is_dead(other) or self.scheduler.clock - beat > GRACE
            invariants.require(silent or other == worker, f"{worker} and {other} close the study")

    # -- files

    def write_file(self, path: str, content: Training) -> None:
        """Write a checkpoint. Raises OSError."""
        fault = self.scheduler.effect(f"write {path}")
        if fault is Fault.REFUSED or self.scheduler.now < self.scheduler.full_until:
            raise OSError(28, "No space left on device", path)
        self.files[path] = copy.copy(content)

    def delete_file(self, path: str) -> None:
        """Delete a checkpoint."""
        self.scheduler.effect(f"delete {path}")
        self.files.pop(path, None)

    # -- what the real code gets in place of the machine

    @contextmanager
    def _virtual(self) -> Iterator[None]:
        clock, engine = VirtualTime(self.scheduler), self.database.storage.engine
        tokens = iter(range(1, 1_000_000))
        places: list[tuple[Any, str, Any]] = [
            (StudyDatabase, "now", lambda *_: self.scheduler.clock),
            (storage, "secrets", SimpleNamespace(token_hex=lambda _: f"{next(tokens):032x}")),
            (patience, "time", clock),
            (tenacity, "time", clock),
            (tenacity.wait, "random", random.Random(0)),
            (heartbeat, "time", clock),
            (heartbeat, "PeriodicThread", functools.partial(_PeriodicTask, self.scheduler)),
            (heartbeat, "memory_counters", dict),
            (registration, "time", clock),
            (registration, "os", SimpleNamespace(getpid=self._pid, kill=self._signal)),
            (registration, "socket", SimpleNamespace(gethostname=self._host)),
            (registration, "processes", _Processes(self)),
        ]
        # Before the listener that begins the transaction.
        sa.event.listen(engine, "begin", self.begin, insert=True)
        sa.event.listen(engine, "commit", self.commit)
        with ExitStack() as stack:
            for owner, name, value in places:
                stack.enter_context(patch.object(owner, name, value))
            try:
                yield
            finally:
                sa.event.remove(engine, "begin", self.begin)
                sa.event.remove(engine, "commit", self.commit)

    def _pid(self) -> int:
        present = self.scheduler.process
        return next(pid for pid, process in self.processes.items() if process is present)

    def _host(self) -> str:
        return self.scheduler.process.host

    def _signal(self, pid: int, signum: int) -> None:
        assert signum == signal.SIGTERM
        if self.processes[pid].dead:
            raise ProcessLookupError
        self.processes[pid].stopping = True


class _Processes:
    """In place of `sweepd.optimize.study.recovery.processes`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def identity(self, pid: int) -> str:
        return f"{self._world.processes[pid].host}/{pid}"

    def same_namespace(self, recorded: str) -> bool:
        return recorded.partition("/")[0] == self._world.scheduler.process.host

    def is_running(self, pid: int, recorded: str) -> bool | None:
        return not self._world.processes[pid].dead if self.same_namespace(recorded) else None


class _PeriodicTask:
    """In place of `PeriodicThread`: a task of the process that starts it."""

    def __init__(
        self,
        scheduler: Scheduler,
        tick: Callable[[], None],
        interval: float,
        _name: str,
        *,
        end: Callable[[], None],
    ) -> None:
        self._scheduler, self._tick, self._interval, self._end = scheduler, tick, interval, end
        self._stopped = self._ticking = False

    def start(self) -> None:
        self._scheduler.spawn(self._scheduler.process, self._run, self._interval)

    def stop(self) -> None:
        self._stopped = True
        while self._ticking:
            self._scheduler.wait(0.01)

    def _run(self) -> None:
        while not self._stopped:
            self._ticking = True
            self._tick()
            self._ticking = False
            self._scheduler.wait(self._interval)
        self._end()


def _was_taken(
    row: int, before: TrialRecord | None, after: TrialRecord | None, actor: Actor
) -> bool:
    """Return whether a RUNNING trial was taken from its owner by somebody else."""
    running = before is not None and before.state == invariants.RUNNING
    ours = before is not None and actor.tokens.get(row) == before.token
    return running and not ours and after is not None and after.state != invariants.RUNNING


def _error(text: str) -> sa.exc.OperationalError:
    return sa.exc.OperationalError("", {}, sqlite3.OperationalError(text))


def _writes(raw: Any) -> bool:
    """Return whether the open transaction of a new connection has changed rows."""
    return bool(raw.dbapi_connection.total_changes)


class ScriptedWorker:
    """A worker without training: what `lifecycle.work` and `Worker.run` do to the study.

    Args:
        world: the world.
        process: its process.
        own: its storage.
    """

    def __init__(self, world: World, process: Process, own: StudyStorage) -> None:
        self.world, self.process, self.storage = world, process, own
        self.scheduler, self.name = world.scheduler, process.name
        own.patience.stopping = lambda: self.process.stopping
        self._checked = 0.0

    def run(self) -> bool:
        """Work on the study; return whether it is complete."""
        unavailable = (sa.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError)
        try:
            self.handle = StudyHandle(self.storage, "s")
            # `cached_property` of Python 3.11 holds a lock of its class while it computes, for
            # which the thread of another process would wait for ever.
            opened = optuna.load_study(study_name="s", storage=self.handle.cached)
            self.handle.__dict__["study"] = opened
            register_worker(
                self.storage, self.handle.study_id, alongside=False, say=self._say, name=self.name
            )
            try:
                done = self._work()
                if done and claim_closing(self.storage, self.handle.study_id, self.name):
                    with Heartbeat(self.storage, self.name, BEAT):
                        self.world.check_closing(self.name)
                        self.scheduler.wait(CLOSING)
                        self.world.closed += 1
            finally:
                leave(self.storage, self.name)
        except (RunError, OSError, *unavailable) as error:  # exit code 75 or 1
            self._say(f"ends: {error}")
            return False
        return done

    def _say(self, text: str) -> None:
        now = self.scheduler.now
        self.scheduler.log.append(f"{now:9.3f} {self.name:<8}{text.splitlines()[0]}")

    def _work(self) -> bool:
        self.marks = Progress(STALL, lambda: self.scheduler.now)
        self.heartbeat = Heartbeat(self.storage, self.name, BEAT, self.marks, self._say)
        with self.heartbeat:
            while not self.process.stopping:
                self.storage.patience(
                    recover_stale, self.storage, self.handle.study_id, grace=GRACE
                )
                plans = self.handle.ask_batch(BATCH, self.name, TRIALS)
                self.heartbeat.lost.difference_update(plan.trial_id for plan in plans)
                counts = self.handle.counts()
                if plans:
                    self._train_batch(plans)
                elif sum(counts[state] for state in invariants.FINISHED) >= TRIALS:
                    return True
                else:
                    self.marks.mark()
                    self.scheduler.wait(WAITING)
        return False

    # -- training

    def _train_batch(self, plans: list[Plan]) -> None:
        trainings = [self._begin(plan) for plan in plans]
        self._checked = self.scheduler.now
        try:
            while trainings:
                trainings = self._train_rung(trainings)
        except RunError:  # the database does not answer: nothing can be put back
            raise
        except BaseException:
            for training in trainings:
                with suppress(Exception):
                    self._requeue(training, with_checkpoint=False)
            raise

    def _begin(self, plan: Plan) -> Training:
        path = (plan.checkpoint or {}).get("path")
        training = copy.copy(self.world.files[path]) if path in self.world.files else Training(plan)
        training.plan, training.checkpoint = plan, path or ""
        return training

    def _train_rung(self, trainings: list[Training]) -> list[Training]:
        for _ in range(STEPS):
            self.scheduler.wait(RUNG_SECONDS / STEPS)
            if self._stop_or_lost():
                return self._after_interruption(trainings)
        for training in trainings:
            training.train()
        reports = [RungReport(one.plan, one.rung, one.value) for one in trainings]
        trainings = self._kept(trainings, self.handle.report_all(reports))
        ends = [
            TrialWrite(one.plan.trial_id, end=TrialState.COMPLETE, values=[one.value])
            for one in trainings
            if one.rung == RUNGS
        ]
        if ends:
            trainings = self._kept(trainings, self.handle.end_all(ends))
        trainings = [one for one in trainings if one.rung < RUNGS]
        return self._kept(trainings, self._checkpoints(trainings))

    def _kept(self, trainings: list[Training], lost: set[int]) -> list[Training]:
        for training in trainings:
            if training.plan.trial_id in lost:
                self._drop(training)
        return [one for one in trainings if one.plan.trial_id not in lost]

    def _drop(self, training: Training) -> None:
        self.storage.give_up(training.plan.trial_id)

    def _stop_or_lost(self) -> bool:
        self.marks.mark()
        before, self._checked = self._checked, self.scheduler.now
        if self._checked - before > GRACE / 2:
            self.heartbeat.try_beat()
        return self.process.stopping or bool(self.heartbeat.lost)

    def _after_interruption(self, trainings: list[Training]) -> list[Training]:
        if not self.process.stopping:
            lost = set(self.heartbeat.lost)
            self.heartbeat.lost -= lost
            return self._kept(trainings, lost)
        for training in trainings:
            self._requeue(training, with_checkpoint=True)
        return []

    def _requeue(self, training: Training, *, with_checkpoint: bool) -> None:
        if training.plan.trial_id not in self.storage.held():
            return
        try:
            if with_checkpoint and training.rung and self._checkpoints([training]):
                raise TrialLost(training.plan.trial_id)
            self.handle.put_back(training.plan.trial_id)
        except TrialLost:
            self._drop(training)

    def _checkpoints(self, trainings: list[Training]) -> set[int]:
        """Write files, record them, then delete the older ones; return the rows that were lost."""
        writes, paths = [], {}
        for training in trainings:
            plan = training.plan
            token = self.storage.held().get(plan.trial_id, "")
            path = f"{plan.number}-r{training.rung}-{token[-4:]}"
            if path != training.checkpoint:
                self.world.write_file(path, training)
                paths[plan.trial_id] = path
                writes.append(TrialWrite(plan.trial_id, {CHECKPOINT_KEY: {"path": path}}))
        lost = self.storage.write(writes) if writes else set()
        for training in trainings:
            row = training.plan.trial_id
            if row in paths:
                old, training.checkpoint = training.checkpoint, paths[row]
                self.world.delete_file(paths[row] if row in lost else old)
        return lost


@functools.cache
def undisturbed() -> dict[int, TrialRecord]:
    """Return the trials of a run without any fault."""
    return World(Scheduler(Tape()), None).run()


def simulate(scheduler: Scheduler) -> None:
    """Simulate workers. Raises Violation."""
    known = undisturbed()
    World(scheduler, known).run()
