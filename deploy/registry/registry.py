"""The registry: champions, previous champions and challengers of deployment slots, with history.

A deployment slot (`crypto-1h`) is an alias that moves between immutable bundles, as in a model
registry. Every move is one transaction that also appends its event, so a crash leaves either the
old champion or the new one. The database serialises writers (`sweepd.deploy.registry.database`), so
concurrent promotions end with one champion. A bundle's files are written before the row that names
them, within the same transaction, so that a concurrent `clear` does not remove them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from sweepd.deploy.registry.bundle_files import NAME_DIGITS, StoredBundle, read_bundle, write_bundle
from sweepd.deploy.registry.database import utc_now
from sweepd.deploy.registry.garbage import find_garbage, remove_garbage
from sweepd.deploy.registry.models import BundleRow, ChallengerRow, EventRow, SlotRow, VersionRow
from sweepd.deploy.registry.reader import RegistryReader, read_slot
from sweepd.deploy.registry.records import ChampionMoved, Garbage
from sweepd.envs.support.errors import InputError


class Registry(RegistryReader):
    """The registry of a deployments folder. See `RegistryReader` for its arguments."""

    def promote(
        self,
        slot: str,
        bundle: StoredBundle[Any],
        *,
        expected: str | None,
        reason: str,
        report: dict[str, Any] | None = None,
        data_dir: str = "",
    ) -> int:
        """Make `bundle` the slot's champion, in one transaction. The old one becomes `previous`.

        Promoting the present champion changes nothing.

        Args:
            slot: the deployment slot.
            bundle: the new champion.
            expected: hash of the champion that the gate compared with, None if there was none.
            reason: why, for the slot's history.
            report: the gate's report.
            data_dir: folder of the bars that the bundle was scored on.

        Returns:
            The bundle's version number in the slot.

        Raises:
            ChampionMoved: the slot has another champion than `expected`.
            InputError: the slot's name is invalid.
        """
        self.check_slot(slot)
        with self.database.writing() as session:
            # Under the write lock: the champion cannot change until this transaction ends.
            row = session.get(SlotRow, slot)
            present = row.champion if row else None
            if present != expected:
                raise ChampionMoved(f"the champion of {slot} has changed since the comparison")
            # Files first: a crash leaves an unregistered folder, never a row without files.
            write_bundle(bundle, self.bundles)
            number = _add_version(session, slot, bundle, data_dir)
            if present == bundle.hash:
                return number
            if row is None:
                row = SlotRow(name=slot, champion=None, previous=None, revision=0)
                session.add(row)
            row.previous, row.champion, row.revision = present, bundle.hash, row.revision + 1
            session.execute(
                delete(ChallengerRow).where(
                    ChallengerRow.slot == slot, ChallengerRow.bundle == bundle.hash
                )
            )
            _add_event(
                session,
                slot,
                "promoted",
                reason,
                bundle=bundle.hash,
                previous=present,
                report=report,
            )
        return number

    def rollback(self, slot: str, reason: str, *kinds: type[StoredBundle[Any]]) -> tuple[str, str]:
        """Exchange champion and previous champion, in one transaction.

        Args:
            slot: the deployment slot.
            reason: why, for the slot's history.
            kinds: the bundle classes that are accepted; the returning bundle is loaded and checked.

        Returns:
            Hash of the replaced champion, and hash of the restored one.

        Raises:
            InputError: there is no previous champion, or its files are missing or changed.
        """
        now = self.require(slot)
        if now.previous is None:
            raise InputError(f"slot {slot!r} has no previous champion to go back to")
        with self.database.writing() as session:
            row = session.get_one(SlotRow, slot)
            if row.previous != now.previous or row.champion is None:
                raise InputError(
                    f"slot {slot!r} changed while it was being rolled back; check it and try again"
                )
            # `clear` may have removed the files, and a champion must be loadable.
            read_bundle(self.path(now.previous), kinds, expected=now.previous)
            left, back = row.champion, row.previous
            row.champion, row.previous, row.revision = back, left, row.revision + 1
            _add_event(session, slot, "rolled-back", reason, bundle=back, previous=left)
        return left, back

    def challenger(
        self,
        slot: str,
        bundle: StoredBundle[Any],
        *,
        reason: str,
        report: dict[str, Any] | None = None,
        data_dir: str = "",
    ) -> int:
        """Keep a bundle that cannot be compared with the champion yet.

        Returns:
            The bundle's version number in the slot.

        Raises:
            InputError: the slot's name is invalid.
        """
        self.check_slot(slot)
        with self.database.writing() as session:
            write_bundle(bundle, self.bundles)
            number = _add_version(session, slot, bundle, data_dir)
            if session.get(ChallengerRow, (slot, bundle.hash)) is None:
                session.add(ChallengerRow(slot=slot, bundle=bundle.hash, at=utc_now()))
            _add_event(session, slot, "challenger", reason, bundle=bundle.hash, report=report)
        return number

    def withdraw(self, slot: str, hash_: str, reason: str) -> None:
        """Remove a challenger from the slot.

        Raises:
            InputError: the bundle is not a challenger of the slot.
        """
        with self.database.writing() as session:
            row = session.get(ChallengerRow, (slot, hash_))
            if row is None:
                names = [one[:NAME_DIGITS] for one in read_slot(session, slot).challengers]
                raise InputError(
                    f"{hash_[:NAME_DIGITS]} is not a challenger of slot {slot!r}; "
                    f"its challengers: {' '.join(names) or 'none'}"
                )
            session.delete(row)
            _add_event(session, slot, "withdrawn", reason, bundle=hash_)

    def refuse(self, slot: str, reason: str, report: dict[str, Any] | None = None) -> None:
        """Append that no candidate passed. Repeating the last refusal appends nothing."""
        self.check_slot(slot)
        newest = select(EventRow).where(EventRow.slot == slot).order_by(EventRow.id.desc()).limit(1)
        with self.database.writing() as session:
            last = session.scalars(newest).first()
            if last is not None and (last.kind, last.reason) == ("refused", reason):
                return
            _add_event(session, slot, "refused", reason, report=report)

    def note(self, slot: str, kind: str, reason: str, bundle: str) -> None:
        """Append an event about a bundle that changes no champion."""
        with self.database.writing() as session:
            _add_event(session, slot, kind, reason, bundle=bundle)

    def garbage(self) -> list[Garbage]:
        """The bundle folders that no slot and no trader needs: see `find_garbage`."""
        with self.database.reading() as session:
            return find_garbage(session, self.bundles, self.database.shown)

    def clear(self) -> list[Garbage]:
        """Remove the folders that `garbage` finds, and record it in the history of their slots.

        A folder is renamed before it is deleted, so a crash leaves it whole or gone; a later call
        deletes the rest.
        """
        with self.database.writing() as session:
            found = find_garbage(session, self.bundles, self.database.shown)
            finish = remove_garbage(found)
            for item in found:
                slots = select(VersionRow.slot).where(VersionRow.bundle == item.hash)
                # A bundle may have been in several slots.
                for slot in session.scalars(slots):
                    _add_event(session, slot, "removed", item.why, bundle=item.hash)
        finish()
        return found


def _add_event(
    session: Session,
    slot: str,
    kind: str,
    reason: str,
    *,
    bundle: str | None = None,
    previous: str | None = None,
    report: dict[str, Any] | None = None,
) -> None:
    session.add(
        EventRow(
            slot=slot,
            kind=kind,
            at=utc_now(),
            bundle=bundle,
            previous=previous,
            reason=reason,
            report=report,
        )
    )


def _add_version(session: Session, slot: str, bundle: StoredBundle[Any], data_dir: str) -> int:
    """Register the bundle, and give it a version number in the slot unless it has one."""
    facts = bundle.facts
    if session.get(BundleRow, bundle.hash) is None:
        session.add(
            BundleRow(
                hash=bundle.hash,
                members_sha256=bundle.members_sha256,
                kind=bundle.kind,
                environment=facts.environment,
                timeframe=facts.timeframe,
                tickers=None if facts.tickers is None else list(facts.tickers),
                study=facts.study,
                study_uid=facts.study_uid,
                trial=facts.trial,
                last_seen=facts.last_seen,
                data_dir=data_dir,
                at=utc_now(),
            )
        )
        session.flush()  # the version references this row
    known = select(VersionRow.number).where(
        VersionRow.slot == slot, VersionRow.bundle == bundle.hash
    )
    number = session.scalar(known)
    if number is not None:
        return number
    newest = select(func.max(VersionRow.number)).where(VersionRow.slot == slot)
    number = (session.scalar(newest) or 0) + 1
    session.add(VersionRow(slot=slot, number=number, bundle=bundle.hash, at=utc_now()))
    session.flush()
    return number
