"""Tables of the gate's error rates."""

from __future__ import annotations

from typing import Any

from scripts.result_tables.results import load, origin, rate_text, table
from sweepd.envs.support.intervals import clopper_pearson


def gate_records() -> str:
    """How often a record without skill is significant."""
    found = load("gate_first_stage")
    kinds = {
        "ar1": "AR(1), {phi:g}",
        "clustered": "volatility in clusters",
        "t3": "Student, 3 degrees of freedom",
    }
    rows = [[kinds[one["kind"]].format(phi=one["phi"]), rate_text(one)] for one in found["records"]]
    head = ["record", "significant at 5%"]
    return table(head, rows) + origin("gate_first_stage", found["records_machine"])


def gate_searches(skilled: bool) -> str:
    """How often searches pass the first stage."""
    found = [
        one
        for one in load("gate_first_stage")["searches"].values()
        if (one["skill"] > 0.0) == skilled
    ]
    if skilled:
        found.sort(key=lambda one: (one["skill"], one["search"]))
    rows = [
        [
            *([f"{one['skill']:g}"] if skilled else []),
            one["search"].removesuffix(", 0 copies"),
            f"{one['studies']:,}",
            *(rate_text(one[rule]) for rule in ("dsr", "pbo", "both")),
        ]
        for one in found
    ]
    head = [
        *(["skill"] if skilled else []),
        *("search", "studies", "deflated Sharpe ratio ≥ .95", "PBO ≤ .2", "both"),
    ]
    return table(head, rows) + origin("gate_first_stage", *(one["machine"] for one in found))


def gate_selection() -> str:
    """The best of trials, and the best three together, on simulated returns."""
    content = load("gate_first_stage")

    def share(one: dict[str, Any], name: str) -> str:
        found = clopper_pearson(round(one[name] * one["studies"]), one["studies"])
        return rate_text({"rate": found.value, "interval": [found.low, found.high]})

    rows = [
        [
            one["kind"] + (f", one with a ratio of {one['skill']:g}" if one["skill"] else ""),
            *(f"{one[name]:,}" for name in ("trials", "bars", "studies")),
            *(share(one, "share_dsr_95"), f"{one['median_pbo']:.2f}"),
            *(share(one, "together_share_dsr_95"), f"{one['together_median_pbo']:.2f}"),
            share(one, "unscaled_share_dsr_95"),
        ]
        for one in content["results"]
    ]
    head = [
        *("returns", "trials", "bars", "studies", "DSR ≥ .95", "median PBO"),
        *("best three together: DSR ≥ .95", "median PBO", "without the factor D"),
    ]
    return table(head, rows) + origin("gate_first_stage", content["machine"])


def gate_holdout() -> str:
    """Size of the hold-out test, and in brackets that of the bootstrap alone."""
    content = load("gate_statistics")
    kinds = {
        ("ar1", 0.0): "independent",
        ("clustered", 0.0): "volatility in clusters",
        ("ar1", 0.5): "AR(1), .5",
        ("ar1", 0.9): "AR(1), .9",
        ("ar2", 0.9): "AR(2), .5 and .4",
        ("ar1", 0.95): "AR(1), .95",
        ("ar1+noise", 0.95): "AR(1), .95, plus as much noise",
    }
    found = {(one["kind"], one["phi"], one["bars"]): one for one in content["holdout"]}
    lengths = sorted({one["bars"] for one in content["holdout"]})

    def entry(one: dict[str, Any]) -> str:
        exact = clopper_pearson(round(one["size"] * one["series"]), one["series"])
        low, high = 100.0 * exact.low, 100.0 * exact.high
        return f"{one['size']:.1%} ({low:.1f} to {high:.1f}); {one['size_bootstrap']:.1%}"

    rows = [
        [title, *(entry(found[*kind, bars]) for bars in lengths)] for kind, title in kinds.items()
    ]
    head = ["excess returns", *(f"{bars:,} bars" for bars in lengths)]
    return table(head, rows) + origin("gate_statistics", content["holdout_machine"])


def gate_studies() -> str:
    """Whole studies that the gate promoted."""
    found = load("gate_studies")
    kinds = {
        "null": "no edge, no costs",
        "planted-1": "planted edge, weak (4%), 4.6 years of hourly bars",
        "planted-2": "planted edge, medium (8%)",
        "planted-3": "planted edge, strong (16%), 4.6 years of hourly bars",
        "oracle": "the next bar's return among the features",
    }
    rows = []
    for kind, title in kinds.items():
        own = [one for one in found["results"].values() if one["kind"] == kind]
        if own:
            exact = clopper_pearson(sum(one["promoted"] for one in own), len(own))
            share = f"{exact.value:.0%} ({exact.low:.0%} to {exact.high:.0%})"
            luck = sum(one["without_statistics"] for one in own)
            rows.append([title, str(len(own)), share, str(luck)])
    head = ["market", "studies", "promoted", "by a gate without statistics"]
    return table(head, rows) + origin("gate_studies", found["machine"])


def gate_stated_power() -> str:
    """Shares of studies with an edge that pass: planned, stated and found."""
    content = load("gate_power")
    tails = {"normal": "", "t3": ", Student, 3 degrees of freedom", "clustered": ", clustered"}
    rows = []
    for one in content["cases"].values():
        about = f"{one['years']:g} year{'s' * (one['years'] != 1.0)} of {one['timeframe']} bars{tails[one['tails']]}"
        numbers = (one["trials"], f"{one['correlation']:g}", f"{one['phi']:g}", one["looks"] + 1)
        shares = (f"{one[name]:.0%}" for name in ("planned", "stated"))
        rows.append([about, *numbers, *shares, str(one["studies"]), rate_text(one)])
    head = ["bars", "trials", "correlation", "autocorrelation", "evaluation"]
    head += ["planned", "stated", "studies", "found"]
    return table(head, rows) + origin("gate_power", content["machine"])
