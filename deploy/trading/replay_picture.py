"""The picture of a replay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.candidates import name_trials
from sweepd.deploy.market.scoring import Score
from sweepd.envs.crypto.scoring.metrics import equity
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.formatting import percent


def draw_replay(path: Path, score: Score, bundle: Bundle) -> None:
    """Write a PNG: equity of the champion and of equal weight, their drawdown, and the exposure.

    Args:
        path: the file.
        score: of the replay.
        bundle: the champion.
    """
    figure = Figure(figsize=(10, 6.5), dpi=110)
    FigureCanvasAgg(figure)
    figure.subplots_adjust(left=0.08, right=0.95, bottom=0.06, top=0.94, hspace=0.1)
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[4, 1.3, 1])
    dates = pd.to_datetime(score.time, unit="s", utc=True).to_numpy()
    own, equal = equity(score.returns), equity(score.equal_weight)
    for value, colour, name in (
        (equal, "tab:gray", "equal weight"),
        (own, "tab:blue", f"champion {bundle.name}"),
    ):
        label = f"{name}  {percent(float(value[-1]) - 1.0)}"
        top.plot(dates, value[1:], color=colour, linewidth=1.4, label=label)
        fallen = 100.0 * (value / np.maximum.accumulate(value) - 1.0)[1:]
        middle.plot(dates, fallen, color=colour, linewidth=1.0)
    top.set_ylabel("value, start = 1")
    top.legend(loc="best")
    origins = name_trials([trial.origin.trial for trial in bundle.manifest.trials])
    synthetic = " (synthetic market)" if bundle.manifest.data.synthetic else ""
    top.set_title(
        f"Paper replay: {bundle.origin.study}, {origins}, {len(bundle.manifest.tickers)} assets, "
        f"{bundle.manifest.timeframe}{synthetic}"
    )
    middle.set_ylabel("drawdown, %")
    invested = 100.0 * score.exposure
    bottom.fill_between(dates, 0.0, invested, color="tab:blue", alpha=0.35, linewidth=0.0)
    bottom.set_ylabel("invested, %")
    bottom.set_ylim(0, 105)
    for axes in (top, middle, bottom):
        axes.grid(alpha=0.3)
    write_atomic(path, lambda temporary: figure.savefig(temporary, format="png"))
