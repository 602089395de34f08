"""Changes of weights and hyperparameters between the rungs of a batch of trials.

They are those of a population (`--search pbt`), or those of a schedule that a training run repeats.
Before a population's are decided, its members are compared with each other in games of two seats.

A trial's checkpoint of a rung is written after the changes of that rung. The files of a batch are
written in the order of its rungs. So after a kill at any time, a trial is either before the changes
of a rung, which are then made again from the same reports, or after them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweepd.optimize.objectives.run import Evaluation, Run, Training
from sweepd.optimize.study.checkpoint import Checkpoint, MemberState
from sweepd.optimize.study.database.storage import TrialLost
from sweepd.optimize.study.population import changes_at
from sweepd.optimize.study.record.keys import fitness_key
from sweepd.optimize.study.sampling.evolution import Change, params_after
from sweepd.optimize.study.space.dimension import Dimension
from sweepd.optimize.study.space.search_space import SearchSpace, Settings
from sweepd.optimize.study.study import StudyHandle

# The changes after a rung, by trial: arguments are the number of a trial of the batch and the rung.
Decide = Callable[[int, int], Mapping[int, Change]]


def evolution_of(handle: StudyHandle, say: Callable[[str], None]) -> Evolution | None:
    """Return what changes a study's trials; None where they keep their hyperparameters."""
    if handle.spec.evolves:
        return Evolution(handle, lambda number, rung: changes_at(handle, number, rung), say)
    schedule = (handle.origin or {}).get("schedule")
    if not schedule:
        return None
    later = {stretch["rung"]: stretch["params"] for stretch in schedule if stretch["rung"]}

    def repeat(number: int, rung: int) -> Mapping[int, Change]:
        return {number: Change(rung, number, later[rung])} if rung in later else {}

    return Evolution(handle, repeat, say)


class Evolution:
    """Changes the trials of a batch after their rungs.

    Args:
        handle: the study.
        decide: the changes after a rung.
        say: prints one line.
    """

    def __init__(self, handle: StudyHandle, decide: Decide, say: Callable[[str], None]) -> None:
        self.handle, self._decide, self._say = handle, decide, say

    def resume(self, run: Run[Any], trainings: Sequence[Training]) -> None:
        """Set the hyperparameters of trials that were loaded from their checkpoints.

        If the checkpoints do not fit together, as after a file was lost, all trials start again.
        """
        if not self._fits(run, trainings):
            self._say("the population starts again: its checkpoints are not of one rung")
            for training in trainings:
                members = [MemberState() for _ in run.checkpoint(training).members]
                run.resume(training, Checkpoint(members, seconds=training.seconds))
        for training in trainings:
            plan = training.plan
            settings = settings_of(
                self.handle.space, params_after(training.rung, plan.params, plan.changes)
            )
            training.plan = dataclasses.replace(plan, settings=settings)

    def _fits(self, run: Run[Any], trainings: Sequence[Training]) -> bool:
        """Return whether no trial has trained beyond a rung that another one has not reached."""
        following = min(training.rung for training in trainings) + 1
        end = self.handle.spec.rung_end(following)
        return all(
            training.rung < following
            or (training.rung == following and run.checkpoint(training).all_at(end))
            for training in trainings
        )

    def next(self, trainings: Sequence[Training]) -> list[Training]:
        """Return the trials to train now: those at the lowest rung."""
        lowest = min(training.rung for training in trainings)
        return [training for training in trainings if training.rung == lowest]

    def change(
        self,
        run: Run[Any],
        reached: Sequence[tuple[Training, Evaluation]],
        others: Sequence[Training],
    ) -> bool:
        """Decide what trials go on with after a rung that they have reported, record it, do it.

        Args:
            run: trains the batch.
            reached: the trials that have just reported the rung, with their evaluations.
            others: the other trials of the batch.

        Returns:
            False if a trial was lost, in which case nothing was changed.

        Raises:
            Interrupted: `WorkerHooks.stop` returned True in games of the members.
        """
        reported = [training for training, _ in reached]
        batch = [*reported, *others]
        if not reported:
            return True
        if self.handle.spec.evolves and not self._compare(run, reached):
            return False
        first = reported[0]
        changes = self._decide(first.plan.number, first.rung)
        # The states before the changes. A source does not change, as it is one of the best.
        states = {
            t.plan.number: run.checkpoint(t) for t in batch if t.rung == first.rung and not t.fault
        }
        # What is recorded counts: the last bits of a number may differ between machines.
        changed = [
            (t, next((own for own in t.plan.changes if own.rung == t.rung), changes[t.plan.number]))
            for t in reported
            if t.plan.number in changes
        ]
        try:
            for training, change in changed:
                self.handle.record_change(training.plan, change)
        except TrialLost:
            return False
        for training, change in changed:
            if change.source not in states:
                training.fault = (
                    f"lost: its weights after rung {change.rung} were those of trial "
                    f"{change.source}, which has ended, and its checkpoint is missing"
                )
                continue
            settings = settings_of(self.handle.space, change.params)
            run.inherit(training, states[change.source], settings)
            if change.source != training.plan.number:
                self._say(
                    f"trial {training.plan.number} goes on with the weights of trial "
                    f"{change.source} after rung {change.rung}"
                )
        for training in reported:
            training.undecided = False
        return True

    def _compare(self, run: Run[Any], reached: Sequence[tuple[Training, Evaluation]]) -> bool:
        """Record the fitness of a population's members at a rung; return False if one was lost.

        It is recorded for all of them at once, before a weight moves or a trial ends. So where it is
        missing, all of them are here as they reached the rung.
        """
        rung, ids = reached[0][0].rung, {t.plan.number: t.plan.trial_id for t, _ in reached}
        recorded = (t for t in self.handle.trials() if t.number in ids)
        if any(fitness_key(rung) in trial.user_attrs for trial in recorded):
            return True
        found = run.fitness(reached)
        if found is None:
            return True
        return not self.handle.record_fitness(rung, dict(zip(ids.values(), found, strict=True)))


def settings_of(space: SearchSpace, params: Mapping[str, Any]) -> Settings:
    """Return the settings of parameters; in a run's space of constants, they replace these."""
    tables = {
        table: {
            name: Dimension(name, value=params[name])
            if own.value is not None and name in params
            else own
            for name, own in entries.items()
        }
        for table, entries in space.tables.items()
    }
    return dataclasses.replace(space, tables=tables).resolve(params)
