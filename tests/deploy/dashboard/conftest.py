"""A folder with four synthetic slots."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sweepd.deploy.dashboard.series import SeriesCache
from sweepd.deploy.dashboard.view import SlotView, slot_view
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.store import TraderStore
from tests.deploy.dashboard.browser import Browser
from tests.deploy.dashboard.synthetic import MadeSession, fill


@dataclass(frozen=True)
class Made:
    """The synthetic data that were written."""

    folder: Path
    registry: Registry
    store: TraderStore
    sessions: dict[str, MadeSession]
    at: float

    def view(self, slot: str, *, days: float | None = None) -> SlotView:
        """As it was when all was written."""
        return slot_view(self.registry, SeriesCache(self.store), slot, self.at, days=days)


@pytest.fixture(autouse=True, scope="session")
def on_the_path() -> Iterator[None]:
    """Let hints call the program `sweepd`, as in a shell with an active environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Read-only: all tests share it."""
    folder = tmp_path_factory.mktemp("made") / "deployments"
    sessions = {session.slot: session for _, session in fill(folder, bars=24 * 40)}
    at = time.time()
    registry = Registry(folder, create=False)
    yield Made(folder, registry, TraderStore(registry.database), sessions, at)
    registry.database.engine.dispose()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened
