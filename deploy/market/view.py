"""Promotions and metrics in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from deploy.market.promote import MarketPromotion, MarketResult
from deploy.promotion.findings import SYNTHETIC, findings_table, stage_text
from deploy.promotion.views import verdict_panel
from envs.crypto.scoring.metrics import Metrics
from envs.support.formatting import counted, percent

SHOWN_CANDIDATES = 8


def promotion_view(promotion: MarketPromotion) -> RenderableType:
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
                    else "Hold-out: trials as sub-accounts, netted orders, canonical policy path",
                )
            )
    parts.append(verdict_panel(promotion, SYNTHETIC if promotion.synthetic else ""))
    return Group(*parts)


def candidates_table(promotion: MarketPromotion) -> Table:
    """The best candidates with their results in each stage."""
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
        table.caption = f"{counted(left, 'more complete trial')}, {unasked} not evaluated"
    return table


def _title(judged: MarketResult) -> str:
    look = f", hold-out evaluation {judged.look.number}" if judged.look else ""
    return f"{judged.name[:1].upper()}{judged.name[1:]}{look}"


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
