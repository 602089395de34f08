"""Tables and panels of promotions and bundles in the terminal, for markets and games alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sweepd.deploy.promotion.findings import findings_table, short, stage_text
from sweepd.deploy.promotion.promotion import Outcome, Promotion, ResultT
from sweepd.deploy.registry.bundle_files import NAME_DIGITS
from sweepd.envs.support.formatting import counted, minute

HEADLINES: Mapping[Outcome, tuple[str, str]] = {
    "promoted": ("PROMOTED", "bold green"),
    "would promote": ("WOULD BE PROMOTED", "bold green"),
    "champion already": ("CHAMPION ALREADY", "green"),
    "challenger": ("KEPT AS CHALLENGER", "yellow"),
    "none passes": ("NO CANDIDATE PASSES", "bold yellow"),
    "no candidate": ("NO CANDIDATE", "bold yellow"),
    "no hold-out": ("NO HOLD-OUT", "bold yellow"),
    "first stage": ("FIRST STAGE", "bold yellow"),
}


SHOWN_CANDIDATES = 8


def promotion_view(
    promotion: Promotion[ResultT],
    *,
    cells: Callable[[ResultT], Mapping[str, str]],
    evidence: Callable[[ResultT], Sequence[RenderableType]],
    note: str,
) -> RenderableType:
    """The whole report of a promotion.

    Args:
        promotion: the promotion.
        cells: a candidate's columns in the table of candidates.
        evidence: views of what the chosen candidate was judged by.
        note: a remark below the verdict.
    """
    parts: list[RenderableType] = []
    chosen = promotion.chosen
    if promotion.candidates:
        parts.append(candidates_table(promotion, cells))
    if chosen is not None:
        name = chosen.candidate.name
        title = f"{name[:1].upper()}{name[1:]}"
        if chosen.look is not None:
            title += f", {chosen.findings[-1].stage} evaluation {chosen.look.number}"
        parts.append(findings_table(title, chosen.findings))
        parts += evidence(chosen)
    parts.append(verdict_panel(promotion, note))
    return Group(*parts)


def candidates_table(
    promotion: Promotion[ResultT], cells: Callable[[ResultT], Mapping[str, str]]
) -> Table:
    """The best candidates with their results in each stage."""
    table = Table(
        title=f"Candidates of study {promotion.study} for slot {promotion.slot}",
        title_justify="left",
    )
    shown = promotion.candidates[:SHOWN_CANDIDATES]
    stages = list(dict.fromkeys(finding.stage for finding in shown[0].findings))
    for name in cells(shown[0]):
        table.add_column(name, justify="right")
    for stage in stages:
        table.add_column(stage)
    for one in shown:
        table.add_row(*cells(one).values(), *(stage_text(one.findings, stage) for stage in stages))
    left, unread = (
        promotion.complete - len({trial for one in some for trial in one.candidate.trials})
        for some in (shown, promotion.candidates)
    )
    if left > 0:
        table.caption = f"{counted(left, 'more complete trial')}, {unread} not evaluated"
    return table


def verdict_panel(promotion: Promotion[Any], note: str = "") -> Panel:
    """The outcome, its reason, the slot's champion, and a note."""
    text = Text()
    headline, style = HEADLINES[promotion.outcome]
    text.append(headline, style=style)
    if promotion.loosened:
        text.append(" (LIMITS LOOSENED)", style="bold yellow")
    text.append(f"\n{promotion.reason}.\n")
    text.append(f"champion of {promotion.slot}: {short(promotion.champion)}")
    if promotion.champion != promotion.champion_before:
        text.append(f" (before: {short(promotion.champion_before)})")
    if promotion.dry_run:
        text.append(f"\n{promotion.dry_run_note}")
    if note:
        text.append(f"\n{note}", style="dim")
    return Panel(text, title="Verdict", title_align="left")


def identity_table(facts: Mapping[str, Any]) -> Table:
    """A bundle's hashes and slots. facts: has `bundle`, `weights_sha256` and `slots`."""
    identity = Table.grid(padding=(0, 2))
    identity.add_column(style="dim", no_wrap=True)
    identity.add_column(overflow="fold")
    identity.add_row("hash", facts["bundle"])
    identity.add_row("weights (sha256)", facts["weights_sha256"])
    for place in facts["slots"]:
        since = f" since {minute(place['since'])}: {place['why']}" if place["since"] else ""
        identity.add_row(
            f"slot {place['slot']}",
            f"version {place['version']}, {place['is'] or 'not in use'}{since}",
        )
    return identity


def bundle_panel(
    facts: Mapping[str, Any], parts: Sequence[RenderableType], parameters: RenderableType
) -> Panel:
    """A bundle on one screen: the parts below each other, then the parameters."""
    last = (Text("parameters", style="bold"), Padding(parameters, (0, 0, 0, 1)))
    return Panel(
        Group(*parts, *last), title=f"bundle {facts['bundle'][:NAME_DIGITS]}", title_align="left"
    )


def columns(values: Mapping[str, Any]) -> Columns:
    """Names and values, side by side."""
    parts = [
        Text.assemble((name, "dim"), " ", plain_value(value)) for name, value in values.items()
    ]
    return Columns(parts, padding=(0, 3))


def plain_value(value: Any) -> str:
    """A manifest's value with few digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return " ".join(plain_value(item) for item in value)
    return "-" if value is None else str(value)
