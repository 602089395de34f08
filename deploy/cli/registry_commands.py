"""`sweepd registry`: show, compare, verify, export, roll back and delete bundles."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from sweepd.deploy.cli.options import MANUAL, REFERENCE, Reason
from sweepd.deploy.cli.registry_view import (
    diff_view,
    differences,
    garbage_view,
    history_view,
    places_of,
    slots_view,
)
from sweepd.deploy.gates import bundle_types, gate_of_kind, load_reference
from sweepd.deploy.promotion.sections import short
from sweepd.deploy.promotion.terminal import sections_view
from sweepd.deploy.registry.bundle_files import export_bundle, finite
from sweepd.deploy.registry.flags import AsJson, RegistryFlags
from sweepd.deploy.registry.records import Slot
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.garbage import clear_garbage, find_garbage
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.flags import takes_flags
from sweepd.envs.support.formatting import counted
from sweepd.envs.support.loading import loading
from sweepd.envs.support.terminal import Terminal, printable

registry_app = typer.Typer(
    no_args_is_help=True,
    help="Show, compare, verify, export and delete the bundles of slots."
    "\n\nA slot like crypto-1h or cartpole has one champion. A bundle is named by its slot, by "
    "slot@previous, by slot@3 (the slot's third bundle), by the beginning of its hash, or by its "
    "folder.",
)


@registry_app.command("list")
@takes_flags
def list_command(
    where: RegistryFlags,
    slot: Annotated[
        str | None, typer.Argument(help="Show this slot's bundles and history.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the slots with their champions, or one slot's bundles and history."""
    opened = where.open()
    known = {found.name: found for found in opened.slots()}
    if slot is not None and slot not in known and not opened.events(slot):
        raise InputError(f"there is no slot {slot!r}; slots: {', '.join(known) or 'none'}")
    if not as_json:
        view = slots_view(opened) if slot is None else history_view(opened, opened.slot(slot))
        Terminal().print(view)
        return
    if slot is None:
        _print_json([_slot_facts(opened, found) for found in known.values()])
        return
    present = opened.slot(slot)
    _print_json(
        _slot_facts(opened, present)
        | {
            "versions": [
                {
                    "number": one.number,
                    "bundle": one.bundle,
                    "at": one.at,
                    "is": present.role_of(one.bundle),
                    "synthetic": opened.synthetic(one.bundle),
                }
                for one in opened.versions(slot)
            ],
            "events": [dataclasses.asdict(event) for event in opened.events(slot)],
        }
    )


def _slot_facts(registry: Registry, slot: Slot) -> dict[str, Any]:
    """Return a slot for JSON. synthetic: its champion was trained on a synthetic market."""
    return dataclasses.asdict(slot) | {"synthetic": registry.synthetic(slot.champion)}


@registry_app.command("show")
@takes_flags
def show_command(
    where: RegistryFlags,
    bundle: Annotated[
        str | None, typer.Argument(help=f"{REFERENCE} Default: the only champion.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show one bundle: identity, slots, gate, hold-out, parameters."""
    opened = where.open()
    with loading():
        loaded = load_reference(opened, bundle)
        gate = gate_of_kind(loaded.kind)
    facts = gate.bundle_facts(opened, loaded, places_of(opened, loaded.hash))
    _print_result(as_json, facts, sections_view(gate.bundle_sections(facts)))


@registry_app.command("diff")
@takes_flags
def diff_command(
    where: RegistryFlags,
    one: Annotated[str, typer.Argument(help=REFERENCE)],
    other: Annotated[
        str | None, typer.Argument(help="The other one. Default: the slot's previous champion.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show where two bundles differ; for one slot, its champion and the previous one."""
    opened = where.open()
    if other is None:
        if not opened.versions(one):
            raise InputError(f"{one!r} is not a slot: name the second bundle too")
        one, other = f"{one}@previous", one
    with loading():
        left, right = load_reference(opened, one), load_reference(opened, other)
    facts = {"one": left.hash, "other": right.hash, "differences": differences(left, right)}
    _print_result(as_json, facts, diff_view(left, right))


@takes_flags
def rollback_command(
    where: RegistryFlags,
    slot: Annotated[
        str | None, typer.Argument(help="Slot. Default: the only one with a champion.")
    ] = None,
    reason: Reason = MANUAL,
) -> None:
    """Restore a slot's previous champion. A second rollback undoes the first."""
    opened = where.open()
    name = opened.require(slot).name
    with loading():
        left, back = opened.rollback(name, reason, *bundle_types())
    typer.echo(
        printable(
            f"{name}: {short(back)} is champion again; {short(left)} is now the previous one "
            "(rollback again to undo)"
        )
    )


registry_app.command("rollback")(rollback_command)


@registry_app.command("withdraw")
@takes_flags
def withdraw_command(
    where: RegistryFlags,
    slot: Annotated[str, typer.Argument(help="Slot of the challenger.")],
    bundle: Annotated[
        str | None,
        typer.Argument(help="slot@3 or the beginning of a hash. Default: the only challenger."),
    ] = None,
    reason: Reason = MANUAL,
) -> None:
    """Withdraw a challenger from its slot. Its history stays; promote can bring it back."""
    opened = where.open()
    challengers = opened.slot(slot).challengers
    if bundle is None and len(challengers) != 1:
        names = " ".join(short(hash_) for hash_ in challengers) or "none"
        raise InputError(f"name a challenger of slot {slot!r}: there are {names}")
    found = challengers[0] if bundle is None else opened.find(bundle)
    opened.withdraw(slot, found, reason)
    typer.echo(
        printable(
            f"{slot}: {short(found)} is withdrawn; sweepd registry gc --delete removes its files"
        )
    )


@registry_app.command("verify")
@takes_flags
def verify_command(
    where: RegistryFlags,
    bundle: Annotated[
        str | None, typer.Argument(help=f"{REFERENCE} Default: the only champion.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of bars. Default: that of the gate's evaluation.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score a bundle again, and compare all numbers with the gate's, to 1e-9.

    A market's bundle is scored on its hold-out; a player plays its panel again, and every game must
    end as before; of a program, which is not run again, only the files are checked. File hashes and
    the data's fingerprint are checked first. This does not count as a hold-out evaluation. The exit
    code is 1 if a number differs.
    """
    opened = where.open()
    with loading():
        loaded = load_reference(opened, bundle)
        result = gate_of_kind(loaded.kind).verify(opened, loaded, data_dir)
    if as_json:
        _print_json(result.content)
    elif result.sections:
        Terminal().print(sections_view(result.sections))
    if not result.agrees:
        raise RunError(result.said)
    if not as_json:
        typer.echo(printable(result.said))


@registry_app.command("export")
@takes_flags
def export_command(
    where: RegistryFlags,
    out: Annotated[Path, typer.Option(help="New folder, which gets bundle.json and the files.")],
    bundle: Annotated[
        str | None, typer.Argument(help=f"{REFERENCE} Default: the only champion.")
    ] = None,
) -> None:
    """Copy a bundle's files to a folder: weights, or what a program wrote.

    All hashes are checked. docs/reference/bundle.md describes the files.
    """
    opened = where.open()
    with loading():
        loaded = load_reference(opened, bundle)
    export_bundle(loaded, out)
    typer.echo(printable(f"{loaded.name}: {counted(len(loaded.files) + 1, 'file')} in {out}"))


@registry_app.command("gc")
@takes_flags
def gc_command(
    where: RegistryFlags,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the listed bundles.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the bundles that no slot needs; --delete removes them.

    Champions, previous champions and challengers are kept, and so is every bundle that a trader
    holds or that a slot's account has traded, as is the history of removed bundles.
    """
    opened = where.open()
    found = clear_garbage(opened) if delete else find_garbage(opened)
    size = sum(item.size for item in found)
    if as_json:
        _print_json(
            {
                "deleted": delete,
                "bytes": size,
                "folders": [dataclasses.asdict(item) | {"path": str(item.path)} for item in found],
            }
        )
        return
    if not found:
        typer.echo(printable(f"{opened.bundles}: every bundle is needed"))
        return
    Terminal().print(garbage_view(found, "Removed" if delete else "Needed by no slot"))
    typer.echo(
        printable(
            f"{counted(len(found), 'folder')}, {size / 1e6:.2f} MB"
            + (" removed" if delete else "; --delete removes them")
        )
    )


def _print_result(as_json: bool, facts: dict[str, Any], view: RenderableType) -> None:
    if as_json:
        _print_json(facts)
    else:
        Terminal().print(view)


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(finite(content) if isinstance(content, dict) else content, indent=1))
