"""Promotions and metrics in the terminal."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table

from deploy.market.promote import MarketPromotion, MarketResult
from deploy.promotion import views
from deploy.promotion.findings import SYNTHETIC
from envs.crypto.scoring.metrics import Metrics
from envs.support.formatting import percent


def promotion_view(promotion: MarketPromotion) -> RenderableType:
    """The whole report of a promotion."""
    return views.promotion_view(
        promotion, cells=_cells, score=_score, note=SYNTHETIC if promotion.synthetic else ""
    )


def _cells(result: MarketResult) -> dict[str, str]:
    return {
        "trial": " ".join(str(number) for number in result.candidate.trials),
        "objective": f"{result.candidate.objective:+.3f}",
    }


def _score(result: MarketResult) -> Table:
    assert result.score is not None
    traded_by = (
        "the ensemble of the trial's fold members"
        if len(result.candidate.trials) == 1
        else "trials as sub-accounts, netted orders"
    )
    return metrics_table(result.score.metrics, f"Hold-out: {traded_by}, canonical policy path")


def metrics_table(metrics: Metrics, title: str) -> Table:
    """Metrics of a policy and of equal weight over the same bars."""
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
