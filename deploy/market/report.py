"""The gate report, as HTML and PDF, for readers who do not know the terms."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sweepd.deploy.market.backtests import Combination, combine
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.candidates import MarketStudy
from sweepd.deploy.market.pictures import (
    CHAMPION,
    EQUAL,
    OWN,
    PlotLine,
    draw_equity,
    draw_folds,
    draw_logits,
    draw_sharpes,
)
from sweepd.deploy.market.promote import MarketPromotion, MarketResult
from sweepd.deploy.market.scoring import score_bundle
from sweepd.deploy.market.view import judged_metrics
from sweepd.deploy.promotion.findings import SYNTHETIC, colour_of, findings_page, limit, number
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.crypto.scoring.figures import COLUMNS, figures
from sweepd.envs.crypto.splits import window_of
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic
from sweepd.optimize.study.record.bars import load_study_bars
from sweepd.optimize.study.record.spans import study_splits
from sweepd.optimize.study.record.stored import TrialRecord

FOOTER = "Research software, paper trading only. Past results do not predict future ones."
READING = (
    (
        "What is tested",
        "A search tries many settings and keeps the best. Even if none of them had any skill, the "
        "best would look good, and better the more are tried. The rules test whether this one is "
        "better than that: first on bars that its training did not use (cross-validation), and "
        "only then on the newest bars, which the search did not use (the hold-out).",
    ),
    (
        "Hold-out evaluations",
        "Each evaluation on a hold-out makes it more likely that some candidate passes by luck, so "
        "each has half the significance level of the one before. Evaluations are counted over all "
        "studies whose hold-outs overlap in time and share a base asset (quote currencies do not "
        "matter), in this registry only. Evaluations in another registry (another deployments "
        "folder or database) or with other programs are unknown here; if there were any, the limit "
        "of holdout-excess is too mild.",
    ),
    (
        "After and before fees",
        "Before fees means the same trades without their fees; slippage remains. So the difference is "
        "what the fees took. Equal weight holds all assets in equal shares.",
    ),
    (
        "Equity",
        "The value of one unit of money after fees, compared with holding all assets in equal "
        "shares; below it, the drawdown from the highest value. Cross-validation has one line per "
        "path: the same bars, traded by policies trained on different parts of the other bars.",
    ),
    (
        "Better than luck?",
        "The information ratio is the Sharpe ratio (return per risk) of the returns in excess of "
        "equal weight. Grey: all trials that reached the final rung. Red: the expected best of "
        "that many trials without any skill. Dashed: the ratio that is needed to be 95% sure that "
        "it is more than that (deflated Sharpe ratio).",
    ),
    (
        "Good on other bars?",
        "The bars are cut in halves in thousands of ways. Each time, the trial that is best on one "
        "half is ranked on the other. If choosing the best means anything, it mostly ranks above "
        "the median there (right of 0). The share of halves in which it does not is the "
        "probability of back-test overfitting (PBO); pure chance gives 50%.",
    ),
    (
        "Good in every fold?",
        "Blue is better than holding equal weight, red is worse. A column that is blue throughout "
        "is good in every fold; one that is blue in a single row was lucky once. The candidate is "
        "framed.",
    ),
)


@dataclass(frozen=True, eq=False)
class ReportData:
    """Data for the pictures that the promotion itself does not have.

    Attributes:
        backtest: the candidate's back-test, None if its paths cannot be read.
        champion: (L,) returns of the present champion over the hold-out, None if there is none.
        folds: trial number and fold scores, best objective first.
    """

    backtest: Combination | None
    champion: NDArray[np.float64] | None
    folds: Sequence[tuple[int, Sequence[float]]]


def write_report(
    study: MarketStudy, promotion: MarketPromotion, registry: Registry, data_dir: Path
) -> list[Path]:
    """Write `gate.html` and `gate.pdf` into the study's run directory.

    Nothing is written if no candidate was judged.

    Returns:
        Paths of the written files.
    """
    if promotion.chosen is None or promotion.search is None:
        return []
    chosen, material = promotion.chosen, collect(study, promotion, registry, data_dir)
    folder = study.run_dir / "gate"
    paths = [folder / "gate.html", folder / "gate.pdf"]
    write_atomic(paths[0], to_html(promotion, chosen, material))
    write_atomic(paths[1], lambda path: write_pdf(path, promotion, chosen, material))
    return paths


def collect(
    study: MarketStudy, promotion: MarketPromotion, registry: Registry, data_dir: Path
) -> ReportData:
    """Read the data for the pictures; data that cannot be read is left out."""
    chosen = promotion.chosen
    assert chosen is not None
    trials = [part.trial for part in chosen.candidate.parts]
    backtest = None
    with contextlib.suppress(OSError, ValueError, KeyError):
        backtest = combine(
            trials, chosen.candidate.shares, study.run_dir, study.spec.data.timeframe
        )
    folds = [
        (one.number, list(TrialRecord.from_attributes(one.user_attrs).scores or ()))
        for one in study.complete
    ]
    return ReportData(backtest, _champion_returns(study, promotion, registry, data_dir), folds)


def _champion_returns(
    study: MarketStudy, promotion: MarketPromotion, registry: Registry, data_dir: Path
) -> NDArray[np.float64] | None:
    """Returns of another champion over the hold-out; None if there is nothing to compare."""
    chosen, before = promotion.chosen, promotion.champion_before
    if chosen is None or chosen.score is None or before is None:
        return None
    if chosen.bundle is not None and before == chosen.bundle.hash:
        return None
    try:
        bars = load_study_bars(study.spec.data, data_dir)
        window = window_of(study_splits(study.spec).holdout)
        return score_bundle(registry.bundle(before, Bundle), bars, window).returns
    except InputError:  # other assets, or another length of bars
        return None


def summary(promotion: MarketPromotion) -> list[str]:
    """The summary, one paragraph each."""
    search, chosen = promotion.search, promotion.chosen
    assert search is not None
    assert chosen is not None
    judged = (
        "in cross-validation alone"
        if chosen.look is None
        else f"in cross-validation and by hold-out evaluation {chosen.look.number}"
    )
    lines = [
        f"Study {promotion.study}: {search.trials} trials, {len(search.backtests)} of them at the "
        f"final rung; {search.bars:,} bars of {search.timeframe}. This page is about "
        f"{chosen.candidate.name}, judged {judged}, for the deployment slot "
        f"{promotion.slot}. Hold-out evaluations used, in this registry: {promotion.looks}."
    ]
    if promotion.outcome != "none passes":
        lines.append(promotion.reason[:1].upper() + promotion.reason[1:] + ".")
    else:
        helps = promotion.reason.partition("What helps:")
        lines.append(
            "This is a normal result: most searches find nothing that beats holding equal weight "
            "after fees." + (f" What helps:{helps[2]}." if helps[2] else "")
        )
    if promotion.synthetic:
        lines.append(SYNTHETIC)
    return lines


def pictures(
    promotion: MarketPromotion,
    chosen: MarketResult,
    material: ReportData,
    size: tuple[float, float],
) -> Figure:
    """All pictures on one page."""
    search = promotion.search
    assert search is not None
    figure = Figure(figsize=size)
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
    equities = _equities(chosen, material)
    for index, (time, curves, title) in enumerate(equities):
        place = grid[0, :] if len(equities) == 1 else grid[0, index]
        halves = place.subgridspec(2, 1, height_ratios=[2.6, 1.0], hspace=0.08)
        top = figure.add_subplot(halves[0])
        draw_equity(top, figure.add_subplot(halves[1], sharex=top), time, curves, title)
    draw_sharpes(
        figure.add_subplot(grid[1, 0]),
        search,
        chosen.candidate.name,
        chosen.candidate.selection.deflation,
    )
    draw_logits(figure.add_subplot(grid[1, 1]), chosen.candidate.selection.overfitting)
    draw_folds(figure.add_subplot(grid[2, :]), material.folds, chosen.candidate.trials)
    for axes in figure.axes:
        axes.tick_params(labelsize=7)
        axes.xaxis.label.set_fontsize(7)
        axes.yaxis.label.set_fontsize(7)
    return figure


def _equities(
    chosen: MarketResult, material: ReportData
) -> list[tuple[NDArray[np.int64], list[PlotLine], str]]:
    """Bars, lines and title of each equity plot: cross-validation and hold-out, where known."""
    name, backtest, score = chosen.candidate.name, material.backtest, chosen.score
    plots = []
    if backtest is not None:
        curves = [PlotLine("equal weight", backtest.paths.equal_weight[0], EQUAL)]
        curves += [
            PlotLine(f"{name}, one line per path" if row == 0 else None, returns, OWN, 0.9, 0.7)
            for row, returns in enumerate(backtest.paths.returns)
        ]
        plots.append((backtest.time, curves, "Cross-validation: bars not used in training"))
    if score is not None:
        curves = [
            PlotLine("equal weight", score.equal_weight, EQUAL),
            PlotLine(name, score.returns, OWN),
        ]
        if material.champion is not None and len(material.champion) == len(score.returns):
            curves.append(PlotLine("present champion", material.champion, CHAMPION))
        plots.append((score.time, curves, "Hold-out: bars that no trial used"))
    return plots


def to_html(promotion: MarketPromotion, chosen: MarketResult, material: ReportData) -> str:
    """The report as one self-contained page."""
    return findings_page(
        title=promotion.study,
        headline=promotion.headline,
        opening=summary(promotion),
        findings=chosen.findings,
        tables=_tables(chosen),
        picture=pictures(promotion, chosen, material, (11.0, 12.5)),
        described="Equity, Sharpe ratios, ranks out of sample and fold scores",
        reading=READING,
        footer=FOOTER,
    )


def _tables(chosen: MarketResult) -> list[tuple[str, list[Sequence[str]]]]:
    """Title and rows of the metrics after and before fees."""
    head = ("", *COLUMNS)
    return [
        (title, [head, *(one.cells for one in figures(metrics))])
        for title, metrics in judged_metrics(chosen)
    ]


def write_pdf(
    path: Path, promotion: MarketPromotion, chosen: MarketResult, material: ReportData
) -> None:
    """Write the report as three A4 pages: rules and metrics, pictures, and how to read them."""
    with PdfPages(
        path, metadata={"Title": f"sweepd gate: {promotion.study}", "CreationDate": None}
    ) as pages:
        pages.savefig(_rules_page(promotion, chosen))
        pages.savefig(pictures(promotion, chosen, material, (8.27, 11.69)))
        pages.savefig(_reading_page())


class _TextPage:
    """An A4 page on which each block is wrapped and placed below the previous one."""

    def __init__(self) -> None:
        self.figure = Figure(figsize=(8.27, 11.69))
        FigureCanvasAgg(self.figure)
        self.at = 0.955
        self.figure.text(0.07, 0.03, FOOTER, fontsize=7, color=EQUAL)

    def put(
        self, text: str, size: float, *, columns: int = 112, gap: float = 0.006, **style: str
    ) -> None:
        """Add a paragraph of text."""
        for line in textwrap.wrap(text, columns):
            self.figure.text(0.07, self.at, line, fontsize=size, va="top", **style)  # type: ignore[arg-type]
            self.at -= size * 0.00166
        self.at -= gap

    def row(self, cells: Sequence[str], size: float, **style: str) -> None:
        """Add a row of a table: text, then numbers."""
        self.figure.text(0.07, self.at, cells[0], fontsize=size, va="top", **style)  # type: ignore[arg-type]
        for place, cell in enumerate(cells[1:]):
            right = 0.52 + 0.14 * place
            self.figure.text(right, self.at, cell, fontsize=size, va="top", ha="right", **style)  # type: ignore[arg-type]
        self.at -= size * 0.00166


def _rules_page(promotion: MarketPromotion, chosen: MarketResult) -> Figure:
    page = _TextPage()
    page.put(promotion.headline, 16, columns=60, gap=0.012, weight="bold")
    for line in summary(promotion):
        page.put(line, 8.5)
    page.at -= 0.006
    for finding in chosen.findings:
        value = number(finding, "–")
        said, colour = finding.said, colour_of(finding)
        page.figure.text(0.93, page.at, said, fontsize=9, va="top", ha="right", color=colour)
        title = f"{finding.name}: {value} ({limit(finding)}), {finding.meaning}"
        page.put(title, 9, columns=95, gap=0.001, weight="bold")
        page.put(finding.explanation, 8, gap=0.008, color="#444444")
    for title, (head, *rows) in _tables(chosen):
        page.at -= 0.006
        page.put(title, 9, gap=0.003, weight="bold")
        page.row(head, 8, color="#444444")
        for row in rows:
            page.row(row, 8)
    return page.figure


def _reading_page() -> Figure:
    page = _TextPage()
    for term, text in READING:
        page.put(term, 9, gap=0.001, weight="bold")
        page.put(text, 8, columns=120, gap=0.008)
    return page.figure
