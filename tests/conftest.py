"""Fixtures shared by all tests."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import alembic.util
import pytest
from hypothesis import settings

import envs  # noqa: F401  # sets MKL's reproducible mode before a test computes with torch
from tests.postgres_server import NoServer, PostgresServer

# A busy machine is slow now and then; only wrong answers shall fail a property.
settings.register_profile("sweepd", deadline=None)
settings.load_profile("sweepd")

# Threads that wait for each other sleep: where several test processes share the cores, spinning takes time from others.
# OpenMP reads it when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones first: the others fill up what processes are left with at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tests run small tensors: one thread is faster, and leaves a core to the others."""
    import torch  # here, since the process that only hands out the tests need not wait for it

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def migrations_read_once() -> Iterator[None]:
    """Whoever opens a database of studies has Alembic run the files of all migrations that there are, which takes
    longer than everything else about it; the tests open hundreds.
    """
    load = alembic.util.load_python_file
    kept = functools.cache(load)

    def load_once(folder: str, name: str) -> ModuleType:
        return (
            load(folder, name) if name == "env.py" else kept(folder, name)
        )  # that one is there to be run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alembic.util, "load_python_file", load_once)
        yield


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
def postgresql() -> Iterator[PostgresServer]:
    """A PostgreSQL server that lives as long as the tests; where there is none to be had, they are skipped."""
    try:
        server = PostgresServer()
    except NoServer as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def postgresql_database(postgresql: PostgresServer) -> Iterator[str]:
    """The URL of an empty database on it, for one test."""
    url = postgresql.new_database()
    yield url
    postgresql.drop_database(url)
