"""Fixtures shared by all tests."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import alembic.util
import pytest
from hypothesis import settings
from sqlalchemy import Connection, create_engine, event, inspect
from sqlalchemy.pool import Pool

import sweepd  # noqa: F401  # sets MKL's reproducible mode before a test computes with torch
from sweepd.envs.support.loading import end_loading
from sweepd.envs.support.measurement_cache import cache_dir
from tests.postgres_server import NoServer, PostgresServer

# No deadline: a busy machine must not fail a property.
settings.register_profile("sweepd", deadline=None)
settings.load_profile("sweepd")

# Waiting threads sleep: with several test processes per core, spinning would slow the others down.
# OpenMP reads this when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Containers often forbid bytecode: then each test process and each interpreter that a test starts
# would compile the whole project, which takes seconds.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

SHARED = Path(__file__).resolve().parents[2] / "shared"


# Until all tests are collected: garbage collections would take half of that time.
gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but not among the imported modules and collected tests."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # what tests leave fits into memory: collect it rarely
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first, so that all processes finish at about the same time."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Use one thread: faster for small tensors, and it leaves cores to other test processes."""
    import torch  # imported here: the process that only distributes tests does not need it

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed torch's global generator: a test's draws do not depend on the tests before it."""
    import torch

    torch.manual_seed(0)


_files_left = 400  # open after the last collection


@pytest.fixture(autouse=True)
def few_open_files() -> Iterator[None]:
    """Collect databases and environments that earlier tests left: `select` ends at 1,024 files."""
    global _files_left
    yield
    if len(os.listdir("/proc/self/fd")) > _files_left + 100:
        gc.collect()
        _files_left = len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def loading_ends() -> Iterator[None]:
    """Undo what the entry point does to its process until a command begins."""
    yield
    end_loading()


@pytest.fixture(autouse=True)
def kernels_of_one_test() -> Iterator[None]:
    """Restore the choice of kernels: going on with a study sets it for the whole process."""
    before = os.environ.get("SWEEPD_KERNELS")
    yield
    if before is None:
        os.environ.pop("SWEEPD_KERNELS", None)
    else:
        os.environ["SWEEPD_KERNELS"] = before


@pytest.fixture(autouse=True)
def whole_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute programs as a whole: measuring each new shape takes most of a tiny study's time."""
    from sweepd.optimize.objectives.members.chunks import Chunks

    monkeypatch.setattr(Chunks, "_choose", lambda chunks, *_: chunks._slots)


@pytest.fixture(autouse=True, scope="session")
def migrations_read_once() -> Iterator[None]:
    """Cache Alembic's migration files: loading them is most of the time of opening a database."""
    load = alembic.util.load_python_file
    kept = functools.cache(load)

    def load_once(folder: str, name: str) -> ModuleType:
        # Loading env.py runs the migration, so it must not be cached.
        return load(folder, name) if name == "env.py" else kept(folder, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alembic.util, "load_python_file", load_once)
        yield


@pytest.fixture(autouse=True, scope="session")
def registries_migrated_once() -> Iterator[Callable[..., None]]:
    """Make new registries in SQLite of the tables that the migrations made once.

    Running the migrations takes 0.1 s, and tests make hundreds of registries. Yields what is
    replaced.
    """
    from sweepd.deploy.registry.database import HEAD, RegistryDatabase
    from sweepd.deploy.registry.tables import VERSION_TABLE

    migrate = RegistryDatabase._migrate
    statements: list[str] = []

    def migrate_or_copy(database: RegistryDatabase, connection: Connection) -> None:
        new = not inspect(connection).has_table(VERSION_TABLE)
        if connection.dialect.name != "sqlite" or not new:
            migrate(database, connection)
            return
        if not statements:
            with create_engine("sqlite://").connect() as memory:
                migrate(database, memory)
                made = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
                statements.extend(memory.exec_driver_sql(made).scalars())
        for statement in statements:
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql(f"INSERT INTO {VERSION_TABLE} VALUES ('{HEAD}')")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RegistryDatabase, "_migrate", migrate_or_copy)
        yield migrate


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the cache of measurements in a temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        use_empty_cache(tmp_path_factory.mktemp("cache"), patch)
        yield


def use_empty_cache(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make a folder the cache of measurements.

    Compiled kernels stay in the user's cache: they are found by the content of their sources, and
    each test process would otherwise compile them again.
    """
    native = cache_dir() / "native"
    native.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    (folder / "native").symlink_to(native)
    patch.setenv("SWEEPD_CACHE_DIR", str(folder))


@pytest.fixture(autouse=True, scope="session")
def environments_in_this_process() -> Iterator[None]:
    """Keep external environments in the process that steps them, unless a test gives a layout.

    Measuring which layout is fastest starts processes and takes seconds.
    """
    from sweepd.envs.external import vec_env
    from sweepd.envs.external.layouts import LayoutChoice
    from sweepd.envs.external.sharded import Layout

    def choose(source: Any, own: Sequence[Any], what: Any) -> LayoutChoice:  # noqa: ARG001
        return LayoutChoice(Layout(len(own)), {}, "in tests")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vec_env, "choose_layout", choose)
        yield


@pytest.fixture(autouse=True, scope="session")
def short_replays() -> Iterator[None]:
    """Write at most 40 frames of a game: most of a promotion's time is its replay of 250."""
    from sweepd.deploy.games import show

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(show, "MOST_FRAMES", 40)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Let SQLite and written files survive the end of a process, but not a power loss.

    A tiny study commits 200 times; each waits for the disk. Tests kill processes, not the machine.
    """

    def checked_out(connection: Any, record: Any, _: Any) -> None:
        if isinstance(connection, sqlite3.Connection) and not record.info.get("not waiting"):
            record.info["not waiting"] = True
            with contextlib.suppress(sqlite3.Error):  # a file that is no database, for example
                connection.execute("PRAGMA synchronous=OFF")

    event.listen(Pool, "checkout", checked_out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield
    event.remove(Pool, "checkout", checked_out)


@pytest.fixture(scope="session")
def warmed_up(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Run a tiny study, and freeze what it leaves: forked processes need not do the same again.

    The first study of a process takes a second longer than a further one.
    """
    from tests.optimize.conftest import run_tiny_study

    with pytest.MonkeyPatch.context() as patch:
        for name in ("SWEEPD_KERNELS", "SWEEPD_STORAGE"):
            patch.delenv(name, raising=False)
        run_tiny_study(tmp_path_factory.mktemp("warm"))
    end_loading()
    gc.collect()
    gc.freeze()


@pytest.fixture
def forked_python(
    warmed_up: None,  # noqa: ARG001
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    """Let `sys.executable` fork a copy of this process, as it is now: it has imported torch."""
    from tests.forks import Forks

    with Forks(tmp_path_factory.mktemp("forked") / "forks").served() as python:
        monkeypatch.setattr(sys, "executable", str(python))
        yield python


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real bars next to the checkout; tests that need it skip where it is absent."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("the folder of real bars (../shared/data) is not here")
    return folder


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the whole session; tests that need it skip where none can start."""
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
