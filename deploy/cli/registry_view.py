"""Terminal views of the registry: slots, a slot's history, differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from sweepd.deploy.promotion.sections import ReportTable, plain_value, short
from sweepd.deploy.promotion.terminal import section_view
from sweepd.deploy.registry.bundle_files import StoredBundle
from sweepd.deploy.registry.records import Slot, Version
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.garbage import Garbage
from sweepd.envs.support.formatting import minute

SHOWN_EVENTS = 20
# Parts of the manifest that `diff` leaves out: they follow from others, or are shown elsewhere.
NOT_COMPARED = ("files", "gate", "metrics", "format")
SINGLE_GAMES = ("returns", "lengths")  # of a panel: lists too long to read


def slots_view(registry: Registry) -> RenderableType:
    """Return a table of the bundles in all slots, and below it why each champion is one."""
    table = Table(
        *(Column(name, no_wrap=True) for name in ("slot", "bundle", "is now", "since")),
        Column("moves", justify="right", no_wrap=True),
        title=f"Slots of {registry.folder}",
        title_justify="left",
    )
    reasons = []
    for slot in registry.slots():
        move = registry.last_move(slot.name, slot.champion)
        moved = minute(move.at) if move else "-"
        champion = _bundle_cell(registry, slot.champion)
        table.add_row(slot.name, champion, "champion", moved, str(slot.revision))
        if slot.previous is not None:
            table.add_row("", short(slot.previous), "previous")
        for hash_ in slot.challengers:
            table.add_row("", short(hash_), "challenger")
        if move:
            reasons.append(Text(f"{slot.name}: {move.reason}"))
    return Group(table, *reasons)


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
            _bundle_cell(registry, version.bundle),
            minute(version.at),
            slot.role_of(version.bundle, removed),
        )
    history: list[RenderableType] = [Text("History (UTC)", style="italic")]
    for event in events[-SHOWN_EVENTS:]:
        line = f"{minute(event.at)}  {event.kind:<10}  {short(event.bundle)}"
        line += f" instead of {short(event.previous)}" if event.previous else ""
        # Below the line, so that a long reason is read in full on a narrow terminal.
        history += [Text(line), Padding(Text(event.reason), (0, 0, 0, 4))]
    if len(events) > SHOWN_EVENTS:
        history.append(Text(f"{len(events) - SHOWN_EVENTS} earlier ones with --json", style="dim"))
    return Group(bundles, *history)


def places_of(registry: Registry, bundle: str) -> list[dict[str, Any]]:
    """Return the slots that have or had the bundle, and its present role there."""
    return [
        _place(registry, registry.slot(version.slot), version)
        for version in registry.versions()
        if version.bundle == bundle
    ]


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
    rows = [[name, *map(plain_value, values)] for name, values in found.items()]
    return section_view(
        ReportTable("Differences", ("", one.name, other.name), rows, texts=range(3))
    )


def garbage_view(found: Sequence[Garbage], title: str) -> RenderableType:
    """Return a table of bundle folders that no slot needs."""
    rows = [[item.path.name, f"{item.size / 1e6:.2f} MB", item.why] for item in found]
    return section_view(ReportTable(title, ("folder", "size", "why"), rows, texts=(0, 2)))


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


def _bundle_cell(registry: Registry, hash_: str | None) -> str:
    """Return a bundle's short name, and whether its market is synthetic."""
    return short(hash_) + ("\nSYNTHETIC" if registry.synthetic(hash_) else "")


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
