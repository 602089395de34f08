"""Populations of a study with `--search pbt`: which trials they consist of, and who trains them.

Trials are numbered in the order of their creation, and a population consists of `trials_per_batch`
trials with successive numbers. One worker trains all of them that are not finished, or none.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from sweepd.envs.support.formatting import value_text
from sweepd.optimize.study.database.storage import TrialLost
from sweepd.optimize.study.record.keys import CHANGES_KEY, fitness_key, rung_key
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.sampling.evolution import (
    Change,
    Stretch,
    changes_of,
    decide,
    params_after,
    schedule,
)
from sweepd.optimize.study.study import Plan, StudyHandle


def claim_population(handle: StudyHandle, size: int, worker: str, total: int) -> list[Plan]:
    """Claim all unfinished trials of a population; empty if another worker trains them.

    In studies of populations, workers call it in place of `StudyHandle.ask_batch`. The first
    population without a RUNNING trial is taken. Its trials have the shape of the first one.

    Args:
        handle: the study.
        size: trials of a population.
        worker: name of the worker.
        total: number of trials that the study shall have.
    """
    trials = handle.trials()
    for start in range(0, max(total, len(trials)), size):
        members = trials[start : start + size]
        states = [trial.state for trial in members]
        complete = len(members) == size
        if complete and all(state.is_finished() for state in states):
            continue
        if TrialState.RUNNING not in states:
            with handle.claiming():
                return _plans(handle, members, range(start, start + size), worker, total)
        if not complete:  # its worker is about to create the others
            return []
    return []


def _plans(
    handle: StudyHandle, members: list[FrozenTrial], numbers: range, worker: str, total: int
) -> list[Plan]:
    """Claim the members that wait, and create those of the population's numbers that are missing."""
    storage = handle.storage
    claimed: list[int] = []
    for trial in members:
        if trial.state == TrialState.WAITING:
            if not storage.claim_waiting(handle.study_id, trial._trial_id, worker, total):
                return _give_back(handle, claimed)
            claimed.append(trial._trial_id)
    if missing := numbers[len(members) :]:
        created = storage.claim_new(handle.study_id, worker, total, len(missing))
        claimed += created
        # Too few, or others if another worker creates trials, too.
        if [storage.get_trial(own).number for own in created] != list(missing):
            return _give_back(handle, claimed)
    plans = list[Plan]()
    for plan in handle.plan(claimed, None, total):
        if plans and plan.settings.shape != plans[0].settings.shape:
            handle.fail(plan.trial_id, "parameters: its shape is not that of its population")
            continue
        plans.append(plan)
    return plans


def _give_back(handle: StudyHandle, claimed: list[int]) -> list[Plan]:
    for trial_id in claimed:
        try:
            handle.put_back(trial_id)
        except TrialLost:
            handle.storage.drop(trial_id)
    return []


def changes_at(handle: StudyHandle, number: int, rung: int) -> dict[int, Change]:
    """Return what the members of a trial's population go on with after a rung, by number.

    Call it after all of them have reported the rung, and their fitness is recorded where there is
    one. It depends on the study's database alone: the same changes result whenever it is called.
    """
    if rung >= handle.spec.rungs:
        return {}
    size = handle.spec.trials_per_batch
    start = number // size * size
    members = [
        trial
        for trial in handle.trials()[start : start + size]
        # Trials that another program finished have no scores.
        if rung in trial.intermediate_values and rung_key(rung) in trial.user_attrs
    ]
    if known := [trial for trial in members if fitness_key(rung) in trial.user_attrs]:
        members = known
        values = {trial.number: trial.user_attrs[fitness_key(rung)]["value"] for trial in members}
    else:
        values = {trial.number: trial.intermediate_values[rung] for trial in members}
    changes = {trial.number: changes_of(trial.user_attrs.get(CHANGES_KEY)) for trial in members}
    return decide(
        handle.space,
        handle.spec.seed,
        rung,
        values,
        {
            trial.number: params_after(rung - 1, trial.params, changes[trial.number])
            for trial in members
        },
    )


def trial_schedule(handle: StudyReader, number: int) -> list[Stretch]:
    """Return the hyperparameters by rung that led to a trial's weights, see `schedule`."""
    trials = handle.trials()
    return schedule(
        number,
        {trial.number: trial.params for trial in trials},
        {trial.number: changes_of(trial.user_attrs.get(CHANGES_KEY)) for trial in trials},
    )


def schedule_record(handle: StudyReader, number: int) -> list[dict[str, Any]]:
    """Return the schedule of a trial as JSON: per stretch `rung`, `trial` and `params`."""
    return [asdict(stretch) for stretch in trial_schedule(handle, number)]


def schedule_table(handle: StudyReader, number: int) -> dict[str, Any]:
    """Return the schedule of a trial, with the hyperparameters that it changes, for display.

    Returns:
        `trial`, `names` of these hyperparameters, and `rows`: per stretch its `first` and `last`
        rung, the `trial` that trained with it, and the `values` as text.
    """
    found = trial_schedule(handle, number)
    begun = found[0].params
    names = [name for name in begun if any(s.params[name] != begun[name] for s in found)]
    ends = [*(stretch.rung for stretch in found[1:]), handle.spec.rungs]
    rows = [
        {
            "first": stretch.rung + 1,
            "last": end,
            "trial": stretch.trial,
            "values": [value_text(stretch.params[name]) for name in names],
        }
        for stretch, end in zip(found, ends, strict=True)
    ]
    return {"trial": number, "names": names, "rows": rows}


def schedule_lines(handle: StudyReader, number: int) -> list[str]:
    """Return the schedule of a trial as lines, see `schedule_table`."""
    table = schedule_table(handle, number)
    if len(table["rows"]) == 1:
        return [f"schedule of trial {number}: its hyperparameters did not change"]
    lines = [f"schedule of trial {number}, by the trials that its weights came from:"]
    for row in table["rows"]:
        values = zip(table["names"], row["values"], strict=True)
        lines.append(
            f"  rungs {row['first']} to {row['last']}, trial {row['trial']}: "
            + "  ".join(f"{name}={value}" for name, value in values)
        )
    return lines
