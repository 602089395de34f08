"""The registry: the champion and the previous champion of each slot, and the history of every slot.

A slot (`crypto-1h`) is an alias that moves between immutable bundle versions, as in a model registry. Every move is one
transaction that also appends its event, so a crash at any instant leaves the old champion or the new one. Writers are
serialised by the database (`deploy.registry.database`), so racing promoters end in one champion. A bundle's files are written
before the row that names them, within the same transaction, so that a concurrent `clear` does not remove them.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from deploy.market.bundle import Bundle
from deploy.registry.bundle_files import NAME_DIGITS, StoredBundle, is_synthetic, write_bundle
from deploy.registry.bundles import load_any, trader
from deploy.registry.database import RegistryDatabase, utc_now
from deploy.registry.models import BundleRow, ChallengerRow, EventRow, LookRow, SlotRow, VersionRow
from deploy.registry.slots import check_slot, is_slot_name, slot_name
from envs.support.errors import InputError, RunError

PANEL = "panel of "  # before a game's name, where a market's looks have its assets


class ChampionMoved(Exception):
    """The slot's champion is no longer the one that the challenger was compared with: compare again."""


@dataclass(frozen=True)
class Slot:
    """A slot as it is now; hashes are None where there is none yet. challengers: hashes, oldest first.

    revision: how often the champion moved.
    """

    name: str
    champion: str | None
    previous: str | None
    revision: int
    challengers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Event:
    """Something that happened: `kind` is promoted, rolled-back, challenger, withdrawn, refused, removed, or, by a live
    trader, swap-refused.
    """

    slot: str
    kind: str
    at: str
    bundle: str | None
    previous: str | None
    reason: str
    report: dict[str, Any] | None


@dataclass(frozen=True)
class Version:
    """A bundle that came to a slot, as its number `number`."""

    slot: str
    number: int
    bundle: str
    at: str


@dataclass(frozen=True)
class Garbage:
    """A bundle folder that no slot needs. hash: None if the registry does not know it. size: bytes."""

    path: Path
    hash: str | None
    why: str
    size: int


@dataclass(frozen=True)
class Look:
    """A counted look at the hold-out. `repeated`: these weights had been scored on these bars before; nothing new is
    learnt.
    """

    number: int
    repeated: bool


class Registry:
    """The SQL registry of a deployments folder, whose bundles lie in `bundles/`.

    folder: the deployments folder. url: SQLAlchemy URL of the database, by default `registry.db` in that folder.
    create: an absent registry reads as an empty one, and is created by the first write; else it is an InputError.
    database: its tables, which the live traders share.
    """

    def __init__(self, folder: Path, url: str | None = None, *, create: bool = True) -> None:
        self.folder = folder
        self.bundles = folder / "bundles"
        self._synthetic: dict[str, bool] = {}  # by hash: a bundle never changes
        self.database = RegistryDatabase(
            url or f"sqlite:///{folder / 'registry.db'}", create=create
        )

    # -- reading
    # ---------------------------------------------------------------------------------------------------------

    def slots(self) -> list[Slot]:
        """All slots by name: those with a champion, or challengers at least."""
        with self.database.reading() as session:
            names = {
                *session.scalars(select(SlotRow.name)),
                *session.scalars(select(ChallengerRow.slot)),
            }
            return [_slot(session, name) for name in sorted(names)]

    def game_slots(self) -> set[str]:
        """Names of the slots whose bundles play a game, rather than trade."""
        query = select(VersionRow.slot).join(BundleRow, BundleRow.hash == VersionRow.bundle)
        with self.database.reading() as session:
            return set(session.scalars(query.where(BundleRow.timeframe == "").distinct()))

    def slot(self, name: str) -> Slot:
        """The slot of that name; an empty one where nothing was promoted to it yet."""
        with self.database.reading() as session:
            return _slot(session, name)

    def has_slot(self, name: str) -> bool:
        """Whether anything ever happened in a slot of that name."""
        with self.database.reading() as session:
            return (
                session.scalar(select(EventRow.id).where(EventRow.slot == name).limit(1))
                is not None
            )

    def check_slot(self, name: str) -> None:
        """Raises InputError where the registry has no slot of that name and no new one may have it.

        Slots created by older versions keep their names, even if these are invalid now.
        """
        if not (is_slot_name(name) or self.has_slot(name)):
            check_slot(name)

    def default_slot(self, key: str) -> str:
        """The default slot for `key`: `key` itself if that slot exists, else a valid name made from it."""
        return key if self.has_slot(key) else slot_name(key)

    def require(self, name: str | None) -> Slot:
        """The slot of that name, or the only one there is for None. Raises InputError unless it has a champion."""
        filled = {slot.name: slot for slot in self.slots() if slot.champion}
        known = ", ".join(filled) or "none"
        if name is None:
            if len(filled) != 1:
                raise InputError(f"name a slot: those with a champion are {known}")
            return next(iter(filled.values()))
        if name not in filled:
            raise InputError(f"slot {name!r} has no champion; slots with one: {known}")
        return filled[name]

    def bundle(self, hash_: str) -> Bundle:
        """Load and check a registered bundle that trades. Raises InputError where it is of another kind, or its files
        are gone or have been changed.
        """
        return trader(self.any_bundle(hash_))

    def any_bundle(self, hash_: str) -> StoredBundle[Any]:
        """As `bundle`, for a bundle of any kind."""
        if not self.path(hash_).exists():
            removed = self.events(bundle=hash_, kinds=["removed"])
            if removed:
                raise InputError(
                    f"the files of bundle {hash_[:NAME_DIGITS]} were removed at {removed[-1].at}; only its history "
                    "is left"
                )
        return load_any(self.path(hash_), expected=hash_)

    def find(self, reference: str) -> str:
        """The hash that a reference means. Raises InputError where it means nothing, or more than one bundle.

        `crypto-1h` is that slot's champion, `crypto-1h@previous` the one before it, `crypto-1h@3` the slot's third
        bundle; anything else is the beginning of a hash, of at least four digits.
        """
        name, at, which = (
            (reference, "", "") if self.has_slot(reference) else reference.partition("@")
        )
        slot = self.slot(name)
        versions = {str(version.number): version.bundle for version in self.versions(name)}
        if at or versions:
            known = versions | {"champion": slot.champion, "previous": slot.previous}
            if not versions:
                names = ", ".join(slot.name for slot in self.slots()) or "none"
                raise InputError(f"{reference!r}: there is no slot {name!r}; slots: {names}")
            found = known.get(which or "champion")
            if found is None:
                raise InputError(
                    f"{reference!r}: slot {name!r} has no {which or 'champion'!r}; there are "
                    f"{', '.join(f'{name}@{key}' for key, hash_ in known.items() if hash_)}"
                )
            return found
        with self.database.reading() as session:
            hashes = [
                hash_ for hash_ in session.scalars(select(BundleRow.hash)) if hash_.startswith(name)
            ]
        if len(name) < 4 or len(hashes) != 1:
            raise InputError(
                f"{reference!r} is neither a slot nor the beginning of exactly one bundle's hash (four digits or "
                f"more; {len(hashes)} begin so); sweepd registry list shows what there is"
            )
        return hashes[0]

    def path(self, hash_: str) -> Path:
        """Where a bundle of that hash lies."""
        return self.bundles / hash_[:NAME_DIGITS]

    def data_dir(self, hash_: str) -> Path | None:
        """The folder of bars that the bundle was scored on, on the machine that promoted it."""
        with self.database.reading() as session:
            row = session.get(BundleRow, hash_)
            return Path(row.data_dir) if row and row.data_dir else None

    def synthetic(self, hash_: str | None) -> bool:
        """Whether the bundle was trained on a made-up market, as far as its files are still there to say so."""
        if hash_ is None:
            return False
        if hash_ not in self._synthetic:
            self._synthetic[hash_] = is_synthetic(self.path(hash_))
        return self._synthetic[hash_]

    def origin(self, hash_: str) -> tuple[str, int] | None:
        """The study and the (first) trial that a bundle came from; None for one that was never registered."""
        with self.database.reading() as session:
            row = session.get(BundleRow, hash_)
            return None if row is None else (row.study, row.trial)

    def versions(self, slot: str | None = None) -> list[Version]:
        """Every bundle that came to the slot, or to any of them, oldest first."""
        query = select(VersionRow).order_by(VersionRow.slot, VersionRow.number)
        if slot is not None:
            query = query.where(VersionRow.slot == slot)
        with self.database.reading() as session:
            return [
                Version(row.slot, row.number, row.bundle, row.at) for row in session.scalars(query)
            ]

    def events(
        self,
        slot: str | None = None,
        *,
        bundle: str | None = None,
        kinds: Sequence[str] = (),
        newest: int | None = None,
    ) -> list[Event]:
        """What happened to the slot, or to all of them, oldest first; of that bundle or those kinds only, or only as
        many of the newest.
        """
        query = select(EventRow).order_by(EventRow.id.desc()).limit(newest)
        if slot is not None:
            query = query.where(EventRow.slot == slot)
        if bundle is not None:
            query = query.where(EventRow.bundle == bundle)
        if kinds:
            query = query.where(EventRow.kind.in_(kinds))
        with self.database.reading() as session:
            return [
                Event(row.slot, row.kind, row.at, row.bundle, row.previous, row.reason, row.report)
                for row in session.scalars(query)
            ][::-1]

    def holdout_span(self, bundle: Bundle) -> tuple[int, int] | None:
        """Opens of the first and last hold-out bar on which the bundle's weights were last scored; None if never."""
        with self.database.reading() as session:
            row = session.scalars(
                select(LookRow)
                .where(LookRow.members_sha256 == bundle.members_sha256)
                .order_by(LookRow.id.desc())
                .limit(1)
            ).first()
            return None if row is None else (row.first, row.last)

    def looks(self, tickers: Sequence[str], first: int, last: int) -> int:
        """How many looks were taken at hold-outs that overlap bars `first` to `last` (opens) and have at least one base
        asset in common with these tickers; quote currencies do not matter.
        """
        with self.database.reading() as session:
            return _count_looks(session, asset_set(tickers), first, last)

    # -- writing
    # ---------------------------------------------------------------------------------------------------------

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
        """Make `bundle` the slot's champion, in one transaction; the old one becomes `previous`. Returns its version
        number.

        expected: hash of the champion that the gate compared with (None: there was none). Promoting the champion
        changes nothing. Raises ChampionMoved where the champion is another one by now, InputError for a name that no
        slot may have.
        """
        self.check_slot(slot)
        with self.database.writing() as session:
            row = session.get(SlotRow, slot)
            present = row.champion if row else None
            if present != expected:
                raise ChampionMoved(f"the champion of {slot} has changed since the comparison")
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
            session.add(
                _event(
                    slot, "promoted", reason, bundle=bundle.hash, previous=present, report=report
                )
            )
        return number

    def rollback(self, slot: str, reason: str) -> tuple[str, str]:
        """Exchange champion and previous champion, in one transaction, after checking the bundle that comes back.

        Returns (hash of the one that left, hash of the one that came back).
        """
        now = self.require(slot)
        if now.previous is None:
            raise InputError(f"slot {slot!r} has no previous champion to go back to")
        with self.database.writing() as session:
            row = session.get_one(SlotRow, slot)
            if row.previous != now.previous or row.champion is None:
                raise InputError(
                    f"slot {slot!r} changed while it was being rolled back; look at it and try again"
                )
            load_any(self.path(now.previous), expected=now.previous)
            left, back = row.champion, row.previous
            row.champion, row.previous, row.revision = back, left, row.revision + 1
            session.add(_event(slot, "rolled-back", reason, bundle=back, previous=left))
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
        """Keep a bundle that may become champion but could not be compared yet. Returns its version number.

        Raises InputError for a name that no slot may have.
        """
        self.check_slot(slot)
        with self.database.writing() as session:
            write_bundle(bundle, self.bundles)
            number = _add_version(session, slot, bundle, data_dir)
            if session.get(ChallengerRow, (slot, bundle.hash)) is None:
                session.add(ChallengerRow(slot=slot, bundle=bundle.hash, at=utc_now()))
            session.add(_event(slot, "challenger", reason, bundle=bundle.hash, report=report))
        return number

    def withdraw(self, slot: str, hash_: str, reason: str) -> None:
        """A challenger no longer asks for the slot. Raises InputError where it does not."""
        with self.database.writing() as session:
            row = session.get(ChallengerRow, (slot, hash_))
            if row is None:
                others = (
                    " ".join(one[:NAME_DIGITS] for one in _slot(session, slot).challengers)
                    or "none"
                )
                raise InputError(
                    f"{hash_[:NAME_DIGITS]} is no challenger of slot {slot!r}; its challengers: {others}"
                )
            session.delete(row)
            session.add(_event(slot, "withdrawn", reason, bundle=hash_))

    def refuse(self, slot: str, reason: str, report: dict[str, Any] | None = None) -> None:
        """Append that no candidate passed, and why; once, however often the same is found in a row."""
        self.check_slot(slot)
        with self.database.writing() as session:
            last = session.scalars(
                select(EventRow).where(EventRow.slot == slot).order_by(EventRow.id.desc()).limit(1)
            ).first()
            if last is not None and (last.kind, last.reason) == ("refused", reason):
                return
            session.add(_event(slot, "refused", reason, report=report))

    def note(self, slot: str, kind: str, reason: str, bundle: str) -> None:
        """Append something that happened to a bundle in a slot, and moved no champion."""
        with self.database.writing() as session:
            session.add(_event(slot, kind, reason, bundle=bundle))

    def take_look(
        self,
        tickers: Sequence[str],
        timeframe: str,
        first: int,
        last: int,
        *,
        members_sha256: str,
        study: str,
        study_uid: str,
        trial: int,
    ) -> Look:
        """Count a look before it is taken, so that no crash makes it free. first, last: opens of the hold-out's bars,
        seconds.

        Looks at overlapping bars that have at least one base asset in common share one count, across studies,
        timeframes, quote currencies and fingerprints: a study that adds or drops a ticker sees the others' bars again.
        The same weights on the same bars are the same look.
        """
        return self._look(
            asset_set(tickers), timeframe, (first, last), members_sha256, study, study_uid, trial
        )

    def take_panel_look(
        self, panel: str, games: int, *, members_sha256: str, study: str, study_uid: str, trial: int
    ) -> Look:
        """Count a look at a game's panel, of so many games, before it is taken; as `take_look` does.

        panel: the game, with its parameters. All looks at it share one count; the same weights over as many games are
        the same look.
        """
        return self._look(
            f"{PANEL}{panel}", "", (0, games), members_sha256, study, study_uid, trial
        )

    def panel_looks(self, panel: str) -> int:
        """How many looks were taken at the game's panel."""
        with self.database.reading() as session:
            return _count_looks(session, f"{PANEL}{panel}", 0, 0)

    def _look(
        self,
        assets: str,
        timeframe: str,
        span: tuple[int, int],
        members_sha256: str,
        study: str,
        study_uid: str,
        trial: int,
    ) -> Look:
        first, last = span
        with self.database.writing() as session:
            again = session.scalar(
                select(LookRow).where(
                    LookRow.asset_set == assets,
                    LookRow.first == first,
                    LookRow.last == last,
                    LookRow.members_sha256 == members_sha256,
                )
            )
            if again is not None:
                return Look(again.number, repeated=True)
            number = _count_looks(session, assets, first, last) + 1
            session.add(
                LookRow(
                    asset_set=assets,
                    timeframe=timeframe,
                    first=first,
                    last=last,
                    number=number,
                    members_sha256=members_sha256,
                    study=study,
                    study_uid=study_uid,
                    trial=trial,
                    at=utc_now(),
                )
            )
        return Look(number, repeated=False)

    def garbage(self) -> list[Garbage]:
        """The bundle folders that no slot needs: neither champion, previous champion nor challenger of any slot."""
        with self.database.reading() as session:
            return self._garbage(session)

    def clear(self) -> list[Garbage]:
        """Remove what `garbage` finds, and append that to the history of the slots it had come to. Returns it.

        A folder leaves its name in one step, so a crash leaves it whole or gone (and its remains to the next time).
        """
        remains = []
        with self.database.writing() as session:
            found = self._garbage(session)
            for item in found:
                try:
                    if item.path.name.startswith("."):
                        shutil.rmtree(item.path)
                    else:
                        remains.append(
                            item.path.rename(item.path.with_name(f".{item.path.name}.removed.tmp"))
                        )
                except OSError as error:
                    raise RunError(
                        f"bundle {item.path} cannot be removed: {error.strerror or error}"
                    ) from error
                for slot in session.scalars(
                    select(VersionRow.slot).where(VersionRow.bundle == item.hash)
                ):
                    session.add(_event(slot, "removed", item.why, bundle=item.hash))
        for path in remains:
            shutil.rmtree(path, ignore_errors=True)
        return found

    def _garbage(self, session: Session) -> list[Garbage]:
        needed = (select(SlotRow.champion), select(SlotRow.previous), select(ChallengerRow.bundle))
        kept = {
            hash_[:NAME_DIGITS] for query in needed for hash_ in session.scalars(query) if hash_
        }
        known = {hash_[:NAME_DIGITS]: hash_ for hash_ in session.scalars(select(BundleRow.hash))}
        folders = (
            sorted(path for path in self.bundles.glob("*") if path.is_dir())
            if self.bundles.is_dir()
            else []
        )
        bundles = [path for path in folders if not path.name.startswith(".")]
        if bundles and not any(path.name in known for path in bundles):
            raise InputError(
                f"{self.bundles} holds {len(bundles)} bundle(s), and the registry {self.database.shown} knows none of "
                "them: name the registry that they belong to with --registry, or their folder with --deployments"
            )
        found = []
        for path in folders:
            if path.name in kept:
                continue
            hash_ = known.get(path.name)
            if hash_ is not None:
                why = "no longer champion, previous champion or challenger of any slot"
            elif path.name.startswith("."):
                why = "what is left of an interrupted write or removal"
            else:
                why = "not in the registry: a promotion was interrupted before it counted"
            found.append(
                Garbage(path, hash_, why, sum(item.stat().st_size for item in path.iterdir()))
            )
        return found


def asset_set(tickers: Sequence[str]) -> str:
    """The key under which looks at these assets are counted; the order of the tickers does not matter."""
    return " ".join(sorted(tickers))


def _slot(session: Session, name: str) -> Slot:
    row = session.get(SlotRow, name)
    challengers = session.scalars(
        select(ChallengerRow.bundle)
        .where(ChallengerRow.slot == name)
        .order_by(ChallengerRow.at, ChallengerRow.bundle)
    )
    if row is None:
        return Slot(name, None, None, 0, tuple(challengers))
    return Slot(row.name, row.champion, row.previous, row.revision, tuple(challengers))


def _event(
    slot: str,
    kind: str,
    reason: str,
    *,
    bundle: str | None = None,
    previous: str | None = None,
    report: dict[str, Any] | None = None,
) -> EventRow:
    return EventRow(
        slot=slot,
        kind=kind,
        at=utc_now(),
        bundle=bundle,
        previous=previous,
        reason=reason,
        report=report,
    )


def _count_looks(session: Session, assets: str, first: int, last: int) -> int:
    """Looks at overlapping spans of the same panel, or of markets with at least one base asset in common."""
    query = select(LookRow.asset_set).where(LookRow.first <= last, LookRow.last >= first)
    if assets.startswith(PANEL):
        return len(session.scalars(query.where(LookRow.asset_set == assets)).all())
    own = _base_assets(assets)
    taken = session.scalars(query.where(LookRow.asset_set.not_like(f"{PANEL}%")))
    return sum(not own.isdisjoint(_base_assets(other)) for other in taken)


def _base_assets(assets: str) -> frozenset[str]:
    """The base assets of an `asset_set`: BTC and ETH of `BTC/USD ETH/USDT`."""
    return frozenset(ticker.partition("/")[0].upper() for ticker in assets.split())


def _add_version(session: Session, slot: str, bundle: StoredBundle[Any], data_dir: str) -> int:
    noted = bundle.registered
    if session.get(BundleRow, bundle.hash) is None:
        session.add(
            BundleRow(
                hash=bundle.hash,
                members_sha256=bundle.members_sha256,
                environment=noted.environment,
                timeframe=noted.timeframe,
                tickers=list(noted.tickers),
                study=noted.study,
                study_uid=noted.study_uid,
                trial=noted.trial,
                last_seen=noted.last_seen,
                data_dir=data_dir,
                at=utc_now(),
            )
        )
        session.flush()
    known = session.scalar(
        select(VersionRow.number).where(VersionRow.slot == slot, VersionRow.bundle == bundle.hash)
    )
    if known is not None:
        return known
    number = (
        session.scalar(select(func.max(VersionRow.number)).where(VersionRow.slot == slot)) or 0
    ) + 1
    session.add(VersionRow(slot=slot, number=number, bundle=bundle.hash, at=utc_now()))
    session.flush()
    return number
