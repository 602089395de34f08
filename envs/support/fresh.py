"""The value of a selected configuration on seeds that its selection has not seen.

A training run (`sweepd run --trial`, or the worker that completes a study) measures it: a study of
its own that repeats a trial. `optimize` writes it; `optimize` and `deploy` read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from envs.support.study_record import ORIGIN_KEY, SPEC_KEY, GameSpec, StudySpec, TrialRecord


@dataclass(frozen=True)
class FreshSeeds:
    """A configuration's value on fresh seeds.

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


def run_name(study: str, trial: int) -> str:
    """Return the name of the training run that repeats a trial."""
    return f"{study}-run{trial}"


def read_fresh(
    name: str, attributes: Mapping[str, Any], trials: Iterable[FrozenTrial], study: str, budget: int
) -> FreshSeeds | None:
    """Return the result of a training run.

    Args:
        name: study of the run.
        attributes: its attributes.
        trials: its trials.
        study: the study whose trial it should repeat.
        budget: the training that it should have had, in environment steps per member.

    Returns:
        None if it is another run, or not complete.
    """
    if attributes.get(ORIGIN_KEY, {}).get("study") != study:
        return None
    spec = StudySpec.from_json(attributes[SPEC_KEY])
    trial = next((one for one in trials if one.state == TrialState.COMPLETE), None)
    if trial is None or not isinstance(spec, GameSpec) or spec.budget != budget:
        return None
    metrics = TrialRecord.from_attributes(trial.user_attrs).metrics or {}
    if "iqm_low" not in metrics or trial.value is None:
        return None
    interval = (float(metrics["iqm_low"]), float(metrics["iqm_high"]))
    return FreshSeeds(name, spec.seeds, float(trial.value), interval)
