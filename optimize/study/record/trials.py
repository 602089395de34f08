"""What a worker records about a trial: a `TrialRecord`, stored as attributes of the trial."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sweepd.optimize.study.record.keys import PREFIX
from sweepd.optimize.study.record.specs import StudySpec


@dataclass(frozen=True)
class RecordedFile:
    """A file of a trial. path: relative to the study's folder. sha256: of its content."""

    path: str
    sha256: str


def record_keys(*fields: str) -> list[str]:
    """Return the attributes in which these fields of `TrialRecord` are stored."""
    names = [*fields, *(("fold_scores", "seed_scores") if "scores" in fields else ())]
    return [PREFIX + name for name in names]


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """What a worker records about a trial besides its parameters and its value.

    A field is None where it is not recorded.

    Attributes:
        seed: seed of the trial.
        shape: fields of the program's shape.
        env_params: parameters of the environment.
        learner_params: parameters of the algorithm.
        scores: one score per member; key `fold_scores` or `seed_scores`.
        path_scores: one score per back-test path, on a market.
        metrics: metrics of the last evaluation, by name.
        resampled: what the interval of the mean return resamples, of games.
        interval: name of that interval.
        warning: what is wrong with the game, such as a score outside its declared range.
        nash_conv: mean NashConv of the members, in games that are small enough to enumerate. Also
            one of the metrics; here so that tables of trials can be sorted by it.
        members: the file with the weights that were scored; recorded when the trial is complete.
        reason: why the trial failed, was pruned, or has another value than its scores suggest.
        num_envs: environments per member.
        device: "cpu", or the model of the GPU.
        steps_per_second: environment steps per second of the worker.
        seconds: training time of the trial, all attempts together.
        phases: per member, the number of rollouts after which each of its phases began.
        evaluations: the evaluations beside rungs (`--evaluate-every`): environment steps per member
            and value, which is None where it was not finite. No search uses them.
        starts: of a program, per seed, the first step that each attempt to run it reported: after
            a kill, it went on from its own checkpoint, or started again.
    """

    seed: int | None = None
    shape: Mapping[str, Any] | None = None
    env_params: Mapping[str, Any] | None = None
    learner_params: Mapping[str, Any] | None = None
    scores: tuple[float, ...] | None = None
    path_scores: tuple[float, ...] | None = None
    metrics: Mapping[str, float] | None = None
    resampled: str | None = None
    interval: str | None = None
    warning: str | None = None
    nash_conv: float | None = None
    members: RecordedFile | None = None
    reason: str | None = None
    num_envs: int | None = None
    device: str | None = None
    steps_per_second: float | None = None
    seconds: float | None = None
    phases: Sequence[Sequence[int]] | None = None
    evaluations: Sequence[Sequence[float | None]] | None = None
    starts: Sequence[Sequence[int]] | None = None

    def to_attributes(self, spec: StudySpec) -> dict[str, Any]:
        """Return the recorded fields as attributes of a trial of this study.

        Metrics and scores are also attributes of their own, under their plain names.
        """
        learner = spec.algorithm.partition(":")[0]
        names = {"scores": f"{spec.member}_scores", "learner_params": f"{learner}_params"}
        attributes = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                own = dataclasses.asdict(value) if isinstance(value, RecordedFile) else value
                attributes[PREFIX + names.get(field.name, field.name)] = own
        return attributes | self._scalars(spec)

    def _scalars(self, spec: StudySpec) -> dict[str, float]:
        """Return each metric and score as a number of its own, which optuna-dashboard can sort."""
        numbers = dict(self.metrics or {})
        numbers |= {
            f"{spec.member}_score_{index}": score for index, score in enumerate(self.scores or ())
        }
        # JSON has no NaN; a metric that is not finite is in the record only.
        return {
            name: float(number)
            for name, number in numbers.items()
            if isinstance(number, int | float) and math.isfinite(number)
        }

    def folder(self, number: int) -> str:
        """Return the folder of the files of this trial, in the study's folder."""
        members = self.members
        return f"trial-{number:05d}" if members is None else str(Path(members.path).parent)

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> Self:
        """Read the attributes of a trial of any study."""
        fields: dict[str, Any] = {}
        names = {field.name for field in dataclasses.fields(cls)}
        for key, value in attributes.items():
            name = key.removeprefix(PREFIX)
            if not key.startswith(PREFIX):
                continue
            if name in ("fold_scores", "seed_scores"):
                name = "scores"
            elif name.endswith("_params") and name != "env_params":
                name = "learner_params"
            if name in ("scores", "path_scores"):
                fields[name] = tuple(float(score) for score in value)
            elif name == "members":
                fields[name] = _recorded_file(value)
            elif name in names:
                fields[name] = value
        return cls(**fields)


def _recorded_file(value: Any) -> RecordedFile | None:
    if not isinstance(value, Mapping) or not {"path", "sha256"} <= set(value):
        return None
    return RecordedFile(str(value["path"]), str(value["sha256"]))
