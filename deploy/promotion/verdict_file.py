"""The verdict of a study's newest promotion, in the study's folder: what the dashboard shows of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from sweepd.deploy.promotion.sections import Report, Styled
from sweepd.envs.support.files import write_atomic

GATE = "gate"  # folder of the gate's reports in that of a study
FILE = "verdict.json"


def write_verdict(report: Report, folder: Path) -> None:
    """Write the verdict of a report. folder: of the study."""
    content = {
        "headline": report.headline,
        "style": report.style,
        "lines": [
            [name, text.text if isinstance(text, Styled) else text]
            for name, text in report.verdict.terms
        ],
        "steps": [dataclasses.asdict(step) for step in report.steps],
    }
    write_atomic(folder / GATE / FILE, json.dumps(content, indent=1))


def read_verdict(folder: Path) -> dict[str, Any] | None:
    """Return what `write_verdict` wrote; None if there is none, or it cannot be read."""
    try:
        content: dict[str, Any] = json.loads((folder / GATE / FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return content if {"headline", "style", "lines", "steps"} <= content.keys() else None
