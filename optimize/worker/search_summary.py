"""What a study's trials show about its parameters and its cost, as lines of the closing summary."""

from __future__ import annotations

from typing import Any

from sweepd.envs.support.formatting import counted, duration
from sweepd.optimize.study.insight.axes import study_axes
from sweepd.optimize.study.insight.importance import importances
from sweepd.optimize.study.insight.parameters import frontier, racing
from sweepd.optimize.study.study import StudyHandle

SHOWN_PARAMETERS, SHOWN_FRONT, SHOWN_GROUPS = 5, 4, 6


def search_lines(handle: StudyHandle) -> list[str]:
    """Return importances, the frontier of objective against cost, and the training received.

    Lines that would have no figure are left out.
    """
    rows = handle.rows.read()
    lines = []
    shares = importances(rows, study_axes(handle.space))
    if shares and any(shares.values()):
        first = list(shares.items())[:SHOWN_PARAMETERS]
        named = ", ".join(f"{name} {share:.0%}" for name, share in first)
        lines.append(f"importances (PED-ANOVA, what the best tenth of the trials share): {named}")
    front = frontier(rows)["front"][-SHOWN_FRONT:]
    if front:
        points = ", ".join(
            f"{one['value']:+.4f} after {duration(one['seconds'])} (trial {one['trial']})"
            for one in front
        )
        lines.append(f"objective against training time: {points}")
    received = racing(rows, handle.spec)
    if received:
        groups = [_group(one, handle) for one in received[:SHOWN_GROUPS]]
        more = ["…"] if len(received) > SHOWN_GROUPS else []
        lines.append("training received: " + "; ".join([*groups, *more]))
        lines.append(
            f"learning curves and parallel coordinates: sweepd dashboard --study-name {handle.name}"
        )
    return lines


def _group(one: dict[str, Any], handle: StudyHandle) -> str:
    members = counted(one["members"], handle.spec.member)
    rungs = f"{one['rungs']} of {handle.spec.rungs} rungs"
    return f"{counted(one['configurations'], 'configuration')} with {members}, {rungs}"
