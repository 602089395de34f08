"""Sources of the dashboard: the registry's database, and the storage of studies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import RenderableType

from sweepd.deploy.dashboard.health import Health, health
from sweepd.deploy.dashboard.series import SeriesCache
from sweepd.deploy.dashboard.view import SlotView, slot_names, slot_view
from sweepd.deploy.registry.bundle_files import UNTRADED
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.profits import ProfitBook
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.support.errors import InputError

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


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

    def compare(self, name: str, other: str) -> dict[str, Any]:
        """Return two studies side by side, with the keys `sides`, `settings` and `parameters`.

        See `sweepd.optimize.study.insight`.
        """

    def show(self, found: dict[str, Any]) -> RenderableType:
        """Return the progress for a terminal."""

    def application(self) -> WSGIApplication:
        """Return optuna-dashboard."""


# Study name (None: the newest), --storage, --runs-dir, and the options of the registry.
OpenStudies = Callable[[str | None, str | None, Path | None, RegistryFlags], StudySource]


@dataclass(frozen=True)
class Opened:
    """A registry's database with what is kept of it between two requests."""

    registry: Registry
    cache: SeriesCache
    records: Records
    profits: ProfitBook

    @classmethod
    def of(cls, registry: Registry) -> Opened:
        """Return the sources of a registry."""
        records, store = Records(registry.database), TraderStore(registry.database)
        return cls(registry, SeriesCache(store), records, ProfitBook(records, store))

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
        self._lock = threading.Lock()

    def slots(self) -> dict[str, Health]:
        """Return the state of each traded slot, by name.

        Raises:
            InputError: there is none.
        """
        opened = self.open()
        registry, folder = opened.registry, self._where.deployments
        now, traders = time.time(), {trader.slot: trader for trader in opened.store.traders()}
        names = slot_names(registry, opened.store)
        others = registry.untraded_slots()
        if others and not names:
            those = "; ".join(
                f"those of {kind}s: {', '.join(sorted(one for one in others if others[one] == kind))}"
                for kind in sorted(set(others.values()))
            )
            raise InputError(
                f"no slot in {folder} trades; {those}. Show a player with "
                "sweepd play SLOT, and a study's progress with sweepd dashboard --training"
            )
        if not names:
            raise InputError(
                f"no slot in {folder} has a champion yet: promote a trial with sweepd promote"
            )
        champions = {slot.name: slot.champion for slot in registry.slots()}
        return {
            name: health(
                traders.get(name), now, slot=name, synthetic=registry.synthetic(champions.get(name))
            )
            for name in names
        }

    def untraded(self, slot: str) -> tuple[str, str] | None:
        """Return what a slot does that is not among `slots`, and the command that shows it."""
        kind = self.open().registry.untraded_slots().get(slot)
        return None if kind is None else UNTRADED[kind]

    def view(self, slot: str, *, days: float | None = None) -> SlotView:
        """Return the present view of a slot."""
        opened = self.open()
        return slot_view(opened.registry, opened.cache, slot, time.time(), days=days)

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
