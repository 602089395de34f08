"""`sweepd data check`: whether `train` takes the bars of a folder.

It lies in this package because the answer depends on the folds, the feature recipe and the search
space of a study.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.check import FolderReport, check_dir
from sweepd.envs.crypto.data.commands import data_commands
from sweepd.envs.crypto.data.limits import Span, describe_limits
from sweepd.envs.crypto.data.report import print_line, print_report
from sweepd.envs.crypto.data.timeframe import SECONDS
from sweepd.envs.crypto.splits import TooFewBars, first_decision, make_splits
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.flags import given_flags, takes_flags
from sweepd.envs.support.invocation import program
from sweepd.envs.support.terminal import Terminal
from sweepd.optimize.study.settings.market import FoldSettings
from sweepd.optimize.study.settings.study import StudySettings


@dataclass(frozen=True)
class CheckFlags(FoldSettings):
    """The options of `data check`."""

    data_dir: Annotated[
        Path, typer.Option(help="Folder of bar files (.parquet, .feather or .csv).")
    ] = Path("data")
    timeframe: Annotated[
        str | None,
        typer.Option(
            help=f"One of {' '.join(SECONDS)}; of a market with hours, with its calendar, such as "
            "1d-XNYS. Default: each timeframe in the folder, as of markets that never close."
        ),
    ] = None
    tickers: Annotated[
        str | None,
        typer.Option(help="Comma-separated, e.g. BTC/USDT,ETH/USDT or BTC,ETH. Default: all."),
    ] = None
    search_space: Annotated[
        str | None,
        typer.Option(help="Search space of the study, as for train: its largest lookback counts."),
    ] = None


data_app = data_commands()


@data_app.command()
@takes_flags
def check(context: typer.Context, flags: CheckFlags) -> None:
    """Report the content and all problems of a folder of bars.

    Bars are aligned by timestamp on the range common to all tickers. Missing bars (holes) are
    filled with the last close and marked; orders do not fill in them.

    Refused are duplicate or decreasing times, prices that are not finite and positive, high below
    low, bars off the grid of their timeframe, bars that are still open, prices that jump and
    return, splits that are not adjusted, volumes that change their unit, tickers without a common
    range, tickers of which more than 2% of the bars are missing, and fewer bars than the folds of
    a study need. Give the flags that you will give to `train`.

    Exit code 0: `sweepd train` accepts these bars. Exit code 2: it does not; all reasons are
    printed.
    """
    console, errors = Terminal(markup=True), Terminal(markup=True, stderr=True)
    if not console.is_terminal:
        console = Terminal(markup=True, width=120)  # pipes and logs have no width
    from sweepd.optimize.objectives.request import parse_tickers

    given = given_flags(context)
    refused = False
    tickers = parse_tickers(flags.tickers)
    for report in check_dir(
        flags.data_dir, flags.timeframe, tickers, accept_jumps=flags.accept_jumps
    ):
        print_report(report, console)
        sentences = [*report.all_problems, *_study_problem(report, flags, given)]
        for sentence in sentences:
            print_line(errors, f"[red]error[/red] {escape(sentence)}")
        if sentences:
            refused = True
        elif report.bars is not None:
            print_line(console, f"next: {escape(_train(flags, given, report.bars.timeframe))}")
    if refused:
        raise typer.Exit(2)


def _train(flags: CheckFlags, given: frozenset[str], timeframe: str) -> str:
    """Return the command that trains on the bars that were checked, with the flags given."""
    named = {
        field.name: getattr(flags, field.name) for field in fields(flags) if field.name in given
    }
    words: list[str] = []
    for name, value in ({"data_dir": flags.data_dir, "timeframe": timeframe} | named).items():
        if value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return f"{program()} train {shlex.join(words)}"


def _study_problem(report: FolderReport, flags: CheckFlags, given: frozenset[str]) -> list[str]:
    if report.bars is None:
        return []
    spans = [Span(row.ticker, row.first, row.last) for row in report.tickers]
    try:
        check_study(report.bars, spans, flags, given)
    except InputError as error:
        return [str(error)]
    return []


def check_study(
    bars: Bars, spans: list[Span], flags: CheckFlags, given: frozenset[str] = frozenset()
) -> None:
    """Check that a study can be made of bars, as `train` does.

    Args:
        bars: the market.
        spans: ranges of its tickers, to name those that limit it.
        flags: of the study.
        given: names of the flags that the user gave.

    Raises:
        InputError: the bars are too few, features cannot be computed, or a flag is wrong.
    """
    # Not at the top: torch and TA-Lib are loaded only where they are needed.
    from sweepd.envs.crypto.features import compute_features, get_recipe
    from sweepd.optimize.cli.study_request import make_request
    from sweepd.optimize.objectives.table import objective_of
    from sweepd.optimize.study.space.parsing import load_space

    folds = {field.name: getattr(flags, field.name) for field in fields(FoldSettings)}
    request = make_request(
        StudySettings(**folds, timeframe=bars.timeframe, search_space=flags.search_space), given
    )
    objective_of(request.env).check(request)
    recipe = get_recipe(request.recipe)
    lookback = load_space(request.search_space, request.subject, bars.timeframe).max_lookback
    try:
        make_splits(
            len(bars),
            bars.timeframe,
            request.folds,
            first_bar=first_decision(recipe.memory, lookback),
            holdout=request.holdout,
            lookback=lookback,
            memory=recipe.memory,
        )
    except TooFewBars as error:
        limits = describe_limits(spans, bars.timeframe, error.needed)
        raise InputError(f"{error}; {limits}" if limits else str(error)) from None
    compute_features(bars, recipe)
