"""The native step against torch's, to the bit."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.native.choice import STEP
from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.native import build
from tests.envs.market_samples import WINDOWS, random_params, random_short_params, sample_market

try:
    build.vector_flags(), build.compiler()
except build.BuildError as error:
    pytest.skip(f"no native code: {error}", allow_module_level=True)


def assert_same(one: Tensor, two: Tensor, name: str) -> None:
    """Equal numbers, or NaN in both."""
    assert bool(((one == two) | ((one != one) & (two != two))).all()), name


RULES = [(False, 0.1), (True, 0.0)]  # increments, holes


@pytest.mark.parametrize(("increments", "holes"), RULES)
@pytest.mark.parametrize(("assets", "per_member"), [(1, 3), (2, 1), (3, 13), (7, 40), (9, 5)])
def test_native_and_torch_steps_are_equal(
    assets: int, per_member: int, increments: bool, holes: float
) -> None:
    assert_steps_are_equal(assets, per_member, increments=increments, holes=holes)


@pytest.mark.parametrize(("increments", "holes"), [*RULES, (True, 0.1)])
@pytest.mark.parametrize(("assets", "per_member"), [(1, 3), (3, 13), (7, 40)])
def test_native_and_torch_steps_with_shorts_are_equal(
    assets: int, per_member: int, increments: bool, holes: float
) -> None:
    ends = assert_steps_are_equal(
        assets, per_member, increments=increments, holes=holes, shorts=True
    )
    assert ends["liquidated"] > 0
    assert ends["bankrupt"] > 0 or assets == 1


def test_shorts_use_torch_where_the_logarithm_is_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    params = EnvParams(allow_short=True)
    assert CryptoEnv(sample_market(1), params, WINDOWS, 9)._code is not None
    monkeypatch.setattr(STEP.library(torch.device("cpu")), "log1p", None)
    assert CryptoEnv(sample_market(1), params, WINDOWS, 9)._code is None


def test_steps_are_equal_with_the_logarithm_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the function that torch uses is not known."""
    library = STEP.library(torch.device("cpu"))
    monkeypatch.setattr(library, "log1p", None)
    assert_steps_are_equal(3, 13, increments=True, holes=0.1)


def test_the_logarithm_inside_is_known_on_these_processors() -> None:
    """Otherwise threads are woken twice per step."""
    library = STEP.library(torch.device("cpu"))
    assert library is not None
    known = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    assert (library.log1p is not None) == known


@pytest.mark.parametrize("threads", [2, 5])
def test_steps_are_equal_at_any_number_of_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_steps_are_equal(7, 40, increments=False, holes=0.0)
    finally:
        torch.set_num_threads(before)


def test_native_and_torch_steps_may_alternate() -> None:
    """Native steps leave out what only torch's next step needs: prices, and buffers it fills."""
    market = sample_market(1, hole_share=0.1, volatility=0.03)
    params = random_params(4, lookback=2, trailing_stop=0.02, max_holding_bars=4)
    mixed, reference = (
        CryptoEnv(market, params, WINDOWS, 9, native=native) for native in (True, False)
    )
    for env in (mixed, reference):
        env.reset(0)
    columns = mixed.state_dim
    buffers = [torch.empty(columns, 9).t(), torch.empty(9, columns + 3)[:, 2:-1], None]
    torch.manual_seed(2)
    for t in range(90):
        action = torch.rand(9, 3) * 2 - 1
        if t == 30:
            state = reference.get_member(0)
        if t == 40:  # restored between two steps
            for env in (mixed, reference):
                env.set_member(0, state)
        one = mixed.step(action, out=buffers[t // 2 % 3])
        two = reference.step(action)
        assert_same(one.obs, two.obs, f"obs, step {t}")
        assert_same(one.reward, two.reward, f"reward, step {t}")
        for name, tensor in mixed._state().items():
            assert_same(tensor, reference._state()[name], f"{name}, step {t}")


def test_a_buffer_of_another_size_is_refused() -> None:
    env = CryptoEnv(sample_market(1), EnvParams(), WINDOWS, 9)
    env.reset(0)
    for shape in ((9, env.state_dim - 1), (8, env.state_dim)):
        with pytest.raises(RuntimeError):
            env.step(torch.zeros(9, 3), out=torch.empty(shape))


def test_tensors_with_other_gaps_are_refused() -> None:
    env = CryptoEnv(sample_market(1), EnvParams(), WINDOWS, 65)
    env.reset(0)
    env._held = torch.zeros(3, 65, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"held has the strides \(65, 1\), not \(72, 1\)"):
        env.step(torch.zeros(65, 3))


def test_rules_that_no_row_uses_are_skipped() -> None:
    """The native step skips rules that no row uses, and notices rows that begin to use them."""
    market = sample_market(1, volatility=0.03)
    envs = [CryptoEnv(market, EnvParams(), WINDOWS, 9, native=native) for native in (True, False)]
    actions = torch.rand(60, 9, 3) * 2 - 1
    for params in (EnvParams(), random_params(3, lookback=1)):
        for env in envs:
            env.configure_member(0, params, WINDOWS)
            env.reset(5)
        for action in actions:
            one, two = (env.step(action) for env in envs)
            assert_same(one.obs, two.obs, "obs")
            assert_same(one.reward, two.reward, "reward")


def test_records_are_right_after_the_last_member_with_shorts() -> None:
    """Such an environment records what the venue charges, which is nothing from then on."""
    market = sample_market(1, volatility=0.15)
    short = random_short_params(2, action_scale=0.7, max_position=1.0, borrow_fee=20.0)
    envs = [
        CryptoEnv(market, short, WINDOWS, 9, accounts=True, native=native)
        for native in (True, False)
    ]
    actions = torch.rand(60, 9, 3) * 2 - 1
    for params in (short, random_params(3, lookback=1)):
        for env in envs:
            env.configure_member(0, params, WINDOWS)
            env.reset(5)
        charged = 0.0
        for action in actions:
            one, two = (env.step(action) for env in envs)
            assert_same(one.terminated, two.terminated, "terminated")
            assert_same(envs[0].record, envs[1].record, "record")
            charged += float(envs[0].record[8].abs().sum())
        assert (charged > 0) == params.allow_short


def assert_steps_are_equal(
    assets: int, per_member: int, *, increments: bool, holes: float, shorts: bool = False
) -> Counter[str]:
    """Random rules per member, restarts, staggered ends, illegal and NaN actions."""
    limits = Instruments((0.0, 20.0, 5.0) * 3, (1e-3, 0.0, 0.5) * 3)
    rules = Instruments(limits.minimum_order[:assets], limits.increment[:assets])
    market = sample_market(
        assets,
        assets=assets,
        hole_share=holes,
        volatility=0.15 if shorts else 0.03,
        instruments=rules if increments else None,
    )
    params = [random_params(assets * 10 + k, lookback=1 + k % 3) for k in range(5)]
    actions = torch.rand(120, 5 * per_member, assets, dtype=torch.float64) * 2 - 1
    if shorts:  # most members
        own = [random_short_params(k, action_scale=0.7, max_position=1.0) for k in range(4)]
        params = [*own, params[0]]
        actions = (actions - 0.5).clamp_min(-1.0)
    rows = 5 * per_member
    actions[:, :, 0] = actions[:, :, 0].round()
    actions[60, 3, 0] = float("nan")
    actions[40, 4, -1] = 3.0
    envs = [
        CryptoEnv(
            market,
            params,
            WINDOWS,
            per_member,
            privileged_age=True,
            stagger=per_member > 3,
            accounts=True,
            native=native,
        )
        for native in (True, False)
    ]
    assert envs[0]._code is not None
    for env in envs:
        env.reset(assets)
    ends: Counter[str] = Counter()
    for t, action in enumerate(actions):
        steps = [env.step(action if t % 2 else action.float()) for env in envs]
        for name in ("obs", "reward", "truncated", "terminated"):
            assert_same(getattr(steps[0], name), getattr(steps[1], name), f"{name}, step {t}")
        assert_same(envs[0].record, envs[1].record, f"record, step {t}")
        assert_same(envs[0].faults(), envs[1].faults(), f"faults, step {t}")
        states = [env._state() for env in envs]
        for name, tensor in states[0].items():
            assert_same(tensor, states[1][name], f"{name}, step {t}")
        ends["truncated"] += int(steps[0].truncated.sum())
        ends["bankrupt"] += int(steps[0].terminated.sum())
        if shorts:
            record = envs[0].record
            ends["liquidated"] += int(((record[9] == 0) & (record[6] > 0)).sum())
    assert ends["truncated"] > rows
    return ends
