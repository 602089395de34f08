"""The test by betting: scalar and exact references, and what must not matter to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sweepd.deploy.promotion.betting import (
    ALPHA,
    LEAST_BOUND,
    STAKES,
    bound,
    days_until,
    log_capital,
    log_capital_at_end,
    log_threshold,
    relative_returns,
)

Array = NDArray[np.float64]


def scalar_capital(returns: list[float], limit: float) -> float:
    """E as the formula has it, one number at a time."""
    total = 0.0
    for part in range(6):
        capital = 1.0
        for one in returns:
            capital *= max(0.0, 1.0 + one / (2.0 * limit * 2.0**part))
        total += capital / 6.0
    return 0.0 if returns and min(returns) < -2.0 * limit else total


@given(
    st.lists(st.floats(-0.05, 0.2), min_size=1, max_size=60),
    st.floats(LEAST_BOUND, 0.5),
    st.randoms(use_true_random=False),
)
def test_the_capital_is_the_formulas_in_any_order(returns: list[float], limit: float, rng) -> None:  # type: ignore[no-untyped-def]
    path = np.exp(log_capital(np.array(returns), limit))
    expected = [scalar_capital(returns[: n + 1], limit) for n in range(len(returns))]
    np.testing.assert_allclose(path, expected, rtol=1e-11, atol=1e-300)
    rng.shuffle(returns)
    again = math.exp(log_capital_at_end(np.array(returns), limit))
    assert again == pytest.approx(expected[-1], rel=1e-11, abs=1e-300)


def test_capitals_that_no_float_holds_do_not_overflow() -> None:
    rising, falling = np.full(50_000, 0.02), np.full(50_000, -0.009)
    assert log_capital_at_end(rising, 0.005) == pytest.approx(
        50_000 * math.log1p(0.02 / 0.01) - math.log(6), rel=1e-12
    )
    assert log_capital_at_end(falling, 0.005) == pytest.approx(
        50_000 * math.log1p(-0.009 / 0.32) - math.log(6), rel=1e-12
    )


def test_a_bar_that_is_too_bad_ends_the_bet() -> None:
    returns = np.array([0.01, -0.0201, 0.5, 0.5])
    won = math.log(1.0 + 0.5 * (2.0 - 0.5**5) / 6.0)  # 50 X, 25 X, ... of 0.01
    assert log_capital(returns, 0.01).tolist() == [pytest.approx(won), *[-np.inf] * 3]
    # At the bound itself only the largest stake is lost.
    assert log_capital_at_end(np.array([-0.02]), 0.01) == pytest.approx(
        math.log(sum(1 - 0.5**part for part in range(6)) / 6)
    )
    assert bound(0.0) == LEAST_BOUND
    assert bound(0.03) == pytest.approx(0.06)
    assert bound(3.0) == 0.5


def test_a_constant_gain_wins_at_exactly_the_computed_bar_and_none_changes_nothing() -> None:
    gain, limit, needed = 0.001, 0.02, log_threshold(3)
    grown = [
        sum((1 + gain * 25.0 / 2**part) ** bars for part in range(6)) / 6 for bars in range(1, 400)
    ]
    first = 1 + next(bar for bar, capital in enumerate(grown) if math.log(capital) >= needed)
    path = log_capital(np.full(400, gain), limit)
    assert 1 + int(np.argmax(path >= needed)) == first
    np.testing.assert_allclose(log_capital(np.zeros(50), limit), 0.0, atol=1e-15)
    assert log_capital_at_end(np.zeros(0), limit) == 0.0


def test_the_challenger_is_counted_in_units_of_the_champion() -> None:
    own, other = np.array([0.1, -0.5, 0.3, 0.2]), np.array([0.1, 0.0, 0.56, -1.0])
    np.testing.assert_allclose(relative_returns(own, other), [0.0, -0.5, 1.3 / 1.56 - 1, 0.0])


def chance_of_winning(
    step: float, limit: float, rounds: int, needed: float, *, heads: float = 0.5, scale: float = 1.0
) -> float:
    """P(E reaches e^needed within so many coins X = ±step), exactly: E depends on heads alone."""
    stakes = step * 0.5 ** np.arange(STAKES) / (2.0 * limit)
    up, down = np.log1p(stakes), np.log1p(-stakes)
    alive, won = np.ones(1), 0.0  # probability by number of heads, of those that have not won
    for played in range(1, rounds + 1):
        alive = heads * np.append(0.0, alive) + (1.0 - heads) * np.append(alive, 0.0)
        count = np.arange(played + 1)[:, None]
        # Capitals beyond the threshold need not be exact, only not overflow.
        logs = np.minimum(count * up + (played - count) * down, 500.0)
        capital = scale * np.exp(logs).mean(axis=1)
        winners = capital >= math.exp(needed)
        won += float(alive[winners].sum())
        alive[winners] = 0.0
    return won


@pytest.mark.parametrize("step", [0.03, 0.01, 0.002])
def test_fair_coins_win_at_most_as_often_as_stated(step: float) -> None:
    needed = math.log(1.0 / ALPHA)
    fair = chance_of_winning(step, 0.02, 1_500, needed)
    assert fair <= ALPHA
    assert fair > ALPHA / 10 or step < 0.01  # or the test would show nothing
    # It can fail: coins that are not fair, and a sum instead of a mean of the parts.
    assert chance_of_winning(0.01, 0.02, 1_500, needed, heads=0.55) > ALPHA
    assert chance_of_winning(0.01, 0.02, 1_500, needed, scale=6.0) > ALPHA


def test_the_chance_computed_exactly_is_that_of_the_code() -> None:
    rng, step, needed = np.random.default_rng(0), 0.02, math.log(6.0)
    won = [
        bool(np.any(log_capital(step * rng.choice([-1.0, 1.0], 100), 0.02) >= needed))
        for _ in range(4_000)
    ]
    exact = chance_of_winning(step, 0.02, 100, needed)
    assert abs(np.mean(won) - exact) < 4 * math.sqrt(exact * (1 - exact) / 4_000)


def test_the_levels_of_all_entries_sum_to_alpha() -> None:
    levels = [math.exp(-log_threshold(number)) for number in range(1, 2_000)]
    assert ALPHA * 0.999 < sum(levels) <= ALPHA


def test_days_until_a_swap() -> None:
    assert days_until(4.0, log_threshold(1)) == pytest.approx(268, abs=1)
    assert days_until(2.0, log_threshold(20)) == pytest.approx(2_049, rel=1e-2)
    assert days_until(0.0, 1.0) == days_until(-1.0, 1.0) == math.inf
