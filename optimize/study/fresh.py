"""What a study's selection is worth on fresh seeds, as `sweepd run` has measured it."""

from __future__ import annotations

from dataclasses import dataclass

from envs.support.configurations import Configuration
from envs.support.study_record import GameSpec, TrialRecord
from optimize.study.study import StudyHandle, best_trial, study_exists


@dataclass(frozen=True)
class FreshSeeds:
    """A configuration's value on seeds that its selection has not seen.

    Attributes:
        study: the training run.
        seeds: number of seeds.
        value: interquartile mean over seeds.
        interval: its 95 % bootstrap interval.
    """

    study: str
    seeds: int
    value: float
    interval: tuple[float, float]

    @property
    def described(self) -> str:
        """The seeds in words."""
        return "1 fresh seed" if self.seeds == 1 else f"{self.seeds} fresh seeds"


def run_name(study: str, trial: int) -> str:
    """Return the name of the training run that repeats a trial."""
    return f"{study}-run{trial}"


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
        repeated = best_trial(run)
        same = run.origin is not None and run.origin["study"] == handle.name
        if repeated is None or not same or run.spec.budget != handle.spec.budget:
            continue
        metrics = TrialRecord.from_attributes(repeated.user_attrs).metrics or {}
        if isinstance(run.spec, GameSpec) and "iqm_low" in metrics:
            interval = (float(metrics["iqm_low"]), float(metrics["iqm_high"]))
            return FreshSeeds(name, run.spec.seeds, float(repeated.value or 0.0), interval)
    return None
