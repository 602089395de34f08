"""Terminal views of the registry: slots, a slot's history, one bundle, two bundles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.verify import Verification
from sweepd.deploy.promotion.findings import SYNTHETIC, short, verdict
from sweepd.deploy.promotion.rules import loosened
from sweepd.deploy.promotion.views import bundle_panel, columns, identity_table, plain_value
from sweepd.deploy.registry.bundle_files import StoredBundle
from sweepd.deploy.registry.records import Slot, Version
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.garbage import Garbage
from sweepd.envs.crypto.scoring.figures import TITLE, figures_table
from sweepd.envs.support.formatting import minute

SHOWN_EVENTS = 20
# Parts of the manifest that `diff` leaves out: they follow from others, or are shown elsewhere.
NOT_COMPARED = ("files", "gate", "metrics", "format")
SINGLE_GAMES = ("returns", "lengths")  # of a panel: lists too long to read


def slots_view(registry: Registry) -> RenderableType:
    """Return a table of all slots: champion, since when and why, previous one, challengers."""
    table = Table(
        *(Column(name, no_wrap=True) for name in ("slot", "champion", "since")),
        "previous",
        "challengers",
        Column("moves", justify="right", no_wrap=True),
        "why",
        title=f"Slots of {registry.folder}",
        title_justify="left",
    )
    for slot in registry.slots():
        move = registry.last_move(slot.name, slot.champion)
        table.add_row(
            slot.name,
            short(slot.champion) + ("\nSYNTHETIC" if registry.synthetic(slot.champion) else ""),
            minute(move.at) if move else "-",
            short(slot.previous),
            " ".join(short(hash_) for hash_ in slot.challengers) or "none",
            str(slot.revision),
            _one_line(move.reason if move else ""),
        )
    return table


def history_view(registry: Registry, slot: Slot) -> RenderableType:
    """Return a slot's bundles and its latest events."""
    events = registry.events(slot.name)
    removed = [event.bundle for event in events if event.kind == "removed" and event.bundle]
    bundles = Table(
        Column("version", justify="right"),
        "bundle",
        "added",
        "is now",
        title=f"Bundles of slot {slot.name}",
        title_justify="left",
    )
    for version in registry.versions(slot.name):
        bundles.add_row(
            str(version.number),
            short(version.bundle) + ("\nSYNTHETIC" if registry.synthetic(version.bundle) else ""),
            minute(version.at),
            slot.role_of(version.bundle, removed),
        )
    names = ("time (UTC)", "event", "bundle", "instead of")
    history = Table(
        *(Column(name, no_wrap=True) for name in names),
        "why",
        title="History",
        title_justify="left",
    )
    for event in events[-SHOWN_EVENTS:]:
        history.add_row(
            minute(event.at),
            event.kind,
            short(event.bundle),
            short(event.previous),
            _one_line(event.reason),
        )
    if len(events) > SHOWN_EVENTS:
        history.caption = (
            f"{len(events) - SHOWN_EVENTS} earlier ones, and every reason in full, with --json"
        )
    return Group(bundles, history)


def places_of(registry: Registry, bundle: str) -> list[dict[str, Any]]:
    """Return the slots that have or had the bundle, and its present role there."""
    return [
        _place(registry, registry.slot(version.slot), version)
        for version in registry.versions()
        if version.bundle == bundle
    ]


def bundle_facts(registry: Registry, bundle: Bundle) -> dict[str, Any]:
    """Return what `show` prints, as plain values."""
    manifest = bundle.manifest
    holdout = manifest.gate.get("holdout") or {}
    return {
        "bundle": bundle.hash,
        "weights_sha256": bundle.members_sha256,
        "folder": str(registry.path(bundle.hash)),
        "slots": places_of(registry, bundle.hash),
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
        "holdout": holdout,
        "findings": manifest.gate.get("findings", []),
        "parameters": bundle.origin.parameters,
        "environment": manifest.trials[0].env_params,
    }


def bundle_view(facts: Mapping[str, Any], bundle: Bundle) -> RenderableType:
    """Return one bundle on one screen: identity, gate, hold-out, parameters."""
    trials, data = facts["trials"], facts["data"]
    identity = identity_table(facts)
    if data["synthetic"]:
        identity.add_row("market", Text(SYNTHETIC, style="yellow"))
    for trial in trials:
        origin, policy = trial["origin"], trial["policy"]
        hidden = "×".join(str(width) for width in policy["hidden"])
        objective = f"{origin['objective']} {origin['objective_value']:+.4f}"
        whole = len(trials) == 1
        identity.add_row(
            "from" if whole else f"{trial['share']:.1%} of capital",
            f"study {origin['study']}, trial {origin['trial']} ({objective}), seed "
            f"{origin['seed']}",
        )
        identity.add_row(
            "policy" if whole else "",
            f"{policy['algorithm']}, mean of {policy['members']} members, layers {hidden}",
        )
    identity.add_row("trades", f"{' '.join(facts['tickers'])} on {facts['timeframe']} bars")
    identity.add_row(
        "made with",
        f"bars {data['first']} to {data['last']}{' (synthetic)' if data['synthetic'] else ''}, "
        "seen up to "
        f"{facts['last_seen_bar']}, sweepd {facts['code_version']}",
    )
    if facts["look"] is not None:
        identity.add_row(
            "evaluations",
            f"hold-out evaluation {facts['look']}; evaluations used so far: {facts['looks_now']}",
        )
    parts: list[RenderableType] = [identity]
    if facts["findings"]:
        parts.append(gate_table(facts["findings"]))
    if metrics := bundle.manifest.metrics.get("over_paths"):  # not in earlier versions
        parts.append(figures_table(metrics, TITLE))
    if metrics := facts["holdout"]:
        title = f"hold-out, {metrics['bars']:,} bars, {metrics['first']} to {metrics['last']}"
        parts.append(figures_table(metrics, title))
    return bundle_panel(facts, parts, _parameters(trials))


def _parameters(trials: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return the sampled parameters; for an ensemble, one column per trial."""
    sampled = [trial["origin"]["parameters"] for trial in trials]
    if len(trials) == 1:
        return columns(sampled[0])
    names = (f"trial {trial['origin']['trial']}" for trial in trials)
    table = Table(
        Column(style="dim"),
        *(Column(name, justify="right") for name in names),
        box=None,
        padding=(0, 2),
    )
    for name in dict.fromkeys(name for own in sampled for name in own):
        table.add_row(name, *(plain_value(own.get(name)) for own in sampled))
    return table


def differences(one: StoredBundle[Any], other: StoredBundle[Any]) -> dict[str, tuple[Any, Any]]:
    """Return what differs, by dotted name of the manifest, including the gate's numbers."""
    left, right = _flat(one), _flat(other)
    return {
        name: (left.get(name), right.get(name))
        for name in sorted({*left, *right})
        if left.get(name) != right.get(name)
    }


def diff_view(one: StoredBundle[Any], other: StoredBundle[Any]) -> RenderableType:
    """Return a table of the differences of two bundles."""
    found = differences(one, other)
    if not found:
        return Text(f"{one.name} and {other.name} are the same")
    names = ("", one.name, other.name)
    table = Table(*(Column(name, overflow="fold") for name in names))
    table.title, table.title_justify = "Differences", "left"
    for name, values in found.items():
        table.add_row(name, *(plain_value(value) for value in values))
    return table


def verification_view(result: Verification) -> RenderableType:
    """Return every number of the hold-out, stored and recomputed."""
    table = Table(
        "metric",
        *(Column(name, justify="right") for name in ("stored", "recomputed", "difference")),
        title=f"Hold-out {result.first} to {result.last}, {result.bars:,} bars",
        title_justify="left",
    )
    for one in result.compared:
        table.add_row(one.name, f"{one.stored:.9g}", f"{one.now:.9g}", f"{one.difference:.1e}")
    return table


def garbage_view(found: Sequence[Garbage], title: str) -> RenderableType:
    """Return a table of bundle folders that no slot needs."""
    table = Table("folder", Column("size", justify="right"), Column("why", ratio=1))
    table.title, table.title_justify = title, "left"
    for item in found:
        table.add_row(item.path.name, f"{item.size / 1e6:.2f} MB", item.why)
    return table


def _place(registry: Registry, slot: Slot, version: Version) -> dict[str, Any]:
    state = slot.role_of(version.bundle)
    # A challenger was never promoted: it has an event of its own kind.
    asked = registry.events(slot.name, bundle=version.bundle, kinds=["challenger"])
    move = asked[-1] if state == "challenger" else registry.last_move(slot.name, version.bundle)
    return {
        "slot": slot.name,
        "version": version.number,
        "is": state,
        "since": move.at if move else None,
        "why": move.reason if move else None,
    }


def _looks_now(registry: Registry, bundle: Bundle) -> int | None:
    span = registry.evaluations.holdout_span(bundle.members_sha256)
    return (
        None if span is None else registry.evaluations.count_holdout(bundle.manifest.tickers, *span)
    )


def gate_table(findings: Sequence[Mapping[str, Any]]) -> Table:
    """Return the result of every rule at the promotion, one line each."""
    table = Table(
        Column("rule", no_wrap=True),
        *(Column(name, justify="right", no_wrap=True) for name in ("value", "limit")),
        Column("verdict", no_wrap=True),
        "explanation",
        box=None,
        padding=(0, 1),
    )
    table.caption, table.caption_justify = gate_words(findings), "left"
    for finding in findings:
        # Bundles of earlier versions have no default limit.
        usual = finding.get("default", finding["limit"])
        table.add_row(
            str(finding["name"]),
            "-" if finding["value"] is None else f"{finding['value']:.4g}",
            f"{finding['comparison']} {finding['limit']:.4g}"
            + ("" if usual == finding["limit"] else f" (default {usual:.4g})"),
            verdict(str(finding["verdict"]), bool(finding.get("loosened"))),
            _one_line(str(finding["explanation"])),
        )
    return table


def gate_words(findings: Sequence[Mapping[str, Any]]) -> Text | None:
    """Say whether limits were loosened; None for bundles made before that was recorded."""
    if not all("loosened" in finding for finding in findings):
        return None
    met = "met every rule" + (
        " that could be asked" if any(one["verdict"] == "defer" for one in findings) else ""
    )
    words = loosened(findings)
    if words:
        return Text(met + words, style="bold yellow")
    return Text(f"{met}, at default limits or stricter ones")


def _one_line(text: str) -> Text:
    """Return text that is truncated instead of wrapped."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _flat(bundle: StoredBundle[Any]) -> dict[str, Any]:
    """Return the manifest's values by dotted name."""
    content = bundle.manifest.model_dump(mode="json")
    panel = {
        name: value
        for name, value in (bundle.manifest.gate.get("panel") or {}).items()
        if name not in SINGLE_GAMES
    }
    scored = {"holdout": bundle.manifest.gate.get("holdout") or {}, "panel": panel}
    kept = {name: value for name, value in content.items() if name not in NOT_COMPARED}
    kept |= {"weights_sha256": bundle.members_sha256, **scored}
    return dict(_leaves("", kept))


def _leaves(prefix: str, value: Any) -> list[tuple[str, Any]]:
    # Lists of tables, such as an ensemble's trials, are compared element by element.
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        found = []
        for name, item in value.items():
            found += _leaves(f"{prefix}.{name}" if prefix else str(name), item)
        return found
    return [(prefix, value)]
