"""Training of trials by programs: one program per trial and seed, several at once.

A rung is reached by the first report whose step is at least the rung's end, the last one by the
end of the program, whose last report is its value. Which of a trial's reports counts thus depends on
the reports alone, not on when they are read. A program that has reached its rung is stopped until
the other trials of the batch have, so that all report before any is judged.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.sizing import cpu_count
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.formatting import counted
from sweepd.envs.support.intervals import Interval, over_seeds
from sweepd.envs.support.naming import import_paths
from sweepd.optimize.objectives.artifacts import scored_file
from sweepd.optimize.objectives.command.job import CHECKPOINT, OUT, Job, Limits, clean
from sweepd.optimize.objectives.command.reports import Report
from sweepd.optimize.objectives.command.words import filled_in
from sweepd.optimize.objectives.pace import CheckpointPace
from sweepd.optimize.objectives.run import Evaluation, Interrupted, Run, Training, WorkerHooks
from sweepd.optimize.study.checkpoint import Checkpoint, MemberState
from sweepd.optimize.study.record.keys import interval_key
from sweepd.optimize.study.record.programs import is_function
from sweepd.optimize.study.record.specs import CommandSpec, StudySpec
from sweepd.optimize.study.record.trials import RecordedFile, TrialRecord
from sweepd.optimize.study.study import Plan, StudyHandle

POLL_SECONDS = 0.05  # between two looks at the reports
SLACK_SECONDS = 20.0  # for a supervisor to end, beyond the grace period of its program
CURVES, MANIFEST, REPORTS = "curve.png", "manifest.json", "reports.jsonl"


@dataclass(frozen=True)
class CommandEvaluation(Evaluation):
    """Values of a trial's programs at a rung. numbers: further numbers, means over seeds."""

    numbers: dict[str, float]

    @cached_property
    def interval(self) -> Interval:
        """The 95 % interval of the value over seeds."""
        return over_seeds(self.scores)

    def rung_attributes(self, spec: StudySpec, rung: int) -> dict[str, Any]:
        found = super().rung_attributes(spec, rung)
        return (
            found if self.interval.empty else {**found, interval_key(rung): self.interval.to_dict()}
        )

    @cached_property
    def record(self) -> TrialRecord:
        own = self.interval
        bounds = {"mean_low": own.low, "mean_high": own.high} if own.known else {}
        return TrialRecord(
            scores=self.scores,
            metrics={**self.numbers, "mean": self.value, **bounds},
            resampled=own.resampled,
            interval=own.method,
        )


@dataclass
class CommandTraining(Training):
    """A trial whose programs run.

    Attributes:
        jobs: its programs, one per seed.
        steps: per seed, the last step that was ever reported.
        shown: last step whose curves were taken.
    """

    jobs: list[Job] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    shown: int = -1


class CommandRun(Run[CommandTraining]):
    """Runs the programs of one study on this machine.

    Args:
        spec: the study's spec.
        jobs: programs at once.
        grace: seconds from SIGTERM to SIGKILL.
    """

    published = (CURVES, MANIFEST)
    device = torch.device("cpu")  # of the worker, which computes nothing
    device_name = None

    def __init__(self, spec: CommandSpec, jobs: int, grace: float) -> None:
        self.spec: CommandSpec = spec
        self.jobs = jobs
        self.trial_steps = spec.seeds * spec.budget
        self._limits = Limits(grace, round(spec.job_memory * 2**30), 60 * spec.job_minutes)
        self._hooks, self._pace = WorkerHooks(), CheckpointPace()
        self._handle: StudyHandle | None = None
        self._seconds, self._steps = 0.0, 0
        own = "CUDA_VISIBLE_DEVICES" in os.environ
        self._cards = [] if own else [str(card) for card in range(torch.cuda.device_count())]

    @property
    def machine(self) -> dict[str, Any]:
        return {"jobs": self.jobs, "job_grace": self._limits.grace}

    @property
    def steps_per_second(self) -> float:
        return self._steps / max(self._seconds, 1e-9)

    def attach(self, handle: StudyHandle, hooks: WorkerHooks) -> None:
        self._handle, self._hooks, self._pace = handle, hooks, hooks.pace or CheckpointPace()

    def describe(self) -> list[str]:
        spec = self.spec
        batch = f"{counted(spec.trials_per_batch, 'trial')} of {counted(spec.seeds, 'seed')}"
        return [
            f"command: {spec.command}",
            f"budget: {spec.budget:,} steps per seed in {counted(spec.rungs, 'rung')}; batch: {batch}",
        ]

    def placement(self) -> str:
        cards = f" on GPUs {', '.join(self._cards)}" if self._cards else ""
        assert self._handle is not None
        logs = self._handle.run_dir / "trial-*" / "seed-*" / "attempt-*.log"
        return f"{counted(self.jobs, 'program')} at once{cards}; their output is in {logs}"

    # -- a batch

    def begin(self, plans: Sequence[Plan]) -> list[CommandTraining]:
        self._seconds, self._steps = 0.0, 0
        return [
            CommandTraining(plan, jobs=self._trial_jobs(plan), steps=[0] * self.spec.seeds)
            for plan in plans
        ]

    def _trial_jobs(self, plan: Plan) -> list[Job]:
        """Return the programs of a trial, one per seed, and write its parameters."""
        assert self._handle is not None
        trial = self._handle.trial_dir(plan.number).resolve()
        trial.mkdir(parents=True, exist_ok=True)
        params = json.dumps(plan.settings.learner)
        write_atomic(trial / "params.json", params)
        return [
            self._job(plan, params, trial / f"seed-{seed}", seed) for seed in range(self.spec.seeds)
        ]

    def _job(self, plan: Plan, params: str, folder: Path, index: int) -> Job:
        assert self._handle is not None
        folder.mkdir(exist_ok=True)
        known = {
            "seed": derive_seed(plan.seed, "seed", index) % 2**31,
            "trial": plan.number,
            "study": self._handle.name,
            "budget": self.spec.budget,
            "out": str(folder / OUT),
            "checkpoint_dir": str(folder / CHECKPOINT),
        }
        threads = max(1, cpu_count() // self.jobs)
        variables = {f"SWEEPD_{name.upper()}": str(value) for name, value in known.items()}
        if self.spec.several:
            further = [value.name for value in self.spec.values[1:]]
            variables["SWEEPD_ALSO"] = json.dumps(further)
        variables |= {"SWEEPD_PARAMS": params, "PYTHONUNBUFFERED": "1"}
        if "OMP_NUM_THREADS" not in os.environ:
            variables["OMP_NUM_THREADS"] = str(threads)
        words = filled_in(self.spec.command, {**plan.settings.learner, **known})
        if is_function(self.spec.environment):
            words[0] = sys.executable
            variables["PYTHONPATH"] = import_paths()
        return Job(words, variables, folder, self._limits)

    def release(self) -> None:
        """Nothing is kept between batches."""

    def steps_left(self, state: CommandTraining) -> int:
        end = self.spec.rung_end(state.rung + 1)
        return sum(max(0, end - steps) for steps in state.steps)

    def advance(self, states: Sequence[CommandTraining]) -> None:
        while True:
            for state in states:
                self._look(state)
            waiting = [job for state in states for job in self._behind(state)]
            if not waiting:
                return
            if self.spec.pruner != "none":  # else nobody waits for a verdict
                for state in states:
                    for job in state.jobs:
                        if job.running and job not in waiting:
                            job.stop()
            self._fill([job for state in states for job in state.jobs], waiting)
            self._wait(states)
            if self._hooks.stop():
                raise Interrupted
            self._keep_if_due(states)

    def _behind(self, state: CommandTraining) -> list[Job]:
        """Return the programs of a trial that have not reached its next rung."""
        if state.fault:
            return []
        rung = state.rung + 1
        if rung >= self.spec.rungs:
            return [job for job in state.jobs if not job.finished]
        return [job for job in state.jobs if not job.reached(self.spec.rung_end(rung))]

    def _look(self, state: CommandTraining) -> None:
        """Read what the programs of a trial have reported, and end it if one has failed."""
        for index, job in enumerate(state.jobs):
            job.read()
            self._count(state, index)
            if job.fault and not state.fault:
                which = f"seed {index}: " if len(state.jobs) > 1 else ""
                state.fault = f"{which}{job.fault}"
        if state.fault:
            self.end([state])

    def _count(self, state: CommandTraining, index: int) -> None:
        """Count the new steps of a program."""
        reports = state.jobs[index].reports
        new = reports[-1].step - state.steps[index] if reports else 0
        if new > 0:
            state.steps[index] += new
            self._steps += new
            self._hooks.progress(new)

    def _fill(self, jobs: Sequence[Job], waiting: Sequence[Job]) -> None:
        """Start, or let go on, as many programs as may run at once."""
        free = self.jobs - sum(job.running for job in jobs)
        for job in [job for job in waiting if job.ready][: max(0, free)]:
            if job.alive:
                job.go_on()
                continue
            if self._cards:
                used = [other.card for other in jobs if other.alive]
                job.card = min(self._cards, key=used.count)
            job.start()

    def _wait(self, states: Sequence[CommandTraining]) -> None:
        """Wait for the end of a program, or for a moment, and judge those that have ended."""
        before = time.monotonic()
        ended = _ended([job for state in states for job in state.jobs], POLL_SECONDS)
        spent = time.monotonic() - before
        self._seconds += spent
        for state in states:
            state.seconds += spent * any(job.running for job in state.jobs)
        outcomes = [(job, job.collect()) for job in ended]
        # Asked first: what ends the worker may have ended the programs, too.
        if outcomes and self._hooks.stop():
            raise Interrupted
        for job, outcome in outcomes:
            job.judge(outcome)

    def _keep_if_due(self, states: Sequence[CommandTraining]) -> None:
        kept = [state for state in states if not state.fault]
        if self._hooks.keep is not None and kept and self._pace.due():
            self._pace.begun()
            self._hooks.keep(kept)

    def end(self, states: Sequence[CommandTraining]) -> None:
        """Terminate the programs of trials, and wait until nothing of them is left."""
        left = [job for state in states for job in state.jobs if job.alive]
        for job in left:
            job.terminate()
        until = time.monotonic() + self._limits.grace + SLACK_SECONDS
        while left:
            self._hooks.alive()
            for job in _ended(left, POLL_SECONDS):
                job.collect()
            left = [job for job in left if job.alive]
            if time.monotonic() > until:
                for job in left:
                    job.kill()
        for state in states:
            for index in range(len(state.jobs)):
                self._count(state, index)

    def evaluate(self, states: Sequence[CommandTraining]) -> list[Evaluation | None]:
        return [self._evaluation(state) for state in states]

    def _evaluation(self, state: CommandTraining) -> CommandEvaluation:
        rung = min(state.rung + 1, self.spec.rungs)
        end = None if rung == self.spec.rungs else self.spec.rung_end(rung)
        found = [_report_at(job.reports, end) for job in state.jobs]
        scores = tuple(report.value for report in found)
        value = float(np.mean(scores))
        # Means over seeds: of numbers that all of them report.
        names = set.intersection(*(set(report.numbers) for report in found))
        numbers = {
            name: float(np.mean([report.numbers[name] for report in found]))
            for name in sorted(names)
        }
        return CommandEvaluation(value, value, scores, (), numbers)

    # -- what is kept

    def checkpoint(self, state: CommandTraining) -> Checkpoint:
        members = [MemberState(rollouts=steps) for steps in state.steps]
        return Checkpoint(members, state.kept_rung, state.seconds, state.plan.note)

    def resume(self, state: CommandTraining, checkpoint: Checkpoint) -> None:
        state.rung, state.seconds = checkpoint.rung, checkpoint.seconds
        state.steps = [member.rollouts for member in checkpoint.members]
        state.shown = self.spec.rung_end(state.rung) if state.rung else -1

    def take_curves(self, state: CommandTraining) -> list[tuple[int, dict[str, float]]]:
        """Return the means over seeds, by step."""
        found: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for job in state.jobs:
            for report in job.reports:
                if report.step > state.shown:
                    for name, number in (*report.numbers.items(), ("value", report.value)):
                        found[report.step][name].append(number)
        state.shown = max(found, default=state.shown)
        return [
            (step, {name: float(np.mean(numbers)) for name, numbers in found[step].items()})
            for step in sorted(found)
        ]

    def record(self, state: CommandTraining) -> TrialRecord:
        return TrialRecord(
            learner_params=state.plan.settings.learner, starts=[job.starts for job in state.jobs]
        )

    def write(
        self,
        state: CommandTraining,
        folder: Path,
        evaluation: Any,  # noqa: ARG002
    ) -> RecordedFile:
        """Write all reports, and a list of the files that the programs have written.

        Returns:
            The record of the list.
        """
        lines = [
            json.dumps({"seed": seed, **report.to_dict()})
            for seed, job in enumerate(state.jobs)
            for report in job.reports
        ]
        write_atomic(folder / REPORTS, "".join(f"{line}\n" for line in lines))
        manifest = {
            "command": self.spec.command,
            "params": dict(state.plan.settings.learner),
            "seeds": [{"seed": job.seed, "words": list(job.words)} for job in state.jobs],
            "files": [one for job in state.jobs for one in _files(job.folder / OUT)],
        }
        write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1))
        return scored_file(folder / MANIFEST)

    def shown(self, state: CommandTraining) -> tuple[str, ...]:
        """Return the published files, with the picture if there is a curve to see."""
        return self.published if any(len(job.reports) > 1 for job in state.jobs) else (MANIFEST,)

    def clean(self, folder: Path) -> None:
        clean(folder)


def _ended(jobs: Sequence[Job], seconds: float) -> list[Job]:
    """Return programs that have ended, after waiting for the first one for this time at most."""
    watched = {job.handle: job for job in jobs if job.alive}
    poll = select.poll()
    for handle in watched:
        poll.register(handle, select.POLLIN)
    return [watched[handle] for handle, _ in poll.poll(1000 * seconds)]


def _report_at(reports: Sequence[Report], step: int | None) -> Report:
    """Return the first report at this step or later; the last one if there is none, or for None."""
    if step is None:
        return reports[-1]
    return next((report for report in reports if report.step >= step), reports[-1])


def _files(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield path (from the trial's folder), sha256 and size in bytes of the files in a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            name = str(path.relative_to(folder.parents[1]))
            yield {"path": name, "sha256": sha256, "bytes": path.stat().st_size}


def draw_curves(folder: Path, title: str) -> None:
    """Draw `curve.png`, the value of each seed over steps, from `reports.jsonl`."""
    from matplotlib.figure import Figure

    curves: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for line in (folder / REPORTS).read_text(encoding="utf-8").splitlines():
        report = json.loads(line)
        curves[report["seed"]].append((report["step"], report["value"]))
    figure = Figure(figsize=(7, 4.2), dpi=100)
    axes = figure.add_axes((0.11, 0.13, 0.87, 0.77))
    for seed, points in curves.items():
        axes.plot(
            *zip(*points, strict=True), marker="." if len(points) < 50 else "", label=f"seed {seed}"
        )
    axes.set_xlabel("step")
    axes.set_ylabel("value")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend(loc="best", fontsize=8)
    write_atomic(folder / CURVES, lambda path: figure.savefig(path, format="png"))
