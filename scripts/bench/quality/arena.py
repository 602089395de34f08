"""The arena on returns alone: how often a champion is replaced wrongly, and how long a swap takes.

False swaps (`--only false`): half years of hourly bars in which no challenger is better. Up to 27
challengers enter, one a week, with 8 seats, and their relative returns have a correlation of .9.
These are independent from bar to bar, autocorrelated, of clustered volatility, or of Student's t
with 3 degrees of freedom. Once more with the monitor, whose alarm lowers the bar. Required: at most
.05 of the half years have a swap.

Power (`--only power`): days until the swap to a challenger that gains 8, 16 or 32% a year on the
champion, at tracking errors of 5 and 10%, as the first and as the eighth entry of a reign. Beside
it, what `betting.days_until` states.

Fading (`--only fading`): a champion whose advantage on the former champion turns from an
information ratio of 4 to -4: days until the former one is back, by E alone and with the monitor.

Peers in the same run (`--only peers`): a bootstrap test at a level of .05, made once at a fixed
look and made every week until it is significant, as the arena is looked at.

Rates are shown with their 95% interval (Clopper and Pearson 1934).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from scripts.bench.harness import (
    benchmark_parser,
    load_results,
    machine,
    print_machine,
    save_results,
)
from scripts.bench.quality.gate_statistics import rate, shown
from sweepd.deploy.promotion.betting import bound, days_until, log_capital, log_threshold
from sweepd.deploy.promotion.bootstrap import mean_above_zero
from sweepd.deploy.registry.arena_rows import ArenaEntry
from sweepd.deploy.trading.arena.arena import (
    ArenaRules,
    Rounds,
    Standing,
    day_rows,
    gives_way,
    judge,
)
from sweepd.deploy.trading.live.monitor_statistics import first_look, judge_record
from sweepd.envs.crypto.data.timeframe import DAY, bars_per_year

Array = NDArray[np.float64]
TIMEFRAME, HOUR, BARS_A_DAY = "1h", 3600, 24
YEAR = bars_per_year(TIMEFRAME)
HALF_YEAR, PAST, WEEK = 182, 4_000, 7  # days, bars before an entry, days
CORRELATION, TRACKING_ERROR, MARKET = 0.9, 0.1, 0.6  # the latter two a year
RULES = ArenaRules()
KINDS = ("independent", "independent, ageing", "ar1 .1", "ar1 .3", "t3", "clustered")
YEARS = 6  # of the search for a swap
MONITOR_DRAWS = 2_000
SIZES = (0.05, 0.1)
EDGES = (0.08, 0.16, 0.32)
ENTRIES = (1, 8)


def noise(rng: np.random.Generator, kind: str, shape: tuple[int, int]) -> Array:
    """Return (series, bars) values of mean 0 and standard deviation 1."""
    if kind.startswith("ar1"):
        phi = float(kind.split()[1])
        steps = rng.standard_normal((shape[0], shape[1] + 50))
        values = lfilter([math.sqrt(1 - phi**2)], [1.0, -phi], steps, axis=1)
        return np.asarray(values[:, 50:])
    if kind == "t3":
        return rng.standard_t(3, shape) / math.sqrt(3.0)
    values = rng.standard_normal(shape)
    return values if kind != "clustered" else garch(values)


def garch(shocks: Array) -> Array:
    """Return a GARCH(1, 1) with the parameters .08 and .9, of a variance of 1."""
    found, variance = np.empty_like(shocks), np.ones(len(shocks))
    for bar, shock in enumerate(shocks.T):
        found[:, bar] = np.sqrt(variance) * shock
        variance = 0.02 + 0.08 * found[:, bar] ** 2 + 0.9 * variance
    return found


def relative(rng: np.random.Generator, kind: str, series: int, bars: int) -> Array:
    """Return X of challengers that are no better, (series, bars), with a common part."""
    own = noise(rng, kind, (series + 1, bars))
    mixed = math.sqrt(CORRELATION) * own[:1] + math.sqrt(1.0 - CORRELATION) * own[1:]
    return TRACKING_ERROR / math.sqrt(YEAR) * mixed


def entry(number: int, since: int, past: Array) -> ArenaEntry:
    """Return an entry with the worst and the best bar of its past."""
    worst, best = max(0.0, -float(past.min())), max(0.0, float(past.max()))
    return ArenaEntry("s", 1, number, str(number), "challenger", "", since, worst, best)


def half_year(rng: np.random.Generator, kind: str, *, monitored: bool) -> dict[str, Any]:
    """Play a half year by the arena's own rules. Returns the day and the way of a swap, or None."""
    bars, most = HALF_YEAR * BARS_A_DAY, HALF_YEAR // WEEK + 1
    gained = relative(rng, kind, most, PAST + bars)
    market = MARKET / math.sqrt(YEAR) * noise(rng, kind, (1, bars))[0]
    marked = alarm(rng, market) if monitored else None
    seated: list[ArenaEntry] = []
    rows: dict[str, dict[int, Any]] = {}
    newest: int | None = None
    entered = 0
    for day in range(HALF_YEAR):
        last_bar = day * DAY - HOUR
        standings = [Standing(one, rows[one.bundle].get((day - 1) * DAY)) for one in seated]
        aged = marked is not None and day >= marked
        judgement = judge(standings, aged=aged)
        if judgement.promotion is not None:
            won = judgement.promotion.why.startswith("won")
            return {"day": day, "by": "E" if won else "ageing"}
        leaving = {one.entry.bundle for one in judgement.withdrawals}
        standings = [one for one in standings if one.entry.bundle not in leaving]
        free, leaves = gives_way(standings, newest, last_bar, RULES)
        seated = [one.entry for one in standings if one.entry is not leaves]
        if free and entered < most:
            first = day * BARS_A_DAY
            mine = gained[entered]
            entered += 1
            one = entry(entered, last_bar, mine[first : PAST + first])
            own = mine[PAST + first :]
            ends = last_bar + HOUR + HOUR * np.arange(1, len(own) + 1)
            rounds = Rounds(ends, (1.0 + market[first:]) * (1.0 + own) - 1.0, market[first:])
            days = day_rows(one, rounds, HALF_YEAR * DAY, TIMEFRAME)
            rows[one.bundle] = {row.day: row for row in days}
            seated.append(one)
            newest = last_bar
    return {"day": None, "by": None}


def alarm(
    rng: np.random.Generator, market: Array, edge: float = 2.0, live: float = 2.0
) -> int | None:
    """Return the day of the monitor's first alarm about the edge, None without one.

    edge, live: information ratios over equal weight, scored and live; the tracking error is 15%.
    """
    deviation = 0.15 / math.sqrt(YEAR)
    size = len(market)
    scored_market = MARKET / math.sqrt(YEAR) * rng.standard_normal(PAST)
    scored = scored_market + deviation * (rng.standard_normal(PAST) + edge / math.sqrt(YEAR))
    own = market + deviation * (rng.standard_normal(size) + live / math.sqrt(YEAR))
    bars = first_look(TIMEFRAME)
    while bars <= size:
        report = judge_record(
            own[:bars],
            market[:bars],
            None,
            scored,
            scored_market,
            TIMEFRAME,
            seed=int(rng.integers(2**31)),
            draws=MONITOR_DRAWS,
        )
        assert report.edge is not None
        if report.edge.p <= report.level:
            return -(-bars // BARS_A_DAY)
        bars *= 2
    return None


def false_swaps(options: argparse.Namespace, kept: dict[str, Any]) -> bool:
    """Measure false swaps, and keep each kind; return whether the requirement is met."""
    found, good = kept.setdefault("false", {}), True
    half_years, seed = options.half_years, options.seed
    for name in options.kinds:
        kind, _, monitored = name.partition(", ")
        ends = [
            half_year(np.random.default_rng([seed, index]), kind, monitored=bool(monitored))
            for index in range(half_years)
        ]
        swapped = np.array([one["day"] is not None for one in ends])
        found[name] = rate(swapped) | {
            "half_years": half_years,
            "by_ageing": sum(one["by"] == "ageing" for one in ends),
        }
        ok = found[name]["interval"][0] <= 0.05
        good &= ok
        save_results(options.save, kept)
        print(
            f"false swaps, {name:20} {shown(found[name])}{'' if ok else '  NOT AS ASKED'}",
            flush=True,
        )
    return good


def days_to(own: Array, past: Array, number: int) -> float:
    """Return after how many days E wins, at the end of a day; infinite if it does not."""
    path = log_capital(own, bound(-float(past.min())))[BARS_A_DAY - 1 :: BARS_A_DAY]
    won = np.flatnonzero(path >= log_threshold(number))
    return float(won[0] + 1) if len(won) else math.inf


def quantile(days: Sequence[float], share: float) -> float:
    """Return a quantile of days of which some are infinite."""
    return float(np.quantile(days, share, method="inverted_cdf"))


def power(half_years: int, seed: int) -> list[dict[str, Any]]:
    """Measure days until a swap."""
    found = []
    bars = round(YEARS * YEAR)
    for error in SIZES:
        for edge in EDGES:
            deviation, ratio = error / math.sqrt(YEAR), edge / error
            taken: dict[int, list[float]] = {number: [] for number in ENTRIES}
            for index in range(half_years):
                rng = np.random.default_rng([seed, index])
                gained = deviation * rng.standard_normal(PAST + bars) + edge / YEAR
                for number, days in taken.items():
                    days.append(days_to(gained[PAST:], gained[:PAST], number))
            for number, days in taken.items():
                quartiles = [quantile(days, share) for share in (0.25, 0.5, 0.75)]
                stated = days_until(ratio, log_threshold(number))
                one = {
                    "edge": edge,
                    "tracking_error": error,
                    "ratio": ratio,
                    "entry": number,
                    "days": [None if math.isinf(value) else value for value in quartiles],
                    "within_half_year": float(np.mean(np.array(days) <= HALF_YEAR)),
                    "within_a_year": float(np.mean(np.array(days) <= 365)),
                    "stated": stated,
                }
                found.append(one)
                print(
                    f"{edge:.0%} a year, tracking error {error:.0%} (IR {ratio:.1f}), entry "
                    f"{number}: {_days(quartiles[1])} days ({_days(quartiles[0])} to "
                    f"{_days(quartiles[2])}), stated {stated:,.0f}; within a year "
                    f"{one['within_a_year']:.0%}",
                    flush=True,
                )
    return found


def fading(half_years: int, seed: int) -> dict[str, Any]:
    """Measure days until a champion with a lost edge is left."""
    deviation, bars = TRACKING_ERROR / math.sqrt(YEAR), round(YEARS * YEAR)
    alone, helped = [], []
    for index in range(half_years):
        rng = np.random.default_rng([seed, index, 1])
        # X of the former champion: the present one gained on it before, and loses to it now.
        steps = rng.standard_normal(PAST + bars)
        past = deviation * (steps[:PAST] - 4.0 / math.sqrt(YEAR))
        own = deviation * (steps[PAST:] + 4.0 / math.sqrt(YEAR))
        days = days_to(own, past, 1)
        marked = alarm(rng, np.zeros(bars), edge=4.0, live=-4.0)
        first = max(14, math.inf if marked is None else marked)
        path = log_capital(own, bound(-float(past.min())))[BARS_A_DAY - 1 :: BARS_A_DAY]
        level = np.flatnonzero((path >= 0.0) & (np.arange(1, len(path) + 1) >= first))
        alone.append(days)
        helped.append(min(days, float(level[0] + 1) if len(level) else math.inf))
    found: dict[str, Any] = {"stated": days_until(4.0, log_threshold(1))}
    for name, taken in (("by_e", alone), ("with_monitor", helped)):
        found[name] = [quantile(taken, share) for share in (0.5, 0.9)]
        print(
            f"fading edge, {name}: left after {found[name][0]:,.0f} days (median), "
            f"{found[name][1]:,.0f} in nine of ten cases; stated {found['stated']:,.0f}"
        )
    return found


def peers(half_years: int, seed: int) -> dict[str, Any]:
    """Measure a bootstrap test of one challenger, made once and made every week."""
    found: dict[str, Any] = {}
    bars, deviation = HALF_YEAR * BARS_A_DAY, TRACKING_ERROR / math.sqrt(YEAR)
    for edge in (0.0, *EDGES):
        once, weekly, bets = [], [], []
        for index in range(half_years):
            rng = np.random.default_rng([seed, index, 2])
            gained = deviation * rng.standard_normal(PAST + bars) + edge / YEAR
            own = gained[PAST:]
            looks = range(2 * WEEK * BARS_A_DAY, bars + 1, WEEK * BARS_A_DAY)
            values = [mean_above_zero(own[:look], seed=index, draws=999).p for look in looks]
            once.append(values[-1] <= 0.05)
            weekly.append(min(values) <= 0.05)
            bets.append(days_to(own, gained[:PAST], 1) <= HALF_YEAR)
        tests = {"fixed look": once, "every week": weekly, "betting": bets}
        found[f"{edge:.0%}"] = {name: rate(np.array(won)) for name, won in tests.items()}
        texts = [f"{name} {shown(found[f'{edge:.0%}'][name])}" for name in tests]
        print(f"{edge:.0%} a year, half a year: {', '.join(texts)}", flush=True)
    return found


def _days(value: float) -> str:
    return f"over {YEARS * 365:,}" if math.isinf(value) else f"{value:,.0f}"


def main(argv: Sequence[str]) -> int:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--half-years", type=int, default=1_000, help="of false swaps")
    parser.add_argument("--runs", type=int, default=200, help="of all other parts, per setting")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of false swaps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=["false", "power", "fading", "peers"])
    options = parser.parse_args(argv)
    print_machine()
    kept: dict[str, Any] = load_results(options.save)
    good, asked = True, options.only or ["false", "power", "fading", "peers"]
    if "false" in asked:
        good = false_swaps(options, kept)
    if "power" in asked:
        kept["power"] = power(options.runs, options.seed)
    if "fading" in asked:
        kept["fading"] = fading(options.runs, options.seed)
    if "peers" in asked:
        kept["peers"] = peers(options.runs, options.seed)
    kept["machine"] = machine()
    save_results(options.save, kept)
    return 0 if good else 1
