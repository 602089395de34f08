"""A registry's database on each of the two engines."""

from __future__ import annotations

from pathlib import Path

import alembic.command
import pytest

from deploy.market import constants

# What a registry imports when it first needs it: once here is enough for all processes that are forked from this one.
PRELOADED = (alembic.command,)


@pytest.fixture(autouse=True)
def short_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constant policies are traded over 300 bars, not thousands, in every promotion of these tests."""
    monkeypatch.setattr(constants, "MOST_BARS", 300)


@pytest.fixture(params=["sqlite", "postgresql"])
def registry_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'registry.db'}"
    return str(request.getfixturevalue("postgresql_database"))
