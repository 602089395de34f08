"""Results files, and the parts that tables are made of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "scripts" / "bench" / "results"
_FAMILIES = {
    "25/17": "Zen 4",
    "26/2": "Zen 5",
    "6/143": "Sapphire Rapids",
    "6/207": "Emerald Rapids",
}


def load(name: str) -> dict[str, Any]:
    """Return the content of a results file."""
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)


def origin(name: str, *machines: dict[str, Any]) -> str:
    """Return the line that says how the figures of a results file were made.

    Different values of a part, such as two commits, are joined by "and".
    """
    parts = zip(*map(_parts, machines), strict=True)
    described = (" and ".join(sorted({value for value in values if value})) for values in parts)
    loads = [machine["load"] for machine in machines]
    low, high = f"{min(loads):.1f}", f"{max(loads):.1f}"
    load_range = low if low == high else f"{low} to {high}"
    return f"\n(`{name}.json`: {', '.join(filter(None, described))}; load {load_range})\n"


def _parts(machine: dict[str, Any]) -> tuple[str, ...]:
    """Return processor, cores, torch, commit, date and the versions of peers; "": unknown."""
    family = machine.get("family")
    processor = machine["processor"] + (f" ({_FAMILIES.get(family, family)})" if family else "")
    processor += f" with {machine['gpu']}" if "gpu" in machine else ""
    described = processor, f"{machine['cores']} cores", f"torch {machine['torch']}"
    source = machine.get("source")
    if source is None:  # files from before these were recorded
        return *described, "commit and date not recorded", "", ""
    commit = f"commit {source['commit'][:10]}" if source["commit"] else "no commit"
    peers = ", ".join(f"{name} {number}" for name, number in source["peers"].items())
    return *described, commit + " with changes" * source["dirty"], source["date"], peers


def ratio_text(value: float) -> str:
    return f"{value:.1f}×" if value < 20 else f"{value:.0f}×"


def rate_text(found: dict[str, Any]) -> str:
    low, high = found["interval"]
    return f"{found['rate']:.1%} ({low:.1%} to {high:.1%})"
