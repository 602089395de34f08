"""Tables of the arena: false swaps, days until a swap."""

from __future__ import annotations

from typing import Any

from scripts.result_tables.results import load, origin, rate_text, table

KINDS = {
    "independent": "independent",
    "independent, ageing": "independent, with the monitor's alarms",
    "ar1 .1": "AR(1), .1",
    "ar1 .3": "AR(1), .3",
    "t3": "Student, 3 degrees of freedom",
    "clustered": "volatility in clusters (GARCH)",
}


def arena_false() -> str:
    """How often a champion is replaced although no challenger is better."""
    content = load("arena")
    found = content["false"]
    rows = [
        [text, f"{found[kind]['half_years']:,}", rate_text(found[kind])]
        for kind, text in KINDS.items()
        if kind in found
    ]
    head = ["relative returns", "half years", "with a swap"]
    return table(head, rows) + origin("arena", content["machine"])


def arena_days() -> str:
    """Days until a swap."""
    content = load("arena")
    rows = []
    for one in content["power"]:
        low, middle, high = map(_days, one["days"])
        rows.append(
            [
                f"{one['edge']:.0%}",
                f"{one['tracking_error']:.0%}",
                f"{one['ratio']:.1f}",
                str(one["entry"]),
                middle,
                f"{low} to {high}",
                f"{one['stated']:,.0f}",
                f"{one['within_a_year']:.0%}",
            ]
        )
    head = ["gain a year", "tracking error", "ratio", "entry", "days (median)"]
    head += ["half of the cases", "stated", "within a year"]
    return table(head, rows) + origin("arena", content["machine"])


def _days(value: Any) -> str:
    return "over 6 years" if value is None else f"{value:,.0f}"
