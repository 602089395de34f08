"""Numbers that must fit each other: fitted and said so, or refused with their valid neighbours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sweepd.envs.support.errors import InputError
from sweepd.optimize.cli import train as train_command
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.fit import (
    env_unit,
    fewest_envs,
    fit_budget,
    fit_minibatch,
    fit_space,
    most_envs,
    neighbours,
    refuse_misfit,
)
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.space.parsing import load_space, parse_space
from sweepd.optimize.study.space.search_space import SearchSpace
from sweepd.optimize.study.space.subject import Subject
from sweepd.optimize.study.study import StudyHandle
from tests.optimize.conftest import TRAIN, search_app


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_neighbours_are_the_next_smaller_and_larger_divisors(size: int, transitions: int) -> None:
    below, above = neighbours(size, transitions)
    divisors = [d for d in range(1, transitions + 1) if transitions % d == 0]
    assert below == max(d for d in divisors if d <= size)
    assert above == min((d for d in divisors if d >= size), default=transitions)
    assert fit_minibatch(size, transitions) in (below, above)


@pytest.mark.parametrize(
    ("size", "transitions", "fitted"),
    [
        (512, 2048, 512),
        (512, 960, 480),
        (256, 960, 240),
        (1024, 512, 512),
        (64, 61, 61),
        (512, 100, 100),
        (3, 4, 4),
    ],
)
def test_a_minibatch_becomes_the_nearest_divisor(size: int, transitions: int, fitted: int) -> None:
    assert fit_minibatch(size, transitions) == fitted


def test_a_space_keeps_fitting_minibatches_and_reports_changed_ones() -> None:
    wide = load_space("wide")
    assert fit_space(wide, 2048) == (wide, "")
    space, note = fit_space(wide, 960)
    assert space.tables["shape"]["minibatch"].choices == (240, 480, 960)
    assert "minibatch 256, 512, 1024 of the space became 240, 480, 960" in note
    assert "960 transitions" in note
    assert fit_space(wide, 100)[0].minibatches == (100,)
    assert fit_space(wide, 512)[0].minibatches == (256, 512)
    bare = SearchSpace("bare", 1, {"shape": {}, "ppo": {}, "env": {}})
    assert bare.minibatches == (512,)
    assert fit_space(bare, 768)[0].minibatches == (384,)


def test_a_fitted_space_keeps_its_subject() -> None:
    space, note = fit_space(load_space("game", Subject("cartpole", "elegantrl:a2c")), 192)
    assert note
    assert list(space.to_dict()) == ["name", "version", "shape", "elegantrl", "env"]


def test_a_range_of_minibatches_is_refused() -> None:
    with pytest.raises(InputError, match="minibatch must be choices or a value"):
        parse_space({"name": "x", "version": 1, "shape": {"minibatch": {"low": 64, "high": 128}}})


def test_automatic_envs_are_a_multiple_that_every_minibatch_fits() -> None:
    assert env_unit([256, 512, 1024], 64) == 16
    assert env_unit([512], 64) == 8
    assert env_unit([96], 64) == 3
    assert most_envs(250_000, 64, [256, 512, 1024]) == 32  # 39 would be the bound
    assert most_envs(100_000, 64, [512]) == 16  # 15.6
    assert fewest_envs(250_000, 64, [256, 512, 1024]) == 16
    assert most_envs(10_000, 64, [512]) == 1  # 1.6, far from 8: the minibatch is fitted instead
    assert fewest_envs(10_000, 64, [512]) == 1
    assert most_envs(10, 64, [512]) == 1


def test_a_budget_is_raised_to_a_rollout_per_rung_or_refused() -> None:
    assert fit_budget(100, 4, 1, 25, fixed=True) == (100, "")
    budget, note = fit_budget(99, 4, 1, 25, fixed=False)
    assert budget == 100
    assert "it was raised to 100" in note
    with pytest.raises(
        InputError,
        match="at least --budget 2048, or at most --n-envs 15 or --horizon 62 or --rungs 1",
    ):
        fit_budget(1999, 2, 16, 64, fixed=True)


def test_a_given_misfit_is_refused_with_the_nearest_values() -> None:
    refuse_misfit([256, 512], 32, 64, "x")
    with pytest.raises(InputError) as refused:
        refuse_misfit([512], 15, 64, "--search-space x.toml")
    assert str(refused.value) == (
        "minibatch 512 of --search-space x.toml does not divide the 15 envs x 64 steps = 960 "
        "transitions of a rollout; use a minibatch of 480 or 960 there, or --n-envs 8 or 16"
    )
    with pytest.raises(InputError, match="use a minibatch of 256 there, or --n-envs 8"):
        refuse_misfit([512], 4, 64, "x")


@pytest.fixture
def train(market: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Create or join the tiny study without training; returns what was said, or the refusal."""
    monkeypatch.chdir(market)
    monkeypatch.setattr(train_command, "work", lambda *_: None)

    def run(*words: object) -> str:
        result = CliRunner().invoke(search_app(), ["train", *TRAIN, *map(str, words)])
        if isinstance(result.exception, InputError):
            return str(result.exception)
        assert result.exception is None, result.output
        return result.output

    return run


def _spec(name: str = "s") -> dict[str, object]:
    handle = StudyHandle(open_storage(storage_url(None, Path("runs"))), name)
    return json.loads(handle.spec.to_json())  # type: ignore[no-any-return]


def test_train_refuses_or_fits_numbers_and_joins_the_fitted_study(
    train: Callable[..., str],
) -> None:
    assert "minibatch 32 of --search-space tiny.toml does not divide the 3 envs x 16" in train(
        "--n-envs", 3
    )
    assert "at least --budget 3072" in train("--n-envs", 64, "--budget", 1000)
    said = train("--n-envs", "auto", "--budget", 640)  # a bound of 0.4 envs
    assert "minibatch 16, 32 of the space became 16" in said
    assert _spec()["num_envs"] == 1
    assert "created with" not in train("--n-envs", "auto", "--budget", 640)


def test_presets_are_fitted_to_the_given_num_envs(train: Callable[..., str]) -> None:
    said = train("--search-space", "wide", "--n-envs", 5, "--horizon", 64, "--budget", 10_000)
    assert "minibatch 256, 512, 1024 of the space became 320" in said
    assert "created with" not in train(
        "--search-space", "wide", "--n-envs", 5, "--horizon", 64, "--budget", 10_000
    )


@pytest.mark.parametrize("envs", [8, 10, 12, 20, 24, 100])
def test_a_fitted_space_keeps_its_start(envs: int) -> None:
    space = load_space("game", Subject("cartpole"))
    fitted, _ = fit_space(space, envs * 36)
    wanted = {**space.start, "minibatch": fit_minibatch(int(space.start["minibatch"]), envs * 36)}
    assert wanted["minibatch"] != space.start["minibatch"]
    assert {**fitted.start, "minibatch": wanted["minibatch"]} == wanted
    sizes = fitted.minibatches
    assert fitted.start.get("minibatch") == (wanted["minibatch"] if len(sizes) > 1 else None)
    assert wanted["minibatch"] in sizes


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
def test_the_first_trial_has_the_start_of_the_space(
    market: Path, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    """Some parameters have a start, others not; the minibatches do not fit and become 20 and 40."""
    monkeypatch.chdir(market)
    monkeypatch.setattr(train_command, "work", lambda *_: None)
    text = Path("tiny.toml").read_text()
    for line, start in (
        ("choices = [16, 32]", 32),
        ("high = 2e-3, log = true", 3e-4),
        ("off = 0.0", "0.0"),
    ):
        assert line in text
        text = text.replace(line, f"{line}, start = {start}")
    Path("tiny.toml").write_text(text)
    words = [
        "train",
        *TRAIN,
        "--horizon",
        "20",
        "--n-envs",
        "auto",
        "--budget",
        "240",
        "--sampler",
        sampler,
    ]
    monkeypatch.setattr(
        "sweepd.optimize.objectives.members.objective.measure_num_envs", lambda *_: (2, [])
    )
    CliRunner().invoke(search_app(), words, catch_exceptions=False)
    handle = StudyHandle(open_storage(storage_url(None, Path("runs"))), "s")
    first = handle.ask_batch(1, "w", 3)[0].params
    assert (first["minibatch"], first["learning_rate"], first["target_kl_on"]) == (40, 3e-4, False)
    assert {"net_width", "action_scale", "lookback"} <= set(first)
    assert handle.ask_batch(1, "w", 3)[0].params["learning_rate"] != 3e-4


def test_a_worker_joins_with_its_own_threads_and_reports_another_processor(
    train: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "was made on" not in train()
    assert _spec()["threads"] == 1
    joined = train("--threads", 2)
    assert torch.get_num_threads() == 2
    assert "created with" not in joined
    assert "was made on" not in joined
    monkeypatch.setattr(
        "sweepd.optimize.objectives.members.objective.processor_kind", lambda _: "another kind"
    )
    said = train()
    assert f"was made on {_spec()['processor']}, and this is another kind" in " ".join(said.split())
    assert torch.get_num_threads() == 1
