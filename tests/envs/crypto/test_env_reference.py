"""The batched environment against the reference, step by step."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sweepd.envs.crypto.data.timeframe import bars_per_year
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import Market
from sweepd.envs.crypto.params import EnvParams, Instruments
from tests.envs.market_samples import random_params, random_short_params, sample_market
from tests.envs.reference_market import Bill, ReferenceMarket

RELATIVE = 1e-11
# A quantity may fall on either side of a whole number of increments by its last bit. With many
# small increments that happens occasionally and changes an order by one increment.
RELATIVE_WITH_INCREMENTS = 1e-8


def reference_of(
    env: CryptoEnv, market: Market, row: int, params: Sequence[EnvParams]
) -> ReferenceMarket:
    """Make a reference market in the state of that row; params: one per member."""
    return ReferenceMarket(
        opens=market.bars.open.tolist(),
        closes=market.bars.close.tolist(),
        holes=market.bars.hole.tolist(),
        params=params[row // env.envs_per_member],
        start=int(env.bars()[row]),
        episode_bars=int(env.row_lengths[row]),
        minimums=market.instruments.minimum_order,
        increments=market.instruments.increment,
        bars_per_year=bars_per_year(market.bars.timeframe),
    )


def actions(rng: np.random.Generator, style: str, shape: tuple[int, int]) -> np.ndarray:
    if style == "down":
        return rng.choice([-1.0, -1.0, -1.0, 0.0, 1.0], shape)
    if style == "wild":
        return rng.choice([-1.0, 0.0, 1.0], shape)
    return rng.normal(0, 0.05, shape).clip(-1, 1) if style == "small" else rng.uniform(-1, 1, shape)


def instruments(seed: int, assets: int, increments: bool) -> Instruments:
    """Return random limits of an exchange; without increments, none."""
    if not increments:
        return Instruments.unrestricted(assets)
    rng = np.random.default_rng(seed)
    steps = rng.choice([0.0, 1e-8, 1e-3, 0.1, 1.0], assets)
    return Instruments(tuple(rng.choice([0.0, 5.0, 50.0], assets).tolist()), tuple(steps.tolist()))


def restarted(own: ReferenceMarket) -> ReferenceMarket:
    """Return a new account at the same bar, which continues the episode of a bankrupt one."""
    new = dataclasses.replace(own, start=own.bar, bill=Bill())
    new.episode_bars, new.steps_before = own.episode_bars, own.steps_before + own.age
    return new


def compare(
    market: Market,
    params: Sequence[EnvParams],
    steps: int,
    seed: int,
    style: str,
    per_member: int = 2,
    events: Counter[str] | None = None,
) -> int:
    """Step both across episodes and compare everything; return the number of filled orders.

    Counts liquidations, bankruptcies and short positions in `events`.
    """
    events = Counter() if events is None else events
    env = CryptoEnv(
        market, params, [(0, 80), (90, market.length - 1)], per_member, accounts=True, debug=True
    )
    env.reset(seed)
    plain = [reference_of(env, market, row, params) for row in range(env.num_envs)]
    rng = np.random.default_rng(seed)
    width = 1 + 3 * market.assets
    traded = 0
    for step in range(steps):
        action = actions(rng, style, (env.num_envs, market.assets))
        made = env.step(torch.from_numpy(action))
        rewards = [own.step(wish) for own, wish in zip(plain, action.tolist(), strict=True)]
        ended, bankrupt = made.truncated.numpy(), np.array([own.bill.bankrupt for own in plain])
        np.testing.assert_array_equal(made.terminated.numpy(), bankrupt)
        np.testing.assert_array_equal(
            ended, [own.steps_before + own.age == own.episode_bars for own in plain]
        )
        bills = [own.bill for own in plain]
        values = np.array([own.value() for own in plain])
        account = env.account
        assert account is not None
        relative = RELATIVE_WITH_INCREMENTS if any(market.instruments.increment) else RELATIVE

        def same(
            got: torch.Tensor, wanted: object, rtol: float, atol: float = 0.0, step: int = step
        ) -> None:
            np.testing.assert_allclose(
                got, wanted, rtol=rtol, atol=atol, err_msg=f"step {step}, seed {seed}, {style}"
            )

        same(account.dropped, [bill.dropped for bill in bills], 0)
        same(account.unfilled, [bill.unfilled for bill in bills], 0)
        same(account.trades, [bill.trades for bill in bills], 0)
        same(account.value, values, relative)
        same(account.equal_weight, [own.equal_weight() for own in plain], relative)
        fees = [bill.fees + bill.charges for bill in bills]
        same(account.fees, fees, relative, 1e-9 + relative * 1e3)
        same(account.notional, [bill.notional for bill in bills], relative, 1e-9 + relative * 1e3)
        same(
            account.exposure,
            [
                sum(own.sizes()) / value if env.shorts else 1 - own.cash / value
                for own, value in zip(plain, values, strict=True)
            ],
            0,
            relative,
        )
        scales = np.array([own.params.reward_scale for own in plain])
        same(made.reward.double().numpy() / scales, np.array(rewards) / scales, 1e-6, 10 * relative)
        for row in np.flatnonzero(bankrupt):
            plain[row] = restarted(plain[row])
        seen = torch.where(made.truncated.unsqueeze(1), env.final_obs(), made.obs)
        same(
            seen[:, :width],
            [own.observation(own.params.held_scale or 168) for own in plain],
            1e-6,
            1e-7,
        )
        same(seen[:, width], [own.bar for own in plain], 0)  # the only feature is the bar's index
        traded += sum(bill.trades for bill in bills)
        events["bankrupt"] += int(bankrupt.sum())
        events["liquidated"] += sum(bill.liquidated for bill in bills)
        events["short"] += sum(own.debt() > 0 for own in plain)
        events["in debt"] += sum(own.cash < 0 for own in plain)

        book, going_on = env.portfolio(), ~ended
        for name in ("units", "cost"):
            wanted = np.array(
                [[getattr(position, name) for position in own.positions] for own in plain]
            )
            same(getattr(book, name)[going_on], wanted[going_on], 100 * relative, 1e-12)
        same(
            book.cash[going_on, 0],
            np.array([own.cash for own in plain])[going_on],
            100 * relative,
            1e-9,
        )
        for row in np.flatnonzero(ended):
            plain[row] = reference_of(env, market, int(row), params)
    return traded


@pytest.mark.parametrize("style", ["wild", "even", "small"])
@pytest.mark.parametrize("holes", [0.0, 0.15])
def test_thousands_of_steps_equal_the_reference(style: str, holes: float) -> None:
    market = sample_market(seed=3, assets=4, hole_share=holes, volatility=0.03)
    params = [EnvParams(episode_bars=40), *(random_params(seed) for seed in range(7))]
    traded = compare(market, params, steps=130, seed=5, style=style)
    assert traded > 500  # the portfolios were not idle


@pytest.mark.parametrize("style", ["wild", "small"])
def test_increments_and_minimums_of_the_exchange_equal_the_reference(style: str) -> None:
    rules = Instruments(minimum_order=(0.0, 25.0, 300.0, 1.0), increment=(0.0, 0.5, 1e-4, 3.0))
    market = sample_market(seed=11, assets=4, hole_share=0.1, instruments=rules)
    traded = compare(
        market, [random_params(seed) for seed in range(20, 28)], steps=120, seed=2, style=style
    )
    assert traded > 200


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    assets=st.integers(1, 6),
    holes=st.sampled_from([0.0, 0.05, 0.5]),
    style=st.sampled_from(["wild", "even", "small"]),
    increments=st.booleans(),
)
def test_random_markets_and_parameters_equal_the_reference(
    seed: int, assets: int, holes: float, style: str, increments: bool
) -> None:
    rules = instruments(seed, assets, increments)
    market = sample_market(
        seed, bars=160, assets=assets, hole_share=holes, volatility=0.05, instruments=rules
    )
    compare(
        market,
        [random_params(seed + k) for k in range(3)],
        steps=60,
        seed=seed,
        style=style,
        per_member=1,
    )


@pytest.mark.parametrize("style", ["wild", "even", "small"])
@pytest.mark.parametrize("holes", [0.0, 0.15])
def test_shorts_equal_the_reference(style: str, holes: float) -> None:
    market = sample_market(seed=3, assets=4, hole_share=holes, volatility=0.06)
    params = [EnvParams(episode_bars=40, allow_short=True)]
    params += [random_short_params(seed) for seed in range(10)]
    events: Counter[str] = Counter()
    traded = compare(market, params, steps=130, seed=5, style=style, events=events)
    assert traded > 500
    assert events["short"] > 500


@pytest.mark.parametrize("holes", [0.0, 0.15])
def test_liquidations_and_bankruptcies_equal_the_reference(holes: float) -> None:
    market = sample_market(seed=3, assets=3, hole_share=holes, volatility=0.15)
    large = {"action_scale": 0.7, "max_position": 1.0, "trailing_stop": 0.0}
    params = [random_short_params(seed, **large) for seed in range(10)]
    events: Counter[str] = Counter()
    compare(market, params, steps=100, seed=5, style="down", events=events)
    assert events["liquidated"] > 20
    assert events["bankrupt"] > 0


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    assets=st.integers(1, 6),
    holes=st.sampled_from([0.0, 0.05, 0.5]),
    style=st.sampled_from(["wild", "even", "small"]),
    increments=st.booleans(),
    volatility=st.sampled_from([0.02, 0.1]),
)
def test_shorts_on_random_markets_equal_the_reference(
    seed: int, assets: int, holes: float, style: str, increments: bool, volatility: float
) -> None:
    rules = instruments(seed, assets, increments)
    market = sample_market(
        seed, bars=160, assets=assets, hole_share=holes, volatility=volatility, instruments=rules
    )
    # A member without shorts in the same batch.
    params = [*(random_short_params(seed + k) for k in range(2)), random_params(seed + 2)]
    compare(market, params, steps=60, seed=seed, style=style, per_member=1)
