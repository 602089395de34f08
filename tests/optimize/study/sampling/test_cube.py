"""Search spaces as cubes: positions of parameters and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
import pytest

from sweepd.optimize.study.sampling.cube import Cube
from sweepd.optimize.study.space.dimension import Dimension
from sweepd.optimize.study.space.parsing import load_space
from sweepd.optimize.study.space.search_space import SearchSpace
from sweepd.optimize.study.space.subject import Subject

SPACE = SearchSpace(
    "all kinds",
    1,
    {
        "shape": {"minibatch": Dimension("minibatch", choices=(16, 32, 64))},
        "ppo": {
            "learning_rate": Dimension("learning_rate", low=1e-5, high=1e-1, log=True),
            "epochs": Dimension("epochs", low=1, high=4),
            "clip": Dimension("clip", low=0.1, high=0.4, step=0.1),
            "target_kl": Dimension("target_kl", low=0.01, high=0.1, off=0.0),
            "lr_schedule": Dimension("lr_schedule", choices=("linear", "constant", "cosine")),
            "gae_lambda": Dimension("gae_lambda", value=0.9),
        },
        "env": {},
    },
)
CUBE = Cube(SPACE)


def draws(space: SearchSpace, count: int) -> list[dict[str, Any]]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    found = []
    for _ in range(count):
        trial = study.ask()
        space.suggest(trial)
        found.append(trial.params)
    return found


def test_what_optuna_draws_has_a_point_and_comes_back() -> None:
    for params in draws(SPACE, 50):
        assert CUBE.complete(params)
        back = CUBE.params(CUBE.place(params))
        assert set(back) == set(params)
        for name, value in params.items():
            assert back[name] == pytest.approx(value)
            assert type(back[name]) is type(value)


@pytest.mark.parametrize(
    ("environment", "algorithm"), [("crypto", "ppo"), ("cartpole", "ppo"), ("kuhn", "ppo")]
)
def test_included_spaces_are_cubes(environment: str, algorithm: str) -> None:
    subject = Subject(environment, algorithm)
    for preset in subject.presets:
        space = load_space(preset, subject, "1h" if environment == "crypto" else None)
        cube = Cube(space)
        rng = np.random.default_rng(0)
        for point in cube.spread(rng.random((20, len(cube.axes)))):
            params = cube.params(point)
            space.validate(params)
            # Optuna would draw the same parameters from the same distributions.
            trial = optuna.trial.FixedTrial(params)
            assert space.suggest(trial) == params
            assert {n: cube.distributions[n] for n in params} == trial.distributions


def test_even_shares_give_every_choice_and_integer_alike() -> None:
    shares = np.tile((np.arange(1200) + 0.5)[:, None] / 1200, (1, len(CUBE.axes)))
    params = [CUBE.params(point) for point in CUBE.spread(shares)]
    for name, values in (("minibatch", (16, 32, 64)), ("epochs", (1, 2, 3, 4))):
        counts = [sum(own[name] == value for own in params) for value in values]
        assert counts == [1200 // len(values)] * len(values)
    assert sum("target_kl" in own for own in params) == 600


def test_parameters_that_are_off_are_not_drawn_and_stand_in_the_middle() -> None:
    params = {**draws(SPACE, 1)[0], "target_kl_on": False}
    params.pop("target_kl", None)
    point = CUBE.place(params)
    assert np.isnan(point).sum() == 1
    assert "target_kl" not in CUBE.params(point)
    assert not np.isnan(CUBE.features(point[None])).any()
    on = CUBE.fixed(point[None], {"target_kl_on": True})[0]
    assert CUBE.params(on)["target_kl"] == pytest.approx(0.055)
    # A trial that lacks a drawn parameter has no point.
    assert CUBE.complete(params)
    assert not CUBE.complete({**params, "target_kl_on": True})
    assert not CUBE.complete({"minibatch": 16})


def test_fixed_parameters_and_the_grid_are_kept() -> None:
    rng = np.random.default_rng(1)
    near = rng.random((30, len(CUBE.axes)))
    points = CUBE.fixed(CUBE.snap(near), {"minibatch": 32})
    params = [CUBE.params(point) for point in points]
    assert {own["minibatch"] for own in params} == {32}
    for point, own in zip(points, params, strict=True):
        assert CUBE.place(own) == pytest.approx(point, nan_ok=True)


def test_choices_without_an_order_are_equally_far_from_each_other() -> None:
    params = draws(SPACE, 1)[0]
    rows = {
        choice: CUBE.features(CUBE.place({**params, "lr_schedule": choice})[None])[0]
        for choice in ("linear", "constant", "cosine")
    }
    gaps = [
        float(((rows[a] - rows[b]) ** 2).sum())
        for a, b in (("linear", "constant"), ("linear", "cosine"), ("constant", "cosine"))
    ]
    assert gaps == pytest.approx([1.0] * 3)
    # Numbers have an order: 16 is farther from 64 than from 32.
    sizes = [CUBE.place({**params, "minibatch": size})[0] for size in (16, 32, 64)]
    assert sizes == [0.0, 0.5, 1.0]


def test_arithmetic_is_that_of_the_parameters() -> None:
    for preset, algorithm in (("wide", "ppo"), ("game", "sac")):
        subject = Subject("crypto" if preset == "wide" else "cartpole", algorithm)
        space = load_space(preset, subject)
        cube = Cube(space)
        points = cube.spread(np.random.default_rng(0).random((40, len(cube.axes))))
        wanted = [np.log(space.arithmetic(cube.params(point))) for point in points]
        assert cube.log_arithmetic(points) == pytest.approx(wanted)
        assert len(set(wanted)) > 4


@pytest.mark.parametrize(
    ("algorithm", "name", "factor"),
    [
        ("ppo", "epochs", 2.0),
        ("ppo", "minibatch", 1.0),
        ("ppo", "net_depth", 2.0),
        ("sac", "updates", 2.0),
        ("sac", "minibatch", 2.0),
        ("sac", "net_width", 4.0),
    ],
)
def test_arithmetic_of_twice_as_much(algorithm: str, name: str, factor: float) -> None:
    """The rollout of PPO is divided into minibatches; SAC draws as many as it has updates."""
    space = load_space("game", Subject("cartpole", algorithm))
    shape = space.shape_of(space.start)
    table = {key: Dimension(key, value=value) for key, value in shape.items()}
    twice = {**table, name: Dimension(name, value=2 * shape[name])}

    def of(shapes: dict[str, Dimension]) -> float:
        own = {**space.tables, "shape": shapes}
        return SearchSpace("s", 1, own, space.subject).arithmetic({})

    assert of(twice) == factor * of(table)
