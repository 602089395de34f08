"""The trainer: many members in programs of few slots, their independence, and faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.native.choice import KERNELS
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.splits import CrossValidation
from sweepd.envs.native import threads
from sweepd.envs.native.build import VARIABLE
from sweepd.envs.support.errors import RunError
from sweepd.optimize.objectives.market.experiment import CryptoExperiment
from sweepd.optimize.objectives.members.trainer import MemberTraining, Trainer
from sweepd.optimize.objectives.run import Interrupted, WorkerHooks
from sweepd.optimize.study.record.data_spec import DataSpec
from sweepd.optimize.study.record.specs import CryptoSpec
from sweepd.optimize.study.space.search_space import SearchSpace, Settings
from sweepd.optimize.study.study import Plan
from tests.optimize.conftest import RECIPE

SHAPE = {"net_width": 8, "net_depth": 1, "minibatch": 16, "epochs": 2}


def make_spec(bars: Bars, **changes: Any) -> CryptoSpec:
    """Return the spec of a study with two walk-forward folds that trains in seconds."""
    cv = CrossValidation("walk-forward", groups=6)
    spec = CryptoSpec(
        environment="crypto",
        algorithm="ppo",
        data=DataSpec(
            "bars", bars.tickers, bars.timeframe, bars.fingerprint, "", "", len(bars), True
        ),
        recipe={"name": RECIPE.name, "version": RECIPE.version, "memory": RECIPE.memory},
        cv=dataclasses.asdict(cv),
        holdout=0.05,
        first_bar=8,
        max_lookback=2,
        env={},
        budget=128,
        rungs=2,
        num_envs=2,
        horizon=16,
        slots=4,
        trials_per_batch=3,
        objective="information-ratio",
        sampler="tpe",
        pruner="none",
        seed=0,
        space=SearchSpace("none", 1, {"shape": {}, "ppo": {}, "env": {}}).to_dict(),
        threads=1,
        processor="",
        kernels="torch 4",
    )
    return dataclasses.replace(spec, **changes)


@pytest.fixture(scope="module")
def experiment(bars: Bars) -> CryptoExperiment:
    return CryptoExperiment(make_spec(bars), bars, torch.device("cpu"))


def plan(number: int, **env: Any) -> Plan:
    settings = Settings(
        dict(SHAPE), {"learning_rate": 1e-3 * (number + 1)}, {"lookback": 1 + number % 2, **env}
    )
    return Plan(number, number, {"number": number}, settings, 1000 + number)


def advance_to(trainer: Trainer, trainings: Sequence[MemberTraining], rung: int) -> None:
    """Train trials to the end of this rung."""
    for training in trainings:
        training.rung = rung - 1
    trainer.advance(trainings)


def to_the_end(trainer: Trainer, trainings: list[MemberTraining]) -> dict[int, Any]:
    """Train all rungs; return each trial's results as plain numbers and bytes."""
    for rung in range(1, trainer.spec.rungs + 1):
        advance_to(trainer, trainings, rung)
    evaluations = trainer.evaluate(trainings)
    return {
        t.plan.number: (
            e.value,
            e.scores,
            e.paths.returns.tobytes(),
            [
                {k: v.numpy().tobytes() for k, v in actor.tensors.items()}
                for actor in trainer.actors(t)
            ],
        )
        for t, e in zip(trainings, evaluations, strict=True)
        if e is not None
    }


@pytest.mark.parametrize("native", [True, False])
def test_torch_has_one_thread_in_evaluations_of_native_programs(
    experiment: CryptoExperiment, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    """Otherwise, torch's threads wait in a loop for cores that other jobs use."""
    if not native:
        monkeypatch.setenv(VARIABLE, "torch")
    elif KERNELS.loaded() is None:
        pytest.skip("no native kernels")
    seen, evaluate = [], experiment.evaluate

    def noting(*arguments: Any) -> Any:
        seen.append((torch.get_num_threads(), threads.count()))
        return evaluate(*arguments)

    monkeypatch.setattr(experiment, "evaluate", noting)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        trainer = Trainer(experiment)
        trainer.evaluate([trainer.start(plan(0))])
    finally:
        torch.set_num_threads(before)
    assert seen == [(1 if native else 3, 3)]


def test_a_trial_does_not_depend_on_its_batch(experiment: CryptoExperiment) -> None:
    together = Trainer(experiment)
    trials = [together.start(plan(n)) for n in range(3)]
    assert len(trials) * len(experiment.folds) > 2 * together.slots  # more than two programs
    in_company = to_the_end(together, trials)
    alone = Trainer(experiment)
    assert to_the_end(alone, [alone.start(plan(1))])[1] == in_company[1]
    leaving = Trainer(experiment)
    three = [leaving.start(plan(n)) for n in range(3)]
    advance_to(leaving, three, 1)
    rest = [three[2], three[1]]  # trial 0 was pruned, the others change slots
    advance_to(leaving, rest, 2)
    last = leaving.evaluate(rest)[1]
    assert last is not None
    assert last.paths.returns.tobytes() == in_company[1][2]


def test_pruned_trials_leave_fewer_programs_to_train(
    experiment: CryptoExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []
    train = Trainer._train

    def count(self: Trainer, group: Any, rollouts: int) -> None:
        groups.append(len(group))
        train(self, group, rollouts)

    monkeypatch.setattr(Trainer, "_train", count)
    trainer = Trainer(experiment)
    trials = [trainer.start(plan(n)) for n in range(3)]
    members = len(experiment.folds)
    advance_to(trainer, trials, 1)
    assert sum(groups) == 3 * members
    assert len(groups) == -(-3 * members // 4)
    groups.clear()
    advance_to(trainer, trials[1:2], 2)
    assert len(groups) == -(-members // 4)


def test_trials_at_different_rungs_share_a_batch(experiment: CryptoExperiment) -> None:
    trainer = Trainer(experiment)
    ahead, behind = trainer.start(plan(0)), trainer.start(plan(1))
    advance_to(trainer, [ahead], 1)
    ahead.rung = 1
    trainer.advance([ahead, behind])
    assert {m.rollouts for m in ahead.members} == {experiment.spec.rung_end(2)}
    assert {m.rollouts for m in behind.members} == {experiment.spec.rung_end(1)}
    reference = Trainer(experiment)
    whole = to_the_end(reference, [reference.start(plan(0))])
    evaluated = trainer.evaluate([ahead])[0]
    assert evaluated is not None
    assert evaluated.paths.returns.tobytes() == whole[0][2]


def test_training_continues_identically_after_a_stop(experiment: CryptoExperiment) -> None:
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked % 3 == 0

    trainer = Trainer(experiment, WorkerHooks(stop=stop))
    trials = [trainer.start(plan(n)) for n in range(2)]
    interrupted = 0
    for rung in (1, 2):
        while True:
            try:
                advance_to(trainer, trials, rung)
                break
            except Interrupted:
                interrupted += 1
    assert interrupted >= 2
    trainer.hooks = WorkerHooks()
    left_alone = Trainer(experiment)
    whole = to_the_end(left_alone, [left_alone.start(plan(n)) for n in range(2)])
    for trial, evaluation in zip(trials, trainer.evaluate(trials), strict=True):
        assert evaluation is not None
        assert evaluation.paths.returns.tobytes() == whole[trial.plan.number][2]


def test_a_diverged_trial_does_not_change_the_others(experiment: CryptoExperiment) -> None:
    trainer = Trainer(experiment)
    trials = [trainer.start(plan(n)) for n in range(3)]
    advance_to(trainer, trials, 1)
    bad = trials[1].members[1].learner
    assert bad is not None
    bad["weights"].fill_(float("nan"))
    advance_to(trainer, trials, 2)
    assert [bool(t.fault) for t in trials] == [False, True, False]
    assert "diverged: fold 1" in trials[1].fault
    healthy = trainer.evaluate([trials[0], trials[2]])
    reference = Trainer(experiment)
    whole = to_the_end(reference, [reference.start(plan(n)) for n in (0, 2)])
    for trial, evaluation in zip((trials[0], trials[2]), healthy, strict=True):
        assert evaluation is not None
        assert evaluation.paths.returns.tobytes() == whole[trial.plan.number][2]


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make programs with more than the given number of slots run out of memory in training."""

    def limit(slots: int) -> None:
        train = PPO.train

        def short(self: PPO, *args: Any, **kwargs: Any) -> Any:
            if self.shape.slots > slots:
                raise torch.OutOfMemoryError("out of memory, says the test")
            return train(self, *args, **kwargs)

        monkeypatch.setattr(PPO, "train", short)

    return limit


def test_out_of_memory_leads_to_smaller_programs_and_fails_no_trial(
    experiment: CryptoExperiment, small_memory: Callable[[int], None]
) -> None:
    reference = Trainer(experiment)
    whole = to_the_end(reference, [reference.start(plan(0))])
    small_memory(2)
    said: list[str] = []
    trainer = Trainer(experiment, WorkerHooks(say=said.append))
    trial = trainer.start(plan(0))
    result = to_the_end(trainer, [trial])
    assert trainer.slots == 2
    assert "2 members per program" in said[-1]
    assert trial.fault == ""
    np.testing.assert_allclose(
        np.frombuffer(result[0][2]), np.frombuffer(whole[0][2]), rtol=0, atol=1e-5
    )  # the same experiment, to rounding


def test_out_of_memory_with_the_smallest_program_is_not_a_fault_of_the_trial(
    experiment: CryptoExperiment, small_memory: Callable[[int], None]
) -> None:
    small_memory(0)
    trainer = Trainer(experiment)
    trial = trainer.start(plan(0))
    with pytest.raises(RunError, match="out of memory"):
        advance_to(trainer, [trial], 1)
    assert trial.fault == ""


def test_every_parameter_reaches_environment_and_learner(experiment: CryptoExperiment) -> None:
    """Trials that differ in any parameter trade differently; identical ones trade identically."""
    trainer = Trainer(experiment)
    base = Settings(dict(SHAPE), {}, {})
    changes: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({"learning_rate": 2e-3}, {}),
        ({"gamma": 0.5}, {}),
        ({"lr_schedule": "linear"}, {}),
        ({"initial_log_std": -0.5}, {}),
        ({}, {"action_scale": 0.1}),
        ({}, {"alpha_weight": 0.1}),
        ({}, {"lookback": 2}),
        ({}, {"cash_reserve": 0.3}),
    ]
    trials = [
        trainer.start(Plan(i, i, {}, dataclasses.replace(base, learner=ppo, env=env), 7))
        for i, (ppo, env) in enumerate(changes)
    ]
    numbers = to_the_end(trainer, trials)
    assert len({result[2] for result in numbers.values()}) == len(changes)
    twin = Trainer(experiment)
    assert to_the_end(twin, [twin.start(Plan(99, 99, {}, base, 7))])[99][2] == numbers[0][2]


def test_curves_are_recorded_once_per_rollout(experiment: CryptoExperiment) -> None:
    trainer = Trainer(experiment)
    trial = trainer.start(plan(0))
    advance_to(trainer, [trial], 1)
    taken = trainer.take_curves(trial)
    assert [rollout for rollout, _ in taken] == [1, 2]
    assert all(np.isfinite(list(values.values())).all() for _, values in taken)
    assert trainer.take_curves(trial) == []
    assert trainer.steps == 2 * experiment.spec.transitions * len(experiment.folds)
