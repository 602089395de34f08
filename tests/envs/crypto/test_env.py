"""The crypto environment: consistent accounts, no host synchronisation, effective parameters."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import Market, observation_normaliser
from sweepd.envs.crypto.params import SHORTS, EnvParams, Instruments
from sweepd.envs.support.errors import InputError, RunError
from tests.envs.market_samples import WINDOWS, random_actions, random_params, run, sample_market

# ---- money ----


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), holes=st.sampled_from([0.0, 0.2]), bounded=st.booleans())
def test_values_change_by_price_moves_less_fees_and_slippage(
    seed: int, holes: float, bounded: bool
) -> None:
    rules = Instruments((0.0, 20.0, 0.0), (1e-3, 0.0, 0.5)) if bounded else None
    market = sample_market(seed, hole_share=holes, volatility=0.05, instruments=rules)
    params = [
        random_params(seed + k, episode_bars=90, cash_reserve=0.0 if k else 0.1) for k in range(4)
    ]
    env = CryptoEnv(market, params, WINDOWS, 3, accounts=True)
    env.reset(seed)
    slippage = torch.tensor([p.slippage for p in params], dtype=torch.float64).repeat_interleave(3)
    opens, closes = torch.from_numpy(market.bars.open), torch.from_numpy(market.bars.close)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(80):
        before, value, bar = env.portfolio(), env.values()[0], env.bars()
        action = torch.randn(12, 3, generator=generator).mul_(2).clamp_(-1, 1)
        env.step(action)
        after, account = env.portfolio(), env.account
        assert account is not None
        assert bool((after.cash >= 0).all())
        assert bool((after.units >= 0).all())
        traded = (after.units - before.units).abs()
        slipped = (traded * opens[bar + 1]).sum(1) * slippage
        overnight = (before.units * (opens[bar + 1] - closes[bar])).sum(1)
        intraday = (after.units * (closes[bar + 1] - opens[bar + 1])).sum(1)
        expected = value + overnight + intraday - account.fees - slipped
        torch.testing.assert_close(account.value, expected, rtol=1e-9, atol=0.0)
        held = after.cash[:, 0] + (after.units * closes[bar + 1]).sum(1)
        torch.testing.assert_close(account.value, held, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("minimum", [0.0, 10.0])
def test_buying_with_all_cash_leaves_no_debt(minimum: float) -> None:
    params = EnvParams(cash_reserve=0.0, action_scale=1.0, minimum_order=minimum, episode_bars=90)
    env = CryptoEnv(sample_market(volatility=0.1), params, WINDOWS, 64, accounts=True)
    env.reset(1)
    generator = torch.Generator().manual_seed(0)
    lowest = math.inf
    for _ in range(80):
        env.step(torch.rand(64, 3, generator=generator))
        lowest = min(lowest, float(env.portfolio().cash.min()))
    assert lowest >= 0.0
    assert lowest < 1.0  # all cash was spent


def test_orders_respect_the_cash_reserve_and_the_position_limit() -> None:
    params = EnvParams(cash_reserve=0.25, max_position=0.3, action_scale=1.0, fee=0.0, slippage=0.0)
    market = sample_market(assets=5, volatility=1e-9)
    env = CryptoEnv(market, params, [(0, 200)], 4)
    env.reset(0)
    for _ in range(5):
        obs = env.step(torch.ones(4, 5)).obs
    assert torch.all(obs[:, 0] >= 0.25 - 1e-6)
    assert torch.all(obs[:, 1:6] <= 0.3 + 1e-6)
    assert torch.all(obs[:, 1:6].sum(1) > 0.74)


# ---- the device ----


def everything_on(seed: int = 0) -> tuple[Market, list[EnvParams]]:
    rules = Instruments((0.0, 20.0, 0.0), (1e-3, 0.0, 0.5))
    market = sample_market(seed, hole_share=0.1, instruments=rules)
    params = [
        random_params(
            k,
            episode_bars=12 + k,
            lookback=1 + k,
            trailing_stop=0.03,
            max_holding_bars=4,
            time_decay_floor=0.2,
            drawdown_penalty=0.5,
            cash_penalty=0.1,
        )
        for k in range(3)
    ]
    return market, params


def test_a_step_works_on_the_meta_device() -> None:
    market, params = everything_on()
    env = CryptoEnv(market, params, WINDOWS, 4, privileged_age=True, accounts=True, device="meta")
    env.reset(3)
    for _ in range(40):
        step = env.step(torch.empty(12, 3, device="meta"))
    assert step.obs.shape == (12, env.state_dim + 1)
    assert step.reward.dtype == torch.float32


# ---- parameters ----

FLIPS: dict[str, float] = {
    "action_scale": 0.5,
    "cash_reserve": 0.3,
    "max_position": 0.2,
    "trailing_stop": 0.05,
    "max_holding_bars": 3,
    "max_holding_fraction": 0.4,
    "alpha_weight": 0.9,
    "drawdown_penalty": 0.7,
    "volatility_penalty": 3.0,
    "concentration_penalty": 0.09,
    "concentration_limit": 0.2,
    "cash_penalty": 0.5,
    "time_decay_floor": 0.3,
    "reward_scale": 10.0,
    "fee": 0.01,
    "slippage": 0.004,
    "minimum_order": 300.0,
    "lookback": 3,
    "episode_bars": 12,
    "initial_cash": 1000.0,
    "held_scale": 3.0,
    "allow_short": True,
    "borrow_fee": 3.0,
    "max_leverage": 0.5,
    "maintenance_margin": 0.99,
}
ACTIVE = EnvParams(
    max_holding_bars=6,
    concentration_penalty=0.05,
    concentration_limit=0.1,
    cash_reserve=0.1,
    cash_penalty=0.1,
    trailing_stop=0.2,
    action_scale=0.3,
)


def test_every_parameter_has_a_flipped_value() -> None:
    assert set(FLIPS) == {field.name for field in dataclasses.fields(EnvParams)}


@pytest.mark.parametrize("name", sorted(FLIPS))
def test_every_parameter_changes_only_the_trajectory_of_its_own_rows(name: str) -> None:
    market = sample_market(6, volatility=0.03)
    # The other parameters of shorts have an effect only with them.
    active = dataclasses.replace(ACTIVE, allow_short=name in SHORTS and name != "allow_short")
    base = [active, active]
    flipped = [active, dataclasses.replace(active, **{name: FLIPS[name]})]
    results = []
    for params in (base, flipped):
        env = CryptoEnv(market, params, [(5, 290)], 3, max_lookback=3)
        first = env.reset([1, 2])
        results.append([first, *run(env, random_actions(3, 80, 6, 3))])
    moved = False
    for one, two in zip(*results, strict=True):
        rows_first = one.dtype != torch.float64
        assert torch.equal(
            one[:3] if rows_first else one[..., :3], two[:3] if rows_first else two[..., :3]
        )
        moved |= not torch.equal(one, two)
    assert moved, f"{name} changes nothing"


def test_privileged_age_is_zero_unless_the_reward_depends_on_it() -> None:
    params = [EnvParams(episode_bars=10), EnvParams(episode_bars=10, time_decay_floor=0.5)]
    env = CryptoEnv(sample_market(), params, WINDOWS, 2, privileged_age=True)
    obs = env.reset(0)
    assert obs.shape[1] == env.spec.obs_dim == env.state_dim + 1
    ages = [obs[:, -1]] + [env.step(torch.zeros(4, 3)).obs[:, -1] for _ in range(10)]
    torch.testing.assert_close(torch.stack(ages)[:, 2], torch.tensor([*range(10), 0]) / 10.0)
    assert not torch.stack(ages)[:, :2].any()
    assert env.final_obs()[2, -1] == 1.0


# ---- episodes ----


def test_starts_are_uniform_over_the_training_bars() -> None:
    env = CryptoEnv(
        sample_market(bars=1000), EnvParams(episode_bars=20), [(100, 300), (500, 800)], 50
    )
    starts = []
    for seed in range(40):
        env.reset([seed])
        starts.append(env.bars().numpy())
        assert len(np.unique(starts[-1])) == 50
    every = np.concatenate(starts)
    inside = ((every >= 100) & (every <= 280)) | ((every >= 500) & (every <= 780))
    assert inside.all()
    assert {100, 280, 500, 780} & set(every.tolist())
    share = np.mean(every <= 280)
    assert share == pytest.approx(181 / (181 + 281), abs=0.02)
    single = np.concatenate(
        [part[7:8] for part in starts]
    )  # the starts of each single row are spread as widely
    assert single.min() < 200
    assert single.max() > 700


def test_episodes_have_their_length_and_stay_within_one_window() -> None:
    windows = [(10, 40), (60, 110), (130, 160)]
    env = CryptoEnv(sample_market(), EnvParams(episode_bars=25), windows, 8)
    env.reset(4)
    bars = [env.bars()]
    for step in range(1, 101):
        truncated = env.step(torch.zeros(8, 3)).truncated
        assert bool(truncated.all()) == bool(truncated.any()) == (step % 25 == 0)
        bars.append(env.bars())
        if step % 25:
            assert torch.equal(bars[-1], bars[-2] + 1)
    for path in torch.stack(bars[:-1]).reshape(4, 25, 8).permute(0, 2, 1).reshape(-1, 25).tolist():
        assert any(first <= path[0] and path[-1] + 1 <= last for first, last in windows), path


def test_an_episode_is_a_week_unless_a_window_is_shorter() -> None:
    market = sample_market(bars=400)
    assert CryptoEnv(market, EnvParams(), [(0, 399)], 1).max_step == 168
    assert CryptoEnv(market, EnvParams(), [(0, 399), (10, 60)], 1).max_step == 50
    assert CryptoEnv(market, EnvParams(episode_bars=30), [(0, 399), (10, 60)], 1).max_step == 30
    both = CryptoEnv(market, [EnvParams(), EnvParams(episode_bars=30)], [[(0, 399)], [(0, 399)]], 1)
    assert (both.max_step, both.bootstrap_interval) == (168, 30)


def test_staggered_rows_end_one_after_the_other() -> None:
    env = CryptoEnv(sample_market(), EnvParams(episode_bars=20), [(0, 290)], 5, stagger=True)
    env.reset(0)
    env.draw(60)
    ends = torch.stack([env.step(torch.zeros(5, 3)).truncated for _ in range(60)])
    for row in range(5):
        first = 4 * (row + 1)
        expected = [end - 1 for end in (first, first + 20, first + 40) if end <= 60]
        assert ends[:, row].nonzero().flatten().tolist() == expected


def test_the_last_observation_of_an_episode_is_kept_until_the_next_ends() -> None:
    env = CryptoEnv(sample_market(), EnvParams(episode_bars=6), [(0, 290)], 3)
    whole = CryptoEnv(sample_market(), EnvParams(episode_bars=7), [(0, 290)], 3)
    env.reset([1])
    whole.reset([1])
    whole.set_member(0, whole.get_member(0) | {"place": env.get_member(0)["place"]})
    whole.set_member(0, whole.get_member(0) | {"holdings": env.get_member(0)["holdings"]})
    actions = random_actions(0, 6, 3, 3)
    for action in actions:
        env.step(action)
        last = whole.step(action).obs
    assert torch.equal(env.final_obs(), last)
    env.step(actions[0])
    assert torch.equal(env.final_obs(), last)


# ---- faults ----


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1.5, -1.0001])
def test_an_illegal_action_is_latched_with_row_and_step(bad: float) -> None:
    env, clean = (CryptoEnv(sample_market(), [EnvParams()] * 2, WINDOWS, 3) for _ in range(2))
    env.reset([1, 2])
    clean.reset([1, 2])
    actions = random_actions(0, 30, 6, 3)
    spoilt = actions.clone()
    spoilt[7, 4, 1] = bad
    spoilt[9, 5, 0] = 3.0
    for one, two in zip(run(env, spoilt), run(clean, actions), strict=True):
        cut = (slice(None), slice(4)) if one.dtype == torch.float64 else (slice(4),)
        assert torch.equal(one[cut], two[cut])
    assert env.faults().tolist() == [False, False, False, False, True, True]
    with pytest.raises(
        RunError, match=r"row 4 \(member 1\).* from step 8 on: component 1 \(BBB/USDT\)"
    ) as caught:
        env.check()
    assert repr(abs(torch.tensor(bad).double().item())) in str(caught.value)
    env.reset_member(1, 9)
    env.check()
    clean.check()
    restarted = run(env, actions)
    assert all(bool(part.isfinite().all()) for part in restarted if part.is_floating_point())


def test_debug_checks_every_step() -> None:
    env = CryptoEnv(sample_market(), EnvParams(), WINDOWS, 3, debug=True)
    env.reset(1)
    env.step(torch.zeros(3, 3))
    with pytest.raises(RunError, match="from step 2 on"):
        env.step(torch.full((3, 3), 2.0))


def test_stepping_before_the_reset_is_refused() -> None:
    env = CryptoEnv(sample_market(), EnvParams(), WINDOWS, 3)
    with pytest.raises(RuntimeError, match="before reset"):
        env.step(torch.zeros(3, 3))


# ---- invalid arguments ----


@pytest.mark.parametrize("window", [(0, 300), (50, 50), (60, 50), (-1, 20)])
def test_windows_outside_the_market_are_refused(window: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="does not fit"):
        CryptoEnv(sample_market(), EnvParams(), [window], 1)


def test_windows_before_all_lags_exist_are_refused() -> None:
    CryptoEnv(sample_market(), EnvParams(lookback=4), [(3, 20)], 1)
    with pytest.raises(InputError, match="possible at bar 3"):
        CryptoEnv(sample_market(), EnvParams(lookback=4), [(2, 20)], 1)
    env = CryptoEnv(sample_market(), EnvParams(), [(3, 20)], 1)
    with pytest.raises(InputError, match="lookback is 2"):
        env.configure_member(0, EnvParams(lookback=2), [(3, 20)])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("action_scale", 0.0),
        ("cash_reserve", 1.0),
        ("max_position", 1.5),
        ("trailing_stop", -0.1),
        ("max_holding_bars", 2.5),
        ("fee", math.nan),
        ("slippage", -1e-9),
        ("lookback", 0),
        ("initial_cash", 0),
        ("minimum_order", "10"),
        ("reward_scale", True),
    ],
)
def test_parameters_out_of_range_are_refused(name: str, value: object) -> None:
    with pytest.raises(InputError, match=name):
        EnvParams(**{name: value})  # type: ignore[arg-type]


def test_instruments_of_another_number_of_tickers_are_refused() -> None:
    with pytest.raises(InputError, match="one of each"):
        Instruments((1.0,), (1.0, 2.0))
    with pytest.raises(InputError, match="increment"):
        Instruments((1.0,), (-2.0,))


# ---- observations ----


def test_lags_are_newest_first_and_padded_with_zeros() -> None:
    market = sample_market(features=2)
    env = CryptoEnv(
        market, [EnvParams(lookback=3), EnvParams(lookback=1)], WINDOWS, 1, max_lookback=3
    )
    obs = env.reset(0)
    bars = env.bars()
    features = obs[:, 1 + 3 * 3 :]
    expected = np.concatenate([market.features[int(bars[0]) - lag] for lag in range(3)])
    np.testing.assert_array_equal(features[0], expected)
    np.testing.assert_array_equal(
        features[1], np.concatenate([market.features[int(bars[1])], np.zeros(4)])
    )


def test_the_normaliser_is_that_of_the_training_bars() -> None:
    market = sample_market(features=3)
    average, deviation = observation_normaliser(
        market, [(10, 20), (50, 80)], lookback=1, max_lookback=2
    )
    bars = [*range(10, 20), *range(50, 80)]
    assert average.shape == deviation.shape == (1 + 9 + 6,)
    np.testing.assert_allclose(
        average[10:13], market.features[bars].astype(float).mean(0), rtol=1e-6
    )
    np.testing.assert_allclose(
        deviation[10:13], market.features[bars].astype(float).std(0), rtol=1e-6
    )
    assert not average[:10].any()
    assert not average[13:].any()
    assert (deviation[:10] == 1).all()
    assert (deviation[13:] == 1).all()


# ---- the torch step ----


class Counted(TorchDispatchMode):
    """Counts the operations made while it is active; `views` are those that compute nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.views = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        if func.is_view:
            self.views += 1
        else:
            self.operations += 1
        return made


@pytest.mark.parametrize(("shorts", "operations", "views"), [(False, 78, 12), (True, 230, 40)])
def test_a_torch_step_takes_few_operations(shorts: bool, operations: int, views: int) -> None:
    params = EnvParams(allow_short=shorts, episode_bars=90)
    env = CryptoEnv(sample_market(assets=7), params, WINDOWS, 8, native=False)
    env.reset(0)
    actions, out = torch.rand(8, 7) * 2 - 1, torch.empty(8, env.state_dim)
    env.step(actions, out=out)
    with Counted() as counted:
        env.step(actions, out=out)
    # Each is a launch on GPUs, and sets the time at usual numbers of rows.
    assert 50 < counted.operations <= operations
    assert counted.views <= views


@pytest.mark.parametrize("shorts", [False, True])
def test_gradients_can_be_computed_with_what_a_torch_step_returns(shorts: bool) -> None:
    params = EnvParams(allow_short=shorts, episode_bars=5)
    env = CryptoEnv(sample_market(), params, WINDOWS, 4, native=False, accounts=True)
    env.reset(0)
    weight = torch.ones((), requires_grad=True)
    for _ in range(6):  # the last one after the end of an episode
        step = env.step(torch.rand(4, 3) * 2 - 1)
        loss = (step.obs * weight).sum() + (step.reward * weight).sum()
        loss = loss + (env.final_obs() * weight).sum()
        loss = loss + (weight * (step.terminated | step.truncated)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
    assert env.account is not None
    (env.account.value * weight).sum().backward()
    assert weight.grad is not None
