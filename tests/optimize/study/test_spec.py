from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from optuna.trial import TrialState
from safetensors import safe_open
from safetensors.torch import save_file

from sweepd.agents.engine.description import DESCRIPTION, packed, unpacked
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.splits import CrossValidation
from sweepd.envs.support.errors import InputError
from sweepd.optimize.cli.study_request import make_request
from sweepd.optimize.objectives.members.objective import choose_slots
from sweepd.optimize.study.checkpoint import (
    Checkpoint,
    MemberState,
    read_checkpoint,
    write_checkpoint,
)
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.sampling.pruners import RungPruner, make_pruner
from sweepd.optimize.study.sampling.samplers import make_sampler
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.parsing import load_space
from sweepd.optimize.study.spec import check_folds, differences, refuse_other
from sweepd.optimize.worker.freeze import draft_spec
from tests.optimize.worker.test_batch import make_spec


def test_a_spec_survives_json(bars: Bars) -> None:
    spec = make_spec(bars)
    assert StudySpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    "change",
    [
        {"budget": 129},
        {"rungs": 3},
        {"num_envs": 3},
        {"horizon": 8},
        {"slots": 5},
        {"objective": "sharpe"},
        {"seed": 1},
        {"precision": "tf32"},
        {"code_version": "other"},
        {"torch_version": "1.0"},
        {"env": {"fee": 0.1}},
        {"holdout": 0.1},
        {"cv": {"scheme": "kfold", "groups": 6, "test_groups": 2, "embargo_share": 0.01}},
        {"sampler": "random"},
    ],
)
def test_any_difference_is_found_and_named(bars: Bars, change: dict[str, Any]) -> None:
    spec = make_spec(bars)
    with pytest.raises(InputError, match="study 's' was created with") as refused:
        refuse_other("s", spec, dataclasses.replace(spec, **change), "s-2")
    assert next(iter(change)) in str(refused.value)
    assert str(refused.value).endswith("make a study of its own with --study-name s-2")


def test_the_folder_of_the_data_is_no_difference_but_its_content_is(bars: Bars) -> None:
    spec = make_spec(bars)
    moved = dataclasses.replace(spec, data=dataclasses.replace(spec.data, dir="elsewhere"))
    assert differences(spec, moved) == []
    other = dataclasses.replace(spec, data=dataclasses.replace(spec.data, fingerprint="0"))
    assert [name for name, _, _ in differences(spec, other)] == ["data.fingerprint"]


def test_threads_and_processor_are_no_difference(bars: Bars) -> None:
    spec = make_spec(bars)
    assert (
        differences(spec, dataclasses.replace(spec, threads=spec.threads + 1, processor="another"))
        == []
    )


def test_a_spec_of_another_version_is_refused(bars: Bars) -> None:
    whole = json.loads(make_spec(bars).to_json())
    data = whole["data"]
    for changes, said in (
        ({"processor": ..., "kernels": ...}, "its record lacks kernels, processor"),
        ({"data": {**data, "zone": "UTC"}}, "its record has zone"),
        ({"data": ...}, "its record lacks data"),
        ({"colour": "red"}, "its record has colour"),
    ):
        described = {key: own for key, own in (whole | changes).items() if own is not ...}
        with pytest.raises(InputError, match=f"by another version of sweepd .{said}.; use that"):
            StudySpec.from_json(json.dumps(described))


def test_rungs_divide_the_budget_and_the_last_one_spends_it(bars: Bars) -> None:
    spec = make_spec(bars, budget=1000, rungs=4)
    assert spec.rollouts == 32  # 1,000 steps in rollouts of 32
    assert [spec.rung_end(r) for r in range(5)] == [0, 8, 16, 24, 32]
    assert make_spec(bars, budget=1, rungs=4).rollouts == 4


@pytest.mark.parametrize(
    ("scheme", "groups"), [("cpcv", 10), ("kfold", 5), ("walk-forward", 6), ("single", 3)]
)
def test_folds_are_counted_without_listing_them(scheme: str, groups: int) -> None:
    cv = CrossValidation(scheme, groups=groups)
    assert cv.folds == len(cv.tested())


def test_many_folds_give_a_warning_and_too_many_are_refused() -> None:
    assert check_folds(CrossValidation(groups=10), 100) is None
    warning = check_folds(CrossValidation(groups=12), 1000)
    assert warning is not None
    assert "66 folds: every trial would train 66 members, 66,000 steps" in warning
    with pytest.raises(InputError, match="at most 128 folds"):
        check_folds(CrossValidation(groups=30), 1000)


@pytest.mark.parametrize(
    ("folds", "slots"), [(1, 10), (3, 9), (4, 8), (6, 12), (10, 10), (15, 15), (45, 10)]
)
def test_programs_hold_whole_trials_where_they_can(folds: int, slots: int) -> None:
    assert choose_slots(folds, torch.device("cpu")) == slots


@pytest.mark.parametrize(
    ("members", "trials", "slots"), [(2, 1, 2), (1, 1, 2), (4, 1, 4), (4, 9, 8)]
)
def test_programs_have_no_more_slots_than_a_batch_has_members(
    members: int, trials: int, slots: int
) -> None:
    assert choose_slots(members, torch.device("cpu"), trials=trials) == slots


@pytest.mark.parametrize(
    ("n_trials", "given", "per_batch", "slots"),
    [
        (1, {}, 1, 4),
        (2, {}, 2, 8),
        (40, {}, 4, 8),
        (2, {"slots": 24}, 2, 24),
        (1, {"trials_per_batch": 3}, 3, 8),
    ],
)
def test_a_new_studys_batches_have_no_more_trials_than_the_study(
    n_trials: int, given: dict[str, int], per_batch: int, slots: int
) -> None:
    words = {"n_trials": n_trials, "env": "cartpole", "seeds": 4, "n_envs": 8, **given}
    request = make_request(StudySettings(**words), frozenset(words))
    space = load_space(request.search_space, request.subject)
    spec = draft_spec(request, space, None, torch.device("cpu"))
    assert (spec.trials_per_batch, spec.slots) == (per_batch, slots)


def _study(values: list[dict[int, float]]) -> optuna.Study:
    study = optuna.create_study(direction="maximize")
    for steps in values:
        study.add_trial(
            optuna.trial.create_trial(state=TrialState.RUNNING, intermediate_values=steps)
        )
    return study


def test_the_rung_pruner_keeps_the_better_half_in_any_order_of_judging() -> None:
    pruner = RungPruner(rungs=4)
    study = _study([{1: float(v)} for v in (3, 1, 4, 2, 6, 5)])
    verdicts = {t.number: pruner.prune(study, t) for t in study.trials}
    judged = {n for n in range(6) if pruner.bracket(n) == 0}
    assert {n for n, out in verdicts.items() if out} == judged & {0, 1, 3}
    assert verdicts == {t.number: pruner.prune(study, t) for t in reversed(study.trials)}


def test_the_rung_pruner_does_not_prune_few_trials_the_last_rung_or_later_brackets() -> None:
    pruner = RungPruner(rungs=3)
    few = _study([{1: float(v)} for v in (3, 2, 1)])
    assert not any(pruner.prune(few, t) for t in few.trials)
    last = _study([{3: float(v)} for v in range(8)])
    assert not any(pruner.prune(last, t) for t in last.trials)
    brackets = [pruner.bracket(n) for n in range(3000)]
    assert set(brackets) == {0, 1}
    assert 0.6 < brackets.count(0) / 3000 < 0.73  # two to one


def test_unknown_samplers_and_pruners_are_refused() -> None:
    with pytest.raises(InputError, match="--pruner 'x' is not known; choose one of hyperband"):
        make_pruner("x", 4)
    with pytest.raises(InputError, match="--sampler 'x' is not known; choose one of"):
        make_sampler("x", 0)


def test_a_sampler_with_fixed_parameters_keeps_them() -> None:
    study = optuna.create_study(sampler=make_sampler("tpe", 5, {"c": 64}))
    trial = study.ask()
    assert trial.suggest_categorical("c", [32, 64, 128]) == 64
    assert 0 <= trial.suggest_float("x", 0, 1) <= 1


def test_a_checkpoint_comes_back_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-1.safetensors"
    description = {"shape": {"net_width": 8}, "params": {"clip": 0.1}, "rollouts": 7}
    state = {"weights": torch.arange(6.0).view(2, 3), DESCRIPTION: packed(description)}
    written = Checkpoint(
        [MemberState(state, {"cash": torch.ones(2, dtype=torch.float64)}, 7), MemberState()],
        2,
        1.5,
        {"seed": 2**62},
    )
    sha256 = write_checkpoint(path, written)
    back = read_checkpoint(path, sha256)
    assert (back.rung, back.seconds, back.note) == (2, 1.5, {"seed": 2**62})
    assert [m.rollouts for m in back.members] == [7, 0]
    assert back.members[0].learner is not None
    assert torch.equal(back.members[0].learner["weights"], state["weights"])
    assert unpacked(back.members[0].learner) == description
    assert back.members[1].learner is None
    with safe_open(path, "pt") as file:  # by which anyone can read what a checkpoint is
        header = json.loads(file.metadata()["sweepd"])
        assert not any("description" in name for name in file.keys())  # noqa: SIM118 -- not a mapping
    assert header["members"] == [description, None]
    save_file(state, path, metadata={"sweepd": json.dumps(header | {"format": 2})})
    with pytest.raises(InputError, match="of format 2; this version reads format 3"):
        read_checkpoint(path)
    write_checkpoint(path, written)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="hash differs"):
        read_checkpoint(path, sha256)
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a checkpoint"):
        read_checkpoint(path)
    with pytest.raises(InputError):
        read_checkpoint(tmp_path / "none.safetensors")
