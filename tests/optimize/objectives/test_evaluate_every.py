"""Evaluations beside rungs: where they are, and that they change nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.support.errors import InputError
from sweepd.optimize.cli.status import study_status
from sweepd.optimize.objectives.market.experiment import CryptoExperiment
from sweepd.optimize.objectives.members.trainer import MemberTraining, Trainer
from sweepd.optimize.objectives.run import Interrupted, WorkerHooks, evaluated_from
from sweepd.optimize.study.checkpoint import read_checkpoint, write_checkpoint
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.frame import trials_frame
from sweepd.optimize.study.insight.curves import curve, member_curves
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.keys import EVALUATE_KEY
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.worker.tracked import trial_picture
from tests.optimize.conftest import search_app
from tests.optimize.objectives.test_game_study import make_experiment, plan, to_the_end
from tests.optimize.study_files import numbers, open_handle
from tests.optimize.worker.test_batch import advance_to
from tests.optimize.worker.test_batch import make_spec as market_spec
from tests.optimize.worker.test_batch import plan as market_plan

SIZES: dict[str, Any] = {"budget": 1024}  # 8 rollouts of 128 steps, rungs after 4 and 8
EVERY, POINTS = 200, [2, 5, 7]  # also after 4 and 8, where there are rungs
VECTOR = "tests.envs.external.samples:counters"


@given(st.integers(1, 300), st.integers(1, 50), st.integers(1, 60))
def test_evaluations_are_at_the_first_rollout_after_every_multiple(
    every: int, transitions: int, rollouts: int
) -> None:
    due = [
        rollout
        for rollout in range(1, rollouts + 1)
        if rollout * transitions // every > (rollout - 1) * transitions // every
    ]
    found, at = list[int](), evaluated_from(0, every, transitions)
    while at <= rollouts:
        found.append(at)
        at = evaluated_from(at + 1, every, transitions)
    assert found == due


class Noted:
    """Hooks that note the evaluations beside rungs of the trials that they are called with."""

    def __init__(self, every: int, stop_after: int = 0) -> None:
        self.calls: list[list[int]] = []
        self._asked, self._stop_after = 0, stop_after
        self.hooks = WorkerHooks(stop=self._stop, evaluate_every=every, evaluated=self._evaluated)

    def _stop(self) -> bool:
        self._asked += 1
        return self._asked == self._stop_after

    def _evaluated(self, trainings: Sequence[MemberTraining]) -> None:
        self.calls.append([training.plan.number for training in trainings])


def trained(every: int, count: int = 3, environment: str = "cartpole", **changes: Any) -> Any:
    noted = Noted(every)
    trainer = Trainer(make_experiment(environment, **SIZES | changes), noted.hooks)
    trainings = [trainer.start(plan(number)) for number in range(count)]
    return to_the_end(trainer, trainings), trainings, noted.calls


@pytest.mark.parametrize("slots", [2, 6])
def test_evaluations_change_no_weight_and_no_value(slots: int) -> None:
    """With three trials of two members, in three programs and in one."""
    plain, without, _ = trained(0, slots=slots)
    found, trainings, calls = trained(EVERY, slots=slots)
    assert found == plain
    for one, other in zip(trainings, without, strict=True):
        assert sorted(one.evaluations) == POINTS
        assert other.evaluations == {}
        assert all(isinstance(value, float) for value in one.evaluations.values())
    # All trials of a batch at once.
    assert calls == [[0, 1, 2]] * len(POINTS)


def test_an_evaluation_does_not_depend_on_company() -> None:
    _, together, _ = trained(EVERY)
    _, [alone], _ = trained(EVERY, 1)
    assert alone.evaluations == together[0].evaluations


def test_environments_that_cannot_be_restored_go_on_as_they_are() -> None:
    changes = {"num_envs": 3, "look_steps": 16, "budget": 384, "seeds": 1}
    plain, _, _ = trained(0, 2, VECTOR, **changes)
    found, trainings, _ = trained(60, 2, VECTOR, **changes)
    assert trainings[0].evaluations
    assert found == plain


def test_folds_of_a_market_are_evaluated_too(bars: Bars) -> None:
    experiment = CryptoExperiment(market_spec(bars), bars, torch.device("cpu"))
    found = []
    for every in (0, 1):  # after every rollout, of which there are four, and two rungs
        trainer = Trainer(experiment, Noted(every).hooks)
        trainings = [trainer.start(market_plan(number)) for number in range(2)]
        for rung in (1, 2):
            advance_to(trainer, trainings, rung)
        values = [one and one.value for one in trainer.evaluate(trainings)]
        weights = [a.tensors for training in trainings for a in trainer.actors(training)]
        kept = [{name: own.numpy().tobytes() for name, own in one.items()} for one in weights]
        found.append((values, kept))
        assert [*trainings[0].evaluations] == ([1, 3] if every else [])
    assert found[0] == found[1]


@pytest.mark.parametrize("stop_after", [1, 2, 3, 5, 9, 30])
def test_no_evaluation_is_lost_or_doubled_by_a_stop(stop_after: int, tmp_path: Path) -> None:
    """Stops lie between rollouts and within evaluations."""
    whole, [training], _ = trained(EVERY, 1)
    stopping = Noted(EVERY, stop_after)
    torn_by = Trainer(make_experiment(**SIZES), stopping.hooks)
    torn = torn_by.start(plan(0))
    with pytest.raises(Interrupted):
        advance_to(torn_by, [torn], 1)
    path = tmp_path / "kept.safetensors"
    write_checkpoint(path, torn_by.checkpoint(torn))
    goes_on = Noted(EVERY)
    going_on = Trainer(make_experiment(**SIZES), goes_on.hooks)
    resumed = going_on.start(plan(0))
    going_on.resume(resumed, read_checkpoint(path))
    assert to_the_end(going_on, [resumed]) == whole
    assert resumed.evaluations == training.evaluations
    assert len(stopping.calls) + len(goes_on.calls) == len(POINTS)


WORDS = ("train", "--env", "cartpole", "--n-envs", "8", "--threads", "1", "--gpu", "cpu")
SMALL = (
    "--budget",
    "1024",
    "--horizon",
    "16",
    "--episodes",
    "8",
    "--slots",
    "4",
    "--n-trials",
    "3",
)
OTHERS = ("--look-steps", "16", "--no-auto-deploy", "--fresh-seeds", "0", "--study-name", "s")
SEARCH = ("--sampler", "tpe", "--pruner", "median", "--rungs", "2", "--seeds", "2")


def run_study(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    whole = [*WORDS, *SMALL, *OTHERS, *SEARCH, *words]
    result = CliRunner().invoke(search_app(), whole, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_study_records_them_and_finds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_study(tmp_path / "plain", monkeypatch)
    run_study(tmp_path / "with", monkeypatch, "--evaluate-every", str(EVERY))
    plain, handle = open_handle(tmp_path / "plain"), open_handle(tmp_path / "with")
    assert handle.spec == plain.spec
    assert numbers(tmp_path / "with") == numbers(tmp_path / "plain")
    for one, other in zip(handle.trials(), plain.trials(), strict=True):
        # What pruners and samplers read.
        assert one.intermediate_values == other.intermediate_values
        assert one.params == other.params
    done = next(trial for trial in handle.trials() if trial.state.name == "COMPLETE")
    record = TrialRecord.from_attributes(done.user_attrs)
    assert record.evaluations is not None
    steps, values = zip(*record.evaluations, strict=True)
    assert list(steps) == [128 * at for at in POINTS]
    assert TrialRecord.from_attributes(plain.trials()[0].user_attrs).evaluations is None
    # Where they are shown.
    frame = trials_frame(handle)
    assert json.loads(frame.loc[done.number, "evaluations"]) == record.evaluations
    assert "evaluations" not in trials_frame(plain)
    row = next(row for row in handle.rows.read() if row.number == done.number)
    drawn = curve(row, {}, handle.spec)
    assert [(point["steps"], point["value"]) for point in drawn["beside"]] == [
        *zip(steps, values, strict=True)
    ]
    [beside] = member_curves([row], {}, handle.spec)["beside"]
    assert beside["points"] == drawn["beside"]
    points = trial_picture(handle, done, "key").points
    assert {at: own["evaluation"] for at, own in points.items() if "evaluation" in own} == dict(
        record.evaluations
    )
    assert study_status(handle)["evaluations"] == {"every": EVERY, "last": []}
    assert "evaluations" not in study_status(plain)


def test_the_interval_is_kept_until_it_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept() -> int:
        handle = open_handle(tmp_path)
        return int(handle.storage.attributes(handle.study_id)[EVALUATE_KEY])

    def evaluated() -> list[bool]:
        records = (
            TrialRecord.from_attributes(t.user_attrs) for t in open_handle(tmp_path).trials()
        )
        return [record.evaluations is not None for record in records]

    run_study(tmp_path, monkeypatch, "--n-trials", "1", "--evaluate-every", str(EVERY))
    run_study(tmp_path, monkeypatch, "--n-trials", "2")
    assert (kept(), evaluated()) == (EVERY, [True, True])
    run_study(tmp_path, monkeypatch, "--n-trials", "3", "--evaluate-every", "0")
    assert (kept(), evaluated()) == (0, [True, True, False])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--env", "bucket-brigade", "--algo", "heuristic"),
            "--evaluate-every 100 is for policies that are trained, and --algo heuristic",
        ),
        (
            (
                "--env",
                "cartpole",
                "--budget",
                "128",
                "--rungs",
                "1",
                "--n-envs",
                "2",
                "--gpu",
                "cpu",
            ),
            "--evaluate-every 100: a trial of 128 steps ends before the first",
        ),
        (("--env", "command:echo 1"), "--evaluate-every has no effect on commands"),
    ],
)
def test_what_is_not_trained_here_is_refused(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(search_app(), ["train", *words, "--evaluate-every", "100"])
    assert isinstance(result.exception, InputError), result.output
    assert message in str(result.exception)
    if (tmp_path / "runs" / "sweepd.db").exists():
        assert not open_storage(storage_url(None, tmp_path / "runs")).get_all_studies()
