"""Pictures of trials for trackers (`--track`), made from what the study has recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from sweepd.optimize.study.record.configurations import violations
from sweepd.optimize.study.record.keys import rung_scores
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.record.values import broken_words
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.tracking.picture import EVALUATION, RUNG_VALUE, RUNNING, Picture
from sweepd.optimize.tracking.tracker import Tracking


class TrackedStudy:
    """Shows the trials of one worker to trackers. Without trackers, every call is a no-op.

    Args:
        handle: the study.
        names: names of the trackers.
        say: prints one line.
    """

    def __init__(
        self, handle: StudyHandle, names: Sequence[str], say: Callable[[str], None]
    ) -> None:
        self._handle = handle
        self.tracking = Tracking(names, handle.run_dir, say)

    def update(self, trial_id: int) -> None:
        """Show the recorded state of a trial."""
        if self.tracking:
            # An error of the database reaches the worker at its next access.
            with suppress(Exception):
                self._put(self._handle.storage.get_trial(trial_id))

    def catch_up(self) -> None:
        """Show the trials that ended while a tracker did not answer, or without a worker."""
        if self.tracking:
            for trial in self._handle.trials():
                key = self._key(trial)
                if trial.state.is_finished() and self.tracking.is_behind(key, trial.state.name):
                    self._put(trial)

    def _key(self, trial: FrozenTrial) -> str:
        return f"{self._handle.uid[:8]}-{trial.number}"

    def _put(self, trial: FrozenTrial) -> None:
        self.tracking.put(trial_picture(self._handle, trial, self._key(trial)))


def trial_picture(handle: StudyHandle, trial: FrozenTrial, key: str) -> Picture:
    """Return the picture of a trial. Metrics other than scores are those of its last rung."""
    spec, attributes = handle.spec, trial.user_attrs
    record = TrialRecord.from_attributes(attributes)
    points = {
        steps_at(spec, rung): rung_metrics(spec, value, rung_scores(attributes, rung))
        for rung, value in sorted(trial.intermediate_values.items())
    }
    if points:
        points[max(points)] |= finite(record.metrics or {})
        if record.steps_per_second is not None:
            points[max(points)]["steps_per_second"] = float(record.steps_per_second)
    for steps, value in record.evaluations or ():
        if beside := finite({EVALUATION: value}):
            points.setdefault(int(steps or 0), {}).update(beside)
    ended = trial.state.is_finished()
    tags = {
        **spec_tags(spec),
        "study": handle.name,
        "trial": str(trial.number),
        "device": record.device,
        "reason": record.reason,
        "interval": record.interval,
        "warning": record.warning,
    }
    final: dict[str, float] = {}
    if trial.state == TrialState.COMPLETE and trial.values:
        names = ("objective", *(f"objective_{value.name}" for value in spec.values[1:]))
        final = dict(zip(names, trial.values, strict=True))
    broken = broken_words(violations(trial)) if ended else ""
    if broken:
        tags["constraints_not_met"] = broken
    if ended and record.seconds is not None:
        final["seconds"] = float(record.seconds)
    folder, links = handle.trial_dir(trial.number), {}
    links["folder"] = folder.resolve().as_uri()
    links["tensorboard"] = (handle.run_dir / "tensorboard" / folder.name).resolve().as_uri()
    if record.members is not None:
        links["members"] = (handle.run_dir / record.members.path).resolve().as_uri()
        tags["members_sha256"] = record.members.sha256
    return Picture(
        key=key,
        name=f"{handle.name} #{trial.number}",
        group=handle.name,
        params={**trial.params, **record_params(record), **_numbers(spec, record)},
        tags={name: str(text) for name, text in tags.items() if text},
        points=points,
        final=finite(final),
        links=links,
        state=trial.state.name if ended else RUNNING,
        started=trial.datetime_start.timestamp() if trial.datetime_start else None,
        ended=trial.datetime_complete.timestamp() if trial.datetime_complete else None,
    )


def steps_at(spec: StudySpec, rung: int) -> int:
    """Return the environment steps per member at a rung (1 …)."""
    return spec.rung_end(rung) * spec.transitions


def rung_metrics(spec: StudySpec, value: float, scores: Sequence[float]) -> dict[str, float]:
    """Return the value of a rung and the score of each fold or seed."""
    named = {f"{spec.member}_score_{index}": score for index, score in enumerate(scores)}
    return finite({RUNG_VALUE: value, **named})


def finite(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers that are finite, as trackers plot no others."""
    return {
        name: float(number)
        for name, number in numbers.items()
        if isinstance(number, int | float) and math.isfinite(number)
    }


def record_params(record: TrialRecord) -> dict[str, Any]:
    """Return the resolved parameters of environment, algorithm and shape, with their tables."""
    tables = {"env": record.env_params, "learner": record.learner_params, "shape": record.shape}
    return {
        f"{table}.{name}": value
        for table, values in tables.items()
        for name, value in (values or {}).items()
    }


def _numbers(spec: StudySpec, record: TrialRecord) -> dict[str, Any]:
    numbers = {name: getattr(spec, name) for name in ("budget", "rungs", "num_envs", "horizon")}
    return numbers if record.seed is None else {**numbers, "seed": record.seed}


def spec_tags(spec: StudySpec) -> dict[str, str]:
    """Return what identifies the code and the data of a study."""
    names = ("environment", "algorithm", "objective", "code_version", "torch_version", "kernels")
    tags = {name: str(getattr(spec, name)) for name in names}
    return tags | spec.data_tags
