"""The value of a selected configuration on seeds that its selection has not seen.

A training run (`sweepd run --trial`, or the worker that completes a study) measures it: a study of
its own that repeats a trial. `optimize` writes it; `optimize` and `deploy` read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sweepd.envs.support.intervals import Interval, between, solved_seeds
from sweepd.optimize.study.record.configurations import Configuration
from sweepd.optimize.study.record.database import study_exists
from sweepd.optimize.study.record.keys import rung_interval
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.record.specs import SeedSpec
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.record.values import broken_words


@dataclass(frozen=True)
class FreshSeeds:
    """A configuration's value on fresh seeds.

    Attributes:
        study: the training run.
        seeds: number of seeds.
        value: the average over seeds.
        average: see `SeedSpec`.
        interval: its 95 % interval over seeds, which play episodes of their own; None of one seed.
        scores: of the seeds.
        solved: of a game that counts as solved from some score, how many seeds reach it.
        warning: see `TrialRecord`.
        further: values after the first, by name, of a study with several.
        violations: by the text of a constraint, see `Constraint.violation`.
    """

    study: str
    seeds: int
    value: float
    interval: Interval | None
    average: str
    scores: tuple[float, ...]
    solved: str | None
    warning: str | None = None
    further: Mapping[str, float] = field(default_factory=dict)
    violations: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, and the text of `between`, as plain data.

        `further` and `violations` are left out where the study has no such thing, and so is
        `judged`, a text of both.
        """
        interval = None if self.interval is None else self.interval.to_dict()
        found = asdict(self) | {"interval": interval, "between": self.between()}
        if not (self.further or self.violations):
            return {n: v for n, v in found.items() if n not in ("further", "violations")}
        return found | {"judged": self._judged()}

    def _judged(self) -> str:
        parts = [f"{name} {value:+.4f}" for name, value in self.further.items()]
        if self.violations:
            broken = broken_words(self.violations)
            parts.append(f"does not meet {broken}" if broken else "meets the constraints")
        return ", ".join(parts)

    def between(self, form: str = "{:+.4f}") -> str:
        """Format what the value rests on: the interval, or few seeds themselves, and how many solve."""
        return between(self.interval, self.scores, self.solved, form)


def run_name(study: str, trial: int) -> str:
    """Return the name of the training run that repeats a trial."""
    return f"{study}-run{trial}"


def fresh_seeds(study: StudyReader, best: Configuration) -> FreshSeeds | None:
    """Return the result of a training run of a configuration.

    Args:
        study: a study whose members are seeds.
        best: one of its configurations.

    Returns:
        None if no run of one of its trials, under its default name and with the study's budget, is
        complete.
    """
    found = (_read(run) for run in fresh_runs(study, best))
    return next((one for one in found if one is not None), None)


def fresh_runs(study: StudyReader, best: Configuration) -> Iterator[StudyReader]:
    """Yield the training runs of a configuration's trials, complete or not.

    They have their default names and the study's budget.
    """
    for trial in best.trials:
        name = run_name(study.name, trial.number)
        if not study_exists(study.storage, name):
            continue
        run = StudyReader(study.storage, name, study.runs_dir)
        ours = (run.origin or {}).get("study") == study.name and run.fork is None
        if ours and run.spec.budget == study.spec.budget:
            yield run


def _read(run: StudyReader) -> FreshSeeds | None:
    """Return the result of a training run; None if it is not complete."""
    spec = run.spec
    trial = next((one for one in run.rows.read() if one.state == "COMPLETE"), None)
    if trial is None or not isinstance(spec, SeedSpec):
        return None
    attributes = run.rows.attributes(trial)
    record = TrialRecord.from_attributes(attributes)
    scores = record.scores
    if not scores or trial.value is None:
        return None
    interval = rung_interval(attributes, spec.rungs)
    solved = None if spec.solved is None else solved_seeds(scores, spec.solved)
    value, average = float(trial.value), spec.average
    names = (own.name for own in spec.values[1:])
    return FreshSeeds(
        run.name,
        spec.seeds,
        value,
        interval,
        average,
        scores,
        solved,
        record.warning,
        dict(zip(names, trial.further, strict=True)),
        trial.violations,
    )
