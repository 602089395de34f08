"""Where the dashboard's figures come from: the registry's database and the study storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import RenderableType

from deploy.dashboard.health import Health, health
from deploy.dashboard.series import SeriesCache
from deploy.dashboard.view import SlotView, slot_names, slot_view
from deploy.registry.bundle_files import GAME
from deploy.registry.registry import Registry
from deploy.trading.live.store import TraderStore
from envs.support.errors import InputError

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


class StudySource(Protocol):
    """What the dashboard asks of the search, which this package knows nothing about. All raise InputError or RunError,
    one sentence, where there is no study, or no database of studies.
    """

    def studies(self) -> list[str]:
        """Their names, the one to begin with first."""

    def progress(self, name: str) -> dict[str, Any]:
        """How a study goes: the keys of `sweepd status --json`, `objective`, `synthetic`, `outlook` and `history`."""

    def show(self, found: dict[str, Any]) -> RenderableType:
        """The same for a terminal."""

    def application(self) -> WSGIApplication:
        """optuna-dashboard."""


# Study name (None: the newest), --storage, --runs-dir, and the registry that counts looks: --deployments, --registry.
OpenStudies = Callable[[str | None, str | None, Path | None, tuple[Path, str | None]], StudySource]


class PaperSource:
    """The slots of a deployments folder, opened when they are first asked for: it may come later. folder, url: as for
    `Registry`.
    """

    def __init__(self, folder: Path, url: str | None) -> None:
        self._folder, self._url = folder, url
        self._opened: tuple[Registry, SeriesCache] | None = None
        self._lock = threading.Lock()

    def slots(self) -> dict[str, Health]:
        """How each slot that trades is, by name. Raises InputError where there is none."""
        registry, cache = self._open()
        now, traders = time.time(), {trader.slot: trader for trader in cache.store.traders()}
        names = slot_names(registry, cache.store)
        games = sorted(registry.slots_of_kind(GAME))
        if games and not names:
            raise InputError(
                f"no slot of {self._folder} trades: {', '.join(games)} hold players of games; sweepd play SLOT shows "
                "one, and dashboard --training how a study goes"
            )
        if not names:
            raise InputError(
                f"no slot of {self._folder} has a champion yet: sweepd promote asks for one"
            )
        champions = {slot.name: slot.champion for slot in registry.slots()}
        return {
            name: health(
                traders.get(name), now, slot=name, synthetic=registry.synthetic(champions.get(name))
            )
            for name in names
        }

    def plays(self, slot: str) -> bool:
        """Whether the slot is a game's, which is not among `slots`."""
        return slot in self._open()[0].slots_of_kind(GAME)

    def view(self, slot: str, *, days: float | None = None) -> SlotView:
        """A slot as it is now."""
        registry, cache = self._open()
        return slot_view(registry, cache, slot, time.time(), days=days)

    def _open(self) -> tuple[Registry, SeriesCache]:
        with self._lock:
            if self._opened is None:
                registry = Registry(self._folder, self._url, create=False)
                self._opened = registry, SeriesCache(TraderStore(registry.database))
            return self._opened
