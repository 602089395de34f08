"""A registry's database on each of the two engines."""

from __future__ import annotations

from pathlib import Path

import alembic.command
import pytest

from sweepd.deploy.market import constants

# Import here what registries import on first use: forked test processes then have it already.
PRELOADED = (alembic.command,)


@pytest.fixture(autouse=True)
def short_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the comparison with constant policies from thousands of bars to 100."""
    monkeypatch.setattr(constants, "MOST_BARS", 100)


@pytest.fixture(params=["sqlite", "postgresql"])
def registry_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'registry.db'}"
    return str(request.getfixturevalue("postgresql_database"))
