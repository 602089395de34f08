"""What people see of promotion and replay: tables in the terminal, and a picture of the equity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.table import Table

from deploy.market.bundle import Bundle
from deploy.market.promote import Judged, Promotion, name_trials
from deploy.promotion.findings import SYNTHETIC, findings_table, stage_text
from deploy.promotion.views import verdict_panel
from envs.crypto.metrics import Metrics, equity
from envs.support.files import write_atomic
from envs.support.formatting import percent

SHOWN_CANDIDATES = 8


def promotion_view(promotion: Promotion) -> RenderableType:
    """The whole report of a promotion."""
    parts: list[RenderableType] = []
    if promotion.candidates:
        parts.append(candidates_table(promotion))
    if promotion.chosen is not None:
        parts.append(findings_table(_title(promotion.chosen), promotion.chosen.findings))
        if promotion.chosen.score is not None:
            parts.append(
                metrics_table(
                    promotion.chosen.score.metrics,
                    "Hold-out: the ensemble of the trial's fold members, canonical policy path"
                    if len(promotion.chosen.trials) == 1
                    else "Hold-out: the trials as sub-accounts, their orders netted, canonical policy path",
                )
            )
    parts.append(verdict_panel(promotion, SYNTHETIC if promotion.synthetic else ""))
    return Group(*parts)


def candidates_table(promotion: Promotion) -> Table:
    """The best candidates, and how far each came."""
    table = Table(
        title=f"Candidates of study {promotion.study} for slot {promotion.slot}",
        title_justify="left",
    )
    table.add_column("trial", justify="right")
    table.add_column("objective", justify="right")
    table.add_column("cross-validation")
    table.add_column("hold-out")
    for judged in promotion.candidates[:SHOWN_CANDIDATES]:
        table.add_row(
            " ".join(str(number) for number in judged.trials),
            f"{judged.objective:+.3f}",
            stage_text(judged.findings, "cross-validation"),
            stage_text(judged.findings, "hold-out"),
        )
    asked = {number for judged in promotion.candidates for number in judged.trials}
    shown = {
        number for judged in promotion.candidates[:SHOWN_CANDIDATES] for number in judged.trials
    }
    left = promotion.complete - len(shown)
    if left > 0:
        unasked = promotion.complete - len(asked)
        table.caption = f"{left} more complete trial{'s' * (left > 1)}, {unasked} of them not asked"
    return table


def _title(judged: Judged) -> str:
    look = f", look {judged.look.number} at this hold-out" if judged.look else ""
    return f"{judged.name[:1].upper()}{judged.name[1:]}{look}"


def metrics_table(metrics: Metrics, title: str) -> Table:
    """A policy beside equal weight over the same bars."""
    table = Table(title=title, title_justify="left")
    table.add_column(f"{metrics.bars:,} bars")
    table.add_column("policy", justify="right")
    table.add_column("equal weight", justify="right")
    table.add_row(
        "return after fees", percent(metrics.total_return), percent(metrics.equal_weight_return)
    )
    table.add_row(
        "Sharpe ratio (annual)", f"{metrics.sharpe:+.2f}", f"{metrics.equal_weight_sharpe:+.2f}"
    )
    table.add_row(
        "largest drawdown", f"{metrics.max_drawdown:.1%}", f"{metrics.equal_weight_drawdown:.1%}"
    )
    table.add_row("Sortino ratio (annual)", f"{metrics.sortino:+.2f}", "")
    table.add_row("information ratio (annual)", f"{metrics.information_ratio:+.2f}", "")
    table.add_row("trades", f"{metrics.trades:,}", "")
    table.add_row("turnover a year", f"{metrics.turnover:.1f}×", "")
    table.add_row("fees, share of value", f"{metrics.fees:.2%}", "")
    table.add_row("mean exposure", f"{metrics.exposure:.1%}", "")
    return table


def draw_replay(
    path: Path,
    time: NDArray[np.int64],
    returns: NDArray[np.float64],
    equal_weight: NDArray[np.float64],
    exposure: NDArray[np.float64],
    bundle: Bundle,
) -> None:
    """Write a PNG: equity of the champion and of equal weight from 1, its drawdown, and its exposure.

    time, returns, equal_weight, exposure: (L,), one per bar.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.5), dpi=110)
    FigureCanvasAgg(figure)
    figure.subplots_adjust(left=0.08, right=0.95, bottom=0.06, top=0.94, hspace=0.1)
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[4, 1.3, 1])
    dates = pd.to_datetime(time, unit="s", utc=True).to_numpy()
    own, equal = equity(returns), equity(equal_weight)
    top.plot(
        dates,
        equal[1:],
        color="tab:gray",
        linewidth=1.4,
        label=f"equal weight  {percent(float(equal[-1]) - 1.0)}",
    )
    top.plot(
        dates,
        own[1:],
        color="tab:blue",
        linewidth=1.4,
        label=f"champion {bundle.name}  {percent(float(own[-1]) - 1.0)}",
    )
    top.set_ylabel("value, start = 1")
    top.legend(loc="best")
    origins = name_trials([trial.origin.trial for trial in bundle.manifest.trials])
    synthetic = " (synthetic market)" if bundle.manifest.data.synthetic else ""
    top.set_title(
        f"Paper replay: {bundle.origin.study}, {origins}, {len(bundle.manifest.tickers)} assets, "
        f"{bundle.manifest.timeframe}{synthetic}"
    )
    for value, colour in ((equal, "tab:gray"), (own, "tab:blue")):
        middle.plot(
            dates,
            -100.0 * (1.0 - value / np.maximum.accumulate(value))[1:],
            color=colour,
            linewidth=1.0,
        )
    middle.set_ylabel("drawdown, %")
    bottom.fill_between(dates, 0.0, 100.0 * exposure, color="tab:blue", alpha=0.35, linewidth=0.0)
    bottom.set_ylabel("invested, %")
    bottom.set_ylim(0, 105)
    for axes in (top, middle, bottom):
        axes.grid(alpha=0.3)
    write_atomic(path, lambda temporary: figure.savefig(temporary, format="png"))


def print_promotion(console: Console, promotion: Promotion) -> None:
    """Print the report."""
    console.print(promotion_view(promotion))
