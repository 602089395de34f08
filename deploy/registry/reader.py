"""Queries of the registry: slots, their history and bundles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from sweepd.deploy.registry.bundle_files import (
    NAME_DIGITS,
    BundleT,
    Kind,
    is_synthetic,
    read_bundle,
)
from sweepd.deploy.registry.database import RegistryDatabase
from sweepd.deploy.registry.evaluations import EvaluationLog
from sweepd.deploy.registry.models import BundleRow, ChallengerRow, EventRow, SlotRow, VersionRow
from sweepd.deploy.registry.records import Event, Slot, Version
from sweepd.deploy.registry.slots import check_slot, is_slot_name, slot_name
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
    """

    def __init__(self, folder: Path, url: str | None = None, *, create: bool = True) -> None:
        self.folder = folder
        self.bundles = folder / "bundles"
        self._synthetic: dict[str, bool] = {}  # by hash; bundles never change
        self.database = RegistryDatabase(
            url or f"sqlite:///{folder / 'registry.db'}", create=create
        )
        self.evaluations = EvaluationLog(self.database)

    def slots(self) -> list[Slot]:
        """All slots that have a champion or a challenger, by name."""
        with self.database.reading() as session:
            names = {
                *session.scalars(select(SlotRow.name)),
                *session.scalars(select(ChallengerRow.slot)),
            }
            return [read_slot(session, name) for name in sorted(names)]

    def slots_of_kind(self, kind: Kind) -> set[str]:
        """Names of the slots whose bundles are of that kind."""
        query = select(VersionRow.slot).join(BundleRow, BundleRow.hash == VersionRow.bundle)
        with self.database.reading() as session:
            return set(session.scalars(query.where(BundleRow.kind == kind).distinct()))

    def slot(self, name: str) -> Slot:
        """The slot of that name; an empty one if nothing was promoted to it."""
        with self.database.reading() as session:
            return read_slot(session, name)

    def has_slot(self, name: str) -> bool:
        """Whether the slot has any history."""
        query = select(EventRow.id).where(EventRow.slot == name).limit(1)
        with self.database.reading() as session:
            return session.scalar(query) is not None

    def check_slot(self, name: str) -> None:
        """Check that a slot of that name exists or may be created.

        Slots created by older versions keep their names, even names that are invalid now.

        Raises:
            InputError: the slot does not exist and its name is invalid.
        """
        if not (is_slot_name(name) or self.has_slot(name)):
            check_slot(name)

    def default_slot(self, key: str) -> str:
        """The default slot for `key`: `key` itself if that slot exists, else a valid name."""
        return key if self.has_slot(key) else slot_name(key)

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
        with self.database.reading() as session:
            row = session.get(BundleRow, hash_)
            if row is not None and row.kind not in {one.kind for one in kinds}:
                wanted = " or ".join(one.kind for one in kinds)
                raise InputError(
                    f"bundle {path.name} is a {row.kind} bundle ({row.environment}); "
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
        with self.database.reading() as session:
            hashes = [
                hash_ for hash_ in session.scalars(select(BundleRow.hash)) if hash_.startswith(name)
            ]
        if len(name) < 4 or len(hashes) != 1:
            raise InputError(
                f"{reference!r} is neither a slot nor the beginning of exactly one bundle's hash "
                f"(four digits or more; {len(hashes)} match); sweepd registry list shows all slots"
            )
        return hashes[0]

    def path(self, hash_: str) -> Path:
        """The folder of the bundle with that hash."""
        return self.bundles / hash_[:NAME_DIGITS]

    def data_dir(self, hash_: str) -> Path | None:
        """The folder of bars that the bundle was scored on, on the machine that promoted it."""
        with self.database.reading() as session:
            row = session.get(BundleRow, hash_)
            return Path(row.data_dir) if row and row.data_dir else None

    def synthetic(self, hash_: str | None) -> bool:
        """Whether the bundle was trained on a synthetic market; False if its files are gone."""
        if hash_ is None:
            return False
        if hash_ not in self._synthetic:
            self._synthetic[hash_] = is_synthetic(self.path(hash_))
        return self._synthetic[hash_]

    def origin(self, hash_: str) -> tuple[str, int] | None:
        """Study and (first) trial of a bundle; None if the bundle was never registered."""
        with self.database.reading() as session:
            row = session.get(BundleRow, hash_)
            return None if row is None else (row.study, row.trial)

    def market(self, hash_: str) -> tuple[str, tuple[str, ...]] | None:
        """Timeframe and tickers of a registered bundle, also if its files are gone.

        None if the bundle was never registered, or is no market's.
        """
        with self.database.reading() as session:
            row = session.get(BundleRow, hash_)
            if row is None or row.timeframe is None or row.tickers is None:
                return None
            return row.timeframe, tuple(row.tickers)

    def versions(self, slot: str | None = None) -> list[Version]:
        """Every bundle of the slot, or of all slots, oldest first."""
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
        """The history of the slot, or of all slots, oldest first.

        Args:
            slot: this slot only.
            bundle: events of this bundle only.
            kinds: events of these kinds only.
            newest: at most this many, the newest.
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


def read_slot(session: Session, name: str) -> Slot:
    """The slot of that name; an empty one if nothing was promoted to it."""
    row = session.get(SlotRow, name)
    challengers = session.scalars(
        select(ChallengerRow.bundle)
        .where(ChallengerRow.slot == name)
        .order_by(ChallengerRow.at, ChallengerRow.bundle)
    )
    if row is None:
        return Slot(name, None, None, 0, tuple(challengers))
    return Slot(row.name, row.champion, row.previous, row.revision, tuple(challengers))
