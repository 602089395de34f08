from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweepd.agents.algorithms.ppo import PPOParams
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.space.parsing import load_space, parse_space, preset_text
from sweepd.optimize.study.space.subject import MARKET_PPO


@pytest.mark.parametrize("name", MARKET_PPO.presets)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_all_draws_from_a_preset_are_accepted_by_the_engine(name: str, seed: int) -> None:
    space = load_space(name)
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed)).ask()
    params = space.suggest(trial)
    resolved = space.resolve(params)
    PPOParams(**resolved.learner)
    assert EnvParams(**resolved.env).lookback <= space.max_lookback
    space.validate(params)
    assert space.shape_of(params) == resolved.shape


def test_a_space_survives_json_and_applies_its_timeframe() -> None:
    hourly, five = load_space("wide", timeframe="1h"), load_space("wide", timeframe="5m")
    assert parse_space(hourly.to_dict()) == hourly
    assert five.tables["ppo"]["one_minus_gamma"].low == 1e-3
    assert hourly.tables["ppo"]["one_minus_gamma"].low == 3e-3


@pytest.mark.parametrize("name", ["wide", "large"])
@pytest.mark.parametrize("timeframe", ["1h", "5m", "1m"])
def test_the_first_trial_on_a_market_has_start_values_only(name: str, timeframe: str) -> None:
    space = load_space(name, timeframe=timeframe)
    assert space.start == space.suggest(optuna.trial.FixedTrial(space.start))
    space.validate(space.start)


def test_a_switched_off_parameter_is_not_drawn_and_resolves_to_its_off_value() -> None:
    space = load_space("wide")
    fixed = {
        d.name: d.choices[0] if d.choices else d.low for d in space.dimensions if d.value is None
    }
    switches = {d.switch: d.name == "target_kl" for d in space.dimensions if d.off is not None}
    off = fixed | switches
    params = space.suggest(optuna.trial.FixedTrial(off))
    assert "trailing_stop" not in params
    assert params["target_kl"] == 0.005
    resolved = space.resolve(params)
    assert resolved.env["trailing_stop"] == 0.0
    assert resolved.learner["target_kl"] == 0.005
    assert resolved.learner["gamma"] == pytest.approx(1 - 3e-3)


def test_narrow_stays_inside_the_space_and_around_the_trial() -> None:
    space = load_space("wide")
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(3)).ask()
    params = space.suggest(trial)
    near = space.around(params)
    for dimension in near.dimensions:
        wide = next(d for d in space.dimensions if d.name == dimension.name)
        if dimension.value is None:
            assert (
                wide.low <= dimension.low <= params[dimension.name] <= dimension.high <= wide.high
            )
            assert dimension.high - dimension.low < wide.high - wide.low
        else:
            assert dimension.value == wide.resolve(params)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'name = "x"\nversion = 1\n[ppo]\nlerning_rate = { low = 1, high = 2 }',
            "lerning_rate is not a parameter",
        ),
        ('name = "x"\nversion = 1\n[ppo]\nclip = { low = 0.4, high = 0.1 }', "low < high"),
        (
            'name = "x"\nversion = 1\n[ppo]\nclip = { low = 0.0, high = 0.1, log = true }',
            "log scale",
        ),
        (
            'name = "x"\nversion = 1\n[ppo]\nclip = { low = 0.1, high = 0.2, setp = 1 }',
            "unknown key 'setp'",
        ),
        (
            'name = "x"\nversion = 1\n[env]\naction_scale = { low = 0.1, high = 3.0 }',
            "action_scale",
        ),
        ('name = "x"\nversion = 1\n[env]\nfee = { value = 0.1 }', "fee is not a parameter"),
        (
            'name = "x"\nversion = 1\n[ppo]\ngamma = { value = 0.9 }\none_minus_gamma = { value = 0.1 }',
            "keep one",
        ),
        ('name = "x"\nversion = 1\n[nets]\nwidth = { value = 1 }', "unknown key 'nets'"),
        ('name = "x"\nversion = 1\nshape = 3', r"\[shape\] = 3 should be a table"),
        ('name = "x"\nversion = 1\ntimeframe = 3', r"\[timeframe\] = 3 should be a table"),
        ('name = "x"\nversion = 1\n[timeframe]\n1h = 3', r"\[timeframe.1h\] = 3 should be a table"),
        (
            'name = "x"\nversion = 1\n[timeframe.1h]\nppo = 3',
            r"\[timeframe.1h.ppo\] = 3 should be a table",
        ),
        (
            'name = "x"\nversion = 1\n[ppo]\nclip = { low = 0.1, high = 0.3, step = "a" }',
            "step = 'a' should be a number above 0",
        ),
        (
            'name = "x"\nversion = 1\n[env]\nlookback = { low = 1, high = 4, step = 0.5 }',
            "step = 0.5 should be a whole number above 0",
        ),
        (
            'name = "x"\nversion = 1\n[ppo]\nclip = { low = 0.1, high = 0.3, step = 0.1, log = true }',
            "step and log",
        ),
        ('name = "x"\nversion = 1\n[timeframe.7m.learner]\nclip = { value = 0.1 }', "7m"),
        (
            'name = "x"\nversion = 1\n[ppo]\nclip = { low = 0.1, high = 0.2, start = "a" }',
            "should be a number",
        ),
        (
            'name = "x"\nversion = 1\n[ppo]\nclip = { low = 0.1, high = 0.3, step = 0.1, start = 0.15 }',
            "multiple",
        ),
        (
            'name = "x"\nversion = 1\n[env]\nlookback = { low = 1, high = 4, start = 1.5 }',
            "multiple",
        ),
        (
            'name = "x"\nversion = 1\n[ppo]\nclip = { choices = [0.1], start = 0.2 }',
            "not one of its choices",
        ),
        (
            'name = "x"\nversion = 1\n[ppo]\nclip = { value = 0.1, start = 0.2 }',
            "differs from its only value",
        ),
        (
            'name = "x"\nversion = 1\n[shape]\nnet_width = { low = 32, high = 128, off = 16 }',
            r"\[shape\] net_width cannot have off",
        ),
        (
            'name = "x"\nversion = 1\n[shape]\nnet_depth = { choices = [0, 1, 2] }',
            "net_depth = 0: must be a whole number of at least 1",
        ),
        (
            'name = "x"\nversion = 1\n[shape]\nepochs = { low = 1.5, high = 4 }',
            "epochs = 1.5: must be a whole number",
        ),
        ('name = "x"', "version"),
        ("name = ", "not valid TOML"),
    ],
)
def test_a_space_with_an_error_is_refused_with_a_message(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "space.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as refused:
        load_space(str(path))
    assert str(path) in str(refused.value)


def test_presets_are_files_to_copy_and_unknown_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(preset_text("wide").replace('"wide"', '"mine"'))
    assert load_space(str(path)).name == "mine"
    with pytest.raises(InputError, match="neither a preset"):
        load_space("wider")
    with pytest.raises(InputError, match="cannot be read"):
        load_space(str(tmp_path / "none.toml"))


def test_the_first_trial_of_the_space_wide_has_the_defaults() -> None:
    space = load_space("wide")
    resolved = space.resolve(space.start)
    learner, env = vars(PPOParams()), vars(EnvParams())
    assert resolved.learner == pytest.approx({name: learner[name] for name in resolved.learner})
    assert resolved.env == {name: env[name] for name in resolved.env}
    assert len(space.start) >= sum(own.value is None for own in space.dimensions)
