"""`sweepd plan`: before training, how often the gate would find a return over equal weight."""

from __future__ import annotations

import datetime as dt
import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sweepd.deploy.market.power import GatePower, planned_power, tenths, up
from sweepd.deploy.promotion.promotion import Step
from sweepd.deploy.promotion.terminal import print_steps
from sweepd.deploy.registry.flags import AsJson
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.flags import takes_flags
from sweepd.envs.support.formatting import short_percent, years_or_days
from sweepd.envs.support.invocation import program
from sweepd.envs.support.terminal import screen

SHARES = (0.5, 0.8)  # of the studies, in which an edge shall be found
EDGES = (0.5, 1.0, 2.0, 4.0)  # times the wanted edge, in the table
LENGTHS = (1.0, 2.0, 4.0, 8.0)  # times the years
COUNTS = (0.25, 0.5, 1.0, 2.0)  # times the trials
IN_CASH = 0.5  # share of the portfolio whose tracking error is the default
MOST_TRIALS = 1_000
MOST_YEARS = 100.0
PLAIN_EDGE = 2.0  # larger numbers need a percent sign


@dataclass(frozen=True)
class PlanFlags:
    """Values of all options, in the order of `--help`."""

    edge: Annotated[
        str,
        typer.Option(
            help="Return over equal weight per year, after fees, that shall be found: 8% or 0.08."
        ),
    ] = "8%"
    n_trials: Annotated[int, typer.Option(help="Number of trials of the study.")] = 40
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the study's bars, which give years and tracking error."),
    ] = None
    timeframe: Annotated[str, typer.Option(help="Length of a bar, as for train.")] = "1h"
    tickers: Annotated[
        str | None, typer.Option(help="Comma-separated, as for train. Default: all in the folder.")
    ] = None
    years: Annotated[
        float | None, typer.Option(help="Years of bars, hold-out included; in place of --data-dir.")
    ] = None
    tracking_error: Annotated[
        str | None,
        typer.Option(
            help="Standard deviation of the returns over equal weight, per year: 20% or 0.2. "
            "Default: that of a portfolio which is half in cash, on the bars of --data-dir."
        ),
    ] = None
    correlation: Annotated[
        float,
        typer.Option(
            help="Correlation of the returns over equal weight of two trials. After a study, its "
            "verdict has the measured one."
        ),
    ] = 0.5
    holdout: Annotated[
        float, typer.Option(help="Share of the bars in the hold-out, as for train.")
    ] = 0.15
    looks: Annotated[
        int, typer.Option(help="Evaluations made on this hold-out before; each halves the level.")
    ] = 0
    as_json: AsJson = False


@takes_flags
def plan_command(flags: PlanFlags) -> None:
    """Show before training how often the gate finds a return over equal weight, by years and trials.

    A study whose bars are too short for the return that you hope for ends with "no candidate
    passes", even if such a policy exists. This command simulates the gate's statistical rules on
    studies with that return; docs/how_to/after_no_candidate.md explains its figures.
    """
    plan = make_plan(flags)
    if flags.as_json:
        typer.echo(json.dumps(plan.to_dict(), indent=1, allow_nan=False))
        return
    console = screen(width=100)
    for line in plan.lines():
        console.print(line)
    console.print(plan.edges_table())
    console.print(plan.trials_table())
    print_steps(console, plan.steps())


@dataclass(frozen=True, eq=False)
class Plan:
    """A planned study on a market.

    Attributes:
        flags: what the user asked for.
        edge: the wanted return over equal weight per year.
        years: of bars, hold-out included.
        tracking_error: see `planned_power`.
        assumed: whether the tracking error is the default.
        by_trials: the power by number of trials.
    """

    flags: PlanFlags
    edge: float
    years: float
    tracking_error: float
    assumed: bool
    by_trials: dict[int, GatePower]

    @property
    def power(self) -> GatePower:
        """The power of the study as it is planned."""
        return self.by_trials[self.flags.n_trials]

    @property
    def edges(self) -> list[float]:
        """The edges of the table."""
        return [factor * self.edge for factor in EDGES]

    def lines(self) -> list[str]:
        """The answer, and what it assumes, one line each."""
        flags, power = self.flags, self.power
        found = tenths(power.probability(self.edge))
        source = " (a portfolio that is half in cash, on these bars)" if self.assumed else ""
        half, most = (power.edge_found(share) for share in SHARES)
        reach = (
            f"no return is found in half of such studies: {power.obstacle()}"
            if math.isinf(half)
            else f"found in 5 of 10 such studies: {up(half)} a year"
            + (f"; in 8 of 10: {up(most)}" if math.isfinite(most) else "")
        )
        lines = [
            f"A return over equal weight of {short_percent(self.edge, 3)} a year, after fees, is found in "
            f"{found} studies of {flags.n_trials} trials on {years_or_days(self.years)} of bars, "
            f"{years_or_days(power.holdout_years)} of them hold-out.",
            reach,
            f"assumed: a tracking error of {short_percent(self.tracking_error, 3)} a year{source}; a "
            f"correlation of {flags.correlation:g} between the trials' returns over equal weight; "
            f"hold-out evaluation {flags.looks + 1}",
        ]
        if math.isfinite(half):
            # Only the ratio of return and tracking error counts. Rounded down.
            least = math.floor(1_000.0 * self.tracking_error * self.edge / half) / 1_000.0
            lines.insert(
                2,
                f"{short_percent(self.edge, 3)} would be found in 5 of 10 of them with a tracking error of "
                f"{short_percent(least, 3)} a year",
            )
        return lines

    def edges_table(self) -> Table:
        """How many of 10 studies find an edge, by years of bars."""
        table = Table(title="Studies of 10 that find it", title_justify="left")
        table.add_column("return a year")
        for factor in LENGTHS:
            table.add_column(years_or_days(factor * self.years), justify="right")
        for edge in self.edges:
            found = (self.power.probability(edge, factor) for factor in LENGTHS)
            table.add_row(short_percent(edge, 3), *(_of_ten(one) for one in found))
        return table

    def trials_table(self) -> Table:
        """The years that the wanted edge takes, by number of trials."""
        title = f"Years of bars for {short_percent(self.edge, 3)} a year"
        table = Table(title=title, title_justify="left")
        table.add_column("trials", justify="right")
        for share in SHARES:
            table.add_column(f"found in {tenths(share)}", justify="right")
        for trials, power in self.by_trials.items():
            years = (power.years_for(self.edge, share) for share in SHARES)
            table.add_row(str(trials), *map(_years, years))
        return table

    def steps(self) -> list[Step]:
        """The commands to begin with."""
        flags = self.flags
        words = ["--n-trials", str(flags.n_trials), "--timeframe", flags.timeframe]
        words += [] if flags.tickers is None else ["--tickers", flags.tickers]
        words += [] if flags.holdout == PlanFlags.holdout else ["--holdout", f"{flags.holdout:g}"]
        folder = Path("data") if flags.data_dir is None else flags.data_dir
        search = f"{program()} train {shlex.join(['--data-dir', str(folder), *words])}"
        steps = [Step("begin the search", search)]
        if flags.data_dir is None:
            start = dt.datetime.now(dt.UTC).date() - dt.timedelta(days=365.25 * self.years)
            get = ["--data-dir", str(folder), "--timeframe", flags.timeframe]
            get += [] if flags.tickers is None else ["--tickers", flags.tickers]
            download = f"{program()} data download {shlex.join([*get, '--start', str(start)])}"
            steps.insert(0, Step(f"get {self.years:g} years of bars", download))
        return steps

    def to_dict(self) -> dict[str, Any]:
        """For JSON; null for years and edges that no study reaches."""
        return {
            "edge": self.edge,
            "trials": self.flags.n_trials,
            "years": self.years,
            "holdout_years": self.power.holdout_years,
            "tracking_error": self.tracking_error,
            "correlation": self.flags.correlation,
            "evaluation": self.flags.looks + 1,
            "probability": self.power.probability(self.edge),
            "edge_found": {f"{share:g}": _finite(self.power.edge_found(share)) for share in SHARES},
            "by_edge_and_years": [
                {
                    "edge": edge,
                    "years": factor * self.years,
                    "probability": self.power.probability(edge, factor),
                }
                for edge in self.edges
                for factor in LENGTHS
            ],
            "years_needed": [
                {
                    "trials": trials,
                    **{
                        f"{share:g}": _finite(power.years_for(self.edge, share)) for share in SHARES
                    },
                }
                for trials, power in self.by_trials.items()
            ],
            "next": [step.command for step in self.steps()],
        }


def make_plan(flags: PlanFlags) -> Plan:
    """Read the bars, if there are any, and simulate the studies.

    Raises:
        InputError: an option is wrong, or the bars cannot be read.
    """
    edge = parse_share("--edge", flags.edge)
    _check(flags)
    if flags.data_dir is None:
        assert flags.years is not None
        years, cash_error = flags.years, None
    else:
        years, cash_error = _measure(flags)
    error = cash_error
    if flags.tracking_error is not None:
        error = parse_share("--tracking-error", flags.tracking_error)
    if error is None:
        raise InputError(
            "--tracking-error is missing: give the standard deviation of the returns over equal "
            "weight per year, like 20%, or bars that it is computed from with --data-dir"
        )
    counts = sorted({max(1, round(factor * flags.n_trials)) for factor in COUNTS})
    powers = {
        trials: planned_power(
            years,
            holdout=flags.holdout,
            trials=trials,
            tracking_error=error,
            correlation=flags.correlation,
            looks=flags.looks,
            timeframe=flags.timeframe,
        )
        for trials in counts
    }
    return Plan(flags, edge, years, error, flags.tracking_error is None, powers)


def _check(flags: PlanFlags) -> None:
    """Raise InputError for numbers that are out of range."""
    if (flags.data_dir is None) == (flags.years is None):
        given = "both are given" if flags.years is not None else "neither is given"
        raise InputError(f"give either --data-dir or --years, the length of the bars; {given}")
    if flags.years is not None and not 0.0 < flags.years <= MOST_YEARS:
        raise InputError(f"--years {flags.years:g} must be above 0 and at most {MOST_YEARS:g}")
    if not 1 <= flags.n_trials <= MOST_TRIALS:
        raise InputError(f"--n-trials {flags.n_trials} must be from 1 to {MOST_TRIALS:,}")
    if not 0.0 <= flags.correlation < 1.0:
        raise InputError(f"--correlation {flags.correlation:g} must be from 0 to below 1")
    if not 0.0 < flags.holdout < 1.0:
        raise InputError(
            f"--holdout {flags.holdout:g} must be above 0 and below 1: without a hold-out nothing is "
            "promoted"
        )
    if not 0 <= flags.looks <= 100:
        raise InputError(f"--looks {flags.looks} must be from 0 to 100")


def _measure(flags: PlanFlags) -> tuple[float, float]:
    """Return the years of the bars, and the tracking error of a portfolio that is half in cash."""
    import numpy as np

    from sweepd.envs.crypto.data.bars import load_bars
    from sweepd.envs.crypto.data.commands import split_list
    from sweepd.envs.crypto.data.timeframe import bars_per_year

    assert flags.data_dir is not None
    tickers = split_list(flags.tickers)
    bars = load_bars(flags.data_dir, flags.timeframe, tickers, accept_jumps=True)
    year = bars_per_year(flags.timeframe)
    equal_weight = np.mean(bars.close[1:] / bars.close[:-1] - 1.0, axis=1)
    # The rest is in equal weight, so the excess is minus the share in cash of its return.
    return len(bars) / year, IN_CASH * float(np.std(equal_weight, ddof=1)) * math.sqrt(year)


def parse_share(flag: str, text: str) -> float:
    """Return a share per year: "8%" and "0.08" are the same.

    Raises:
        InputError: it is no positive number, or one that lacks a percent sign.
    """
    number = text.strip().removesuffix("%")
    per_cent = number != text.strip()
    try:
        share = float(number) / (100.0 if per_cent else 1.0)
    except ValueError:
        share = math.nan
    if not 0.0 < share < math.inf:
        raise InputError(f"{flag} {text!r} is no share above 0: write it like 8% or 0.08")
    if share > PLAIN_EDGE and not per_cent:
        raise InputError(f"{flag} {text} is {100.0 * share:,.0f}% a year: write {text}% for that")
    return share


def _of_ten(share: float) -> str:
    return tenths(share).removesuffix(" of 10").replace("fewer than ", "<")


def _years(years: float) -> str:
    if math.isinf(years):
        return "none"
    return f"{math.ceil(10.0 * years) / 10.0:,.1f}" if years < 100.0 else f"{years:,.0f}"


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
