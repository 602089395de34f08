"""The declarations of the settings of `train`, and what follows from them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from sweepd.agents.networks.shape import FEWEST_SLOTS
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.support.errors import InputError
from sweepd.optimize.cli.study_request import make_request
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.table import misplaced_settings, objective_of
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.settings.setting import declared, flag_of, num_envs
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.parsing import StudyDefaults, load_space, parse_space
from sweepd.optimize.study.spec import NOT_COMPARED, differences, field_of, with_field
from sweepd.optimize.worker.freeze import draft_spec, requested_spec

KINDS = {"market": "crypto", "game": "hockey", "command": "command:true {lr}"}
PARAMS = {"name": "s", "version": 1, "params": {"lr": {"low": 0.0, "high": 1.0}}}  # of a command
# Of the settings whose other value does not follow from their type.
OTHER: dict[str, Any] = {
    "env": "cartpole",
    "objective": "sharpe",
    "also": ["minimize:max_drawdown"],
    "constraint": ["max_drawdown<=0.3"],
    "choose": "first",
    "play": "sampled",
    "cv": "kfold",
    "timeframe": "4h",
    "recipe": "short",
    "n_envs": 3,
    "slots": 6,
    "trials_per_batch": 7,
    "threads": 2,
    "episodes": 9,
    "look_steps": 99,
    "horizon": 48,
}


def drafted(kind: str) -> tuple[StudySpec, Request]:
    """Return the spec of a new study and its request."""
    request = make_request(StudySettings(env=KINDS[kind], n_envs=8), frozenset())
    bars = make_demo_market(assets=2, bars=5_000) if kind == "market" else None
    if kind == "command":
        space = parse_space(PARAMS, request.subject)
    else:
        space = load_space(request.search_space, request.subject, request.timeframe)
    return draft_spec(request, space, bars, torch.device("cpu")), request


def fixing(kind: str) -> list[str]:
    """Return the settings that fix a field of a study of this kind."""
    misplaced = misplaced_settings(objective_of(KINDS[kind]))
    return [n for n, one in declared(StudySettings).items() if one.fixes and n not in misplaced]


def test_every_setting_is_declared_once() -> None:
    names = [field.name for field in dataclasses.fields(StudySettings)]
    assert sorted(declared(StudySettings)) == sorted(names)
    assert declared(Request).keys() == declared(StudySettings).keys()
    assert declared(StudySettings)["slots"].least == FEWEST_SLOTS


@pytest.mark.parametrize("kind", KINDS)
def test_a_setting_that_a_study_fixes_is_compared_with_it(kind: str) -> None:
    spec, request = drafted(kind)
    for name in fixing(kind):
        if name in ("data_dir", "tickers"):  # their files are looked up, see test_commands.py
            continue
        value = getattr(request, name)
        other = OTHER.get(name)
        if other is None:
            other = f"{value}x" if isinstance(value, str) else not value or value + 1
        if name == "recipe":
            other = "short" if value != "short" else "default"
        changed = dataclasses.replace(request, **{name: other, "given": frozenset({name})})
        asked = requested_spec(None, spec, changed)  # type: ignore[arg-type]
        found = [at for at, _, _ in differences(spec, asked)]
        path = declared(StudySettings)[name].fixes
        assert found == ([] if path in NOT_COMPARED else [path]), name
        # What was not given is not compared.
        silent = dataclasses.replace(changed, given=frozenset())
        assert requested_spec(None, spec, silent) == dataclasses.replace(  # type: ignore[arg-type]
            spec, **objective_of(spec.environment).requested_fields(spec, silent)
        )


@pytest.mark.parametrize("kind", KINDS)
def test_every_fixed_setting_is_a_field_of_the_spec(kind: str) -> None:
    spec, _ = drafted(kind)
    absent = [n for n in fixing(kind) if field_of(spec, declared(StudySettings)[n].fixes) is None]
    shorts = ["allow_short", "borrow_fee", "max_leverage", "maintenance_margin"]
    assert absent == (shorts if kind == "market" else [])


def test_numbers_out_of_range_are_refused_by_their_flag() -> None:
    for name, one in declared(StudySettings).items():
        if one.most is None:
            continue
        most = one.most if isinstance(one.most, int) else one.most()
        one.check(flag_of(name), None)
        one.check(flag_of(name), one.least)
        one.check(flag_of(name), most)
        with pytest.raises(InputError, match=f"{flag_of(name)} .* must be at least {one.least}"):
            one.check(flag_of(name), one.least - 1)
        with pytest.raises(InputError, match=f"{flag_of(name)} .* give at most {most:,}"):
            one.check(flag_of(name), most + 1)


def test_a_space_may_set_the_settings_that_say_so() -> None:
    allowed = {name for name, one in declared(StudySettings).items() if one.in_space}
    assert set(StudyDefaults.model_fields) == allowed
    assert "budget" in allowed
    assert "fee" not in allowed


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "many"])
def test_a_number_of_environments_is_auto_or_a_whole_number(text: str) -> None:
    assert (num_envs("auto"), num_envs("16"), num_envs(16)) == (None, 16, 16)
    with pytest.raises(InputError, match=r"--n-envs .* is not valid"):
        num_envs(text)


def test_fields_are_read_and_changed_by_their_dotted_name() -> None:
    spec, _ = drafted("market")
    changed = with_field(with_field(spec, "cv.groups", 9), "data.timeframe", "1d")
    assert (field_of(changed, "cv.groups"), field_of(changed, "data.timeframe")) == (9, "1d")
    assert (field_of(spec, "cv.groups"), field_of(spec, "data.timeframe")) == (5, "1h")
    assert field_of(spec, "cv.none") is None
