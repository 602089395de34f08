"""A seeded scheduler with a virtual clock, in which everything that may go wrong is a choice.

A simulated process runs the real code. Before each of its effects (a transaction, a request, a file)
it asks the scheduler for a `Fault`: a delay, a kill, an outage, a lost answer, a clock that is set.
All answers together are the *tape*, a list of integers of which 0 means that nothing happens. A seed
makes a tape; the tape makes the run. So a failing run is repeated by its tape and shrunk by setting
as many of its entries as possible to 0.

Exactly one thread runs at a time: each task of a process has a thread, which waits until the
scheduler resumes it. Threads and not generators, since an effect may lie deep within the real code.
"""

from __future__ import annotations

import heapq
import itertools
import random
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

DELAY, SHORT, LONG = 0.001, 0.004, 30.0  # seconds that an effect takes
SUSPENDED = 400.0  # seconds for which a process is suspended: longer than any grace period
OUTAGES = (20.0, 300.0)  # seconds: shorter and longer than the patience of the processes
HOUR = 3600.0
CHOICES = 200  # questions that a seed answers; after them nothing happens any more
LONGEST = 3_000  # effects after which a run counts as one that never ends
ODDS = (0.02, 0.05, 0.15)  # of a fault; one of them per seed


class Fault(IntEnum):
    """What happens at an effect."""

    NONE = 0
    TAKES_SHORT = 1  # others come first
    TAKES_LONG = 2
    KILL = 3  # the process, before the effect
    REFUSED = 4  # the effect fails and has changed nothing
    ANSWER_LOST = 5  # the effect happens, and its process gets an error
    OUTAGE = 6  # this and all further effects are refused for a while
    LONG_OUTAGE = 7
    FULL_DISK = 8  # for a while
    SUSPEND = 9  # the process, with all its tasks
    CLOCK_AHEAD = 10  # the clock is set: an hour ahead
    CLOCK_BACK = 11  # and back
    ASKED_TO_STOP = 12  # the process gets SIGTERM


class Tape:
    """The answers to the questions of a run.

    Args:
        given: the answers that are not 0, by the number of the question.
        seed: answers questions that `given` does not, up to number `CHOICES`; None: they are 0.

    Attributes:
        taken: the answers that were given so far and are not 0, by the number of the question.
    """

    def __init__(self, given: Mapping[int, int] | None = None, seed: int | None = None) -> None:
        self._given = dict(given or {})
        self._random = None if seed is None else random.Random(seed)
        self._odds = self._random.choice(ODDS) if self._random else 0.0
        self.taken: dict[int, int] = {}
        self._asked = 0

    def choose(self, options: int) -> int:
        """Return a number below `options`."""
        asked, self._asked = self._asked, self._asked + 1
        answer = self._given.get(asked, 0) % options
        if self._random and asked < CHOICES and self._random.random() < self._odds:
            answer = self._random.randrange(options)
        if answer:
            self.taken[asked] = answer
        return answer

    def __str__(self) -> str:
        return tape_text(self.taken)

    @classmethod
    def parse(cls, text: str) -> Tape:
        """Read a tape as `str` writes it; ValueError."""
        words = text.split()
        if not all(re.fullmatch(r"\d+:\d+", word) for word in words):
            raise ValueError(f"a tape is words like 12:3, not {text!r}")
        pairs = (word.split(":") for word in words)
        return cls({int(at): int(answer) for at, answer in pairs})


def tape_text(entries: Mapping[int, int]) -> str:
    """Return the entries of a tape as `Tape.parse` reads them."""
    return " ".join(f"{at}:{answer}" for at, answer in sorted(entries.items()))


class Killed(BaseException):
    """The process of the running task is dead. No handler of `Exception` stops it."""


class Violation(BaseException):
    """An invariant does not hold. No handler of `Exception` in the simulated code hides it."""


def _nothing() -> None:
    pass


@dataclass(eq=False)
class Process:
    """A simulated process.

    Attributes:
        name: its name, unique in the run.
        host: name of its machine.
        dead: whether it was killed or has ended: none of its effects happens any more.
        suspended: virtual time until which none of its tasks runs.
        stopping: whether it was asked to stop.
        ended: called once it is dead.
    """

    name: str
    host: str
    dead: bool = False
    suspended: float = 0.0
    stopping: bool = False
    tasks: list[_Task] = field(default_factory=list)
    ended: Callable[[], None] = _nothing


class _Task:
    """A thread of a simulated process, which runs only between `resume` and its next `pause`."""

    def __init__(self, process: Process, work: Callable[[], None]) -> None:
        self.process, self._work = process, work
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self.ended, self.error = False, None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    error: BaseException | None

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self.process.dead:
                self._work()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.ended = True
        self._back.release()

    def resume(self) -> None:
        """Let the task run until it pauses or ends; for the scheduler's thread."""
        self._go.release()
        self._back.acquire()
        if self.ended:
            self._thread.join()

    def pause(self) -> None:
        """Give control back to the scheduler; for the task's own thread."""
        self._back.release()
        self._go.acquire()


class Scheduler:
    """Runs tasks in the order of virtual time.

    Args:
        tape: answers what happens at each effect.

    Attributes:
        now: seconds since the run began. No fault sets this clock, as it is monotonic.
        clock: seconds since the epoch as the machines' clocks have it.
        full_until: virtual time until which the disk is full.
        log: what happened, for a person who looks at a failing run.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.now = 0.0
        self._set = 0.0  # seconds by which the clock was set
        self.full_until = self._away_until = 0.0
        self.log: list[str] = []
        self._queue: list[tuple[float, int, _Task]] = []
        self._order = itertools.count()
        self._effects = 0
        self._running: _Task | None = None

    @property
    def clock(self) -> float:
        return 1_700_000_000.0 + self.now + self._set

    @property
    def clock_error(self) -> float:
        """Seconds that the machines' clocks are ahead."""
        return self._set

    @property
    def process(self) -> Process:
        """The process of the running task."""
        assert self._running is not None
        return self._running.process

    def say(self, text: str) -> None:
        """Add a line about the running task to the log."""
        self.log.append(f"{self.now:9.3f} {self.process.name:<8}{text}")

    # -- tasks

    def spawn(self, process: Process, work: Callable[[], None], after: float = 0.0) -> None:
        """Start a task of a process after some virtual seconds.

        An exception of it ends the run, and `run` raises it.
        """
        task = _Task(process, work)
        process.tasks.append(task)
        self._push(task, after)

    def _push(self, task: _Task, after: float) -> None:
        heapq.heappush(self._queue, (self.now + after, next(self._order), task))

    def wait(self, seconds: float) -> None:
        """Let the running task wait; raise Killed if its process dies meanwhile."""
        task = self._running
        assert task is not None
        if task.process.dead:
            raise Killed
        self._push(task, seconds)
        if self._queue[0][2] is task and task.process.suspended <= self._queue[0][0]:
            # It is the next one anyway: two switches of threads less.
            self.now = max(self.now, heapq.heappop(self._queue)[0])
            return
        task.pause()
        if task.process.dead:
            raise Killed

    def run(self) -> None:
        """Run all tasks to their ends. Raises what a task raises, and Violation of a run without end."""
        try:
            while self._queue:
                moment, _, task = heapq.heappop(self._queue)
                if task.ended:
                    continue
                if task.process.suspended > max(moment, self.now) and not task.process.dead:
                    self._push(task, task.process.suspended - self.now)
                    continue
                self.now = max(self.now, moment)
                self._resume(task)
        finally:
            self._reap(task for _, _, task in self._queue)

    def _resume(self, task: _Task) -> None:
        before, self._running = self._running, task
        task.resume()
        self._running = before
        if task.error is not None:
            raise task.error
        process = task.process
        if process.dead:
            self._reap(process.tasks)
            ended, process.ended = process.ended, _nothing
            ended()

    def _reap(self, tasks: Iterable[_Task]) -> None:
        """End tasks: their processes are dead, so that none of their effects happens."""
        for task in list(tasks):
            task.process.dead = True
            while not task.ended:
                before, self._running = self._running, task
                task.resume()
                self._running = before

    def kill(self, process: Process) -> None:
        """Kill another process than the running one."""
        process.dead = True
        self._reap(process.tasks)

    # -- effects

    def effect(self, what: str) -> Fault:
        """Wait for the turn of an effect of the running task.

        Args:
            what: the effect, for the log.

        Returns:
            What the caller has to perform: NONE, REFUSED or ANSWER_LOST.

        Raises:
            Killed: its process is dead.
            Violation: the run does not end.
        """
        process = self.process
        if process.dead:
            raise Killed
        self._effects += 1
        if self._effects > LONGEST:
            raise Violation(f"the run has not ended after {LONGEST:,} effects")
        fault = Fault(self.tape.choose(len(Fault)))
        named = f" {fault.name}" if fault else ""
        self.say(f"{what}{named}")
        self._strike(process, fault)
        delays = {Fault.TAKES_SHORT: SHORT, Fault.TAKES_LONG: LONG}
        self.wait(delays.get(fault, DELAY))
        if self.now < self._away_until:
            return Fault.REFUSED
        return fault if fault in (Fault.REFUSED, Fault.ANSWER_LOST) else Fault.NONE

    def _strike(self, process: Process, fault: Fault) -> None:
        if fault is Fault.KILL:
            process.dead = True
            raise Killed
        if fault is Fault.SUSPEND:
            process.suspended = self.now + SUSPENDED
        elif fault is Fault.ASKED_TO_STOP:
            process.stopping = True
        elif fault in (Fault.OUTAGE, Fault.LONG_OUTAGE):
            self._away_until = self.now + OUTAGES[fault is Fault.LONG_OUTAGE]
        elif fault is Fault.FULL_DISK:
            self.full_until = self.now + OUTAGES[0]
        elif fault in (Fault.CLOCK_AHEAD, Fault.CLOCK_BACK):
            self._set += HOUR if fault is Fault.CLOCK_AHEAD else -HOUR


class VirtualTime:
    """What a module gets in place of `time`.

    Args:
        scheduler: has the clock.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def monotonic(self) -> float:
        return self._scheduler.now

    def time(self) -> float:
        return self._scheduler.clock

    def sleep(self, seconds: float) -> None:
        self._scheduler.wait(seconds)


def shrink(given: Mapping[int, int], fails: Callable[[Mapping[int, int]], bool]) -> dict[int, int]:
    """Return a smallest part of a failing tape that still fails (Zeller's ddmin).

    No single entry of the result can be left out (Zeller, Hildebrandt 2002, "Simplifying and
    isolating failure-inducing input").

    Args:
        given: the entries of the tape that are not 0.
        fails: whether a tape with some of the entries fails.
    """
    kept, parts = sorted(given), 2
    while len(kept) >= 2:
        size = -(-len(kept) // parts)
        pieces = [kept[at : at + size] for at in range(0, len(kept), size)]
        for piece in pieces:
            rest = [one for one in kept if one not in piece]
            if fails({one: given[one] for one in rest}):
                kept, parts = rest, max(parts - 1, 2)
                break
        else:
            if parts >= len(kept):
                break
            parts = min(2 * parts, len(kept))
    if len(kept) == 1 and fails({}):
        return {}
    return {one: given[one] for one in kept}
