"""Bundle folders that no deployment slot and no trader uses, and their removal."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from sweepd.deploy.registry.bundle_files import NAME_DIGITS
from sweepd.deploy.registry.models import (
    SLOT_ACCOUNT,
    AccountBarRow,
    AccountRow,
    BundleRow,
    ChallengerRow,
    SlotRow,
)
from sweepd.deploy.registry.records import Garbage
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.formatting import counted


def find_garbage(session: Session, bundles: Path, registry: str) -> list[Garbage]:
    """Find the folders that no slot and no trader needs.

    Slots need their champion, previous champion and challengers. Traders need the bundles of their
    present accounts, and to recompute a slot's own account (`sweepd trader parity`) every bundle
    that it ever traded.

    Args:
        session: a transaction of the registry.
        bundles: the folder of all bundles.
        registry: the registry's URL, for messages.

    Raises:
        InputError: the registry knows none of the bundles, so it probably belongs to others.
    """
    needed = (
        select(SlotRow.champion),
        select(SlotRow.previous),
        select(ChallengerRow.bundle),
        select(AccountRow.bundle).where(AccountRow.retired.is_(None)),
        select(AccountBarRow.bundle).where(AccountBarRow.account == SLOT_ACCOUNT).distinct(),
    )
    kept = {hash_[:NAME_DIGITS] for query in needed for hash_ in session.scalars(query) if hash_}
    known = {hash_[:NAME_DIGITS]: hash_ for hash_ in session.scalars(select(BundleRow.hash))}
    folders = (
        sorted(path for path in bundles.glob("*") if path.is_dir()) if bundles.is_dir() else []
    )
    complete = [path for path in folders if not path.name.startswith(".")]
    if complete and not any(path.name in known for path in complete):
        raise InputError(
            f"{bundles} holds {counted(len(complete), 'bundle')}, and the registry {registry} "
            "knows none of them: name the registry that they belong to with --registry, or their "
            "folder with --deployments"
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
        size = sum(item.stat().st_size for item in path.iterdir())
        found.append(Garbage(path, hash_, why, size))
    return found


def remove_garbage(found: Sequence[Garbage]) -> Callable[[], None]:
    """Make the folders disappear in one step each.

    Returns:
        A function that deletes the renamed folders, to be called after the transaction.

    Raises:
        RunError: a folder cannot be removed.
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
