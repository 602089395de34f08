"""The live monitor: is a trader earning what was scored, and is it doing what the simulator does?

Three questions about a record of per-bar returns that began with the present bundle:

Tracking. The account and the simulator trade the same bars by the same rules. What they differ by is fills, fees and
faults, so it is held to a tolerance that is fixed, not to chance.

Edge. The same statistic on both sides, the mean per-bar return over equal weight: it is what the gate tested, and what
the market does to everybody cancels in it, where a mean return would alarm in every falling market. The scored record
(the hold-out) is resampled by the stationary bootstrap, once as long as the live record and once as long as itself, so
that what the scored mean does not know about itself counts, too; p is the share of resamples whose live mean falls
short of the scored one by as much. Where live returns vary more than scored ones, the former are scaled up to that:
a rougher market is no lost edge.

Drawdown. The largest fall of the live record against those of resamples of the scored returns as long, each with a mean
of its own drawn as above.

Every look may be wrong, so there are few: at the minimum record, and whenever it has doubled. Look k is allowed
alpha/(k(k+1)), half of it for the edge and half for the drawdown, so that all looks ever taken sound a false alarm with
chance alpha at most. Nothing here remembers: the record as it was at the last look is what is judged.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from deploy.promotion.bootstrap import block_length, bootstrap_means, bootstrap_samples
from deploy.registry.bundle_files import finite
from envs.crypto.metrics import max_drawdown
from envs.crypto.timeframe import DAY, bar_seconds, bars_per_year

Array = NDArray[np.float64]
Judgement = Literal["too early", "as scored", "worse than scored", "tracking off"]
MEAN_POINTS, PATH_POINTS = 500, 1_000  # of records that are resampled: longer ones are thinned
FLOOR = 1e-12  # of a value ratio, so that a total loss has a logarithm
FEWEST_SCORED = 32


@dataclass(frozen=True)
class Limits:
    """What the monitor goes by. alpha: chance of a false alarm about edge or drawdown, over all looks together.

    minimum_days, minimum_bars: no verdict before both. tracking_error: annualised standard deviation of account less
    simulator, a share. tracking_gap: how far their values may drift apart, a share. draws: resamples per question.
    """

    alpha: float = 0.05
    minimum_days: float = 7.0
    minimum_bars: int = 100
    tracking_error: float = 0.05
    tracking_gap: float = 0.02
    draws: int = 5_000


DEFAULT = Limits()


@dataclass(frozen=True)
class Tracking:
    """The account against the simulator over `bars` bars. error: annualised standard deviation of the difference of
    per-bar returns. gap: growth of the account over the simulator's, 0.01 = 1 % ahead. worst: largest difference of a
    bar, with its sign; worst_bar: its place in the record.
    """

    error: float
    gap: float
    worst: float
    worst_bar: int
    bars: int


@dataclass(frozen=True)
class Compared:
    """One statistic, live and scored. p: chance of a live value as bad as this, were it as scored. low, high: where
    90 % of the live values would lie then.
    """

    live: float
    scored: float
    p: float
    low: float
    high: float


@dataclass(frozen=True)
class Finding:
    """What the monitor says. text: the verdict in a sentence.

    bars: of the live record. first_look: bars that a verdict needs; next_look: when there is another one. look: number
    of the one judged, 0 where it is too early; judged: bars at it. level: what a p has to be under to alarm. tracking:
    None without a simulator. edge, mean_return: per bar, over equal weight and plain; the latter is only told.
    drawdown: of the record, a share.
    """

    verdict: Judgement
    text: str
    bars: int
    first_look: int
    next_look: int
    look: int = 0
    judged: int = 0
    level: float = 0.0
    tracking: Tracking | None = None
    edge: Compared | None = None
    mean_return: Compared | None = None
    drawdown: Compared | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        content: dict[str, Any] = finite(asdict(self))
        return content


def first_look(timeframe: str, limits: Limits = DEFAULT) -> int:
    """The bars of a record that a verdict needs."""
    return max(math.ceil(limits.minimum_days * DAY / bar_seconds(timeframe)), limits.minimum_bars)


def look_number(bars: int, timeframe: str, limits: Limits = DEFAULT) -> int:
    """How many looks at a record of so many bars have been due; 0 before the first. It is enough to ask `watch` again
    once this has risen.
    """
    return (bars // first_look(timeframe, limits)).bit_length()


def track(account: Array, simulator: Array, timeframe: str) -> Tracking:
    """Compare (n,) simple per-bar returns of the account with the simulator's over the same bars."""
    difference = account - simulator
    worst = int(np.argmax(np.abs(difference)))
    return Tracking(
        error=float(np.std(difference, ddof=1)) * math.sqrt(bars_per_year(timeframe))
        if len(difference) > 1
        else 0.0,
        gap=math.expm1(float(np.sum(_log(account) - _log(simulator)))),
        worst=float(difference[worst]),
        worst_bar=worst,
        bars=len(difference),
    )


def watch(
    returns: Array,
    equal_weight: Array,
    simulator: Array | None,
    scored: Array,
    scored_equal_weight: Array,
    timeframe: str,
    *,
    seed: int,
    limits: Limits = DEFAULT,
) -> Finding:
    """Judge a live record of (n,) simple per-bar returns, since the present bundle trades. Bars at which a halt or a
    risk rule kept it out of the market say nothing about it: leave them out of all three.

    equal_weight, simulator: (n,) of the same bars; None where there is no simulator. scored, scored_equal_weight: (m,)
    of the bundle's hold-out. seed: of the resampling, so that the same record is judged the same. Raises ValueError
    for records that don't fit each other.
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
    first = first_look(timeframe, limits)
    look = look_number(count, timeframe, limits)
    if look == 0:
        return Finding(
            "too early",
            f"{count:,} of {first:,} bars: too early for a verdict",
            count,
            first,
            first,
        )
    judged = first << (look - 1)
    level = limits.alpha / (2.0 * look * (look + 1))
    rng = np.random.default_rng([seed, look])
    live, equal = returns[:judged], equal_weight[:judged]
    edge = _compare_means(live - equal, scored - scored_equal_weight, limits.draws, rng)
    plain = _compare_means(live, scored, limits.draws, rng)
    drawdown = _compare_drawdowns(live, scored, limits.draws, rng)
    tracking = None if simulator is None else track(returns, simulator, timeframe)
    verdict, text = _verdict(edge, drawdown, tracking, level, timeframe, limits)
    return Finding(
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
    edge: Compared,
    drawdown: Compared,
    tracking: Tracking | None,
    level: float,
    timeframe: str,
    limits: Limits,
) -> tuple[Judgement, str]:
    """Tracking comes first: where it is off, the account says little about the policy."""
    if tracking is not None and (
        tracking.error > limits.tracking_error or abs(tracking.gap) > limits.tracking_gap
    ):
        return "tracking off", (
            f"the account and the simulator differ by {tracking.error:.2%} a year (limit {limits.tracking_error:.2%}) "
            f"and have drifted {tracking.gap:+.2%} apart (limit {limits.tracking_gap:.2%})"
        )
    annual = bars_per_year(timeframe)
    earned = (
        f"{annual * edge.live:+.1%} a year over equal weight, where {annual * edge.scored:+.1%} was scored: as low as "
        f"this with chance {edge.p:.2g} if nothing had changed"
    )
    fell = (
        f"fell {drawdown.live:.1%} from its highest value: as deep as this with chance {drawdown.p:.2g}, at most "
        f"{drawdown.high:.1%} in 19 of 20 cases"
    )
    bad = [text for text, found in ((earned, edge), (fell, drawdown)) if found.p <= level]
    if bad:
        return "worse than scored", f"{'; '.join(bad)}; {level:.2g} is alarming at this look"
    return "as scored", f"{earned}; {fell}; {level:.2g} would be alarming at this look"


def _compare_means(live: Array, scored: Array, draws: int, rng: np.random.Generator) -> Compared:
    """Whether a live mean is below the scored one by more than both samples' luck."""
    own, other, spread = float(np.mean(live)), float(np.mean(scored)), float(np.std(scored))
    rougher = max(1.0, float(np.std(live)) / spread) if spread > 0.0 else 1.0
    luck = rougher * _luck(scored, live.size, draws, rng) - _luck(scored, scored.size, draws, rng)
    p = (1 + int(np.count_nonzero(luck <= own - other))) / (draws + 1)
    low, high = (other + float(edge) for edge in np.quantile(luck, [0.05, 0.95]))
    return Compared(own, other, p, low, high)


def _luck(values: Array, length: int, draws: int, rng: np.random.Generator) -> Array:
    """(draws,) means of resamples of `length` bars, less the mean that they have in truth."""
    step = _step(values, length, MEAN_POINTS)
    thin = _thinned(values, step) / step
    means = bootstrap_means(thin, block_length(thin), draws, rng, length=max(1, length // step))
    return np.asarray(means - np.mean(thin))


def _compare_drawdowns(
    live: Array, scored: Array, draws: int, rng: np.random.Generator
) -> Compared:
    """Whether the live record fell deeper than the scored returns would make one of its length."""
    step = _step(scored, live.size, PATH_POINTS)
    own, other = _thinned(_log(live), step), _thinned(_log(scored), step)
    drift = step * _luck(_log(scored), scored.size, draws, rng)
    found, done = np.empty(draws), 0
    for sample in bootstrap_samples(other, block_length(other), draws, rng, length=own.size):
        rows = slice(done, done + len(sample))
        found[rows] = _deepest(sample + drift[rows, None])
        done += len(sample)
    deepest = float(_deepest(own[None])[0])
    p = (1 + int(np.count_nonzero(found >= deepest))) / (draws + 1)
    low, high = (float(edge) for edge in np.quantile(found, [0.05, 0.95]))
    return Compared(deepest, max_drawdown(scored), p, low, high)


def _deepest(steps: Array) -> Array:
    """(rows,) largest fall of paths with those log returns (rows, n), a share; the start counts as a peak."""
    path = np.cumsum(steps, axis=1)
    peak = np.maximum(np.maximum.accumulate(path, axis=1), 0.0)
    return np.asarray(-np.expm1(-np.max(peak - path, axis=1)))


def _step(values: Array, length: int, points: int) -> int:
    """Bars that are summed to one, so that `length` of them are not many more than `points`; no mean changes by that,
    and drawdowns hardly do.
    """
    return max(1, min(length // points, values.size // FEWEST_SCORED))


def _thinned(values: Array, step: int) -> Array:
    """Sums over `step` bars; what is left over at the beginning goes."""
    return np.asarray(values[values.size % step :].reshape(-1, step).sum(axis=1))


def _log(returns: Array) -> Array:
    return np.asarray(np.log(np.maximum(1.0 + returns, FLOOR)))
