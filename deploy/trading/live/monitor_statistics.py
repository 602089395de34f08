"""Statistics of the live monitor: does a trader earn what was scored, and follow the simulator?

The input is a record of returns per bar since the present bundle trades. There are three questions.

Tracking. The account and the simulator trade the same bars by the same rules and differ by fills,
fees and faults. That is not chance, so the difference is held to fixed tolerances.

Edge. The statistic is the mean return per bar over equal weight, which the gate tested, too. Market
moves that affect every policy cancel in it; a plain mean return would alarm in every falling
market. The scored record (the hold-out) is resampled by the stationary bootstrap, once with the
length of the live record and once with its own, so that the error of the scored mean counts as
well. p is the share of resamples in which the live mean falls short of the scored one by at least
the observed amount. If live returns vary more than scored ones, the live resamples are scaled up to
that: a more volatile market is not a lost edge.

Drawdown. The largest drawdown of the live record against those of resamples of the scored returns
of the same length, each with a mean that is drawn as above.

Repeated tests inflate the chance of a false alarm, so there are few interim looks: at the minimum
record, and whenever it has doubled. Look k has the level alpha/(k(k+1)), half of it for the edge
and half for the drawdown, so the chance of any false alarm is at most alpha. The module keeps no
state: the record as it was at the newest look is judged.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.promotion.bootstrap import (
    block_length,
    bootstrap_means,
    bootstrap_samples,
    summed,
)
from sweepd.deploy.registry.bundle_files import finite
from sweepd.envs.crypto.data.timeframe import bars_per_day, bars_per_year
from sweepd.envs.crypto.scoring.metrics import log_returns, max_drawdown

Array = NDArray[np.float64]
MonitorVerdict = Literal["too early", "as scored", "worse than scored", "tracking off"]
ALPHA = 0.05  # chance of a false alarm about edge or drawdown, over all looks together
MINIMUM_DAYS, MINIMUM_BARS = 7, 100  # no verdict before both
TRACKING_ERROR = 0.05  # annualised standard deviation of account minus simulator
TRACKING_GAP = 0.02  # how far their values may drift apart, a fraction
DRAWS = 5_000  # resamples per question
MEAN_POINTS, PATH_POINTS = 500, 1_000  # resampled points: longer records are summed over bars
FEWEST_SCORED = 32  # bars of the hold-out


@dataclass(frozen=True)
class Tracking:
    """The account against the simulator over `bars` bars.

    error: annualised standard deviation of the difference of returns per bar.
    gap: growth of the account over that of the simulator; 0.01 is 1% ahead.
    worst: largest difference in a bar, signed; worst_bar: its index in the record.
    """

    error: float
    gap: float
    worst: float
    worst_bar: int
    bars: int

    @property
    def off(self) -> bool:
        """Whether the account strays from the simulator."""
        return self.error > TRACKING_ERROR or abs(self.gap) > TRACKING_GAP


@dataclass(frozen=True)
class LiveStatistic:
    """One statistic, live and scored.

    p: chance of a live value at least as bad if the policy trades as scored.
    low, high: the central 90% of live values in that case.
    """

    live: float
    scored: float
    p: float
    low: float
    high: float


@dataclass(frozen=True)
class MonitorReport:
    """Result of the monitor.

    text: the verdict in a sentence.
    bars: of the live record.
    first_look, next_look: bars at which the first and the next look are due.
    look: number of the judged look, 0 if it is too early; judged: bars at it.
    level: a p-value of at most this is an alarm.
    tracking: None without a simulator.
    edge, mean_return: per bar, over equal weight and plain; the latter is not judged.
    drawdown: of the record, a fraction.
    """

    verdict: MonitorVerdict
    text: str
    bars: int
    first_look: int
    next_look: int
    look: int = 0
    judged: int = 0
    level: float = 0.0
    tracking: Tracking | None = None
    edge: LiveStatistic | None = None
    mean_return: LiveStatistic | None = None
    drawdown: LiveStatistic | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        content: dict[str, Any] = finite(asdict(self))
        return content


def first_look(timeframe: str) -> int:
    """Return the number of bars that a verdict needs."""
    return max(MINIMUM_DAYS * bars_per_day(timeframe), MINIMUM_BARS)


def look_number(bars: int, timeframe: str) -> int:
    """Return how many looks are due after so many bars; 0 before the first.

    `judge_record` need only be called again when this has increased.
    """
    return (bars // first_look(timeframe)).bit_length()


def track(account: Array, simulator: Array, timeframe: str) -> Tracking:
    """Compare simple returns per bar, (n,), of the account and the simulator over the same bars."""
    difference = account - simulator
    worst = int(np.argmax(np.abs(difference)))
    return Tracking(
        error=float(np.std(difference, ddof=1)) * math.sqrt(bars_per_year(timeframe))
        if len(difference) > 1
        else 0.0,
        gap=math.expm1(float(np.sum(log_returns(account) - log_returns(simulator)))),
        worst=float(difference[worst]),
        worst_bar=worst,
        bars=len(difference),
    )


def judge_record(
    returns: Array,
    equal_weight: Array,
    simulator: Array | None,
    scored: Array,
    scored_equal_weight: Array,
    timeframe: str,
    *,
    seed: int,
    draws: int = DRAWS,
) -> MonitorReport:
    """Judge a live record of simple returns per bar, (n,), since the present bundle trades.

    The caller leaves out bars in which a halt or a risk rule kept the policy out of the market.

    Args:
        returns: of the account.
        equal_weight: of the same bars.
        simulator: of the same bars, or None.
        scored: (m,), returns on the bundle's hold-out.
        scored_equal_weight: (m,), those of equal weight.
        timeframe: of the bars.
        seed: of the bootstrap, so that the same record gets the same verdict.
        draws: resamples per question.

    Raises:
        ValueError: records do not match, or the hold-out is too short.
    """
    count = len(returns)
    for name, other, length in (
        ("equal_weight", equal_weight, count),
        ("simulator", simulator, count),
        ("scored_equal_weight", scored_equal_weight, len(scored)),
    ):
        if other is not None and len(other) != length:
            raise ValueError(f"{name} has {len(other)} bars, not {length}")
    if len(scored) < FEWEST_SCORED:
        raise ValueError(
            f"{len(scored)} scored bars are too few to compare with; {FEWEST_SCORED} are needed"
        )
    first, look = first_look(timeframe), look_number(count, timeframe)
    if look == 0:
        text = f"{count:,} of {first:,} bars: too early for a verdict"
        return MonitorReport("too early", text, count, first, first)
    # Look k is due at first * 2^(k-1) bars; later bars wait for the next look.
    judged = first << (look - 1)
    # alpha/(k(k+1)) sums to alpha over all looks; half each for the edge and the drawdown.
    level = ALPHA / (2.0 * look * (look + 1))
    rng = np.random.default_rng([seed, look])
    live, equal = returns[:judged], equal_weight[:judged]
    edge = _compare_means(live - equal, scored - scored_equal_weight, draws, rng)
    plain = _compare_means(live, scored, draws, rng)
    drawdown = _compare_drawdowns(live, scored, draws, rng)
    tracking = None if simulator is None else track(returns, simulator, timeframe)
    verdict, text = _verdict(edge, drawdown, tracking, level, timeframe)
    return MonitorReport(
        verdict,
        text,
        count,
        first,
        2 * judged,
        look,
        judged,
        level,
        tracking,
        edge,
        plain,
        drawdown,
    )


def _verdict(
    edge: LiveStatistic,
    drawdown: LiveStatistic,
    tracking: Tracking | None,
    level: float,
    timeframe: str,
) -> tuple[MonitorVerdict, str]:
    """Return verdict and sentence; bad tracking comes first, as it hides the policy's results."""
    if tracking is not None and tracking.off:
        return "tracking off", (
            f"the account and the simulator differ by {tracking.error:.2%} a year "
            f"(limit {TRACKING_ERROR:.2%}) and have drifted {tracking.gap:+.2%} apart "
            f"(limit {TRACKING_GAP:.2%})"
        )
    annual = bars_per_year(timeframe)
    earned = (
        f"{annual * edge.live:+.1%} a year over equal weight, scored {annual * edge.scored:+.1%} "
        f"(p = {edge.p:.2g})"
    )
    fell = (
        f"largest drawdown {drawdown.live:.1%}, expected at most {drawdown.high:.1%} in 19 of 20 "
        f"cases (p = {drawdown.p:.2g})"
    )
    bad = [text for text, found in ((earned, edge), (fell, drawdown)) if found.p <= level]
    if bad:
        return "worse than scored", f"{'; '.join(bad)}; the alarm level is p = {level:.2g}"
    return "as scored", f"{earned}; {fell}; the alarm level is p = {level:.2g}"


def _compare_means(
    live: Array, scored: Array, draws: int, rng: np.random.Generator
) -> LiveStatistic:
    """Test whether a live mean is below the scored one, given the sampling error of both."""
    own, other, spread = float(np.mean(live)), float(np.mean(scored)), float(np.std(scored))
    # A more volatile market widens the live error, but never narrows it.
    rougher = max(1.0, float(np.std(live)) / spread) if spread > 0.0 else 1.0
    # Errors of both means: of the live record's length and of the scored one's.
    luck = rougher * _luck(scored, live.size, draws, rng) - _luck(scored, scored.size, draws, rng)
    # (1 + hits) / (1 + draws): a p-value of 0 cannot come from finitely many draws.
    p = (1 + int(np.count_nonzero(luck <= own - other))) / (draws + 1)
    low, high = (other + float(edge) for edge in np.quantile(luck, [0.05, 0.95]))
    return LiveStatistic(own, other, p, low, high)


def _luck(values: Array, length: int, draws: int, rng: np.random.Generator) -> Array:
    """Return the sampling errors, (draws,), of the mean of resamples of `length` bars."""
    step = _step(values, length, MEAN_POINTS)
    thin = summed(values, step) / step
    means = bootstrap_means(thin, block_length(thin), draws, rng, length=max(1, length // step))
    return np.asarray(means - np.mean(thin))


def _compare_drawdowns(
    live: Array, scored: Array, draws: int, rng: np.random.Generator
) -> LiveStatistic:
    """Test whether the live drawdown is deeper than in resamples of the scored returns."""
    step = _step(scored, live.size, PATH_POINTS)
    own, other = summed(log_returns(live), step), summed(log_returns(scored), step)
    # The scored mean is uncertain, too: each path gets a drift drawn from its error.
    drift = step * _luck(log_returns(scored), scored.size, draws, rng)
    found, done = np.empty(draws), 0
    for sample in bootstrap_samples(other, block_length(other), draws, rng, length=own.size):
        rows = slice(done, done + len(sample))
        found[rows] = _deepest(sample + drift[rows, None])
        done += len(sample)
    deepest = float(_deepest(own[None])[0])
    p = (1 + int(np.count_nonzero(found >= deepest))) / (draws + 1)
    low, high = (float(edge) for edge in np.quantile(found, [0.05, 0.95]))
    return LiveStatistic(deepest, max_drawdown(scored), p, low, high)


def _deepest(steps: Array) -> Array:
    """Return the largest drawdowns, (rows,), of paths with log returns (rows, n) from value 1."""
    path = np.cumsum(steps, axis=1)
    # The start, with log value 0, counts as a peak.
    peak = np.maximum(np.maximum.accumulate(path, axis=1), 0.0)
    return np.asarray(-np.expm1(-np.max(peak - path, axis=1)))


def _step(values: Array, length: int, points: int) -> int:
    """Return how many bars to sum into one, so that `length` of them are about `points`.

    The mean does not change by that, and drawdowns hardly do.
    """
    return max(1, min(length // points, values.size // FEWEST_SCORED))
