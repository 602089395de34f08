"""A policy as `registry show` tells about it: its facts, and their sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.report import metrics_tables
from sweepd.deploy.promotion.report import gate_findings, identity
from sweepd.deploy.promotion.sections import SYNTHETIC, Cell, Section, Styled, parameters_text
from sweepd.deploy.registry.registry import Registry


def market_facts(
    registry: Registry, bundle: Bundle, places: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What `registry show` prints about a policy. places: its present and former slots."""
    manifest = bundle.manifest
    return {
        "bundle": bundle.hash,
        "weights_sha256": bundle.members_sha256,
        "folder": str(registry.path(bundle.hash)),
        "slots": list(places),
        "study": bundle.origin.study,
        "trial": bundle.origin.trial,
        "seed": bundle.origin.seed,
        "objective": {bundle.origin.objective: bundle.origin.objective_value},
        "policy": manifest.trials[0].policy.model_dump(mode="json"),
        "trials": [trial.model_dump(mode="json") for trial in manifest.trials],
        "tickers": list(manifest.tickers),
        "timeframe": manifest.timeframe,
        "recipe": f"{manifest.recipe.name} {manifest.recipe.version}",
        "data": manifest.data.model_dump(mode="json"),
        "last_seen_bar": manifest.last_seen_bar,
        "code_version": manifest.code_version,
        "look": manifest.gate.get("look"),
        "looks_now": _looks_now(registry, bundle),
        "metrics": manifest.metrics["over_paths"],
        "holdout": manifest.gate.get("holdout") or {},
        "findings": manifest.gate.get("findings", []),
        "parameters": bundle.origin.parameters,
        "environment": manifest.trials[0].env_params,
    }


def _looks_now(registry: Registry, bundle: Bundle) -> int | None:
    span = registry.evaluations.holdout_span(bundle.members_sha256)
    return (
        None if span is None else registry.evaluations.count_holdout(bundle.manifest.tickers, *span)
    )


def market_sections(facts: Mapping[str, Any]) -> list[Section]:
    """A policy: identity, gate and metrics. facts: as `market_facts` returns them."""
    trials = [trial["origin"]["trial"] for trial in facts["trials"]]
    return [
        identity(facts, _identity(facts), "hold-out"),
        *gate_findings(facts),
        *metrics_tables(trials, facts["metrics"], facts["holdout"]),
    ]


def _identity(facts: Mapping[str, Any]) -> list[tuple[str, Cell]]:
    trials, data = facts["trials"], facts["data"]
    terms: list[tuple[str, Cell]] = []
    if data["synthetic"]:
        terms.append(("market", Styled(SYNTHETIC, "defer")))
    for trial in trials:
        origin, policy = trial["origin"], trial["policy"]
        hidden = "×".join(str(width) for width in policy["hidden"])
        objective = f"{origin['objective']} {origin['objective_value']:+.4f}"
        whole = len(trials) == 1
        terms += [
            (
                "from" if whole else f"{trial['share']:.1%} of capital",
                f"study {origin['study']}, trial {origin['trial']} ({objective}), seed "
                f"{origin['seed']}",
            ),
            (
                "policy" if whole else "",
                f"{policy['algorithm']}, mean of {policy['members']} members, layers {hidden}",
            ),
            ("parameters" if whole else "", parameters_text(origin["parameters"])),
        ]
    synthetic = " (synthetic)" if data["synthetic"] else ""
    return [
        *terms,
        ("trades", f"{' '.join(facts['tickers'])} on {facts['timeframe']} bars"),
        (
            "made with",
            f"bars {data['first']} to {data['last']}{synthetic}, seen up to "
            f"{facts['last_seen_bar']}, sweepd {facts['code_version']}",
        ),
    ]
