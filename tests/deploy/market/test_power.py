"""The power of the gate: the stated share of studies that find an edge is the share that does."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from sweepd.deploy.market import power
from sweepd.deploy.market.advice import study_power
from sweepd.deploy.market.backtests import Backtest, SearchStatistics
from sweepd.deploy.market.power import GatePower, planned_power, tenths, up
from sweepd.deploy.market.rules import Selection
from sweepd.deploy.promotion.bootstrap import mean_above_zero
from sweepd.envs.crypto.scoring.selection import TrialReturns

Array = NDArray[np.float64]
DEVIATION = 0.01  # of an excess return per bar


def returns(
    random: np.random.Generator, trials: int, bars: int, correlation: float, ratio: float
) -> Array:
    """Excess returns (trials, bars): trial 0 has this ratio per bar, the others share of it."""
    noise = random.standard_normal((trials + 1, bars))
    own = math.sqrt(correlation) * noise[0] + math.sqrt(1.0 - correlation) * noise[1:]
    share = np.where(np.arange(trials) == 0, 1.0, correlation)
    return DEVIATION * (own + ratio * share[:, None])


def statistics(excess: Array) -> tuple[SearchStatistics, Selection]:
    """The gate's statistics of a search, about its trial 0."""
    trials, bars = excess.shape
    kept, backtests = TrialReturns(), {}
    for number, own in enumerate(excess):
        kept.add(number, own[None], np.arange(bars))
        deviations = (float(np.std(own, ddof=1)),)
        backtests[number] = Backtest((), kept.moments[number], own, deviations)
    search = SearchStatistics(trials, backtests, {}, kept, "1h")
    found = search.deflate(backtests[0])
    return search, Selection(trials, trials, found, search.overfitting, search.annual, bars)


def compare(studies: int, correlation: float, score: float) -> tuple[float, float]:
    """Return the share of simulated studies that the gate's tests find, and the stated share.

    Args:
        studies: how many are simulated, bar by bar.
        correlation: of the trials.
        score: the edge in standard errors of cross-validation.
    """
    random, found, stated = np.random.default_rng(1), 0, []
    trials, bars, holdout = 8, 1_000, 250
    ratio = score / math.sqrt(bars)
    for number in range(studies):
        search, selection = statistics(returns(random, trials, bars, correlation, ratio))
        assert selection.deflation is not None
        assert selection.overfitting is not None
        unseen = returns(random, 1, holdout, 0.0, ratio)[0]
        found += (
            selection.deflation.probability >= 0.95
            and selection.overfitting.pbo <= 0.2
            and mean_above_zero(unseen, seed=number, draws=500).p <= 0.05
        )
        if number < 16:  # what each of these studies would have stated about that edge
            found_power = study_power(search, 0, selection, holdout, 0.05, 0.2)
            assert found_power is not None
            stated.append(found_power.probability(DEVIATION * ratio * search.annual**2))
    return found / studies, float(np.mean(stated))


@pytest.mark.slow
def test_the_stated_share_is_that_of_simulated_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "STUDIES", 100)
    found, stated = compare(50, 0.8, 5.5)
    assert 0.3 < stated < 0.6  # without the PBO it would be 0.8
    assert found == pytest.approx(stated, abs=0.2)  # three standard errors


@pytest.mark.extra
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("score", [3.0, 4.0, 6.0])
def test_the_stated_share_is_that_of_many_simulated_studies(
    correlation: float, score: float
) -> None:
    found, stated = compare(300, correlation, score)
    assert found == pytest.approx(stated, abs=0.1)


def plan(years: float = 4.0, **changes: float) -> GatePower:
    settings = {"holdout": 0.2, "trials": 10, "tracking_error": 0.1, "correlation": 0.5}
    return planned_power(years, **settings | changes)  # type: ignore[arg-type]


def test_more_of_everything_that_helps_finds_more() -> None:
    found = plan()
    shares = [found.probability(edge) for edge in (0.0, 0.1, 0.2, 0.4, 0.8)]
    assert shares == sorted(shares)
    assert shares[0] < 0.01
    assert shares[-1] > 0.99
    edge = found.edge_found(0.5)
    assert found.probability(edge) == pytest.approx(0.5, abs=0.01)
    # Twice the tracking error needs twice the edge; four times the years half of it.
    assert plan(tracking_error=0.2).edge_found(0.5) == pytest.approx(2.0 * edge)
    assert plan(16.0).edge_found(0.5) == pytest.approx(0.5 * edge)
    assert found.probability(edge / 2.0, 4.0) == pytest.approx(0.5, abs=0.01)
    assert found.years_for(edge, 0.5) == pytest.approx(4.0, rel=0.02)
    assert found.years_for(edge / 2.0, 0.5) == pytest.approx(16.0, rel=0.02)
    assert plan(trials=40).edge_found(0.5) > edge
    assert plan(looks=3).edge_found(0.5) > edge
    assert plan(correlation=0.9).edge_found(0.5) > edge


def test_what_cannot_be_found_is_infinite() -> None:
    alike = dataclasses.replace(plan(trials=3), pbo=-1.0)  # no PBO is as low
    assert math.isinf(alike.edge_found(0.5))
    assert math.isinf(alike.years_for(0.1, 0.5))
    assert math.isinf(plan().years_for(0.0, 0.5))


def test_returns_that_do_not_vary_have_no_power() -> None:
    excess = returns(np.random.default_rng(0), 4, 400, 0.0, 0.0)
    excess[0] = 0.0
    search, selection = statistics(excess)
    assert study_power(search, 0, selection, 100, 0.05, 0.2) is None
    assert study_power(search, 9, selection, 100, 0.05, 0.2) is None


def test_edges_are_rounded_up_and_shares_down() -> None:
    assert [up(edge) for edge in (0.2534, 0.26, 0.0834, 1.701, 0.0)] == [
        *("26%", "26%", "8.4%", "180%", "0%")
    ]
    assert [tenths(share) for share in (0.0, 0.099, 0.1, 0.399, 0.999, 1.0)] == [
        *("fewer than 1 of 10", "fewer than 1 of 10", "1 of 10", "3 of 10", "9 of 10", "10 of 10")
    ]
