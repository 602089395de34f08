"""The report on a promotion on a market: its facts in sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweepd.deploy.market.candidates import MarketStudy, name_trials
from sweepd.deploy.market.promote import MarketPromotion, MarketResult
from sweepd.deploy.promotion.report import promotion_report
from sweepd.deploy.promotion.sections import SYNTHETIC, Picture, Report, Table, Terms, capital
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.crypto.scoring.figures import COLUMNS, TITLE, figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOOTER = "Research software, paper trading only. Past results do not predict future ones."
READING = Terms(
    "How to read this",
    (
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
    ),
)


def market_report(
    study: MarketStudy, promotion: MarketPromotion, registry: Registry, data_dir: Path
) -> Report:
    """The report on a promotion.

    Args:
        study: the study.
        promotion: of one of its candidates.
        registry: where the slot's champion is.
        data_dir: folder of the bars.
    """
    chosen, judged = promotion.chosen, promotion.search is not None
    evidence, picture = list[Table](), None
    if chosen is not None and judged:
        candidate, score = chosen.candidate, chosen.score
        holdout = {} if score is None else score.report()
        evidence = metrics_tables(candidate.trials, candidate.metrics, holdout)
        picture = Picture(
            "Equity, Sharpe ratios, ranks out of sample and fold scores",
            partial(_draw, study, promotion, registry, data_dir),
        )
    return promotion_report(
        promotion,
        cells=_cells,
        about=_about(promotion),
        evidence=evidence,
        picture=picture,
        reading=READING,
        footer=FOOTER,
    )


def metrics_tables(
    trials: Sequence[int], over_paths: Mapping[str, Any], holdout: Mapping[str, Any]
) -> list[Table]:
    """The metrics that trials were judged by; see `sweepd.envs.crypto.scoring.figures`.

    Args:
        trials: their numbers.
        over_paths: in cross-validation; empty if the trial recorded none.
        holdout: as `Score.report` returns it; empty if they were not scored there.
    """
    tables = []
    if over_paths:
        tables.append(_table(f"{capital(name_trials(trials))}, {TITLE}", over_paths))
    if holdout:
        traded_by = (
            "the ensemble of the trial's fold members"
            if len(trials) == 1
            else "trials as sub-accounts, netted orders"
        )
        span = f"{holdout['bars']:,} bars, {holdout['first']} to {holdout['last']}"
        tables.append(_table(f"Hold-out, {span}: {traded_by}, canonical policy path", holdout))
    return tables


def _table(title: str, metrics: Mapping[str, Any]) -> Table:
    return Table(title, ("", *COLUMNS), [one.cells for one in figures(metrics)])


def _cells(result: MarketResult) -> dict[str, str]:
    return {
        "trial": " ".join(str(number) for number in result.candidate.trials),
        "objective": f"{result.candidate.objective:+.4f}",
    }


def _about(promotion: MarketPromotion) -> list[str]:
    search, chosen = promotion.search, promotion.chosen
    lines = []
    if search is not None and chosen is not None:
        judged = (
            "in cross-validation alone"
            if chosen.look is None
            else f"in cross-validation and by hold-out evaluation {chosen.look.number}"
        )
        lines.append(
            f"Study {promotion.study}: {search.trials} trials, {len(search.backtests)} of them at "
            f"the final rung; {search.bars:,} bars of {search.timeframe}. "
            f"{capital(chosen.candidate.name)} was judged {judged}. Hold-out evaluations used, in "
            f"this registry: {promotion.looks}."
        )
    return [*lines, *([SYNTHETIC] if promotion.synthetic else [])]


def _draw(
    study: MarketStudy, promotion: MarketPromotion, registry: Registry, data_dir: Path
) -> Figure:
    from sweepd.deploy.market.pictures import draw_promotion  # imports matplotlib

    return draw_promotion(study, promotion, registry, data_dir)
