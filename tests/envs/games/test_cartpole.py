"""CartPole: equal to Gymnasium's for any actions, and the contract of `VecEnv`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from sweepd.envs.games.cartpole import CartPole, CartPoleParams
from sweepd.envs.gymnasium_view import CARTPOLE_ID, GymnasiumVectorView, GymnasiumView, register
from sweepd.envs.support.errors import InputError, RunError

DEFAULT = CartPoleParams()
# Each differs from the default, and its episodes still last a while.
OTHER: dict[str, Any] = {
    "gravity": 12.0,
    "masscart": 0.7,
    "masspole": 0.2,
    "length": 0.8,
    "force_mag": 8.0,
    "tau": 0.015,
    "x_threshold": 0.06,
    "theta_threshold": 0.1,
    "max_steps": 7,
    "start_range": 0.03,
}


def reference_step(p: CartPoleParams, state: np.ndarray, action: int) -> np.ndarray:
    """One step in plain float64: position, speed, angle, angular speed."""
    x, speed, angle, turning = (float(value) for value in state)
    total = p.masscart + p.masspole
    force = p.force_mag if action else -p.force_mag
    sine, cosine = math.sin(angle), math.cos(angle)
    push = (force + p.masspole * p.length * turning**2 * sine) / total
    angular = (p.gravity * sine - cosine * push) / (
        p.length * (4.0 / 3.0 - p.masspole * cosine**2 / total)
    )
    linear = push - p.masspole * p.length * angular * cosine / total
    return np.array(
        [
            x + p.tau * speed,
            speed + p.tau * linear,
            angle + p.tau * turning,
            turning + p.tau * angular,
        ]
    )


def exact_state(env: CartPole) -> np.ndarray:
    """Return the states (num_envs, 4) float64, which observations are rounded from."""
    return torch.stack([*env.state.values()], 1).numpy()


def gymnasium_with(params: CartPoleParams) -> CartPoleEnv:
    made = CartPoleEnv()
    for name in ("gravity", "masscart", "masspole", "length", "force_mag", "tau", "x_threshold"):
        setattr(made, name, getattr(params, name))
    made.total_mass = params.masscart + params.masspole
    made.polemass_length = params.masspole * params.length
    made.theta_threshold_radians = params.theta_threshold
    return made


def balancing(state: np.ndarray) -> int:
    """A controller that never lets the pole fall."""
    return int(0.1 * state[0] + 0.3 * state[1] + 3.0 * state[2] + state[3] > 0)


def random_params(seed: int) -> CartPoleParams:
    rng = np.random.default_rng(seed)
    changed = {
        name: getattr(DEFAULT, name) * rng.uniform(0.7, 1.4)
        for name in OTHER
        if name != "max_steps"
    }
    return CartPoleParams(**changed, max_steps=int(rng.integers(5, 200)))


# ---- Gymnasium's ----


def follow(
    params: CartPoleParams, seed: int, act: Callable[[np.ndarray, int], int], *, resync: bool
) -> tuple[int, float]:
    """Play an episode in Gymnasium and here; return its length and the largest difference.

    resync: Both take every step from the state here, so that only the rounding of one step can
    differ; otherwise they only have the start in common.
    """
    env = CartPole(params, 1)
    env.reset([seed])
    theirs = gymnasium_with(params)
    theirs.reset(seed=0)
    theirs.state = state = exact_state(env)[0]
    worst, steps = 0.0, 0
    while True:
        action = act(theirs.state, steps)
        made = env.step(torch.tensor([action]))
        obs, reward, terminated, *_ = theirs.step(action)
        state = reference_step(params, state, action)
        steps += 1
        assert float(made.reward[0]) == reward == 1.0
        assert bool(made.terminated[0]) == terminated
        assert bool(made.truncated[0]) == (steps == params.max_steps)
        done = terminated or steps == params.max_steps
        ours = env.final_obs()[0].numpy() if done else made.obs[0].numpy()
        exact = torch.cat([*(env.final if done else env.state).values()]).numpy()
        assert obs.dtype == ours.dtype == np.float32
        np.testing.assert_array_equal(ours, exact.astype(np.float32))
        worst = max(
            worst, float(np.abs(exact - theirs.state).max()), float(np.abs(exact - state).max())
        )
        if done:
            return steps, worst
        if resync:
            theirs.state, state = exact, exact


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**40),
    actions=st.lists(st.integers(0, 1), min_size=1, max_size=40),
    world=st.integers(0, 50),
)
def test_every_step_of_whole_episodes_equals_gymnasium(
    seed: int, actions: list[int], world: int
) -> None:
    params = random_params(world) if world else DEFAULT
    _, worst = follow(params, seed, lambda _, step: actions[step % len(actions)], resync=True)
    assert worst < 1e-14


@settings(max_examples=40)
@given(seed=st.integers(0, 2**40), actions=st.lists(st.integers(0, 1), min_size=1, max_size=40))
def test_episodes_on_their_own_stay_together(seed: int, actions: list[int]) -> None:
    steps, worst = follow(DEFAULT, seed, lambda _, step: actions[step % len(actions)], resync=False)
    # A pole multiplies differences by at most exp(.08) per step; rounding begins at about 1e-16.
    assert worst < 1e-14 * math.exp(0.08 * steps)


@pytest.mark.parametrize("seed", range(3))
def test_a_balanced_pole_equals_gymnasium_for_500_steps(seed: int) -> None:
    steps, worst = follow(DEFAULT, seed, lambda state, _: balancing(state), resync=True)
    assert steps == 500
    assert worst < 1e-14


def test_the_defaults_are_those_of_gymnasium() -> None:
    theirs = CartPoleEnv()
    for name in ("gravity", "masscart", "masspole", "length", "force_mag", "tau", "x_threshold"):
        assert getattr(theirs, name) == getattr(DEFAULT, name)
    assert theirs.theta_threshold_radians == DEFAULT.theta_threshold
    assert gymnasium.spec("CartPole-v1").max_episode_steps == DEFAULT.max_steps


def test_starts_are_uniform() -> None:
    env = CartPole(CartPoleParams(start_range=0.2), 4096)
    starts = env.reset([3]).double().numpy()
    assert starts.min() >= -0.2
    assert starts.max() <= 0.2
    np.testing.assert_allclose(starts.mean(0), 0.0, atol=0.01)
    np.testing.assert_allclose(starts.std(0), 0.4 / math.sqrt(12), rtol=0.03)
    np.testing.assert_allclose(np.corrcoef(starts.T), np.eye(4), atol=0.06)


# ---- episodes ----


@pytest.mark.parametrize("drawn", [True, False])
def test_every_episode_has_a_start_of_its_own(drawn: bool) -> None:
    """With or without `draw`: no start is used twice, and all are in range."""
    params = [
        dataclasses.replace(DEFAULT, max_steps=9),
        dataclasses.replace(DEFAULT, force_mag=20.0),
        DEFAULT,
    ]
    env = CartPole(params, 20)
    first = env.reset(5)
    starts = [tuple(row) for row in first.tolist()]
    generator = torch.Generator().manual_seed(0)
    for step in range(300):
        if drawn and step % 20 == 0:
            env.draw(20)
        made = env.step(
            torch.randint(0, 2, (60,), generator=generator) | (torch.arange(60) % 3 == 0)
        )
        starts += [tuple(row) for row in made.obs[made.terminated | made.truncated].tolist()]
    assert len(starts) > 1000
    assert len(set(starts)) == len(starts)
    assert max(abs(value) for start in starts for value in start) <= 0.05


def simulated_length(
    params: CartPoleParams, start: np.ndarray, actions: Callable[[int], int]
) -> int:
    state = start
    for step in range(params.max_steps):
        state = reference_step(params, state, actions(step))
        if abs(state[0]) > params.x_threshold or abs(state[2]) > params.theta_threshold:
            return step + 1
    return params.max_steps


@settings(max_examples=200)
@given(
    world=st.integers(0, 10_000),
    start=st.lists(st.floats(-1, 1), min_size=4, max_size=4),
    actions=st.lists(st.integers(0, 1), min_size=1, max_size=20),
)
def test_no_episode_is_shorter_than_the_shortest(
    world: int, start: list[float], actions: list[int]
) -> None:
    params = random_params(world) if world else DEFAULT
    state = np.array(start) * params.start_range
    assert simulated_length(params, state, lambda step: actions[step % len(actions)]) >= CartPole(
        params, 1
    ).shortest_episode(params)


@pytest.mark.parametrize(
    "params", [DEFAULT, CartPoleParams(x_threshold=0.06), CartPoleParams(force_mag=30.0)]
)
def test_the_shortest_episode_can_occur(params: CartPoleParams) -> None:
    """So `bootstrap_interval` is as long as possible."""
    lengths = []
    for corner in range(16):
        start = params.start_range * np.array(
            [1.0 if corner >> bit & 1 else -1.0 for bit in range(4)]
        )
        lengths += [simulated_length(params, start, lambda _, push=push: push) for push in (0, 1)]  # type: ignore[misc]
    assert min(lengths) == CartPole(params, 2).bootstrap_interval


def test_a_limit_on_steps_can_be_the_shortest() -> None:
    assert CartPole(CartPoleParams(max_steps=3), 2).bootstrap_interval == 3
    assert CartPole([DEFAULT, CartPoleParams(max_steps=3)], 2).bootstrap_interval == 3


# ---- parameters ----


@pytest.mark.parametrize("name", OTHER)
def test_every_parameter_has_an_effect_on_its_own_rows_alone(name: str) -> None:
    assert {field.name for field in dataclasses.fields(CartPoleParams)} == set(OTHER)
    plain = CartPole([DEFAULT, DEFAULT], 8)
    changed = CartPole([DEFAULT, dataclasses.replace(DEFAULT, **{name: OTHER[name]})], 8)
    seen = []
    for env in (plain, changed):
        generator = torch.Generator().manual_seed(0)
        obs = [env.reset([1, 2])]
        obs += [env.step(torch.randint(0, 2, (16,), generator=generator)).obs for _ in range(40)]
        seen.append(torch.stack(obs))
    assert torch.equal(seen[0][:, :8], seen[1][:, :8])
    assert not torch.equal(seen[0][:, 8:], seen[1][:, 8:])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gravity", -1.0),
        ("masscart", 0.0),
        ("tau", math.nan),
        ("max_steps", 2.5),
        ("max_steps", 0),
        ("length", True),
        ("start_range", 0.3),
    ],
)
def test_a_wrong_parameter_is_named(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{name} is {value!r}"):
        CartPoleParams(**{name: value})


def test_no_rows_are_refused() -> None:
    with pytest.raises(InputError, match="0 envs"):
        CartPole(DEFAULT, 0)


# ---- members ----


# ---- the device ----


# ---- faults ----


@pytest.mark.parametrize("bad", [2, -1, 2**40])
@pytest.mark.parametrize("step", [0, 15, 16, 40])
def test_the_first_illegal_action_is_named(bad: int, step: int) -> None:
    env = CartPole([DEFAULT, DEFAULT], 3)
    env.reset(0)
    for at in range(60):
        action = torch.ones(6, dtype=torch.int64)
        if at >= step:
            action[4] = bad + (at > step)
        if at == step + 3:
            action[1] = -7
        env.step(action)
    assert env.faults().tolist() == [False, True, False, False, True, False]
    with pytest.raises(
        RunError, match=rf"row 4 \(member 1\) got an illegal action in step {step + 1}: {bad};"
    ):
        env.check()
    env.reset_member(1)
    with pytest.raises(RunError, match="row 1"):
        env.check()
    env.reset()
    env.check()


def test_debug_raises_in_the_step_of_the_fault() -> None:
    env = CartPole(DEFAULT, 2, debug=True)
    env.reset(0)
    with pytest.raises(RunError, match="row 1"):
        env.step(torch.tensor([0, 2]))


def test_wrong_shapes_and_orders_are_refused() -> None:
    env = CartPole(DEFAULT, 2)
    with pytest.raises(RuntimeError, match="before reset"):
        env.step(torch.tensor([0, 1]))
    env.reset(0)
    with pytest.raises(ValueError, match=r"shape \(2, 1\), not \(2,\)"):
        env.step(torch.tensor([[0], [1]]))


# ---- views ----


def test_the_single_environment_passes_gymnasiums_check() -> None:
    register()
    env = gymnasium.make(CARTPOLE_ID)
    with pytest.warns(UserWarning, match="infinity"):  # speeds have no bounds
        check_env(env.unwrapped, skip_render_check=True)


def test_the_vector_view_has_gymnasiums_semantics() -> None:
    register()
    env = gymnasium.make_vec(CARTPOLE_ID, num_envs=4, max_steps=10)
    assert env.action_space.shape == (4,)
    obs, _ = env.reset(seed=7)
    again, _ = env.reset(seed=7)
    np.testing.assert_array_equal(obs, again)
    for step in range(1, 21):
        obs, reward, _, truncated, infos = env.step(np.array([step % 2] * 4))
        assert reward.tolist() == [1.0] * 4
        assert truncated.all() == (step % 10 == 0)
        if truncated.any():
            assert not np.array_equal(infos["final_obs"][2], obs[2])
            assert np.abs(obs).max() <= 0.05


def test_single_and_vector_views_are_one_environment() -> None:
    one, many = GymnasiumView(CartPole(DEFAULT, 1)), GymnasiumVectorView(CartPole(DEFAULT, 1))
    np.testing.assert_array_equal(one.reset(seed=5)[0], many.reset(seed=5)[0][0])
    terminated = False
    while not terminated:
        single, batch = one.step(np.int64(1)), many.step(np.array([1]))
        terminated = single[2]
        assert terminated == batch[2][0]
    np.testing.assert_array_equal(single[0], batch[4]["final_obs"][0])


def test_it_has_the_attributes_that_elegantrl_reads() -> None:
    env = CartPole(DEFAULT, 5)
    assert (env.env_name, env.num_envs, env.max_step) == (CARTPOLE_ID, 5, 500)
    assert (env.state_dim, env.action_dim, env.if_discrete) == (4, 2, True)
    assert env.reset(0).dtype == torch.float32
