"""The power of the gate: the stated share of studies that find an edge is the share that does."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from scripts.bench.quality.gate_power import Case, judge, returns, statistics
from sweepd.deploy.market import power
from sweepd.deploy.market.advice import study_power
from sweepd.deploy.market.holdout_power import least_edge, least_edges
from sweepd.deploy.market.power import GatePower, planned_power, tenths, up
from sweepd.deploy.promotion.bootstrap import mean_above_zero
from sweepd.deploy.promotion.overfitting import BLOCKS, cscv


@pytest.mark.extra
def test_the_stated_share_is_that_of_simulated_studies() -> None:
    # More cases, and their results: scripts/bench/quality/gate_power.py.
    case, edge, studies = Case("1d", 2.5, correlation=0.8), 0.85, 100
    told = [judge(case, edge, 3, seed) for seed in range(studies)]
    stated = float(np.mean([one["stated"] for one in told[:3]]))
    assert 0.35 < stated < 0.65  # without the PBO or the hold-out it would be 0.75
    found = sum(one["found"] for one in told) / studies
    assert found == pytest.approx(stated, abs=0.15)  # three standard errors


def test_the_pbo_of_simulated_blocks_is_that_of_their_bars() -> None:
    random = np.random.default_rng(3)
    halves, bars, trials = power._halves(random), 60, 8
    differences = []
    for _ in range(10):
        blocks = random.standard_normal((BLOCKS, trials))
        blocks[:, 0] += random.uniform(0.0, 1.5)
        noise = random.standard_normal((BLOCKS, bars, trials))
        noise += (blocks / math.sqrt(bars))[:, None, :] - noise.mean(axis=1, keepdims=True)
        found = cscv(noise.reshape(-1, trials)).pbo
        differences.append(power._pbo(halves, blocks) - found)
    assert np.mean(differences) == pytest.approx(0.0, abs=0.03)
    assert np.abs(differences).max() < 0.12


def test_the_edge_that_the_gate_needs_is_found_by_half_of_the_paths() -> None:
    case = Case("1d", 2.5, correlation=0.0)
    excess = returns(np.random.default_rng(2), case, 900, 4)
    search, selection = statistics(excess, "1d")
    assert selection.deflation is not None
    # A PBO that is always met, and bars of a hold-out that finds everything.
    found = study_power(search, 0, selection, 10**6, 0.05, 1.0)
    assert found is not None
    deviation = search.backtests[0].deviations[0]
    needed = selection.deflation.needed * deviation * search.annual**2  # per year
    assert found.edge_found(0.5) == pytest.approx(needed, rel=0.08)


@pytest.mark.parametrize("rho", [0.0, 0.8])
@pytest.mark.parametrize("level", [0.05, 0.005])
def test_the_holdouts_test_is_significant_from_the_least_edge_on(rho: float, level: float) -> None:
    for seed in range(5):
        noise = np.random.default_rng(seed).standard_normal(400)
        for bar in range(1, len(noise)):
            noise[bar] += rho * noise[bar - 1]
        edge = least_edge(noise, level)
        step = 0.3 / (1.0 - rho) / math.sqrt(len(noise))  # in standard errors: 0.3
        assert mean_above_zero(noise + edge + step, seed=0, draws=2_000).p <= level
        assert mean_above_zero(noise + edge - step, seed=0, draws=2_000).p > level


def test_the_holdouts_power_is_the_measured_one() -> None:
    # docs/evidence/gate.md: 3 standard errors at 5%, independent, and with an autocorrelation of .9.
    for bars, factor, share in ((1_000, 1.0, 0.866), (300, 1.0, 0.868), (300, 4.36, 0.771)):
        found = np.mean(least_edges(bars, factor, 0.05, 200) <= 3.0)
        assert found == pytest.approx(share, abs=0.075)
    # Sums of bars have the same power as the bars.
    by_sums = np.mean(least_edges(4_000, 4.36, 0.05, 200) <= 3.0)
    assert by_sums == pytest.approx(0.855, abs=0.075)


def test_no_edge_is_found_on_a_holdout_that_is_used_up_or_too_short() -> None:
    used_up, short = plan(looks=13), plan(0.003)
    for of_gate, why in ((used_up, "no p value is as small"), (short, "the hold-out has 5 bars")):
        assert of_gate.probability(100.0) == 0.0
        assert math.isinf(of_gate.edge_found(0.5))
        assert why in of_gate.obstacle()
    assert math.isfinite(plan(looks=12).edge_found(0.5))


@pytest.fixture(autouse=True)
def few_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate fewer studies."""
    monkeypatch.setattr(power, "STUDIES", 100)


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
    # Twice the tracking error needs twice the edge; four times the years about half of it.
    assert plan(tracking_error=0.2).edge_found(0.5) == pytest.approx(2.0 * edge)
    assert plan(16.0).edge_found(0.5) == pytest.approx(0.5 * edge, rel=0.1)
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
    assert "too alike" in alike.obstacle()
    assert math.isinf(plan().years_for(0.0, 0.5))


def test_returns_that_do_not_vary_have_no_power() -> None:
    excess = returns(np.random.default_rng(0), Case(), 400, 4)
    excess[0] = 0.0
    search, selection = statistics(excess, "1h")
    assert study_power(search, 0, selection, 100, 0.05, 0.2) is None
    assert study_power(search, 9, selection, 100, 0.05, 0.2) is None


def test_edges_are_rounded_up_and_shares_down() -> None:
    assert [up(edge) for edge in (0.2534, 0.26, 0.0834, 1.701, 0.0)] == [
        *("26%", "26%", "8.4%", "180%", "0%")
    ]
    assert [tenths(share) for share in (0.0, 0.099, 0.1, 0.399, 0.999, 1.0)] == [
        *("fewer than 1 of 10", "fewer than 1 of 10", "1 of 10", "3 of 10", "9 of 10", "10 of 10")
    ]
