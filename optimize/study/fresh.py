"""What a study's selection is worth on fresh seeds, as a training run has measured it."""

from __future__ import annotations

from sweepd.optimize.study.record.configurations import Configuration
from sweepd.optimize.study.record.fresh import FreshSeeds, read_fresh, run_name
from sweepd.optimize.study.study import StudyHandle, study_exists


def fresh_seeds(handle: StudyHandle, best: Configuration) -> FreshSeeds | None:
    """Return the result of a training run of the configuration.

    Args:
        handle: a study on a game.
        best: one of its configurations.

    Returns:
        None if no run of one of its trials, under its default name and with the study's budget, is
        complete.
    """
    for trial in best.trials:
        name = run_name(handle.name, trial.number)
        if not study_exists(handle.storage, name):
            continue
        run = StudyHandle(handle.storage, name)
        attributes = run.study.user_attrs
        found = read_fresh(name, attributes, run.trials(), handle.name, handle.spec.budget)
        if found is not None:
            return found
    return None
