"""Training a trial again, exactly as its study records it, beside the study.

Parameters, seed, environments, opponents and kernels are those of the trial, so on the same kind of
processor its weights are the same bytes. What is another one here (processor, kernels, versions) is
stated, and the trial is trained nevertheless. The study is only read.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from optuna.trial import FrozenTrial

from sweepd.agents.algorithms.identity import processor_kind
from sweepd.agents.native.choice import require
from sweepd.agents.networks.precision import set_precision
from sweepd.envs.core.sizing import cpu_count
from sweepd.envs.support.errors import InputError, RunError
from sweepd.optimize.objectives.members.objective import MemberObjective
from sweepd.optimize.objectives.members.trainer import MemberTraining, Trainer
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.run import Evaluation, Interrupted, WorkerHooks
from sweepd.optimize.objectives.table import members_of
from sweepd.optimize.study.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from sweepd.optimize.study.insight.time_left import whole_programs
from sweepd.optimize.study.record.retrained import Retrained
from sweepd.optimize.study.record.specs import StudySpec, code_version, torch_version
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.study import Plan, StudyHandle
from sweepd.optimize.worker.freeze import changed_plugins
from sweepd.optimize.worker.retrain import Retraining
from sweepd.optimize.worker.telemetry import Telemetry

CHECKPOINT = "checkpoint.safetensors"  # in the folder of a reproduction


class Reproduction:
    """Trains one trial of a study again.

    Args:
        study: the study.
        number: of the trial.
        request: settings of this machine: `threads`, `data_dir` if it is given, `load_bundle`.
        device: where.
        telemetry: shows the progress.

    Raises:
        InputError: there is no such complete trial, its bars or its opponents are not here, or this
            machine cannot train it.
    """

    def __init__(
        self,
        study: StudyHandle,
        number: int,
        request: Request,
        device: torch.device,
        telemetry: Telemetry,
    ) -> None:
        self._study, self._spec, self._telemetry = study, study.spec, telemetry
        kind = members_of(self._spec.environment, "sweepd reproduce")
        self._trial = _complete(study, number)
        self._record = TrialRecord.from_attributes(self._trial.user_attrs)
        self._again = Retraining(study, number, self._spec.rungs)
        self._target = self._again.plans[number]
        _check_league(kind, self._spec, list(self._again.plans.values()))
        self._differs = _set_up(self._spec, request, device)
        self._differs += changed_plugins(study)
        self._differs += self._other_parameters(kind)
        folder = request.data_dir if "data_dir" in request.given else None
        bars = kind.load_recorded_bars(self._spec, folder, lambda _: None)
        if folder is not None and bars is None:
            raise InputError(
                f"--data-dir is for markets, and {study.name} is on {kind.environment}"
            )
        run = kind.open(self._spec, bars, device, telemetry.say, request)
        assert isinstance(run, Trainer)
        self._run: Trainer = run
        self._done = self._wanted = 0  # steps of the present rung

    def _other_parameters(self, kind: MemberObjective[StudySpec]) -> list[str]:
        """Return what means something else than when the trial was recorded, in words."""
        found = []
        if self._record.seed not in (None, self._target.seed):
            found.append(f"seed {self._record.seed} then, {self._target.seed} here")
        settings = self._again.settings_after(self._spec.rungs, self._target)
        present = kind.recorded_params(self._spec, settings)
        recorded = self._record.learner_params, self._record.shape
        for then, now in zip(recorded, present, strict=True):
            found += [
                f"{name} {value} then, {now[name]} here"
                for name, value in (then or {}).items()
                if name in now and json.loads(json.dumps(now[name])) != value
            ]
        return found

    def train(self, folder: Path, stop: Callable[[], bool]) -> Retrained | None:
        """Train the trial, or continue it from the checkpoint in a folder.

        Args:
            folder: gets the checkpoint and the trial's files.
            stop: returns whether to stop; called between rollouts.

        Returns:
            None if it was stopped; the checkpoint is written then.

        Raises:
            InputError: an opponent or the weights that it began with are not here.
            RunError: the training diverged.
        """
        run, again = self._run, self._again
        file = folder / CHECKPOINT

        def keep(_: Sequence[Any] = ()) -> None:
            write_checkpoint(file, self._joined())

        folder.mkdir(parents=True, exist_ok=True)
        say = self._telemetry.say
        run.attach(self._study, WorkerHooks(stop, self._progress, say, keep=keep))
        run.prepare(list(again.plans.values()), lambda: None)
        again.begin(run)
        self._resume(file)
        target = again.trainings[self._target.number]
        try:
            evaluation = self._advance(target)
        except Interrupted:
            keep()
            return None
        keep()  # the training need not be repeated if what follows is interrupted
        written = run.write(target, folder, evaluation)
        recorded, values = self._record.members, self._trial.values
        assert recorded is not None
        assert values is not None
        slots = f"{self._spec.slots} members per program then, {run.slots} here"
        return Retrained(
            folder,
            file,
            recorded.sha256,
            written.sha256,
            values[0],
            evaluation.final,
            self._record.scores or (),
            evaluation.scores,
            (*self._differs, *([slots] if run.slots != self._spec.slots else [])),
        )

    def _advance(self, target: MemberTraining) -> Evaluation:
        """Train from rung to rung, with the changes of a population or a schedule."""
        run, rungs, again = self._run, self._spec.rungs, self._again
        left = {
            own: one.rung for own, one in again.trainings.items() if again.needed[own] > one.rung
        }
        rung = min(left.values())
        while True:
            rung += 1
            due = again.due(rung)
            self._begin(due, rung)
            run.advance(due)
            evaluations = run.evaluate([target]) if rung == rungs else []
            if fault := next((one.fault for one in due if one.fault), ""):
                here = f"; here, {'; '.join(self._differs)}" if self._differs else ""
                raise RunError(
                    f"trial {self._trial.number} of study {self._study.name} does not train as it "
                    f"did: {fault}{here}"
                )
            for evaluation in evaluations:
                assert evaluation is not None  # else there is a fault
                return evaluation
            again.finish(due, rung)
            for one in due:
                run.take_curves(one)

    # -- progress

    def _begin(self, due: Sequence[MemberTraining], rung: int) -> None:
        telemetry, spec = self._telemetry, self._spec
        self._done, self._wanted = 0, sum(map(self._run.steps_left, due))
        members = sum(len(one.members) for one in due)
        padding = whole_programs(members, spec.slots) / members
        telemetry.activity = f"trial {self._trial.number} again, rung {rung} of {spec.rungs}"
        telemetry.counts = {"RUNNING": 1}
        telemetry.begin(padding)
        later = members * (spec.rollouts - spec.rung_end(rung)) * spec.transitions
        telemetry.left(padding * (self._wanted + later))

    def _progress(self, steps: int) -> None:
        self._done += steps
        self._telemetry.share_of_batch = self._done / max(self._wanted, 1)
        self._telemetry.steps(steps)

    # -- the checkpoint: of all trials together, so that they fit to each other after a kill

    @property
    def _note(self) -> dict[str, Any]:
        trials = [plan.note for plan in self._again.plans.values()]
        return {"study": self._study.uid, "trials": trials, "differs": self._differs}

    def _joined(self) -> Checkpoint:
        states = list(self._again.trainings.values())
        members = [member for one in states for member in one.members]
        return Checkpoint(members, note={**self._note, "rungs": [one.rung for one in states]})

    def _resume(self, file: Path) -> None:
        """Continue from a checkpoint of this training, if there is one."""
        try:
            found = read_checkpoint(file)
        except InputError:
            return
        rungs = found.note.pop("rungs", [])
        if found.note != self._note:
            return
        members = iter(found.members)
        for one, rung in zip(self._again.trainings.values(), rungs, strict=True):
            one.members, one.rung = [next(members) for _ in one.members], rung
            settings = self._again.settings_after(rung, one.plan)
            one.plan = dataclasses.replace(one.plan, settings=settings)
        self._telemetry.say(f"continuing after rung {min(rungs)} ({found.at(self._spec.unit)})")


def _complete(study: StudyHandle, number: int) -> FrozenTrial:
    for trial in study.judged():
        if trial.number == number:
            if TrialRecord.from_attributes(trial.user_attrs).members is None:
                break
            return trial
    raise InputError(f"study {study.name!r} has no complete trial {number} with recorded weights")


def _check_league(kind: MemberObjective[StudySpec], spec: StudySpec, plans: Sequence[Plan]) -> None:
    """Raise InputError if opponents from the study's league are not recorded."""
    curriculum = kind.curriculum(spec)
    if curriculum is None or not curriculum.has_league:
        return
    for plan in plans:
        if plan.league is None:
            raise InputError(f"trial {plan.number} has no record of its opponents from the league")


def _set_up(spec: StudySpec, request: Request, device: torch.device) -> list[str]:
    """Set torch's threads, precision and kernels; return what is another one here, in words."""
    torch.set_num_threads(request.threads or min(spec.threads, cpu_count()))
    set_precision(spec.precision, device)
    differs = [
        f"{what} {then} then, {here} here"
        for what, then, here in (
            ("processor", spec.processor, processor_kind(device)),
            ("sweepd", spec.code_version, code_version()),
            ("torch", spec.torch_version, torch_version()),
        )
        if then != here
    ]
    try:
        require(spec.kernels)
    except InputError as error:
        differs.append(str(error).rstrip("."))
    return differs
