"""The verdict on a market's candidate: how far it is, what the gate would find, and what to do next.

A return over equal weight, or **edge**, is the mean return in excess of equal weight after fees, per
year and as a share of the capital: in bars, the sum of the excess returns of a year. It is the
numerator of the information ratio; the denominator is the tracking error.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sweepd.deploy.market.backtests import SearchStatistics
from sweepd.deploy.market.candidates import MarketResult, MarketStudy
from sweepd.deploy.market.power import SHORT_BLOCKS, GatePower, tenths, up
from sweepd.deploy.market.rules import HOLDOUT, Selection
from sweepd.deploy.promotion.commands import new_study, on_study
from sweepd.deploy.promotion.promotion import Step
from sweepd.deploy.promotion.rules import RuleFinding
from sweepd.deploy.promotion.sections import distance
from sweepd.envs.crypto.data.bar_files import files_of, read_bars
from sweepd.envs.crypto.data.timeframe import bars_per_year, has_hours
from sweepd.envs.crypto.scoring import luck
from sweepd.envs.support.formatting import percent, short_percent, years_or_days
from sweepd.envs.support.invocation import program, shown_path

FEWEST = 2  # complete trials that can be compared
MORE_TRIALS = 8  # added where fewer are complete
LONGER, AROUND = 4, 16  # times the budget, and trials, of a search around the best trial
MOST_DEMO_BARS = 500_000  # of a longer demo market
# About the first days of which these sources have bars of the large coins.
FIRST_CCXT, FIRST_ALPACA = dt.date(2017, 8, 17), dt.date(2021, 1, 1)


@dataclass(frozen=True)
class Source:
    """Where `sweepd data download` gets bars: its flags, and the first day that it has."""

    flags: tuple[str, ...]
    earliest: dt.date


# By quote currency, for bars that another program wrote.
_ANOTHER = {"USDT": Source(("--source", "ccxt"), FIRST_CCXT), "USD": Source((), FIRST_ALPACA)}


def study_power(
    search: SearchStatistics,
    trial: int,
    selection: Selection,
    holdout: int,
    level: float,
    pbo: float,
) -> GatePower | None:
    """The power of the gate in studies like one that has ended.

    Args:
        search: statistics of the study's trials.
        trial: number of the trial with the edge.
        selection: statistics of the search about it.
        holdout: number of bars in the hold-out.
        level: of the next test there.
        pbo: limit of the rule `pbo`.

    Returns:
        None if the trial has no paths, or its returns do not vary.
    """
    deflation, own = selection.deflation, search.backtests.get(trial)
    if deflation is None or own is None or not math.isfinite(deflation.needed):
        return None
    numbers = list(search.backtests)
    excess = np.stack([search.backtests[number].excess for number in numbers], axis=1)
    moments = [luck.moments(series) for series in excess.T]
    place, path = numbers.index(trial), deflation.moments
    deviation = float(np.std(excess[:, place], ddof=1))
    if deviation == 0.0 or own.deviations[deflation.path] == 0.0:
        return None
    annual, bars = search.annual, search.bars
    edges = np.arange(0, bars, max(1, bars // SHORT_BLOCKS))
    sums = np.add.reduceat(excess - excess.mean(axis=0), edges)
    norm = np.sqrt(np.sum(sums**2, axis=0))
    inflations = np.array([one.error * math.sqrt(bars) for one in moments])
    inflations[~np.isfinite(inflations)] = 1.0  # too few bars: then nothing is found
    return GatePower(
        bars=bars,
        holdout_bars=holdout,
        year=annual**2,
        error=annual * deviation * float(inflations[place]),
        path_error=annual * own.deviations[deflation.path] * path.error * math.sqrt(bars),
        needed=dataclasses.replace(path, sharpe=deflation.needed).score(),
        level=level,
        weights=sums / np.where(norm > 0.0, norm, 1.0),
        inflations=inflations,
        trial=place,
        pbo=pbo,
    )


@dataclass(frozen=True)
class Edge:
    """What a candidate's median path earned over equal weight, per year (see the module's docstring).

    Attributes:
        after: after fees.
        before: of the same trades before fees.
        luck: what the best of as many trials without skill is expected to show.
        needed: what `deflated-sharpe` needs; infinite if there are too few bars.
        tracking_error: standard deviation of the returns over equal weight, per year.
        ratio, needed_ratio: `after` and `needed` as information ratios.
    """

    after: float
    before: float
    luck: float
    needed: float
    tracking_error: float
    ratio: float
    needed_ratio: float


def measured_edge(search: SearchStatistics, result: MarketResult) -> Edge | None:
    """The edge of a candidate; None without paths, or of several trials."""
    candidate = result.candidate
    deflation = candidate.selection.deflation
    backtest = search.backtests.get(candidate.trials[0])
    if deflation is None or backtest is None or len(candidate.trials) > 1:
        return None
    year, path = bars_per_year(search.timeframe), deflation.path
    scale = year * backtest.deviations[path]  # of a ratio per bar
    after = scale * deflation.moments.sharpe
    # Fees are sums over the path, as shares of the value at the time.
    fees = backtest.metrics[path].fees * year / search.bars
    return Edge(
        after,
        after + fees,
        scale * deflation.luck,
        scale * deflation.needed,
        scale / search.annual,
        search.annual * deflation.moments.sharpe,
        search.annual * deflation.needed,
    )


def how_far(finding: RuleFinding, edge: Edge | None, result: MarketResult) -> str:
    """How far a candidate is from the limit of a rule, with its costs: returns after and before fees."""
    if finding.stage == HOLDOUT and result.score is not None:
        after, before = result.score.metrics, result.score.metrics_before_fees
        told = (
            f"{percent(after.total_return, 1)} on the hold-out after fees, "
            f"{percent(before.total_return, 1)} before fees, equal weight "
            f"{percent(after.equal_weight_return, 1)}"
        )
        if finding.name == "holdout-excess" and finding.value is not None:
            return f"{told}; p = {finding.value:.2g}, at most {finding.limit:.2g} is needed"
        return f"{distance(finding)}; {told}"
    if edge is None:
        return distance(finding)
    told = (
        f"{percent(edge.after, 1)} a year over equal weight after fees, "
        f"{percent(edge.before, 1)} before fees, in cross-validation"
    )
    if finding.name != "deflated-sharpe":
        return f"{distance(finding)}; {told}"
    if not math.isfinite(edge.needed):
        return f"{told}; there are too few bars to distinguish any return from luck"
    trials = result.candidate.selection.finished
    return (
        f"{told}; {percent(edge.needed, 1)} is needed after fees, as the best of {trials} trials "
        f"(an annual information ratio of {edge.needed_ratio:+.2f}; it has {edge.ratio:+.2f})"
    )


def power_text(power: GatePower, trials: int, edge: Edge | None) -> str:
    """What the gate would find in studies like this one. Edges are rounded up, shares down."""
    years = power.years
    size = (
        f"on {years_or_days(years)} of bars, {years_or_days(power.holdout_years)} of them hold-out, "
        f"and {trials} trials"
    )
    half, most = power.edge_found(0.5), power.edge_found(0.8)
    if math.isinf(half):
        return (
            f"{size}, this gate finds no return over equal weight in half of the studies: "
            f"{power.obstacle()}"
        )
    text = f"{size}, this gate finds a return over equal weight of {up(half)} a year in 5 of 10 studies"
    if math.isfinite(most):
        text += f", and of {up(most)} in 8 of 10"
    if edge is not None and edge.after > 0.0:
        found = tenths(power.probability(edge.after))
        text += f"; {percent(edge.after, 1)}, as measured here, in {found}"
    return text


@dataclass(frozen=True)
class Advice:
    """What leads on from a market's verdict.

    Attributes:
        study: the study.
        search: statistics of its trials.
        folder: of its bars.
        result: the candidate that is closest to passing.
        edge: of that candidate.
        power: of the gate about it.
    """

    study: MarketStudy
    search: SearchStatistics
    folder: Path
    result: MarketResult
    edge: Edge | None
    power: GatePower | None

    def steps(self) -> list[Step]:
        """Commands that help, the most useful first; by the rules that are not met."""
        failed = {one.name for one in self.result.findings if one.verdict in ("fail", "defer")}
        if "training-faults" in failed:
            return [Step("read the trials' reasons", on_study("status", self.study))]
        if len(self.search.backtests) < FEWEST:
            count = self.study.finished + MORE_TRIALS
            more = on_study("train", self.study, "--n-trials", count)
            what = f"search on with {count} trials: {FEWEST} must be complete to be compared"
            return [Step(what, more)]
        found = [
            self._cheaper() if "deflated-sharpe" in failed else None,
            self._more_bars(),
            self._unlike() if self._alike and "pbo" in failed else self._better_policies(),
            self._plan(),
        ]
        return [step for step in found if step is not None]

    @property
    def _alike(self) -> bool:
        """Whether all trials beat equal weight on nearly all bars, so that the best one is chance."""
        found = self.search.overfitting
        return found is not None and found.loss <= 0.05

    def _cheaper(self) -> Step | None:
        """A study with lower fees, if the candidate's trades would then earn what is needed."""
        edge, fee = self.edge, float(self.study.spec.env.get("fee", 0.0))
        if edge is None or not edge.after < edge.needed <= edge.before:
            return None
        most = fee * (edge.before - edge.needed) / (edge.before - edge.after)
        rounded = math.floor(most * 1e5) / 1e5  # a thousandth of a per cent
        if rounded <= 0.0:
            return None
        return _step(
            f"fees decide: if your venue charges at most {rounded:.3%} in place of {fee:.3%}, these "
            "trades earn what is needed",
            new_study(self.study, self.study.finished, fee=rounded, **self._bars()),
        )

    def _more_bars(self) -> Step | None:
        """More bars, if the measured edge would then be found, and is not what luck alone shows."""
        power, edge = self.power, self.edge
        if power is None or edge is None or edge.after <= edge.luck:
            return None
        for share in (0.8, 0.5):
            years = power.years_for(edge.after, share)
            command = None if math.isinf(years) else self._longer(years)
            if command is not None:
                return Step(
                    f"search on {years_or_days(years)} of bars: a return over equal weight as measured "
                    f"here, {percent(edge.after, 1)} a year, is found on them in {tenths(share)} "
                    "studies",
                    command,
                )
        return None

    def _longer(self, years: float) -> str | None:
        """The commands that get so many years of bars and search on them; None if none can."""
        data = self.study.spec.data
        if data.synthetic:
            folder = f"{shown_path(self.folder)}-{math.ceil(years)}-years"
            bars = math.ceil(years * bars_per_year(data.timeframe))
            if bars > MOST_DEMO_BARS:
                return None
            sizes: list[object] = ["--assets", len(data.tickers), "--bars", bars]
            get = ["--timeframe", data.timeframe, *sizes]
            changes: dict[str, object] = {"data_dir": folder, "tickers": None}
            return self._then("demo", folder, get, changes)
        if has_hours(data.timeframe):
            return None
        folder, source = shown_path(self.folder), self._source()
        if source is None:
            source = _ANOTHER.get(data.tickers[0].partition("/")[2])
            folder = f"{folder}-{math.ceil(years)}-years"
        if source is None:
            return None
        last = dt.datetime.fromisoformat(data.last).date()
        start = (last - dt.timedelta(days=365.25 * years)).replace(day=1)
        if start < source.earliest:
            return None
        get = ["--timeframe", data.timeframe, "--tickers", ",".join(data.tickers)]
        get += [*source.flags, "--start", start.isoformat()]
        changes = {"data_dir": folder, "tickers": ",".join(data.tickers)}
        return self._then("download", folder, get, changes)

    def _then(
        self, command: str, folder: str, words: Sequence[object], changes: Mapping[str, object]
    ) -> str | None:
        """Commands that fill a folder and create a study on it."""
        search = new_study(self.study, self.study.finished, **changes)
        get = shlex.join(["--data-dir", folder, *map(str, words)])
        return None if search is None else f"{program()} data {command} {get} && {search}"

    def _source(self) -> Source | None:
        """Where the bars were downloaded from; None if another program or an import wrote them."""
        data = self.study.spec.data
        path = files_of(self.folder, data.timeframe)[data.tickers[0]]
        name = read_bars(path, data.timeframe).metadata.get("source", "")
        kind, _, detail = name.partition(":")
        if kind == "ccxt":
            return Source(("--source", "ccxt", "--exchange", detail), FIRST_CCXT)
        if kind == "alpaca":
            return Source(("--url", detail) if detail else (), FIRST_ALPACA)
        return None

    def _better_policies(self) -> Step | None:
        """Longer training around the best trial; its trials are added to those of this study."""
        edge, budget = self.edge, LONGER * self.study.spec.budget
        if edge is None or edge.after <= edge.luck:  # a neighbourhood of luck is no better
            return _step(
                f"train {LONGER} times as long, {budget:,} steps per fold: so far, the best trial "
                "earns no more than luck alone",
                new_study(self.study, self.study.finished, budget=budget, **self._bars()),
            )
        around = f"narrow:{self.study.name}#{self.result.candidate.trials[0]}"
        return _step(
            f"train {LONGER} times as long in a narrower space around {self.result.candidate.name}; "
            f"its {AROUND} trials count together with these {self.search.trials}",
            new_study(self.study, AROUND, budget=budget, search_space=around, **self._bars()),
        )

    def _unlike(self) -> Step | None:
        """Trials that differ: worse ones finish, too."""
        return _step(
            "the trials are alike and nearly all beat equal weight, so which one is best is chance: "
            "let worse trials finish, too",
            new_study(self.study, self.study.finished, pruner="none", **self._bars()),
        )

    def _plan(self) -> Step | None:
        """What a return over equal weight of the measured size takes, in years and trials."""
        power, edge = self.power, self.edge
        if power is None or edge is None:
            return None
        wanted = edge.after if edge.after > 0.0 else edge.tracking_error
        deflation = self.result.candidate.selection.deflation
        correlation = 0.0 if deflation is None else min(max(deflation.correlation, 0.0), 0.99)
        words = ["--years", f"{power.years:.2f}"]
        words += [
            "--holdout",
            f"{self.study.spec.holdout:g}",
            "--n-trials",
            str(self.search.trials),
        ]
        words += [
            "--edge",
            short_percent(wanted, 3),
            "--tracking-error",
            short_percent(edge.tracking_error, 3),
        ]
        words += ["--correlation", f"{correlation:.2f}"]
        return Step(
            f"see which years of bars and trials a return over equal weight of {short_percent(wanted, 3)} takes",
            f"{program()} plan {shlex.join(words)}",
        )

    def _bars(self) -> dict[str, object]:
        """The settings that name the study's bars as they are now."""
        data = self.study.spec.data
        return {
            "data_dir": shown_path(self.folder),
            "timeframe": data.timeframe,
            "tickers": ",".join(data.tickers),
        }


def _step(purpose: str, command: str | None) -> Step | None:
    return None if command is None else Step(purpose, command)
