"""Luck formulas: independent implementations, simulated levels, and general properties."""

from __future__ import annotations

import math
from collections.abc import Callable

import jsharpe
import numpy as np
import purgedcv
import pytest
import sharpebench
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.signal import lfilter

from sweepd.envs.crypto.scoring import luck
from sweepd.envs.crypto.scoring.luck import Link, Moments
from sweepd.envs.crypto.scoring.selection import TrialReturns, mean_evaluations
from tests.extra import with_extra

Array = NDArray[np.float64]
BARS = 1200


def autocorrelated(random: np.random.Generator, rho: float, bars: int = BARS) -> Array:
    """Return (bars,) values of an AR(1) process without a mean."""
    return np.asarray(lfilter([1.0], [1.0, -rho], random.standard_normal(bars + 200))[200:])


def clustered(random: np.random.Generator) -> Array:
    """Return a GARCH(1, 1) process."""
    values, variance = np.empty(BARS), 1.0
    for t, draw in enumerate(random.standard_normal(BARS)):
        values[t] = math.sqrt(variance) * draw
        variance = 0.05 + 0.1 * values[t] ** 2 + 0.85 * variance
    return values


def rate(kind: str, series: int = 800) -> float:
    """Return how often a record without skill has a score above 1.645 (5%)."""
    random = np.random.default_rng(5)

    def drawn() -> Array:
        if kind == "garch":
            return clustered(random)
        return random.standard_t(3, BARS) if kind == "t3" else autocorrelated(random, float(kind))

    return float(np.mean([luck.moments(drawn()).score() > 1.645 for _ in range(series)]))


@pytest.mark.parametrize("kind", ["0", "0.3", "0.5", "-0.3", "0.9", "garch", "t3"])
def test_a_record_without_skill_is_significant_in_5_percent(kind: str) -> None:
    # Four standard errors of the measured rate. Without regard to autocorrelation: 16% at 0.5.
    assert rate(kind) == pytest.approx(0.05, abs=4.0 * math.sqrt(0.05 * 0.95 / 800))


@pytest.mark.parametrize("rho", [-0.3, 0.0, 0.5])
def test_the_error_is_that_of_lopez_de_prado_lipton_and_zoonekynd(rho: float) -> None:
    """For an AR(1), n times the variance of SR is (1 + ρ)/(1 - ρ) if the true ratio is 0."""
    found = luck.moments(autocorrelated(np.random.default_rng(0), rho, 200_000))
    expected = jsharpe.sharpe_ratio_variance(0.0, found.n, rho=rho)
    assert found.error**2 == pytest.approx(expected, rel=0.05)
    assert expected == pytest.approx((1.0 + rho) / (1.0 - rho) / found.n)


def test_the_expected_best_of_independent_trials_is_that_of_sharpebench() -> None:
    for trials in (5, 40, 200):
        expected = sharpebench.expected_max_sharpe(1.0, trials)
        assert luck.expected_maximum(trials) == pytest.approx(expected, rel=1e-4)
        assert luck.best_by_luck((Link(),) * trials).mean == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("seed", [3, 4, 8])  # p = 15%, 3% and 9%
def test_independent_trials_have_the_p_value_of_whites_reality_check(seed: int) -> None:
    bars, trials = 600, 12
    returns = np.random.default_rng(seed).standard_normal((bars, trials))
    returns[:, 4] += 0.1
    # The reality check compares means, so all trials get the same deviation.
    returns /= returns.std(axis=0)
    expected = sharpebench.reality_check_pvalue(
        returns.T.tolist(), seed=1, n_boot=20_000, block_prob=1.0
    )
    search = TrialReturns()
    for number in range(trials):
        search.add(number, returns[:, number][None], np.arange(bars))
    best = float(np.max(search.sharpes))
    # Blocks of one bar: this bootstrap takes the bars as independent, so it has no error to
    # estimate, and the score is normal.
    found = search.deflate([Moments(bars, best, 1.0 / math.sqrt(bars), math.inf)], trials)
    assert 1.0 - found.probability == pytest.approx(expected, abs=0.02)


def test_minimum_back_test_lengths_of_the_literature() -> None:
    for trials, years in ((10, 2.5), (50, 5.2), (100, 6.4), (1000, 10.6)):
        assert luck.minimum_backtest_years(trials) == pytest.approx(years, abs=0.05)
        assert luck.minimum_backtest_years(trials) == pytest.approx(
            purgedcv.minimum_backtest_length(trials), abs=1e-10
        )
    assert luck.minimum_backtest_years(50, 2.0) == pytest.approx(
        luck.minimum_backtest_years(50) / 4.0
    )


def test_independent_trials_need_the_quantile_of_their_maximum() -> None:
    for trials in (1, 5, 40, 300):
        found = luck.best_by_luck((Link(),) * trials)
        exact = luck.NORMAL.inv_cdf(0.95 ** (1.0 / trials))
        assert found.needed == pytest.approx(exact, abs=0.06)
        assert found.effective == pytest.approx(trials, rel=0.2)
        planned = luck.planned_sharpe(10_000_000, trials) * math.sqrt(10_000_000)
        assert planned == pytest.approx(exact, rel=1e-3)


def ratio(found: Moments) -> float:
    return found.sharpe


def search_of(
    trials: int,
    correlation: float,
    random: np.random.Generator,
    measure: Callable[[Moments], float] = ratio,
) -> list[Array]:
    """Return the returns of a search each of whose trials varies the best one so far."""
    found = [random.standard_normal(BARS)]
    values = [measure(luck.moments(found[0]))]
    for _ in range(trials - 1):
        best = found[int(np.argmax(values))]
        own = random.standard_normal(BARS)
        found.append(correlation * best + math.sqrt(1.0 - correlation**2) * own)
        values.append(measure(luck.moments(found[-1])))
    return found


def deflated(
    found: list[Array],
    trials: int | None = None,
    measure: Callable[[Moments], float] = ratio,
    evaluations: float = 1.0,
) -> float:
    """Return the DSR of the best trial."""
    search = TrialReturns()
    for number, own in enumerate(found):
        search.add(number, own[None], np.arange(own.size))
    best = max(search.moments, key=lambda number: measure(search.moments[number][0]))
    own, made = search.moments[best], trials or len(found)
    return search.deflate(own, made, evaluations=evaluations).probability


@pytest.mark.parametrize("measure", [ratio, Moments.score], ids=["ratio", "score"])
@pytest.mark.parametrize("correlation", with_extra([0.0, 0.7, 0.9], [0.0, 0.7]))
def test_a_search_that_varies_its_best_trial_is_significant_in_5_percent(
    correlation: float, measure: Callable[[Moments], float]
) -> None:
    random = np.random.default_rng(1)
    searches = (search_of(30, correlation, random, measure) for _ in range(100))
    passed = [deflated(found, measure=measure) >= 0.95 for found in searches]
    # The best by the score, ranked by the ratio: 14% at .9.
    assert np.mean(passed) <= 0.05 + 3.0 * math.sqrt(0.05 * 0.95 / 100)


def test_a_trial_has_the_rank_of_the_better_measure() -> None:
    """A search may follow the ratio or the score, so a trial that is best by one of them is best."""
    correlations = np.eye(4)
    correlations[3, 1] = 0.9
    ratios, scores = np.array([0.2, 0.1, 0.0, 0.1]), np.array([1.0, 2.0, 0.0, 1.0])
    by_score = luck.links_of(correlations, ratios, scores)
    assert by_score[3] == Link(0.9, 0, 1) == luck.links_of(correlations, scores, ratios)[3]
    worse_by_both = luck.links_of(correlations, ratios, ratios)
    assert worse_by_both[3] == Link(0.9, 1, 1)


@pytest.mark.parametrize("edge", [0.0, 0.09])
def test_copies_of_the_winner_do_not_help_it(edge: float) -> None:
    """Near-copies neither help, in any place of the list, nor does an exact copy harm."""
    for seed in range(5):
        random = np.random.default_rng(seed)
        found = [random.standard_normal(BARS) for _ in range(12)]
        found[7] = found[7] + edge
        best = max(found, key=lambda own: float(own.mean() / own.std()))
        before = deflated(found)
        copies = [best + 0.03 * random.standard_normal(BARS) for _ in range(100)]
        # The best copy is slightly better than the winner, which is an advantage of its own.
        copies = [own for own in copies if own.mean() / own.std() < best.mean() / best.std()]
        noise = 0.015  # of the simulation, whose numbers depend on the number of trials
        assert deflated([*found, *copies]) <= before + noise
        assert deflated([*copies, *found]) <= before + noise
        assert deflated([*found, *[best.copy()] * 30]) == pytest.approx(before, abs=noise)


def test_copies_of_the_winner_say_nothing_about_pruned_trials() -> None:
    random = np.random.default_rng(2)
    found = [random.standard_normal(BARS) for _ in range(12)]
    best = max(found, key=lambda own: float(own.mean() / own.std()))
    copies, noise = [best.copy()] * 90, 0.015  # of the simulation
    assert deflated([*found, *copies], 190) <= deflated(found, 100) + noise
    # Nor do their evaluations count as those of other trials.
    four = deflated(found, evaluations=4.0)
    assert deflated([*found, *copies], evaluations=4.0) == pytest.approx(four, abs=0.05)
    # All known trials are one: what was pruned may still have been something else.
    alike = luck.extended((Link(), Link(1.0), Link(1.0)), 10)
    assert alike[3:] == (Link(),) * 7


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 5)), min_size=1, max_size=6),
    st.integers(1, 90),
)
def test_further_trials_never_lower_what_is_needed(
    drawn: list[tuple[float, int]], more: int
) -> None:
    links = tuple(
        Link(rho if own else 0.0, min(rank, max(own - 1, 0)), 0)
        for own, (rho, rank) in enumerate(drawn)
    )
    longer = luck.extended(links, len(links) + more)
    assert longer[: len(links)] == links
    assert all(link.rank < own and link.parent < own for own, link in enumerate(longer) if own)
    few, many = luck.best_by_luck(links), luck.best_by_luck(longer)
    assert many.needed >= few.needed - 0.12  # another sample of simulated searches
    assert 0.0 < many.probability(many.needed) < 1.0
    assert many.probability(many.needed) >= 0.95 > many.probability(many.needed - 1e-9)


def test_many_trials_are_simulated_like_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the chunks nor the bound of the tracked ranks changes the result."""
    links = (Link(), *(Link(0.8, own // 2, own // 2) for own in range(99)))
    whole = luck.best_by_luck(links)
    monkeypatch.setattr(luck, "CHUNK", 10_000)
    luck.best_by_luck.cache_clear()
    assert luck.best_by_luck(links).needed == pytest.approx(whole.needed, abs=0.1)
    monkeypatch.setattr(luck, "TRACKED", 100)
    luck.best_by_luck.cache_clear()
    assert luck.best_by_luck(links).needed == pytest.approx(whole.needed, abs=0.15)
    luck.best_by_luck.cache_clear()


def test_an_evaluation_is_a_chance() -> None:
    assert mean_evaluations([]) == 1.0
    assert mean_evaluations([4, 4, 1, 0]) == 2.5
    random = np.random.default_rng(0)
    search = TrialReturns()
    for number in range(8):
        search.add(number, random.standard_normal((2, BARS)), np.arange(BARS))
    one, four = (
        search.deflate(search.moments[0], 8, evaluations=evaluations) for evaluations in (1.0, 4.0)
    )
    assert four.needed > one.needed
    assert four.effective == pytest.approx(4.0 * one.effective, rel=0.25)


@given(st.integers(8, 5_000), st.floats(-0.3, 0.3), st.floats(0.5, 5.0))
def test_the_ratio_is_the_inverse_of_the_score(n: int, sharpe: float, inflation: float) -> None:
    own = Moments(n, sharpe, inflation / math.sqrt(n), 40.0)
    if abs(own.score()) < 6.0:
        assert own.ratio(own.score()) == pytest.approx(sharpe, abs=1e-6)
    assert own.score(2.0) == pytest.approx(Moments(n, sharpe / 2.0, own.error, 40.0).score())


def test_what_has_no_deviation_has_no_sharpe_ratio() -> None:
    for flat in (np.zeros(50), np.full(50, 0.1), np.full(50, 1e-9)):
        assert luck.moments(flat) == luck.without_autocorrelation(50)
    assert luck.moments(np.array([0.1, 0.2])).score() == 0.0
    assert luck.moments(np.array([0.1, 0.2])).ratio(1.0) == math.inf
    assert luck.planned_sharpe(2, 10) == math.inf
    assert luck.expected_maximum(1.99) == 0.0
    alternating = luck.moments(np.tile([1.0, -0.5], 40))
    assert math.isfinite(alternating.score())
