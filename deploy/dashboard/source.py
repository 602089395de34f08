"""Sources of the dashboard: the registry's database, and the storage of studies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sweepd.deploy.dashboard.health import Health, health
from sweepd.deploy.dashboard.hints import show_untraded
from sweepd.deploy.dashboard.replays import Replay, Replays, tables_of
from sweepd.deploy.dashboard.series import SeriesCache
from sweepd.deploy.dashboard.view import SlotView, slot_names, slot_view
from sweepd.deploy.registry.bundle_files import UNTRADED
from sweepd.deploy.registry.database import RegistryDatabase
from sweepd.deploy.registry.flags import RegistryFlags, registry_flags
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.profits import ProfitBook
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.invocation import program

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from sweepd.optimize.study.record.reader import StudyReader


class StudySource(Protocol):
    """Studies, which `optimize` provides.

    All methods raise InputError or RunError if there is no study or no database.
    """

    def studies(self) -> list[str]:
        """Return the names, the default study first."""

    def progress(self, name: str) -> dict[str, Any]:
        """Return a study's progress.

        It has the keys of `sweepd status --json`, `objective`, `synthetic`, `outlook` and
        `history`.
        """

    def parameters(self, name: str) -> dict[str, Any]:
        """Return the parameters of a study's trials.

        It has the keys `head`, `importances`, `parallel`, `frontier`, `racing`, `values` and
        `best`; see `sweepd.optimize.study.insight`.
        """

    def trials(self, name: str, chosen: Sequence[int] | None) -> dict[str, Any]:
        """Return a study's trials, and the learning curves of those of the given numbers.

        It has the keys `head`, `chosen`, `curves`, `axis`, `rungs`, `metrics`, `heat` and `table`; see
        `sweepd.optimize.study.insight`.
        """

    def trial(self, name: str, number: int) -> dict[str, Any] | None:
        """Return one trial of a study; None if there is no such trial.

        See `sweepd.optimize.study.insight`.
        """

    def reader(self, name: str) -> StudyReader:
        """Return a study."""

    def compare(self, name: str, other: str) -> dict[str, Any]:
        """Return two studies side by side, with the keys `sides`, `settings` and `parameters`.

        See `sweepd.optimize.study.insight`.
        """

    def folder(self, name: str) -> Path:
        """Return the folder of a study's files, which need not exist."""

    def application(self) -> WSGIApplication:
        """Return optuna-dashboard."""


MOST_LOADED = 4  # replays in memory
# Study name (None: the newest), --storage, --runs-dir, and the options of the registry.
OpenStudies = Callable[[str | None, str | None, Path | None, RegistryFlags], StudySource]


@dataclass(frozen=True)
class Opened:
    """A registry's database with what is kept of it between two requests.

    replay: the traders' rows are those of this replay; None: they are the registry's.
    """

    registry: Registry
    cache: SeriesCache
    records: Records
    profits: ProfitBook
    replay: Replay | None = None

    @classmethod
    def of(
        cls,
        registry: Registry,
        database: RegistryDatabase | None = None,
        replay: Replay | None = None,
    ) -> Opened:
        """Return the sources of a registry. database: that of the traders; by default the same."""
        database = database or registry.database
        records, store = Records(database), TraderStore(database)
        return cls(registry, SeriesCache(store), records, ProfitBook(records, store), replay)

    @property
    def store(self) -> TraderStore:
        """The traders' rows."""
        return self.cache.store


class PaperSource:
    """The slots of a deployments folder, which is opened at the first request.

    Args:
        where: options of the registry.
    """

    def __init__(self, where: RegistryFlags) -> None:
        self._where = where
        self._opened: Opened | None = None
        self._replays = Replays(where.deployments)
        self._accounts: dict[Replay, Opened] = {}
        self._lock = threading.Lock()

    def slots(self) -> dict[str, Health]:
        """Return the state of each slot that trades, by name.

        One that was never traded has the state of its newest replay.

        Raises:
            InputError: there is none.
        """
        opened = self.open()
        registry, folder = opened.registry, self._where.deployments
        now, traders = time.time(), {trader.slot: trader for trader in opened.store.traders()}
        names = slot_names(registry, opened.store)
        others = registry.untraded_slots()
        if others and not names:
            flags = registry_flags(registry)
            those = "; ".join(
                f"{name} {UNTRADED[kind][0]} (to show it: {show_untraded(name, kind, flags)})"
                for name, kind in sorted(others.items())
            )
            raise InputError(f"no slot in {folder} trades: {those}")
        if not names:
            raise InputError(
                f"no slot in {folder} has a champion yet: nothing has been promoted "
                f"({program()} promote{registry_flags(registry)})"
            )
        flags = registry_flags(registry)
        champions = {slot.name: slot.champion for slot in registry.slots()}

        def state(name: str) -> Health:
            trader = traders.get(name)
            shown = None if trader else next(iter(self.replays(name).values()), None)
            if shown is not None:
                return shown.health
            synthetic = registry.synthetic(champions.get(name))
            return health(trader, now, slot=name, synthetic=synthetic, where=flags)

        return {name: state(name) for name in names}

    def replays(self, slot: str) -> dict[str, Replay]:
        """Return a slot's replays by name, the newest first."""
        return self._replays.of(slot)

    def account(self, slot: str, replay: str | None = None) -> Opened:
        """Return the sources of a slot's account.

        Args:
            slot: the slot.
            replay: name of one of its replays; None: its trader, or the newest replay if it was
                never traded.

        Raises:
            InputError: there is no such replay, or it cannot be read.
        """
        opened, replays = self.open(), self.replays(slot)
        if replay is None and opened.store.trader(slot) is None:
            replay = next(iter(replays), None)
        if replay is None:
            return opened
        if replay not in replays:
            raise InputError(f"slot {slot!r} has no replay {replay!r}")
        found = replays[replay]
        with self._lock:
            # Their order is that of the last use.
            kept = self._accounts.pop(found, None) or Opened.of(
                opened.registry, tables_of(found), found
            )
            if len(self._accounts) == MOST_LOADED:
                del self._accounts[next(iter(self._accounts))]
            self._accounts[found] = kept
        return kept

    def untraded(self, slot: str) -> tuple[str, str] | None:
        """Return what a slot does that is not among `slots`, and the command that shows it."""
        registry = self.open().registry
        kind = registry.untraded_slots().get(slot)
        if kind is None:
            return None
        return UNTRADED[kind][0], show_untraded(slot, kind, registry_flags(registry))

    def view(self, slot: str, *, days: float | None = None, replay: str | None = None) -> SlotView:
        """Return the present view of a slot's account, see `account`."""
        opened = self.account(slot, replay)
        return slot_view(
            opened.registry, opened.cache, slot, time.time(), days=days, replay=opened.replay
        )

    def open(self) -> Opened:
        """Return the opened registry.

        Raises:
            InputError: there is none.
        """
        # The web server answers requests in several threads.
        with self._lock:
            if self._opened is None:
                self._opened = Opened.of(self._where.open())
            return self._opened
