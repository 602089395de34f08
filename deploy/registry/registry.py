"""The registry: champions, previous champions and challengers of deployment slots, with history.

A deployment slot (`crypto-1h`) is an alias that moves between immutable bundles, as in a model
registry. Every move is one transaction that also appends its event, so a crash leaves either the
old champion or the new one. The database serialises writers (`sweepd.deploy.registry.database`), so
concurrent promotions end with one champion. A bundle's files are written before the row that names
them, within the same transaction, so that a concurrent `clear_garbage` does not remove them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, select

from sweepd.deploy.registry.arena_rows import begin_reign, leave
from sweepd.deploy.registry.bundle_files import NAME_DIGITS, StoredBundle, read_bundle, staged
from sweepd.deploy.registry.database import utc_now
from sweepd.deploy.registry.reader import RegistryReader, read_slot
from sweepd.deploy.registry.records import (
    BUNDLES,
    CHALLENGERS,
    EVENTS,
    SLOTS,
    VERSIONS,
    Challenger,
    ChampionMoved,
    Champions,
    RegisteredBundle,
    Version,
    add_event,
)
from sweepd.deploy.registry.slots import check_slot
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
        refit: bool = False,
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
            refit: the bundle is the champion trained on newer bars, so its reign continues.

        Returns:
            The bundle's version number in the slot.

        Raises:
            ChampionMoved: the slot has another champion than `expected`.
            InputError: the slot's name is invalid.
        """
        check_slot(slot)
        with staged(bundle, self.bundles) as write, self.database.writing() as connection:
            # Under the write lock: the champion cannot change until this transaction ends.
            now = SLOTS.get(connection, name=slot)
            present = now.champion if now else None
            if present != expected:
                raise ChampionMoved(f"the champion of {slot} has changed since the comparison")
            # Files first: a crash leaves an unregistered folder, never a row without files.
            write()
            number = _add_version(connection, slot, bundle, data_dir)
            if present == bundle.hash:
                return number
            if now is None:
                now = Champions(slot, None, None, 0)
                SLOTS.add(connection, [now])
            _move(connection, now, bundle.hash)
            if not refit:
                begin_reign(connection, slot, bundle.hash, reason)
            add_event(
                connection,
                slot,
                "promoted",
                reason,
                bundle=bundle.hash,
                previous=present,
                report=report,
            )
        return number

    def rollback(
        self, slot: str, reason: str, *kinds: type[StoredBundle[Any]], expected: str | None = None
    ) -> tuple[str, str]:
        """Exchange champion and previous champion, in one transaction.

        Args:
            slot: the deployment slot.
            reason: why, for the slot's history.
            kinds: the bundle classes that are accepted; the returning bundle is loaded and checked.
            expected: hash of the champion that shall go; None is the present one.

        Returns:
            Hash of the replaced champion, and hash of the restored one.

        Raises:
            ChampionMoved: the slot has another champion than `expected`.
            InputError: there is no previous champion, or its files are missing or changed.
        """
        back = self.require(slot).previous
        if back is None:
            raise InputError(f"slot {slot!r} has no previous champion to go back to")
        with self.database.writing() as connection:
            now = SLOTS.get(connection, name=slot)
            if expected is not None and (now is None or now.champion != expected):
                raise ChampionMoved(f"the champion of {slot} has changed since it was judged")
            if now is None or now.previous != back or now.champion is None:
                raise InputError(
                    f"slot {slot!r} changed while it was being rolled back; check it and try again"
                )
            # `clear_garbage` may have removed the files, and a champion must be loadable.
            read_bundle(self.path(back), kinds, expected=back)
            _move(connection, now, back)
            begin_reign(connection, slot, back, reason)
            add_event(connection, slot, "rolled-back", reason, bundle=back, previous=now.champion)
        return now.champion, back

    def challenger(
        self,
        slot: str,
        bundle: StoredBundle[Any],
        *,
        reason: str,
        report: dict[str, Any] | None = None,
        data_dir: str = "",
        refit: bool = False,
    ) -> int:
        """Keep a bundle that cannot be compared with the champion yet.

        A bundle that is a challenger already changes nothing, its place in the order included.

        Args:
            slot: the deployment slot.
            bundle: the challenger.
            reason: why, for the slot's history.
            report: the gate's report.
            data_dir: folder of the bars that the bundle was scored on.
            refit: the bundle is the champion trained on newer bars.

        Returns:
            The bundle's version number in the slot.

        Raises:
            InputError: the slot's name is invalid.
        """
        check_slot(slot)
        with staged(bundle, self.bundles) as write, self.database.writing() as connection:
            write()
            number = _add_version(connection, slot, bundle, data_dir)
            if CHALLENGERS.get(connection, slot=slot, bundle=bundle.hash) is None:
                CHALLENGERS.add(connection, [Challenger(slot, bundle.hash, utc_now(), refit)])
                add_event(connection, slot, "challenger", reason, bundle=bundle.hash, report=report)
        return number

    def withdraw(self, slot: str, hash_: str, reason: str) -> None:
        """Remove a challenger from the slot, and from its seat in the arena.

        Raises:
            InputError: the bundle is not a challenger of the slot.
        """
        with self.database.writing() as connection:
            if CHALLENGERS.get(connection, slot=slot, bundle=hash_) is None:
                names = [one[:NAME_DIGITS] for one in read_slot(connection, slot).challengers]
                raise InputError(
                    f"{hash_[:NAME_DIGITS]} is not a challenger of slot {slot!r}; "
                    f"its challengers: {' '.join(names) or 'none'}"
                )
            connection.execute(CHALLENGERS.delete(slot=slot, bundle=hash_))
            leave(connection, slot, hash_, reason)
            add_event(connection, slot, "withdrawn", reason, bundle=hash_)

    def refuse(self, slot: str, reason: str, report: dict[str, Any] | None = None) -> None:
        """Append that no candidate passed. Repeating the last refusal appends nothing."""
        check_slot(slot)
        newest = EVENTS.select(EVENTS.c.slot == slot).order_by(EVENTS.c.id.desc()).limit(1)
        with self.database.writing() as connection:
            last = EVENTS.read(connection, newest)
            if last and (last[0].kind, last[0].reason) == ("refused", reason):
                return
            add_event(connection, slot, "refused", reason, report=report)

    def note(self, slot: str, kind: str, reason: str, bundle: str) -> None:
        """Append an event about a bundle that changes no champion."""
        with self.database.writing() as connection:
            add_event(connection, slot, kind, reason, bundle=bundle)


def _move(connection: Connection, now: Champions, champion: str) -> None:
    """Make `champion` the slot's champion, and the present one the previous one.

    A champion is no challenger, and has no seat in the arena.
    """
    connection.execute(
        SLOTS.update(name=now.name).values(
            champion=champion, previous=now.champion, revision=now.revision + 1
        )
    )
    connection.execute(CHALLENGERS.delete(slot=now.name, bundle=champion))
    leave(connection, now.name, champion, "it is the champion")


def _add_version(
    connection: Connection, slot: str, bundle: StoredBundle[Any], data_dir: str
) -> int:
    """Register the bundle, and give it a version number in the slot unless it has one."""
    facts = bundle.facts
    if BUNDLES.get(connection, hash=bundle.hash) is None:
        BUNDLES.add(
            connection,
            [
                RegisteredBundle(
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
            ],
        )
    known = VERSIONS.get(connection, slot=slot, bundle=bundle.hash)
    if known is not None:
        return known.number
    newest = select(func.max(VERSIONS.c.number)).where(VERSIONS.c.slot == slot)
    number = (connection.scalar(newest) or 0) + 1
    VERSIONS.add(connection, [Version(slot, number, bundle.hash, utc_now())])
    return number
