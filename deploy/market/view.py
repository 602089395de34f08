"""Promotions and metrics in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType

from sweepd.deploy.market.promote import MarketPromotion, MarketResult
from sweepd.deploy.promotion import views
from sweepd.deploy.promotion.findings import SYNTHETIC
from sweepd.envs.crypto.scoring.figures import TITLE, figures_table


def promotion_view(promotion: MarketPromotion) -> RenderableType:
    """The whole report of a promotion."""
    return views.promotion_view(
        promotion, cells=_cells, evidence=_evidence, note=SYNTHETIC if promotion.synthetic else ""
    )


def _cells(result: MarketResult) -> dict[str, str]:
    return {
        "trial": " ".join(str(number) for number in result.candidate.trials),
        "objective": f"{result.candidate.objective:+.4f}",
    }


def _evidence(result: MarketResult) -> list[RenderableType]:
    return [figures_table(metrics, title) for title, metrics in judged_metrics(result)]


def judged_metrics(result: MarketResult) -> list[tuple[str, Mapping[str, Any]]]:
    """Titles and metrics of what a candidate was judged by.

    Returns:
        Cross-validation, unless the trial recorded no metrics, and the hold-out if the candidate was
        scored there; see `sweepd.envs.crypto.scoring.figures`.
    """
    candidate, found = result.candidate, []
    if candidate.metrics:
        name = f"{candidate.name[:1].upper()}{candidate.name[1:]}"
        found.append((f"{name}, {TITLE}", candidate.metrics))
    if result.score is not None:
        traded_by = (
            "the ensemble of the trial's fold members"
            if len(candidate.trials) == 1
            else "trials as sub-accounts, netted orders"
        )
        bars = f"{result.score.metrics.bars:,} bars"
        title = f"Hold-out, {bars}: {traded_by}, canonical policy path"
        found.append((title, result.score.to_dict()))
    return found
