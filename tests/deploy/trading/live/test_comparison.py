"""The arena's statistics: fixed days, 5% over all comparisons; and the benchmarks."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from sweepd.deploy.trading.book import EqualWeight
from sweepd.deploy.trading.live import comparison
from sweepd.deploy.trading.live.benchmarks import Benchmark, benchmarks
from sweepd.deploy.trading.live.comparison import arena_level, compare, days_due

Array = NDArray[np.float64]
FOURHOURLY = "4h"
DAY_BARS = 6
RECORDS = 40


def champion(rng: np.random.Generator, days: int) -> Array:
    return 0.01 * rng.standard_t(4, DAY_BARS * days) / math.sqrt(2)


def rival_of(rng: np.random.Generator, returns: Array, edge: float) -> Array:
    """Returns of another trader on the same bars, correlated over time.

    edge: mean advantage, in standard deviations.
    """
    own = rng.standard_t(5, len(returns)) / math.sqrt(5 / 3)
    own[1:] += 0.1 * own[:-1]
    return returns + 0.002 * (own + edge)


def test_looks_are_due_at_fixed_days() -> None:
    by_day = [days_due(24 * days, "1h") for days in (0, 13, 14, 27, 28, 55, 56, 111, 112, 400)]
    assert by_day == [0, 0, 14, 14, 28, 28, 56, 56, 112, 224]
    assert [days_due(bars, "5m") for bars in (4031, 4032)] == [0, 14]
    assert [days_due(days, "1d") for days in (13, 14)] == [0, 14]
    rng = np.random.default_rng(0)
    returns = champion(rng, 13)
    found = compare(returns + 0.01, returns, FOURHOURLY, 0)
    assert (found.outcome, found.text) == ("too early", "13 of 14 days: too early to compare")


def test_only_the_bars_of_the_look_count() -> None:
    rng = np.random.default_rng(1)
    ours = champion(rng, 27)
    theirs = rival_of(rng, ours, 0.1)
    early, late = (
        compare(theirs[: DAY_BARS * days], ours[: DAY_BARS * days], FOURHOURLY, 2)
        for days in (14, 27)
    )
    assert early == late
    assert (early.days, early.bars) == (14, 84)
    assert early.advantage == pytest.approx(
        np.prod(1 + theirs[:84]) / np.prod(1 + ours[:84]) - 1, rel=1e-12
    )
    assert json.loads(json.dumps(early.to_dict()))["outcome"] == early.outcome
    with pytest.raises(ValueError, match="they must be equal"):
        compare(theirs, ours[:-1], FOURHOURLY, 0)


def test_all_looks_together_keep_five_percent() -> None:
    assert [arena_level(taken) for taken in (0, 1, 2)] == pytest.approx(
        [0.05 / 2, 0.05 / 6, 0.05 / 12]
    )
    assert sum(arena_level(taken) for taken in range(10_000)) == pytest.approx(0.05, rel=1e-3)


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times as many as the level asks for, and not thousands more."""
    monkeypatch.setattr(comparison, "FEWEST_DRAWS", 1_000)


@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
def test_an_equal_challenger_is_rarely_promoted() -> None:
    """Two challengers as good as the champion, compared three times each."""
    dethroned, retired, looks = 0, 0, 0
    for seed in range(RECORDS):
        rng = np.random.default_rng(seed)
        ours = champion(rng, 56)
        theirs = [rival_of(rng, ours, 0.0) for _ in range(2)]
        taken, outcomes = 0, []
        for days in (14, 28, 56):
            for returns in theirs:
                outcomes.append(
                    compare(
                        returns[: DAY_BARS * days],
                        ours[: DAY_BARS * days],
                        FOURHOURLY,
                        taken,
                        seed=seed,
                    ).outcome
                )
                taken += 1
        dethroned += "better" in outcomes
        retired += outcomes.count("worse")
        looks += len(outcomes)
    assert dethroned / RECORDS <= 0.05 + 2.0 * math.sqrt(0.05 * 0.95 / RECORDS)
    assert 0.01 < retired / looks < 0.1


@pytest.mark.usefixtures("few_draws")
def test_clear_advantages_and_disadvantages_are_found() -> None:
    better, worse = 0, 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        ours = champion(rng, 56)
        better += (
            compare(rival_of(rng, ours, 0.3), ours, FOURHOURLY, 6, seed=seed).outcome == "better"
        )
        worse += (
            compare(rival_of(rng, ours, -0.2), ours, FOURHOURLY, 6, seed=seed).outcome == "worse"
        )
    assert better >= 18
    assert worse >= 18


def test_common_moves_cancel_and_levels_shrink_with_every_look() -> None:
    rng = np.random.default_rng(3)
    ours = champion(rng, 28)
    theirs = rival_of(rng, ours, 0.4)
    shock = np.where(np.arange(len(ours)) % 9 == 0, -0.2, 0.05)
    calm, wild = (
        compare(theirs + move, ours + move, FOURHOURLY, 0) for move in (np.zeros(len(ours)), shock)
    )
    assert calm.outcome == wild.outcome == "better"
    assert wild.p < 3 * calm.p + 0.001
    assert compare(theirs, ours, FOURHOURLY, 10_000).outcome == "undecided"
    assert "comparison 1 with this champion requires p <= 0.025" in calm.text
    # Equal returns are undecided; a constant advantage is certain.
    assert compare(ours, ours, FOURHOURLY, 0).outcome == "undecided"
    flat = np.zeros(len(ours))
    assert compare(flat + 1e-4, flat, FOURHOURLY, 0).outcome == "better"
    assert compare(flat, flat + 1e-4, FOURHOURLY, 0).outcome == "worse"


def test_five_minute_bars_are_compared_by_sums() -> None:
    rng = np.random.default_rng(4)
    ours = 0.001 * rng.normal(size=288 * 56)
    theirs = ours + 0.0003 * (rng.normal(size=len(ours)) + 0.05)
    found = compare(theirs, ours, "5m", 0)
    assert (found.outcome, found.days, found.bars) == ("better", 56, len(ours))
    assert found.advantage == pytest.approx(np.prod(1 + theirs) / np.prod(1 + ours) - 1, rel=1e-9)


TICKERS = ("A/USDT", "B/USDT", "C/USDT")
OPENS = np.array([[10.0, 100.0, 1.0], [11.0, 90.0, 1.5], [12.0, 95.0, 2.0]])


def test_benchmarks_hold_their_assets() -> None:
    accounts = benchmarks(TICKERS, 900.0, fee=0.01, slippage=0.02)
    assert list(accounts) == ["equal weight", "hold A/USDT", "hold B/USDT", "hold C/USDT", "cash"]
    reference = EqualWeight(900.0, 3, fee=0.01, slippage=0.02)
    holes = np.array([[False, True, False], [False, False, False], [False, False, True]])
    for open_, hole in zip(OPENS, holes, strict=True):
        reference.next_bar(open_, hole)
        for name, account in accounts.items():
            account.next_bar(open_, hole)
            again = Benchmark.restored(json.loads(json.dumps(account.state())))
            assert again.value(open_) == account.value(open_), name
            accounts[name] = again  # continue from the stored state
    rate = 0.99 / 1.02
    assert accounts["equal weight"].value(OPENS[2]) == reference.value(OPENS[2])
    assert accounts["hold A/USDT"].value(OPENS[2]) == pytest.approx(
        900.0 * rate * 12.0 / 10.0, rel=1e-12
    )
    assert accounts["hold B/USDT"].value(OPENS[2]) == pytest.approx(
        900.0 * rate * 95.0 / 90.0, rel=1e-12
    )  # after a hole
    assert accounts["hold C/USDT"].value(OPENS[2]) == pytest.approx(900.0 * rate * 2.0, rel=1e-12)
    assert accounts["cash"].value(OPENS[2]) == 900.0
    fresh = benchmarks(TICKERS, 900.0, fee=0.01, slippage=0.02)
    assert all(
        account.value(OPENS[0]) == pytest.approx(900.0) for account in fresh.values()
    )  # nothing is bought yet
