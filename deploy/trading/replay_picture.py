"""The picture of a replay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from deploy.market.bundle import Bundle
from deploy.market.promote import name_trials
from envs.crypto.scoring.metrics import equity
from envs.support.files import write_atomic
from envs.support.formatting import percent


def draw_replay(
    path: Path,
    time: NDArray[np.int64],
    returns: NDArray[np.float64],
    equal_weight: NDArray[np.float64],
    exposure: NDArray[np.float64],
    bundle: Bundle,
) -> None:
    """Write a PNG: equity of the champion and of equal weight, their drawdown, and the exposure.

    Args:
        path: the file.
        time: opens of the bars, (L,) seconds since the epoch.
        returns: per-bar returns of the champion, (L,).
        equal_weight: per-bar returns of equal weight, (L,).
        exposure: invested share of the portfolio's value, (L,).
        bundle: the champion.
    """
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
