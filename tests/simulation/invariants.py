"""What must hold in every simulated run, whatever happens to its processes. Written once.

Each function compares what is recorded with what has really happened, and raises `Violation`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sweepd.deploy.night.records import Night
from tests.simulation.scheduler import Violation

RUNNING, COMPLETE, PRUNED, FAIL, WAITING = "RUNNING", "COMPLETE", "PRUNED", "FAIL", "WAITING"
FINISHED = (COMPLETE, PRUNED, FAIL)


def require(holds: object, text: str) -> None:
    """Raise Violation with this text unless something holds."""
    if not holds:
        raise Violation(text)


@dataclass(frozen=True)
class TrialRecord:
    """A trial in the study's database.

    Attributes:
        number: its number.
        state: its state.
        token: of the attempt that holds it; "" while none does.
        worker: name of that worker.
        beat: its last heartbeat, seconds since the epoch.
        params: its parameters, as text.
        rungs: the values that it has reported, by rung.
        values: its objective values.
        checkpoint: path of its recorded checkpoint; "" without one.
    """

    number: int
    state: str
    token: str
    worker: str
    beat: float
    params: tuple[str, ...]
    rungs: tuple[tuple[int, float], ...]
    values: tuple[float, ...]
    checkpoint: str

    @property
    def result(self) -> object:
        """What must not depend on how often the trial was interrupted."""
        return self.number, self.state, self.params, self.rungs, self.values

    @property
    def content(self) -> object:
        """What only the owner of the trial may write."""
        return self.params, self.rungs, self.values, self.checkpoint


@dataclass(frozen=True)
class Actor:
    """The process that has committed a transaction.

    Attributes:
        name: its name.
        tokens: the tokens under which it held trials when it committed, by row id.
    """

    name: str
    tokens: Mapping[int, str]


def exact_total(trials: Collection[TrialRecord], total: int) -> None:
    """A study never has more trials than its total, and their numbers have no gaps."""
    numbers = sorted(trial.number for trial in trials)
    require(numbers == list(range(len(numbers))), f"the numbers of the trials are {numbers}")
    require(len(numbers) <= total, f"{len(numbers)} trials where the total is {total}")


def one_owner(
    row: int,
    before: TrialRecord | None,
    after: TrialRecord | None,
    actor: Actor,
    stale: Callable[[TrialRecord], bool],
) -> None:
    """Only the owner of a trial changes it; it is taken from nobody who lives and sends heartbeats.

    Args:
        row: its row id.
        before: the trial before a transaction; None: it did not exist.
        after: the trial after it.
        actor: who has committed it.
        stale: whether the owner of a trial has died, or was silent for the grace period.
    """
    require(after is not None, "a trial was deleted")
    assert after is not None
    name = f"trial {after.number}"
    if after.state == RUNNING:
        require(
            after.token and after.beat, f"{name} is RUNNING, and no attempt with a beat holds it"
        )
    else:
        require(not after.token, f"{name} is {after.state}, and an attempt holds it")
    if before is None or before.state == WAITING:
        started = before is None or before.content == after.content
        require(started, f"{name} was changed while it was WAITING")
        return
    if before.state in FINISHED:
        same = before.result == after.result
        require(same, f"{name} was finished, and {actor.name} has changed it")
        return
    owns = actor.tokens.get(row) == before.token
    if before.content != after.content or (after.state in FINISHED and after.state != FAIL):
        require(owns, f"{actor.name} has written to {name}, which {before.worker} holds")
    if before.token != after.token:
        text = f"{actor.name} took {name} from {before.worker}, which lives and sends heartbeats"
        require(owns or stale(before), text)


def checkpoint_is_whole(trial: TrialRecord, files: Collection[str]) -> None:
    """The recorded checkpoint of a trial that goes on exists: the row follows the effect."""
    lost = trial.checkpoint and trial.state not in FINISHED and trial.checkpoint not in files
    require(not lost, f"trial {trial.number} has recorded {trial.checkpoint}, which does not exist")


def none_lost(
    trials: Collection[TrialRecord], undisturbed: Collection[TrialRecord], total: int
) -> None:
    """In the end all trials are finished, with the results of a run without any fault."""
    exact_total(trials, total)
    require(len(trials) == total, f"{len(trials)} trials where the total is {total}")
    expected = {trial.number: trial.result for trial in undisturbed}
    for trial in trials:
        number = trial.number
        text = f"trial {number} ended as {trial.result}; undisturbed it is {expected[number]}"
        require(trial.result == expected[number], text)


def in_order(step: str, over: Collection[str], order: Sequence[str]) -> None:
    """The steps of a night are over in their order, each once."""
    later = [one for one in over if order.index(one) >= order.index(step)]
    require(not later, f"{step} is over after {later}")


def night_is_whole(night: Night, over: Collection[str], wanted: Sequence[str]) -> None:
    """A night ends, with one row for each of its steps."""
    require(night.outcome is not None, f"night {night.night} has not ended")
    require(sorted(over) == sorted(wanted), f"night {night.night} has rows of {sorted(over)}")
