"""Checkpoints within a rung: when they are written, and that resuming changes no result."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sweepd.envs.crypto.data.bars import Bars
from sweepd.optimize.objectives.market.experiment import CryptoExperiment
from sweepd.optimize.objectives.members.trainer import MemberTraining, Trainer
from sweepd.optimize.objectives.pace import EVERY, FIRST, SHARE, CheckpointPace
from sweepd.optimize.objectives.run import WorkerHooks
from sweepd.optimize.study.checkpoint import Checkpoint
from tests.optimize.checkpointing import EveryRollout, kept_in
from tests.optimize.conftest import INDEPENDENT, Sweepd
from tests.optimize.study_files import killed_at_checkpoint, numbers, open_handle
from tests.optimize.worker.test_batch import advance_to, make_spec, plan, to_the_end


def test_the_interval_between_checkpoints() -> None:
    now, busy = 100.0, False
    paced = CheckpointPace(lambda: busy, lambda: now)

    def due_after() -> float:
        nonlocal now
        begun = now
        while not paced.due():
            now += 0.5
        return now - begun

    now += 1000.0  # measuring and creating programs
    paced.begun()
    waits = []
    for _ in range(7):
        waits.append(due_after())
        paced.begun()
        paced.spent(0.01)
    assert waits == [FIRST, FIRST, 2 * FIRST, 4 * FIRST, 24.0, EVERY, EVERY]
    busy = True
    now += 1000.0
    assert not paced.due()
    busy = False
    assert paced.due()
    paced.begun()
    for _ in range(4):  # several trials' files
        paced.spent(1.0)
    assert due_after() == 4.0 / SHARE
    paced.begun()
    paced.begun()  # a rung's checkpoints are not counted yet
    assert paced.interval == 4.0 / SHARE


def test_resuming_from_any_checkpoint_changes_no_number(bars: Bars, tmp_path: Path) -> None:
    experiment = CryptoExperiment(make_spec(bars, budget=192), bars, torch.device("cpu"))
    reference = Trainer(experiment)
    whole = to_the_end(reference, [reference.start(plan(n)) for n in range(3)])
    curves = [reference.start(plan(n)) for n in range(3)]
    advance_to(reference, curves, 2)
    kept: list[MemberTraining] = []
    keeping = Trainer(experiment, WorkerHooks(keep=kept_in(tmp_path, kept), pace=EveryRollout()))
    assert to_the_end(keeping, [keeping.start(plan(n)) for n in range(3)]) == whole
    states = [
        [training for training in kept if training.plan.number == number] for number in range(3)
    ]
    totals = [Checkpoint(training.members).rollouts for training in states[0]]
    assert totals == sorted(totals)
    assert len(set(totals)) > 2
    torn = [states[0][-1], states[1][len(states[1]) // 2], states[2][0]]  # at different rollouts
    assert any(" to " in Checkpoint(training.members).at("rollout") for training in states[0])
    again = Trainer(experiment)
    assert to_the_end(again, torn) == whole
    for training, undisturbed in zip(torn, curves, strict=True):
        assert training.curves == undisturbed.curves


def test_a_checkpoint_is_taken_before_the_evaluation_unless_the_trial_diverged(bars: Bars) -> None:
    experiment = CryptoExperiment(make_spec(bars), bars, torch.device("cpu"))
    kept: list[tuple[int, int]] = []

    def keep(trainings: Sequence[MemberTraining]) -> None:
        kept.extend(
            (training.plan.number, Checkpoint(training.members).rollouts) for training in trainings
        )

    trainer = Trainer(experiment, WorkerHooks(keep=keep, pace=EveryRollout()))
    trainings = [trainer.start(plan(0)), trainer.start(plan(1))]
    advance_to(trainer, trainings, 1)
    for member in trainings[1].members:
        assert member.learner is not None
        member.learner["weights"].fill_(math.nan)
    advance_to(trainer, trainings, 2)
    everything = experiment.members * experiment.spec.rung_end(2)
    assert [bool(training.fault) for training in trainings] == [False, True]
    assert (0, everything) in kept
    assert (1, everything) not in kept  # a trial resumed from it would not show that it diverged


def test_a_program_that_is_not_full_waits_for_members_that_are_ahead(
    bars: Bars, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = CryptoExperiment(make_spec(bars, budget=192, slots=8), bars, torch.device("cpu"))
    groups: list[tuple[int, int]] = []
    train = Trainer._train

    def count(self: Trainer, group: Any, rollouts: int) -> None:
        groups.append((len(group), rollouts))
        train(self, group, rollouts)

    monkeypatch.setattr(Trainer, "_train", count)
    trainer = Trainer(experiment)
    ahead, behind = trainer.start(plan(0)), trainer.start(plan(1))
    advance_to(trainer, [ahead], 1)
    groups.clear()
    advance_to(trainer, [ahead, behind], 2)
    members, (first, both) = (
        len(experiment.folds),
        (experiment.spec.rung_end(rung) for rung in (1, 2)),
    )
    assert members < trainer.slots
    assert groups[0] == (members, first)
    assert {rollouts for _, rollouts in groups[1:]} == {both - first}
    assert len(groups) == 1 + -(-2 * members // trainer.slots)


@pytest.mark.slow
def test_a_trial_killed_within_a_rung_resumes_from_its_last_checkpoint(
    market: Path, sweepd: Sweepd
) -> None:
    study = ("--n-trials", 1, "--budget", 2400, "--rungs", 1, *INDEPENDENT)
    sweepd("train", *study, "--runs-dir", "alone/runs").finish()
    with killed_at_checkpoint("runs/*/trial-*/checkpoint-*", every_rollout=True):
        sweepd("train", *study).finish(-signal.SIGKILL)
        assert "resumes from rung 0" in sweepd("train", *study).finish(-signal.SIGKILL)
    sweepd("train", *study).finish()
    assert numbers(market) == numbers(market / "alone")
    found = []
    for folder in (market, market / "alone"):
        events = EventAccumulator(
            str(open_handle(folder).run_dir / "tensorboard" / "trial-00000")
        ).Reload()
        found.append([(e.step, e.value) for e in events.Scalars("train/reward")])
    assert found[0] == found[1]
    assert len(found[0]) == open_handle(market).spec.rollouts
