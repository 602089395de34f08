"""Fixtures shared by all tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
import torch
from hypothesis import settings

# A busy machine is slow now and then; only wrong answers shall fail a property.
settings.register_profile("sweepd", deadline=None)
settings.load_profile("sweepd")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tests run small tensors: one thread is faster, and leaves a core to the others."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the tests measure is remembered nowhere else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWEEPD_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real bars beside the checkout; tests that need it are skipped where it is absent."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("the folder of real bars (../shared/data) is not here")
    return folder


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.URL]:
    """The URL of a PostgreSQL server that lives as long as the tests."""
    pgserver = pytest.importorskip("pgserver", reason="no PostgreSQL server in a wheel (pgserver) is installed")
    server = pgserver.get_server(tmp_path_factory.mktemp("pg"), cleanup_mode="delete")
    yield sa.make_url(str(server.get_uri())).set(drivername="postgresql+psycopg")
    server.cleanup()


@pytest.fixture
def postgresql_database(postgresql: sa.URL) -> Iterator[str]:
    """The URL of an empty database on it, for one test."""
    name = f"t{uuid.uuid4().hex}"
    with sa.create_engine(postgresql, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
        yield postgresql.set(database=name).render_as_string(hide_password=False)
        connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
