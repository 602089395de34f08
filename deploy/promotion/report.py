"""The report on a promotion: what all kinds have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweepd.deploy.promotion.promotion import Outcome, Promotion, ResultT
from sweepd.deploy.promotion.rules import RuleFinding, loosened
from sweepd.deploy.promotion.sections import (
    Cell,
    Findings,
    Report,
    ReportPicture,
    ReportTable,
    ReportTerms,
    Section,
    capital,
    sentence,
    short,
    stage_verdict,
)
from sweepd.envs.support.formatting import counted, minute

# Of each outcome: the headline, and its style.
HEADLINES: Mapping[Outcome, tuple[str, str]] = {
    "promoted": ("Promoted: the candidate is the new champion", "pass"),
    "would promote": ("Would be promoted", "pass"),
    "champion already": ("It is the champion already", "pass"),
    "challenger": ("Kept as a challenger", "defer"),
    "none passes": ("No candidate passes", "defer"),
    "no candidate": ("No candidate", "defer"),
    "no hold-out": ("No hold-out", "defer"),
    "first stage": ("First stage only: no hold-out evaluation", "defer"),
}
SHOWN_CANDIDATES = 8


def promotion_report(
    promotion: Promotion[ResultT],
    *,
    evaluation: str,
    cells: Callable[[ResultT], Mapping[str, Cell]],
    about: Sequence[str],
    evidence: Sequence[Section],
    picture: ReportPicture | None,
    reading: ReportTerms,
    footer: str,
) -> Report:
    """The report on a promotion.

    Args:
        promotion: the promotion.
        evaluation: what an evaluation on unseen data is called.
        cells: a candidate's columns in the table of candidates.
        about: sentences on what was judged, one paragraph each.
        evidence: what the chosen candidate was judged by.
        picture: see `Report`.
        reading: see `Report`.
        footer: see `Report`.
    """
    chosen, sections = promotion.chosen, list[Section]()
    if promotion.candidates:
        sections.append(_candidates_table(promotion, cells))
    if chosen is not None:
        title = capital(chosen.candidate.name)
        if chosen.look is not None:
            title += f", {evaluation} {chosen.look.number}"
        sections += [Findings(title, chosen.findings), *evidence]
    headline, style = HEADLINES[promotion.outcome]
    champion = f"The champion of {promotion.slot} is {short(promotion.champion)}"
    if promotion.champion != promotion.champion_before:
        champion += f" (before: {short(promotion.champion_before)})"
    return Report(
        title=promotion.study,
        headline=headline + (" (limits loosened)" if promotion.loosened else ""),
        style="loosened" if promotion.loosened else style,
        verdict=verdict_terms(promotion),
        steps=promotion.steps,
        lines=[
            f"{champion}.",
            *([sentence(promotion.dry_run_note)] if promotion.dry_run else []),
            *([] if promotion.choice is None else [sentence(promotion.choice["sentence"])]),
            *about,
        ],
        sections=sections,
        picture=picture,
        reading=reading,
        footer=footer,
    )


def verdict_terms(promotion: Promotion[Any]) -> ReportTerms:
    """The lines of a verdict below its headline: why, how far, and the gate's power."""
    lines = (("why", promotion.reason), ("how far", promotion.how_far), ("power", promotion.power))
    return ReportTerms("", [(name, sentence(text)) for name, text in lines if text])


def _candidates_table(
    promotion: Promotion[ResultT], cells: Callable[[ResultT], Mapping[str, Cell]]
) -> ReportTable:
    """The best candidates with their results in each stage."""
    shown = promotion.candidates[:SHOWN_CANDIDATES]
    stages = list(dict.fromkeys(finding.stage for finding in shown[0].findings))
    head = [*cells(shown[0]), *stages]
    left, unread = (
        promotion.complete - len({trial for one in some for trial in one.candidate.trials})
        for some in (shown, promotion.candidates)
    )
    return ReportTable(
        f"Candidates of study {promotion.study} for slot {promotion.slot}",
        head,
        [
            [*cells(one).values(), *(stage_verdict(one.findings, stage) for stage in stages)]
            for one in shown
        ],
        f"{counted(left, 'more complete trial')}, {unread} not evaluated" if left > 0 else "",
        texts=range(len(head) - len(stages), len(head)),
    )


def identity(
    facts: Mapping[str, Any],
    own: Sequence[tuple[str, Cell]],
    evaluations: str,
    content: str = "weights",
) -> ReportTerms:
    """What a bundle is.

    Args:
        facts: of the bundle, with `bundle`, `weights_sha256`, `slots`, `code_version` and `look`.
        own: what its kind adds.
        evaluations: what its evaluations are called.
        content: what it holds.
    """
    terms: list[tuple[str, Cell]] = [
        ("hash", facts["bundle"]),
        (f"{content} (sha256)", facts["weights_sha256"]),
    ]
    for place in facts["slots"]:
        since = f" since {minute(place['since'])}: {place['why']}" if place["since"] else ""
        state = f"version {place['version']}, {place['is'] or 'not in use'}{since}"
        terms.append((f"slot {place['slot']}", state))
    terms += own
    if facts["look"] is not None:
        used = f"evaluations used so far: {facts['looks_now']}"
        terms.append(("evaluations", f"{evaluations} evaluation {facts['look']}; {used}"))
    return ReportTerms(f"Bundle {short(facts['bundle'])}", terms)


def gate_findings(facts: Mapping[str, Any]) -> list[Findings]:
    """The findings by which a bundle was promoted; none if it has no gate report.

    Args:
        facts: of the bundle, with `findings` as `RuleFinding.to_dict` returns them.
    """
    found = [RuleFinding(**finding) for finding in facts["findings"]]
    if not found:
        return []
    asked = " that could be asked" if any(one.verdict == "defer" for one in found) else ""
    limits = loosened(facts["findings"]) or ", at default limits or stricter ones"
    return [Findings("Gate", found, f"met every rule{asked}{limits}")]
