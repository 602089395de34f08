"""The pictures of the report on a promotion on a market."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from sweepd.deploy.market.backtests import SearchStatistics, combine
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.candidates import MarketPromotion, MarketResult, MarketStudy
from sweepd.deploy.market.scoring import score_bundle
from sweepd.deploy.promotion.overfitting import Overfitting
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.crypto.scoring.metrics import equity
from sweepd.envs.crypto.scoring.selection import Deflation
from sweepd.envs.crypto.splits import window_of
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.bars import load_study_bars
from sweepd.optimize.study.record.spans import study_splits
from sweepd.optimize.study.record.trials import TrialRecord

Array = NDArray[np.float64]
OWN, EQUAL, CHAMPION, LUCK, GOOD, BAD = (
    "#1f5fa8",
    "#8a8a8a",
    "#2a9d5c",
    "#c0392b",
    "#2a9d5c",
    "#c0392b",
)
MOST_POINTS, MOST_TRIALS = 1500, 80


@dataclass(frozen=True, eq=False)
class PlotLine:
    """A line of an equity plot. returns: (L,) per bar. width, alpha: of the line."""

    label: str | None
    returns: Array
    colour: str
    width: float = 1.3
    alpha: float = 1.0


@dataclass(frozen=True, eq=False)
class EquityPlot:
    """One equity plot: opens of its bars (seconds), its lines and its title."""

    time: NDArray[np.int64]
    lines: Sequence[PlotLine]
    title: str


def draw_promotion(
    study: MarketStudy,
    promotion: MarketPromotion,
    search: SearchStatistics,
    registry: Registry,
    data_dir: Path,
) -> Figure:
    """All pictures of a promotion with a chosen candidate; what cannot be read is left out."""
    chosen = promotion.chosen
    assert chosen is not None
    selection = chosen.candidate.selection
    figure = Figure(figsize=(11.0, 12.5))
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(
        3,
        2,
        height_ratios=[3.0, 2.0, 2.0],
        left=0.09,
        right=0.97,
        top=0.96,
        bottom=0.06,
        hspace=0.33,
        wspace=0.28,
    )
    plots = [*_back_test(study, chosen), *_holdout(study, promotion, registry, data_dir)]
    for index, plot in enumerate(plots):
        place = grid[0, :] if len(plots) == 1 else grid[0, index]
        halves = place.subgridspec(2, 1, height_ratios=[2.6, 1.0], hspace=0.08)
        top = figure.add_subplot(halves[0])
        draw_equity(top, figure.add_subplot(halves[1], sharex=top), plot)
    name = chosen.candidate.name
    draw_sharpes(figure.add_subplot(grid[1, 0]), search, name, selection.deflation)
    draw_logits(figure.add_subplot(grid[1, 1]), selection.overfitting)
    folds = [
        (one.number, list(TrialRecord.from_attributes(one.user_attrs).scores or ()))
        for one in study.all_complete
    ]
    draw_folds(figure.add_subplot(grid[2, :]), folds, chosen.candidate.trials)
    for axes in figure.axes:
        axes.tick_params(labelsize=7)
        axes.xaxis.label.set_fontsize(7)
        axes.yaxis.label.set_fontsize(7)
    return figure


def _back_test(study: MarketStudy, chosen: MarketResult) -> list[EquityPlot]:
    """The equity of the candidate's paths; nothing if they cannot be read."""
    trials = [part.trial for part in chosen.candidate.parts]
    timeframe = study.spec.data.timeframe
    with contextlib.suppress(OSError, ValueError, KeyError):
        found = combine(trials, chosen.candidate.shares, study.run_dir, timeframe)
        name = f"{chosen.candidate.name}, one line per path"
        lines = [PlotLine("equal weight", found.paths.equal_weight[0], EQUAL)]
        lines += [
            PlotLine(name if row == 0 else None, returns, OWN, 0.9, 0.7)
            for row, returns in enumerate(found.paths.returns)
        ]
        return [EquityPlot(found.time, lines, "Cross-validation: bars not used in training")]
    return []


def _holdout(
    study: MarketStudy, promotion: MarketPromotion, registry: Registry, data_dir: Path
) -> list[EquityPlot]:
    """The equity over the hold-out; nothing if the candidate was not scored there."""
    chosen = promotion.chosen
    if chosen is None or chosen.score is None:
        return []
    score, before = chosen.score, promotion.champion_before
    lines = [
        PlotLine("equal weight", score.equal_weight, EQUAL),
        PlotLine(chosen.candidate.name, score.returns, OWN),
    ]
    if before is not None and (chosen.bundle is None or before != chosen.bundle.hash):
        with contextlib.suppress(InputError):  # other assets, or another length of bars
            bars = load_study_bars(study.spec.data, data_dir)
            window = window_of(study_splits(study.spec).holdout)
            returns = score_bundle(registry.bundle(before, Bundle), bars, window).returns
            if len(returns) == len(score.returns):
                lines.append(PlotLine("present champion", returns, CHAMPION))
    return [EquityPlot(score.time, lines, "Hold-out: bars that no trial used")]


def draw_equity(top: Axes, bottom: Axes, plot: EquityPlot) -> None:
    """Plot the value of one unit over time, and below it the drawdown.

    Args:
        top: axes of the value, logarithmic.
        bottom: axes of the drawdown.
        plot: what to plot.
    """
    stride = max(1, len(plot.time) // MOST_POINTS)
    dates = pd.to_datetime(plot.time, unit="s").to_numpy()[::stride]
    for curve in plot.lines:
        value = equity(curve.returns)
        under = 100.0 * (value / np.maximum.accumulate(value) - 1.0)
        style = {"color": curve.colour, "linewidth": curve.width, "alpha": curve.alpha}
        top.plot(dates, value[1:][::stride], label=curve.label, **style)  # type: ignore[arg-type]
        bottom.plot(dates, under[1:][::stride], **style)  # type: ignore[arg-type]
    top.set_yscale("log")
    _plain_numbers(top)
    top.set_title(plot.title, fontsize=9, loc="left")
    top.set_ylabel("value, start = 1")
    top.legend(loc="best", fontsize=7)
    top.tick_params(labelbottom=False)
    bottom.set_ylabel("below peak, %")
    # More dates overlap on paper.
    bottom.xaxis.set_major_locator(AutoDateLocator(maxticks=7))  # type: ignore[no-untyped-call]
    for label in bottom.get_xticklabels():
        label.set_rotation(20)
        label.set_horizontalalignment("right")
    _grid(top, bottom)


def draw_logits(axes: Axes, found: Overfitting | None) -> None:
    """Plot the distribution of the PBO's logits."""
    axes.set_title("Does the best trial stay good on other bars?", fontsize=9, loc="left")
    if found is None:
        _say(axes, "needs at least two trials\nthat reached the final rung")
        return
    edges = np.histogram_bin_edges(found.logits, bins=min(30, max(6, len(np.unique(found.logits)))))
    edges = np.unique(
        np.concatenate([edges[edges < 0], [np.nextafter(0.0, 1.0)], edges[edges > 0]])
    )
    counts, _ = np.histogram(found.logits, edges)
    colours = [BAD if edge <= 0 else GOOD for edge in edges[:-1]]
    axes.bar(
        edges[:-1],
        100.0 * counts / len(found.logits),
        np.diff(edges),
        align="edge",
        color=colours,
        alpha=0.8,
    )
    axes.axvline(0.0, color="black", linewidth=1)
    axes.set_xlabel("rank on the other half (logit): left of 0 worse than the median trial")
    axes.set_ylabel("% of the ways to halve")
    share = f"PBO {found.pbo:.1%}"
    axes.text(
        0.98, 0.97, share, transform=axes.transAxes, ha="right", va="top", fontsize=9, weight="bold"
    )
    _grid(axes)


def draw_sharpes(
    axes: Axes, search: SearchStatistics, name: str, deflation: Deflation | None
) -> None:
    """Plot annual information ratios: of all trials on the median path, the candidate, and luck."""
    axes.set_title("Is the chosen trial better than luck?", fontsize=9, loc="left")
    if deflation is None:
        _say(axes, "the trial stored no back-test path")
        return
    values = search.annual * search.returns.sharpes[:, deflation.path]
    axes.hist(
        values,
        bins=min(30, max(8, len(values) // 3)),
        color=EQUAL,
        alpha=0.6,
        label=f"{len(values)} trials",
    )
    by_luck = f"best of {deflation.trials} by luck"
    if deflation.diversification > 1.0:
        by_luck += f" × {deflation.diversification:.2f} for several"
    for value, colour, label in (
        (search.annual * deflation.moments.sharpe, OWN, name),
        (search.annual * deflation.luck, LUCK, by_luck),
        (search.annual * deflation.needed, GOOD, "needed"),
    ):
        style = "--" if label == "needed" else "-"
        axes.axvline(
            value, color=colour, linewidth=1.8, linestyle=style, label=f"{label}: {value:+.2f}"
        )
    axes.set_xlabel("annual information ratio over equal weight")
    axes.set_ylabel("trials")
    axes.set_ylim(0, 1.45 * axes.get_ylim()[1])  # room for the legend
    axes.legend(fontsize=7, loc="upper left")
    _grid(axes)


def draw_folds(
    axes: Axes, scores: Sequence[tuple[int, Sequence[float]]], framed: Sequence[int]
) -> None:
    """Plot the score of every fold (row) of every trial (column, best objective first).

    Args:
        axes: the axes.
        scores: trial number and scores of its folds.
        framed: the candidate's trials.
    """
    axes.set_title("Is it good in every fold?", fontsize=9, loc="left")
    shown = [(trial, folds) for trial, folds in scores if len(folds)][:MOST_TRIALS]
    if not shown:
        _say(axes, "the trials stored no fold scores")
        return
    grid = np.array([folds for _, folds in shown], dtype=np.float64).T
    most = max(float(np.quantile(np.abs(grid), 0.95)), 1e-9)
    picture = axes.imshow(
        grid, aspect="auto", cmap="RdBu", vmin=-most, vmax=most, interpolation="nearest"
    )
    figure = axes.get_figure()
    assert figure is not None
    figure.colorbar(picture, ax=axes, label="score of the fold", pad=0.02)
    every = max(1, len(shown) // 12)
    axes.set_xticks(
        range(0, len(shown), every), [str(trial) for trial, _ in shown[::every]], fontsize=6
    )
    axes.set_yticks(range(grid.shape[0]))
    axes.set_xlabel("trial, best first")
    axes.set_ylabel("fold")
    for column in (index for index, (trial, _) in enumerate(shown) if trial in framed):
        axes.add_patch(
            Rectangle(
                (column - 0.5, -0.5), 1, grid.shape[0], fill=False, edgecolor="black", linewidth=1.5
            )
        )


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=EQUAL)
    axes.set_xticks([])
    axes.set_yticks([])


def _grid(*every: Axes) -> None:
    for axes in every:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)


def _plain_numbers(axes: Axes) -> None:
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
