"""The live monitor: minimum records, few false alarms over all looks, lost edges found."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from sweepd.deploy.trading.live.monitor_statistics import (
    first_look,
    judge_record,
    look_number,
    track,
)

Array = NDArray[np.float64]
HOURLY = "1h"
QUICK = 800  # draws
SCORED = 1_000
RECORDS = 60
TWO_LOOKS = 400  # draws, enough for the level of the second look


def record(
    rng: np.random.Generator, bars: int, edge: float, *, rough: float = 1.0
) -> tuple[Array, Array]:
    """Returns, and those of equal weight, with heavy tails, changing volatility and memory.

    edge: mean advantage, in standard deviations.
    """
    swing = np.exp(0.3 * np.repeat(rng.normal(size=bars // 24 + 1), 24)[:bars])
    noise = rng.standard_t(5, bars) / math.sqrt(5 / 3) * swing
    noise[1:] += 0.1 * noise[:-1]
    equal = 0.006 * rng.standard_t(4, bars) / math.sqrt(2)
    return equal + 0.002 * (edge + rough * noise), equal


def alarmed(
    seed: int,
    edge: float,
    scored_edge: float,
    looks: int,
    *,
    rough: float = 1.0,
    draws: int = QUICK,
) -> list[str]:
    """The verdicts of all looks at one live record."""
    rng = np.random.default_rng(seed)
    scored, scored_equal = record(rng, SCORED, scored_edge)
    live, equal = record(rng, first_look(HOURLY) << (looks - 1), edge, rough=rough)
    return [
        judge_record(
            live[:end], equal[:end], None, scored, scored_equal, HOURLY, seed=seed, draws=draws
        ).verdict
        for end in (first_look(HOURLY) << look for look in range(looks))
    ]


def test_a_verdict_needs_seven_days_and_a_hundred_bars() -> None:
    assert [first_look(frame) for frame in ("5m", "1h", "4h", "1d")] == [2016, 168, 100, 100]
    assert [look_number(bars, HOURLY) for bars in (0, 167, 168, 335, 336, 671, 672)] == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
    ]
    rng = np.random.default_rng(0)
    scored, live = record(rng, 500, 0.1), record(rng, 167, -5.0)
    found = judge_record(*live, live[1] + 1.0, *scored, HOURLY, seed=0)
    assert found.verdict == "too early"
    assert found.text == "167 of 168 bars: too early for a verdict"
    assert (found.next_look, found.edge, found.tracking) == (168, None, None)
    assert json.loads(json.dumps(found.to_dict()))["verdict"] == "too early"


def test_only_tracking_changes_between_two_looks() -> None:
    rng = np.random.default_rng(1)
    scored, (live, equal) = record(rng, 500, 0.1), record(rng, 335, -0.2)
    at_look = judge_record(live[:168], equal[:168], live[:168], *scored, HOURLY, seed=3)
    later = judge_record(live, equal, live, *scored, HOURLY, seed=3)
    for name in (
        "verdict",
        "text",
        "look",
        "judged",
        "level",
        "edge",
        "mean_return",
        "drawdown",
        "next_look",
    ):
        assert getattr(at_look, name) == getattr(later, name), name
    assert (at_look.look, at_look.judged, at_look.next_look) == (1, 168, 336)
    assert (at_look.bars, later.bars) == (168, 335)
    assert (
        judge_record(live, equal, live, *scored, HOURLY, seed=4).edge != later.edge
    )  # another seed, other resamples


def test_levels_of_all_looks_sum_to_alpha() -> None:
    rng = np.random.default_rng(2)
    scored, (live, equal) = record(rng, 500, 0.1), record(rng, 168 * 8, 0.1)
    levels = [
        judge_record(live[:end], equal[:end], None, *scored, HOURLY, seed=0, draws=200).level
        for end in (168, 336, 672, 1344)
    ]
    assert levels == [0.05 / (2 * k * (k + 1)) for k in (1, 2, 3, 4)]
    assert sum(2 * 0.05 / (2 * k * (k + 1)) for k in range(1, 10_000)) == pytest.approx(
        0.05, rel=1e-3
    )


def test_the_statistic_is_the_same_on_both_sides() -> None:
    rng = np.random.default_rng(3)
    (scored, scored_equal), (live, equal) = record(rng, 500, 0.2), record(rng, 168, 0.1)
    found = judge_record(live, equal, None, scored, scored_equal, HOURLY, seed=0)
    assert found.edge is not None
    assert found.mean_return is not None
    assert found.drawdown is not None
    assert found.edge.live == pytest.approx(np.mean(live - equal), rel=1e-12)
    assert found.edge.scored == pytest.approx(np.mean(scored - scored_equal), rel=1e-12)
    assert found.mean_return.live == pytest.approx(np.mean(live), rel=1e-12)
    value = np.cumprod(np.concatenate([[1.0], 1.0 + live]))
    assert found.drawdown.live == pytest.approx(
        np.max(1.0 - value / np.maximum.accumulate(value)), rel=1e-12
    )
    assert found.edge.low < found.edge.scored < found.edge.high
    # The spread of a mean of 168 bars, and of the 500 that it is compared with.
    spread = np.std(scored - scored_equal) * math.sqrt(1 / 168 + 1 / 500)
    assert found.edge.high - found.edge.low == pytest.approx(2 * 1.645 * spread, rel=0.35)
    # A record against itself is neither worse nor better.
    same = judge_record(
        scored[:400], scored_equal[:400], None, scored[:400], scored_equal[:400], HOURLY, seed=0
    )
    assert same.edge is not None
    assert same.edge.p > 0.3


def test_only_a_low_mean_is_suspicious_and_drawdowns_count_from_the_start() -> None:
    rng = np.random.default_rng(9)
    (scored, scored_equal), (live, equal) = record(rng, 500, 0.0), record(rng, 168, 0.0)
    low, high = (
        judge_record(live + move, equal, None, scored, scored_equal, HOURLY, seed=0, draws=500).edge
        for move in (-0.003, 0.003)
    )
    assert low is not None
    assert high is not None
    assert low.p == pytest.approx(1 / 501)
    assert high.p == 1.0
    falling = np.full(168, -0.001)  # its highest value is the first
    found = judge_record(
        falling, equal, None, scored, scored_equal, HOURLY, seed=0, draws=500
    ).drawdown
    assert found is not None
    assert found.live == pytest.approx(1.0 - 0.999**168, rel=1e-12)


def test_a_long_record_is_thinned_without_changing_its_means() -> None:
    rng = np.random.default_rng(4)
    (scored, scored_equal), (live, equal) = record(rng, 30_000, 0.05), record(rng, 2016 * 16, 0.05)
    found = judge_record(live, equal, live, scored, scored_equal, "5m", seed=0, draws=QUICK)
    assert found.judged == len(live)
    assert found.edge is not None
    assert found.edge.live == pytest.approx(np.mean(live - equal), rel=1e-12)
    assert found.edge.scored == pytest.approx(np.mean(scored - scored_equal), rel=1e-12)
    spread = (
        np.std(scored - scored_equal) * math.sqrt(1 / len(live) + 1 / len(scored)) * 1.1
    )  # for the memory
    assert found.edge.high - found.edge.low == pytest.approx(2 * 1.645 * spread, rel=0.15)
    assert found.verdict == "as scored"


@pytest.mark.slow
def test_false_alarms_stay_under_the_stated_share_over_all_looks() -> None:
    alarms = [
        "worse than scored" in alarmed(seed, 0.1, 0.1, looks=2, draws=TWO_LOOKS)
        for seed in range(RECORDS)
    ]
    assert np.mean(alarms) <= 0.05 + 2.0 * math.sqrt(0.05 * 0.95 / RECORDS)


def test_a_more_volatile_market_is_no_lost_edge() -> None:
    worse = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        scored, live = record(rng, SCORED, 0.1), record(rng, 336, 0.1, rough=2.0)
        found = judge_record(*live, None, *scored, HOURLY, seed=seed, draws=200)
        assert found.edge is not None
        worse += found.edge.p <= 0.05
    assert worse <= 5  # of 30: about 2 are due


def test_an_edge_that_turned_into_a_loss_is_detected() -> None:
    verdicts = [alarmed(seed, -0.15, 0.15, looks=3) for seed in range(10)]
    assert np.mean(["worse than scored" in looks for looks in verdicts]) > 0.9


def test_a_deep_drawdown_is_detected_although_the_mean_recovers() -> None:
    rng = np.random.default_rng(8)
    scored, scored_equal = record(rng, SCORED, 0.1)
    live, equal = record(rng, 336, 0.1)
    path = np.zeros(336)
    path[100:130], path[200:230] = -0.03, 0.03  # both fall by 60% and recover
    found = judge_record(live + path, equal + path, None, scored, scored_equal, HOURLY, seed=0)
    assert found.drawdown is not None
    assert found.edge is not None
    assert found.verdict == "worse than scored"
    assert found.drawdown.live > 0.5 > found.drawdown.high
    assert found.edge.p > 0.05
    assert "largest drawdown" in found.text
    assert "over equal weight" not in found.text


def test_tracking_is_measured_as_stated() -> None:
    account = np.array([0.01, -0.02, 0.03, 0.0])
    simulator = np.array([0.01, -0.01, 0.03, 0.001])
    found = track(account, simulator, HOURLY)
    assert found.worst == pytest.approx(-0.01)
    assert (found.worst_bar, found.bars) == (1, 4)
    assert found.gap == pytest.approx(np.prod(1 + account) / np.prod(1 + simulator) - 1, rel=1e-12)
    assert found.error == pytest.approx(
        np.std([0.0, -0.01, 0.0, -0.001], ddof=1) * math.sqrt(8766), rel=1e-12
    )
    assert track(account, account, HOURLY) == dataclasses.replace(
        found, error=0.0, gap=0.0, worst=0.0, worst_bar=0
    )


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [
        (lambda n: np.full(n, 2e-5), "as scored"),  # 0.3% apart
        (lambda n: np.full(n, -2e-4), "tracking off"),  # 3.3% apart
        (lambda n: np.where(np.arange(n) % 2, 1e-4, -1e-4), "as scored"),  # 0.9% a year
        (lambda n: np.where(np.arange(n) % 2, 1e-3, -1e-3), "tracking off"),  # 9% a year
        (lambda n: 1e-3 * (np.arange(n) == 7), "as scored"),  # a single bad fill
    ],
)
def test_an_account_that_strays_from_the_simulator_is_detected(
    difference: object, verdict: str
) -> None:
    rng = np.random.default_rng(6)
    scored, (live, equal) = record(rng, 500, 0.1), record(rng, 168, 0.1)
    simulator = live - difference(168)  # type: ignore[operator]
    found = judge_record(live, equal, simulator, *scored, HOURLY, seed=0, draws=QUICK)
    assert found.verdict == verdict
    assert ("simulator" in found.text) == (verdict == "tracking off")


def test_records_that_do_not_fit_are_refused() -> None:
    rng = np.random.default_rng(7)
    scored, (live, equal) = record(rng, 500, 0.1), record(rng, 200, 0.1)
    for arguments in (
        (live, equal[:-1], None, *scored),
        (live, equal, live[:-1], *scored),
        (live, equal, None, scored[0], scored[1][:-1]),
        (live, equal, None, scored[0][:20], scored[1][:20]),
    ):
        with pytest.raises(ValueError, match="bars"):
            judge_record(*arguments, HOURLY, seed=0)
