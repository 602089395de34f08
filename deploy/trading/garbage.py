"""Bundle folders that no deployment slot and no trader uses, and their removal."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, select

from sweepd.deploy.registry.bundle_files import NAME_DIGITS
from sweepd.deploy.registry.records import BUNDLES, CHALLENGERS, SLOTS, VERSIONS, add_event
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.records import ACCOUNT_BARS, ACCOUNTS, SLOT_ACCOUNT
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.files import folder_size
from sweepd.envs.support.formatting import counted


@dataclass(frozen=True)
class Garbage:
    """A bundle folder that no slot uses.

    Attributes:
        path: the folder.
        hash: hash of the bundle, None if the registry does not know it.
        why: the reason, for people.
        size: bytes.
    """

    path: Path
    hash: str | None
    why: str
    size: int


def find_garbage(registry: Registry) -> list[Garbage]:
    """Find the bundle folders that no slot and no trader needs.

    Slots need their champion, previous champion and challengers. Traders need the bundles of their
    present accounts, and to recompute a slot's own account (`sweepd trader parity`) every bundle
    that it ever traded.

    Raises:
        InputError: the registry knows none of the bundles, so it probably belongs to others.
    """
    with registry.database.reading() as connection:
        return _find(connection, registry)


def clear_garbage(registry: Registry) -> list[Garbage]:
    """Remove the folders that `find_garbage` finds, and record it in the history of their slots.

    A folder is renamed before it is deleted, so a crash leaves it whole or gone; a later call
    deletes the rest.

    Raises:
        InputError: as `find_garbage`.
        RunError: a folder cannot be removed.
    """
    with registry.database.writing() as connection:
        found = _find(connection, registry)
        finish = _remove(found)
        for item in found:
            slots = select(VERSIONS.c.slot).where(VERSIONS.c.bundle == item.hash)
            # A bundle may have been in several slots.
            for slot in connection.scalars(slots).all():
                add_event(connection, slot, "removed", item.why, bundle=item.hash)
    finish()
    return found


def _find(connection: Connection, registry: Registry) -> list[Garbage]:
    needed = (
        select(SLOTS.c.champion),
        select(SLOTS.c.previous),
        select(CHALLENGERS.c.bundle),
        select(ACCOUNTS.c.bundle).where(ACCOUNTS.c.retired.is_(None)),
        select(ACCOUNT_BARS.c.bundle).where(ACCOUNT_BARS.c.account == SLOT_ACCOUNT).distinct(),
    )
    kept = {hash_[:NAME_DIGITS] for query in needed for hash_ in connection.scalars(query) if hash_}
    known = {hash_[:NAME_DIGITS]: hash_ for hash_ in connection.scalars(select(BUNDLES.c.hash))}
    bundles = registry.bundles
    folders = (
        sorted(path for path in bundles.glob("*") if path.is_dir()) if bundles.is_dir() else []
    )
    complete = [path for path in folders if not path.name.startswith(".")]
    if complete and not any(path.name in known for path in complete):
        raise InputError(
            f"{bundles} holds {counted(len(complete), 'bundle')}, and the registry "
            f"{registry.database.shown} knows none of them: name the registry that they belong to "
            "with --registry, or their folder with --deployments"
        )
    found = []
    for path in folders:
        if path.name in kept:
            continue
        hash_ = known.get(path.name)
        if hash_ is not None:
            why = "no longer champion, previous champion or challenger of any slot, and not traded"
        elif path.name.startswith("."):
            why = "left over from an interrupted write or removal"
        else:
            why = "not in the registry: its promotion was interrupted"
        found.append(Garbage(path, hash_, why, folder_size(path)))
    return found


def _remove(found: Sequence[Garbage]) -> Callable[[], None]:
    """Make the folders disappear in one step each.

    Returns:
        A function that deletes the renamed folders, to be called after the transaction.
    """
    renamed = []
    for item in found:
        try:
            if item.path.name.startswith("."):
                shutil.rmtree(item.path)
            else:
                # One rename: readers see the whole folder or none. A name with a dot is found as
                # garbage again if the process dies before it is deleted.
                target = item.path.with_name(f".{item.path.name}.removed.tmp")
                renamed.append(item.path.rename(target))
        except OSError as error:
            raise RunError(
                f"bundle {item.path} cannot be removed: {error.strerror or error}"
            ) from error

    def finish() -> None:
        for path in renamed:
            shutil.rmtree(path, ignore_errors=True)

    return finish
