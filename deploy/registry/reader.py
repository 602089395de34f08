"""Queries of the registry: slots, their history and bundles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from sweepd.deploy.registry.arena_rows import ArenaRows
from sweepd.deploy.registry.bundle_files import (
    NAME_DIGITS,
    BundleT,
    Kind,
    StoredBundle,
    read_bundle,
    unchecked_manifest,
)
from sweepd.deploy.registry.database import RegistryDatabase
from sweepd.deploy.registry.evaluations import EvaluationLog
from sweepd.deploy.registry.records import (
    BUNDLES,
    CHALLENGERS,
    EVENTS,
    SLOTS,
    VERSIONS,
    Champions,
    Event,
    RegisteredBundle,
    Slot,
    Version,
)
from sweepd.envs.support.errors import InputError


class RegistryReader:
    """Queries of a registry.

    Args:
        folder: the deployments folder; its bundles are in `bundles/`.
        url: SQLAlchemy URL of the database, by default `registry.db` in that folder.
        create: an absent registry reads as an empty one and is created by the first write;
            otherwise it is an InputError.

    Attributes:
        database: the tables, which live traders share.
        evaluations: the count of evaluations on hold-outs and panels.
        arena: reigns, and entries of challengers.
    """

    def __init__(self, folder: Path, url: str | None = None, *, create: bool = True) -> None:
        self.folder = folder
        self.bundles = folder / "bundles"
        self._manifests: dict[str, dict[str, Any]] = {}  # by hash; bundles never change
        self.database = RegistryDatabase(
            url or f"sqlite:///{folder / 'registry.db'}", create=create
        )
        self.evaluations = EvaluationLog(self.database)
        self.arena = ArenaRows(self.database)

    def slots(self) -> list[Slot]:
        """All slots that have a champion or a challenger, by name."""
        with self.database.reading() as connection:
            names = {
                *connection.scalars(select(SLOTS.c.name)),
                *connection.scalars(select(CHALLENGERS.c.slot)),
            }
            return [read_slot(connection, name) for name in sorted(names)]

    def untraded_slots(self) -> dict[str, Kind]:
        """The slots whose bundles trade no assets: the kind of their bundles, by name."""
        query = (
            select(VERSIONS.c.slot, BUNDLES.c.kind)
            .join(BUNDLES.table, BUNDLES.c.hash == VERSIONS.c.bundle)
            .where(BUNDLES.c.timeframe.is_(None))
        )
        with self.database.reading() as connection:
            return {row.slot: row.kind for row in connection.execute(query)}

    def slot(self, name: str) -> Slot:
        """The slot of that name; an empty one if nothing was promoted to it."""
        with self.database.reading() as connection:
            return read_slot(connection, name)

    def has_slot(self, name: str) -> bool:
        """Whether the slot has any history."""
        query = select(EVENTS.c.id).where(EVENTS.c.slot == name).limit(1)
        with self.database.reading() as connection:
            return connection.scalar(query) is not None

    def require(self, name: str | None) -> Slot:
        """The slot of that name, or for None the only slot with a champion.

        Raises:
            InputError: the slot has no champion, or None is ambiguous.
        """
        filled = {slot.name: slot for slot in self.slots() if slot.champion}
        known = ", ".join(filled) or "none"
        if name is None:
            if len(filled) != 1:
                raise InputError(f"name a slot: those with a champion are {known}")
            return next(iter(filled.values()))
        if name not in filled:
            raise InputError(f"slot {name!r} has no champion; slots with one: {known}")
        return filled[name]

    def bundle(self, hash_: str, *kinds: type[BundleT]) -> BundleT:
        """Load and check a registered bundle.

        Args:
            hash_: hash of the bundle.
            kinds: the bundle classes that are accepted.

        Raises:
            InputError: the bundle is of another kind, or its files are missing or changed.
        """
        path = self.path(hash_)
        known = self._registered(hash_)
        if known is not None and known.kind not in {one.kind for one in kinds}:
            wanted = " or ".join(one.kind for one in kinds)
            raise InputError(
                f"bundle {path.name} is a {known.kind} bundle ({known.environment}); "
                f"a {wanted} bundle is needed"
            )
        if not path.exists():
            removed = self.events(bundle=hash_, kinds=["removed"])
            if removed:
                raise InputError(
                    f"the files of bundle {path.name} were removed at {removed[-1].at}; "
                    "only its history is left"
                )
        return read_bundle(path, kinds, expected=hash_)

    def find(self, reference: str) -> str:
        """Resolve a reference to a bundle's hash.

        `crypto-1h` is the slot's champion, `crypto-1h@previous` the champion before it,
        `crypto-1h@3` the slot's third bundle; anything else is the beginning of a hash, of at
        least four digits.

        Raises:
            InputError: the reference matches nothing, or more than one bundle.
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
                choices = ", ".join(f"{name}@{key}" for key, hash_ in known.items() if hash_)
                raise InputError(
                    f"{reference!r}: slot {name!r} has no {which or 'champion'!r}; "
                    f"there are {choices}"
                )
            return found
        with self.database.reading() as connection:
            every = connection.scalars(select(BUNDLES.c.hash))
            hashes: list[str] = [hash_ for hash_ in every if hash_.startswith(name)]
        if len(name) < 4 or len(hashes) != 1:
            raise InputError(
                f"{reference!r} is neither a slot nor the beginning of exactly one bundle's hash "
                f"(four digits or more; {len(hashes)} match); sweepd registry list shows all slots"
            )
        return hashes[0]

    def path(self, hash_: str) -> Path:
        """The folder of the bundle with that hash."""
        return self.bundles / hash_[:NAME_DIGITS]

    def called(self, bundle: StoredBundle[Any]) -> str:
        """Return what a bundle is called: its slot as champion, else `SLOT@3`, else its own name."""
        versions = [one for one in self.versions() if one.bundle == bundle.hash]
        champions = [one.slot for one in versions if self.slot(one.slot).champion == bundle.hash]
        others = [f"{one.slot}@{one.number}" for one in versions]
        return next(iter([*champions, *others]), bundle.name)

    def data_dir(self, hash_: str) -> Path | None:
        """The folder of bars that the bundle was scored on, on the machine that promoted it."""
        known = self._registered(hash_)
        return Path(known.data_dir) if known and known.data_dir else None

    def synthetic(self, hash_: str | None) -> bool:
        """Whether the bundle was trained on a synthetic market; False if its files are gone."""
        if hash_ is None:
            return False
        data = self._manifest(hash_).get("data")
        return isinstance(data, dict) and data.get("synthetic") is True

    def recipe(self, hash_: str) -> str | None:
        """Return the name of a market bundle's features; None if its files are gone."""
        recipe = self._manifest(hash_).get("recipe")
        return str(recipe["name"]) if isinstance(recipe, dict) and "name" in recipe else None

    def _manifest(self, hash_: str) -> dict[str, Any]:
        if hash_ not in self._manifests:
            self._manifests[hash_] = unchecked_manifest(self.path(hash_))
        return self._manifests[hash_]

    def origin(self, hash_: str) -> tuple[str, int] | None:
        """Study and (first) trial of a bundle; None if the bundle was never registered."""
        known = self._registered(hash_)
        return None if known is None else (known.study, known.trial)

    def market(self, hash_: str) -> tuple[str, tuple[str, ...]] | None:
        """Timeframe and tickers of a registered bundle, also if its files are gone.

        None if the bundle was never registered, or is no market's.
        """
        known = self._registered(hash_)
        if known is None or known.timeframe is None or known.tickers is None:
            return None
        return known.timeframe, tuple(known.tickers)

    def versions(self, slot: str | None = None) -> list[Version]:
        """Every bundle of the slot, or of all slots, oldest first."""
        query = VERSIONS.select().order_by(VERSIONS.c.slot, VERSIONS.c.number)
        if slot is not None:
            query = query.where(VERSIONS.c.slot == slot)
        with self.database.reading() as connection:
            return VERSIONS.read(connection, query)

    def events(
        self,
        slot: str | None = None,
        *,
        bundle: str | None = None,
        kinds: Sequence[str] = (),
        newest: int | None = None,
    ) -> list[Event]:
        """The history of the slot, or of all slots, oldest first.

        Args:
            slot: this slot only.
            bundle: events of this bundle only.
            kinds: events of these kinds only.
            newest: at most this many, the newest.
        """
        query = EVENTS.select().order_by(EVENTS.c.id.desc()).limit(newest)
        if slot is not None:
            query = query.where(EVENTS.c.slot == slot)
        if bundle is not None:
            query = query.where(EVENTS.c.bundle == bundle)
        if kinds:
            query = query.where(EVENTS.c.kind.in_(kinds))
        with self.database.reading() as connection:
            return EVENTS.read(connection, query)[::-1]

    def last_move(self, slot: str, bundle: str | None) -> Event | None:
        """Return the bundle's last promotion or rollback to the slot, or None."""
        if bundle is None:
            return None
        kinds = ["promoted", "rolled-back"]
        return next(iter(self.events(slot, bundle=bundle, kinds=kinds, newest=1)), None)

    def _registered(self, hash_: str) -> RegisteredBundle | None:
        with self.database.reading() as connection:
            return BUNDLES.get(connection, hash=hash_)


def read_slot(connection: Connection, name: str) -> Slot:
    """The slot of that name; an empty one if nothing was promoted to it."""
    found = SLOTS.get(connection, name=name) or Champions(name, None, None, 0)
    challengers = connection.scalars(
        select(CHALLENGERS.c.bundle)
        .where(CHALLENGERS.c.slot == name)
        .order_by(CHALLENGERS.c.at, CHALLENGERS.c.bundle)
    )
    return Slot(**vars(found), challengers=tuple(challengers))
