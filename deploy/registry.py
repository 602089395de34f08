"""The registry: which bundle each slot trades, which one it traded before, and everything that ever happened to it.

A slot (`crypto-1h`) is an alias that moves between immutable bundle versions, as in a model registry. Every move is one
transaction that also appends its event, so a crash at any instant leaves the old champion or the new one. All writers
are serialised by the database (SQLite: BEGIN IMMEDIATE; PostgreSQL: an advisory lock), so racing promoters end in one
champion.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, func, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.orm import Session

from deploy.bundle import NAME_DIGITS, Bundle, load_bundle, write_bundle
from deploy.models import SCHEMA_VERSION, Base, BundleRow, EventRow, LookRow, SchemaRow, SlotRow, VersionRow
from envs.errors import InputError, RunError

_ADVISORY_LOCK = 0x73776565  # any number that other programs on the same PostgreSQL are unlikely to use


class ChampionMoved(Exception):
    """The slot's champion is no longer the one that the challenger was compared with: compare again."""


@dataclass(frozen=True)
class Slot:
    """A slot as it is now; hashes are None where there is none yet."""

    name: str
    champion: str | None
    previous: str | None
    revision: int


@dataclass(frozen=True)
class Event:
    """Something that happened: `kind` is promoted, rolled-back, challenger, refused."""

    slot: str
    kind: str
    at: str
    bundle: str | None
    previous: str | None
    reason: str
    report: dict[str, Any] | None


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
    create: make folder and tables where they are missing; else an absent registry is an InputError.
    """

    def __init__(self, folder: Path, url: str | None = None, *, create: bool = True) -> None:
        self.folder = folder
        self.bundles = folder / "bundles"
        self.url = _parse_url(url or f"sqlite:///{folder / 'registry.db'}")
        path = Path(self.url.database) if self.url.get_backend_name() == "sqlite" and self.url.database else None
        if path is not None and not path.exists() and not create:
            raise InputError(
                f"there is no registry at {path}: nothing has been promoted yet (sweepd promote), or name it with "
                "--deployments"
            )
        if path is not None and create:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"the registry's folder {path.parent} cannot be made: {error.strerror}") from error
        self._engine = _engine(self.url)
        try:
            self._prepare()
        except RunError as error:
            raise InputError(str(error)) from error

    # -- reading
    # ---------------------------------------------------------------------------------------------------------

    def slots(self) -> list[Slot]:
        """All slots by name."""
        with self._reading() as session:
            return [_slot(row) for row in session.scalars(select(SlotRow).order_by(SlotRow.name))]

    def slot(self, name: str) -> Slot:
        """The slot of that name; an empty one where nothing was promoted to it yet."""
        with self._reading() as session:
            row = session.get(SlotRow, name)
            return _slot(row) if row else Slot(name, None, None, 0)

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
        """Load and check a registered bundle."""
        return load_bundle(self.path(hash_), expected=hash_)

    def path(self, hash_: str) -> Path:
        """Where a bundle of that hash lies."""
        return self.bundles / hash_[:NAME_DIGITS]

    def data_dir(self, hash_: str) -> Path | None:
        """The folder of bars that the bundle was scored on, on the machine that promoted it."""
        with self._reading() as session:
            row = session.get(BundleRow, hash_)
            return Path(row.data_dir) if row and row.data_dir else None

    def versions(self, slot: str) -> list[tuple[int, str]]:
        """(number, hash) of every bundle that came to the slot, oldest first."""
        with self._reading() as session:
            rows = session.scalars(select(VersionRow).where(VersionRow.slot == slot).order_by(VersionRow.number))
            return [(row.number, row.bundle) for row in rows]

    def events(self, slot: str | None = None) -> list[Event]:
        """What happened to the slot, or to all of them, oldest first."""
        query = select(EventRow).order_by(EventRow.id)
        if slot is not None:
            query = query.where(EventRow.slot == slot)
        with self._reading() as session:
            return [
                Event(row.slot, row.kind, row.at, row.bundle, row.previous, row.reason, row.report)
                for row in session.scalars(query)
            ]

    def looks(self, tickers: Sequence[str], first: int, last: int) -> int:
        """How many looks were taken at hold-outs of these assets that overlap bars `first` to `last` (opens)."""
        with self._reading() as session:
            return _count_looks(session, asset_set(tickers), first, last)

    # -- writing
    # ---------------------------------------------------------------------------------------------------------

    def promote(
        self,
        slot: str,
        bundle: Bundle,
        *,
        expected: str | None,
        reason: str,
        report: dict[str, Any] | None = None,
        data_dir: str = "",
    ) -> int:
        """Make `bundle` the slot's champion, in one transaction; the old one becomes `previous`. Returns its version
        number.

        expected: hash of the champion that the gate compared with (None: there was none). Promoting the champion
        changes nothing. Raises ChampionMoved where the champion is another one by now.
        """
        write_bundle(bundle, self.bundles)
        with self._writing() as session:
            row = session.get(SlotRow, slot)
            present = row.champion if row else None
            if present != expected:
                raise ChampionMoved(f"the champion of {slot} has changed since the comparison")
            number = _add_version(session, slot, bundle, data_dir)
            if present == bundle.hash:
                return number
            if row is None:
                row = SlotRow(name=slot, champion=None, previous=None, revision=0)
                session.add(row)
            row.previous, row.champion, row.revision = present, bundle.hash, row.revision + 1
            session.add(_event(slot, "promoted", reason, bundle=bundle.hash, previous=present, report=report))
        return number

    def rollback(self, slot: str, reason: str) -> tuple[str, str]:
        """Exchange champion and previous champion, in one transaction, after checking the bundle that comes back.

        Returns (hash of the one that left, hash of the one that came back).
        """
        now = self.require(slot)
        if now.previous is None:
            raise InputError(f"slot {slot!r} has no previous champion to go back to")
        self.bundle(now.previous)
        with self._writing() as session:
            row = session.get_one(SlotRow, slot)
            if row.previous != now.previous or row.champion is None:
                raise InputError(f"slot {slot!r} changed while it was being rolled back; look at it and try again")
            left, back = row.champion, row.previous
            row.champion, row.previous, row.revision = back, left, row.revision + 1
            session.add(_event(slot, "rolled-back", reason, bundle=back, previous=left))
        return left, back

    def challenger(
        self, slot: str, bundle: Bundle, *, reason: str, report: dict[str, Any] | None = None, data_dir: str = ""
    ) -> int:
        """Keep a bundle that may become champion but could not be compared yet. Returns its version number."""
        write_bundle(bundle, self.bundles)
        with self._writing() as session:
            number = _add_version(session, slot, bundle, data_dir)
            session.add(_event(slot, "challenger", reason, bundle=bundle.hash, report=report))
        return number

    def refuse(self, slot: str, reason: str, report: dict[str, Any] | None = None) -> None:
        """Append that no candidate passed, and why."""
        with self._writing() as session:
            session.add(_event(slot, "refused", reason, report=report))

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

        Looks at overlapping bars of the same assets share one count, across studies, timeframes and fingerprints. The
        same weights on the same bars are the same look.
        """
        assets = asset_set(tickers)
        with self._writing() as session:
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
                    at=_now(),
                )
            )
        return Look(number, repeated=False)

    # -- inside
    # ----------------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        with self._writing() as session:
            Base.metadata.create_all(session.connection())
            versions = list(session.scalars(select(SchemaRow.version)))
            if not versions:
                session.add(SchemaRow(version=SCHEMA_VERSION))
            elif versions != [SCHEMA_VERSION]:
                raise InputError(
                    f"the registry {self._shown} has tables of version {versions[0]}; this program knows "
                    f"{SCHEMA_VERSION}"
                )

    @property
    def _shown(self) -> str:
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            problem = str(error.orig).splitlines()[0]
            raise RunError(f"the registry {self._shown} cannot be used: {problem}") from error

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with self._reported(), Session(self._engine) as session:
            yield session

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        with self._reported(), Session(self._engine) as session, session.begin():
            if self.url.get_backend_name() == "postgresql":
                session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
            yield session


def asset_set(tickers: Sequence[str]) -> str:
    """The name under which looks at these assets are counted, whatever their order."""
    return " ".join(sorted(tickers))


def _parse_url(url: str) -> URL:
    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError) as error:
        raise InputError(f"--registry {url!r} is not a database URL like sqlite:///deployments/registry.db") from error
    return parsed


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        try:
            return create_engine(url, pool_pre_ping=True)
        except ModuleNotFoundError as error:
            raise InputError(f"the registry needs {error.name}: pip install 'sweepd[postgres]'") from error
    engine = create_engine(url, connect_args={"timeout": 60.0})

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")  # a promotion that was reported survives a power loss
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _slot(row: SlotRow) -> Slot:
    return Slot(row.name, row.champion, row.previous, row.revision)


def _event(
    slot: str,
    kind: str,
    reason: str,
    *,
    bundle: str | None = None,
    previous: str | None = None,
    report: dict[str, Any] | None = None,
) -> EventRow:
    return EventRow(slot=slot, kind=kind, at=_now(), bundle=bundle, previous=previous, reason=reason, report=report)


def _count_looks(session: Session, assets: str, first: int, last: int) -> int:
    query = (
        select(func.count())
        .select_from(LookRow)
        .where(LookRow.asset_set == assets, LookRow.first <= last, LookRow.last >= first)
    )
    return session.scalar(query) or 0


def _add_version(session: Session, slot: str, bundle: Bundle, data_dir: str) -> int:
    manifest = bundle.manifest
    if session.get(BundleRow, bundle.hash) is None:
        session.add(
            BundleRow(
                hash=bundle.hash,
                members_sha256=bundle.members_sha256,
                environment=manifest.environment,
                timeframe=manifest.timeframe,
                tickers=list(manifest.tickers),
                study=manifest.origin.study,
                study_uid=manifest.origin.study_uid,
                trial=manifest.origin.trial,
                last_seen=bundle.last_seen,
                data_dir=data_dir,
                at=_now(),
            )
        )
        session.flush()
    known = session.scalar(select(VersionRow.number).where(VersionRow.slot == slot, VersionRow.bundle == bundle.hash))
    if known is not None:
        return known
    number = (session.scalar(select(func.max(VersionRow.number)).where(VersionRow.slot == slot)) or 0) + 1
    session.add(VersionRow(slot=slot, number=number, bundle=bundle.hash, at=_now()))
    session.flush()
    return number
