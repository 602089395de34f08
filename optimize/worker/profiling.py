"""`sweepd profile`: where a study's batches would spend their time on this machine."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweepd.optimize.objectives.members.experiment import Experiment
from sweepd.optimize.objectives.members.measure import synchronise, typical_shape
from sweepd.optimize.objectives.members.trainer import MemberTraining, Trainer
from sweepd.optimize.study.checkpoint import Checkpoint, write_checkpoint
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.fit import fit_shape
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.space.parsing import study_space
from sweepd.optimize.study.space.search_space import Settings
from sweepd.optimize.study.study import Plan, StudyHandle, create_study
from sweepd.optimize.worker.timing import Phases

MEANS = {
    "env": "stepping the environments",
    "policy": "choosing actions and storing transitions",
    "update": "advantages, gradients, optimizer",
    "transfer": "loading and unloading members of programs, contents of checkpoints",
    "evaluation": "evaluation at every rung",
    "host": "study database, files, bookkeeping",
}
MORE_ROWS = "use more --n-envs or --slots: a step of many rows takes hardly longer than one of few"
# (phase, share of time from which the advice applies, advice), in order of priority.
ADVICE = (
    (
        "evaluation",
        0.20,
        "use fewer --rungs, a larger --budget, or more --trials-per-batch, which share evaluations",
    ),
    ("env", 0.35, MORE_ROWS),
    ("policy", 0.35, MORE_ROWS),
    ("transfer", 0.10, "use fewer --rungs, or at least as many --slots as a trial has folds"),
    ("host", 0.05, "use fewer --rungs, a larger --budget, or a faster disk for the database"),
    ("update", 0.50, "if acceptable, search larger minibatches, fewer epochs or smaller networks"),
)


@dataclass(frozen=True)
class Profile:
    """Estimated times of one batch.

    Attributes:
        seconds: time of the whole batch by phase, extrapolated from the measurements.
        steps: environment steps of the batch.
        trials: trials of the batch.
    """

    seconds: dict[str, float]
    steps: int
    trials: int

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def lines(self) -> list[str]:
        """Return a table of the phases, and advice."""
        rows = [
            f"{'':12}{'share':>7}{'seconds':>10}   (extrapolated to a batch of {self.trials} "
            "unpruned trials)"
        ]
        for name, spent in sorted(self.seconds.items(), key=lambda row: -row[1]):
            rows.append(f"{name:12}{spent / self.total:>7.1%}{spent:>10.1f}   {MEANS[name]}")
        speed, rate = self.steps / self.total, 3600 * self.trials / self.total
        return [*rows, f"{speed:,.0f} steps/s and {rate:.1f} trials/hour in total", *self.advice()]

    def advice(self) -> list[str]:
        """Return one or two sentences."""
        shares = {name: spent / self.total for name, spent in self.seconds.items()}
        found = [
            f"{name} {shares[name]:.0%}: {what}."
            for name, much, what in ADVICE
            if shares.get(name, 0) >= much
        ]
        return found[:2] or ["No phase dominates: nothing to change."]


def profile(experiment: Experiment, seconds: float = 5.0) -> Profile:
    """Train and evaluate part of one batch with the median shape of the study, and time the phases.

    Args:
        experiment: environments and algorithm of the study.
        seconds: approximate training time.
    """
    spec = experiment.spec
    shape = fit_shape(typical_shape(study_space(spec)), spec.transitions)
    plans = [Plan(n, n, {}, Settings(dict(shape), {}, {}), n) for n in range(spec.trials_per_batch)]
    phases = Phases()
    trainer = Trainer(experiment)
    trainings = [trainer.start(plan) for plan in plans]
    env, learner = trainer.program(trainings[0])
    sync = functools.partial(synchronise, experiment.device)
    for owner, method, phase in (
        (env, "step", "env"),
        (getattr(learner, "rollout", None), "collect", "policy"),
        (learner, "train", "update"),
        (learner, "get_member", "transfer"),
        (learner, "set_member", "transfer"),
        (learner, "add_member", "transfer"),
        (env, "get_member", "transfer"),
        (env, "set_member", "transfer"),
        (env, "reset_member", "transfer"),
    ):
        if owner is not None:
            setattr(owner, method, _timed(getattr(owner, method), phases, phase, sync))

    # One rollout to warm up, then as many as fit into the time.
    done = _advance(trainer, trainings, 1)
    phases.seconds.clear()
    began = time.perf_counter()
    rollouts = 0
    while rollouts == 0 or (
        time.perf_counter() - began < seconds and done + rollouts < spec.rollouts
    ):
        with phases("host"):
            rollouts = _advance(trainer, trainings, done + rollouts + 1) - done
    measured = dict(phases.seconds)
    phases.seconds.clear()  # an evaluation also loads members and chooses actions
    for training in trainings:  # the evaluation at the end
        training.rung = spec.rungs - 1
    with phases("evaluation"):
        trainer.evaluate(trainings)
    evaluation = sum(phases.seconds.values())
    whole = {
        name: measured.get(name, 0.0) * spec.rollouts / rollouts
        for name in ("env", "policy", "update", "host")
    }
    # Every rollout above moved all members in and out once. A worker moves them once per rung.
    whole["transfer"] = measured.get("transfer", 0.0) * spec.rungs / rollouts
    shares = [experiment.evaluation_share(rung) for rung in range(1, spec.rungs + 1)]
    whole["evaluation"] = evaluation * sum(shares)
    whole["host"] += _bookkeeping(experiment, trainings)
    steps = len(plans) * experiment.members * spec.rollouts * spec.transitions
    return Profile(whole, steps, len(plans))


def _advance(trainer: Trainer, trainings: list[MemberTraining], rollouts: int) -> int:
    """Train every member up to this number of rollouts; return the number reached."""
    spec = trainer.spec
    trainer.spec = dataclasses.replace(spec, budget=rollouts * spec.transitions, rungs=1)
    try:
        trainer.advance(trainings)
    finally:
        trainer.spec = spec
    return trainings[0].members[0].rollouts


def _timed(
    call: Callable[..., Any], phases: Phases, phase: str, sync: Callable[[], None]
) -> Callable[..., Any]:
    @functools.wraps(call)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with phases(phase):
            result = call(*args, **kwargs)
            sync()  # otherwise the next phase would wait for this one's kernels
        return result

    return timed


def _bookkeeping(experiment: Experiment, trainings: list[MemberTraining]) -> float:
    """Measure the seconds per batch for asking, reporting and checkpoints in a temporary study."""
    spec = experiment.spec
    with tempfile.TemporaryDirectory() as folder:
        storage = open_storage(storage_url(None, Path(folder)))
        create_study(storage, "profile", spec, Path(folder), {})
        handle = StudyHandle(storage, "profile")
        phases = Phases()
        with phases("asking"):
            plans = handle.ask_batch(len(trainings), "profile", len(trainings))
        with phases("rung"):
            for plan in plans:
                handle.report(plan, 1, 0.0, _attributes(plan, spec))
            handle.judge(plans)
            for training in trainings:
                write_checkpoint(Path(folder) / "checkpoint", Checkpoint(training.members))
        storage.engine.dispose()
    return phases.seconds["asking"] + phases.seconds["rung"] * spec.rungs


def _attributes(plan: Plan, spec: StudySpec) -> Mapping[str, Any]:
    """Return about as many attributes as a worker writes."""
    given = plan.params
    record = TrialRecord(
        env_params=given, learner_params=given, metrics=given, shape=given, reason=""
    )
    return record.to_attributes(spec)
