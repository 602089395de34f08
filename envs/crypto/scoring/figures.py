"""The metrics of a back-test as all screens show them: after and before fees, and equal weight.

A screen gets them as a mapping from names to numbers: the metrics of a trial's record
(`path_metrics`), or those of the hold-out (`window_metrics`). The same names are in JSON, in the
study's database and in trackers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

import numpy as np
from rich.table import Column, Table

from sweepd.envs.crypto.scoring import luck
from sweepd.envs.crypto.scoring.metrics import Metrics, PathTrades
from sweepd.envs.crypto.scoring.selection import median_path
from sweepd.envs.support.formatting import percent

BEFORE_FEES = "_before_fees"  # after the name of a metric
MEDIAN_RATIO = "information_ratio_median_path"
# Metrics that differ without fees.
_FREE = (
    "sharpe",
    "sortino",
    "information_ratio",
    "annual_return",
    "total_return",
    "excess_growth",
    "max_drawdown",
)
_PEERS = {
    "sharpe": "equal_weight_sharpe",
    "total_return": "equal_weight_return",
    "max_drawdown": "equal_weight_drawdown",
}
_ratio, _share = "{:+.2f}".format, "{:.1%}".format
# Of each metric: what it is called, and how it is formatted.
_SHOWN = {
    "sharpe": ("Sharpe ratio", _ratio),
    "sortino": ("Sortino ratio", _ratio),
    MEDIAN_RATIO: ("information ratio, median path", _ratio),
    "information_ratio": ("information ratio", _ratio),
    "annual_return": ("return a year", percent),
    "total_return": ("return, whole length", percent),
    "excess_growth": ("log growth over equal weight a year", _ratio),
    "max_drawdown": ("largest drawdown", _share),
    "turnover": ("turnover a year", "{:,.1f}x".format),
    "fees": ("fees paid", "{:.2%}".format),
    "exposure": ("mean exposure", _share),
    "trades": ("trades", "{:,.0f}".format),
}
COLUMNS = ("after fees", "before fees", "equal weight")
TITLE = "out of sample, cross-validated, mean over paths"  # of the metrics of `path_metrics`


@dataclass(frozen=True)
class Figure:
    """A metric as text.

    Attributes:
        name: of the metric.
        label: what it is called.
        after, before: after and before fees; "" where it does not depend on them, or is unknown.
        equal: of equal weight, "" where it is not computed.
    """

    name: str
    label: str
    after: str
    before: str
    equal: str

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The row of a table with the columns `COLUMNS`."""
        return self.label, self.after, self.before, self.equal


def shown(name: str, value: float) -> str:
    """Format a metric, such as `sharpe` or `equal_weight_return`."""
    name = next((own for own, peer in _PEERS.items() if peer == name), name)
    return _SHOWN[name.removesuffix(BEFORE_FEES)][1](value)


def figures(metrics: Mapping[str, Any]) -> list[Figure]:
    """Return the metrics that screens show, in their order; none of those of a game."""
    text = partial(_text, metrics)
    return [
        Figure(name, label, text(name), text(name + BEFORE_FEES), text(_PEERS.get(name, "")))
        for name, (label, _) in _SHOWN.items()
        if name in metrics
    ]


def figures_table(metrics: Mapping[str, Any], title: str) -> Table:
    """Return the metrics that screens show as a table for the terminal."""
    table = Table("", *(Column(name, justify="right") for name in COLUMNS))
    table.title, table.title_justify = title, "left"
    for one in figures(metrics):
        table.add_row(*one.cells)
    return table


def window_metrics(after: Metrics, before: Metrics) -> dict[str, float | int | str]:
    """Return the metrics of one window by name.

    Args:
        after: after fees.
        before: of the same trades before fees.
    """
    free = asdict(before)
    return asdict(after) | {name + BEFORE_FEES: free[name] for name in _FREE}


def path_metric_names() -> tuple[str, ...]:
    """Return the names of `path_metrics`."""
    names = [field.name for field in fields(Metrics) if field.type != "str"]
    names += [name + BEFORE_FEES for name in _FREE]
    return tuple(name.replace("information_ratio", MEDIAN_RATIO) for name in names)


def path_metrics(
    paths: PathTrades, timeframe: str, after: Sequence[Metrics], path: int | None = None
) -> dict[str, float]:
    """Return the metrics of a back-test by name: means over its paths.

    The information ratio is that of the median path (`MEDIAN_RATIO`), since the gate tests it; its
    mean over paths differs from it, and from the objective.

    Args:
        paths: trades of the back-test.
        timeframe: of the bars.
        after: metrics of each path.
        path: index of the median path; by default that of a single trial.
    """
    if path is None:
        excess = paths.returns - paths.equal_weight
        path = median_path([luck.moments(row) for row in excess])
    before = paths.before_fees().summarise(timeframe)
    every = [window_metrics(*pair) for pair in zip(after, before, strict=True)]
    found = {
        name: float(np.mean([float(one[name]) for one in every]))
        for name, value in every[0].items()
        if not isinstance(value, str)
    }
    for end in ("", BEFORE_FEES):
        del found["information_ratio" + end]
        found[MEDIAN_RATIO + end] = float(every[path]["information_ratio" + end])
    return found


def _text(metrics: Mapping[str, Any], name: str) -> str:
    return shown(name, metrics[name]) if name in metrics else ""
