"""The flags of short positions: settings of the study, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from sweepd.envs.crypto.params import SHORTS, EnvParams
from sweepd.envs.support.errors import InputError
from sweepd.optimize.cli.study_request import make_request
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.table import objective_of
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.parsing import load_space
from sweepd.optimize.study.space.subject import MARKET_PPO


def request_of(**flags: object) -> Request:
    return make_request(dataclasses.replace(StudySettings(), **flags), frozenset(flags))  # type: ignore[arg-type]


def test_without_the_flag_a_study_records_nothing_about_shorts() -> None:
    env = request_of(fee=0.001).env_params
    assert not set(env) & set(SHORTS)
    assert EnvParams(**env) == EnvParams(fee=0.001)


def test_the_flags_are_settings_of_the_study() -> None:
    request = request_of(allow_short=True, borrow_fee=0.3, max_leverage=2.0)
    objective_of(request.env).check(request)
    params = EnvParams(**request.env_params)
    assert params == EnvParams(allow_short=True, borrow_fee=0.3, max_leverage=2.0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"borrow_fee": 0.3}, "--borrow-fee needs --allow-short"),
        ({"max_leverage": 2.0}, "--max-leverage needs --allow-short"),
        ({"allow_short": True, "borrow_fee": -0.1}, "borrow_fee is -0.1"),
        ({"allow_short": True, "max_leverage": 5.0}, "maintenance_margin 0.25 times max_leverage"),
    ],
)
def test_wrong_flags_are_refused(flags: dict[str, float], message: str) -> None:
    request = request_of(**flags)
    with pytest.raises(InputError, match=message):
        objective_of(request.env).check(request)


def test_a_search_space_cannot_vary_them(tmp_path) -> None:  # type: ignore[no-untyped-def]
    text = (load_space("wide", MARKET_PPO)).to_dict()
    assert not set(text["env"]) & set(SHORTS)
    path = tmp_path / "space.toml"
    path.write_text('name = "own"\nversion = 1\n[env]\nborrow_fee = { low = 0.0, high = 1.0 }\n')
    with pytest.raises(InputError, match="borrow_fee"):
        load_space(str(path), MARKET_PPO)
