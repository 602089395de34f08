"""Migrations make and upgrade the tables of the models, also in concurrent processes."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import optuna
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from sweepd.deploy.registry.database import HEAD, RegistryDatabase
from sweepd.deploy.registry.models import APPEND_ONLY, VERSION_TABLE, Base, BundleRow
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import small_bundle

REVISIONS = ["0004", "0005", "0006", "0007", "0008"]
SLOT = "crypto-1h"
A, B, C, D = "a" * 64, "b" * 64, "c" * 64, "d" * 64
BEFORE = "0004"  # the head revision before games had a kind of their own


def _config(connection: sa.Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", "sweepd.deploy.registry:migrations")
    config.attributes["connection"] = connection
    return config


def _upgrade(url: str, revision: str) -> sa.Engine:
    """A database of that revision, with transactions as sqlite3 begins them by default."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        command.upgrade(_config(connection), revision)
    return engine


COLUMNS = (
    "hash, members_sha256, environment, timeframe, tickers, study, study_uid, trial, last_seen"
)


def _fill(engine: sa.Engine, *, revision: str) -> None:
    """A champion, the one before it, a challenger, a former challenger, and a game's champion."""
    with engine.begin() as connection:
        kind = "" if revision == BEFORE else ", kind"
        market, game_kind = ", 'market'", ", 'game'"
        game = "'', '[]'" if revision == BEFORE else "NULL, NULL"
        for hash_ in (A, B, C):
            connection.execute(
                sa.text(
                    f"INSERT INTO bundles ({COLUMNS}, data_dir, at{kind}) VALUES (:hash, :hash, "
                    "'crypto', '1h', :tickers, 's', 'u', 1, 9, '', 'now'"
                    f"{kind and market})"
                ),
                {"hash": hash_, "tickers": json.dumps(["BTC/USDT"])},
            )
        connection.execute(
            sa.text(
                f"INSERT INTO bundles ({COLUMNS}, data_dir, at{kind}) VALUES (:hash, :hash, 'chess', "
                f"{game}, 's', 'u', 1, {0 if revision == BEFORE else 'NULL'}, '', 'now'"
                f"{kind and game_kind})"
            ),
            {"hash": D},
        )
        for slot, champion, previous in ((SLOT, A, B), ("chess", D, None)):
            connection.execute(
                sa.text("INSERT INTO slots VALUES (:s, :a, :b, 2)"),
                {"s": slot, "a": champion, "b": previous},
            )
            connection.execute(
                sa.text("INSERT INTO versions VALUES (:s, 1, :h, 'now')"),
                {"s": slot, "h": champion},
            )
        for number, (kind_, hash_) in enumerate(
            [("promoted", B), ("challenger", A), ("challenger", C), ("promoted", A)], start=1
        ):
            connection.execute(
                sa.text("INSERT INTO events VALUES (:n, :s, :k, :at, :h, NULL, '', NULL)"),
                {"n": number, "s": SLOT, "k": kind_, "h": hash_, "at": str(number)},
            )
        connection.execute(
            sa.text("INSERT INTO challengers VALUES (:s, :h, '3')"), {"s": SLOT, "h": C}
        )
        if revision == BEFORE:
            for number, (assets, timeframe, last) in enumerate(
                [("BTC/USDT", "1h", 9), ("panel of chess", "", 100)], start=1
            ):
                connection.execute(
                    sa.text(
                        "INSERT INTO looks VALUES (:n, :a, :t, 0, :l, 1, :h, 's', 'u', 1, 'now')"
                    ),
                    {"n": number, "a": assets, "t": timeframe, "l": last, "h": A},
                )


def _differences(url: str) -> list[object]:
    with RegistryDatabase(url, create=False).reading() as session:
        context = MigrationContext.configure(
            session.connection(),
            opts={
                "version_table": VERSION_TABLE,
                "compare_type": True,
                "compare_server_default": True,
            },
        )
        return list(compare_metadata(context, Base.metadata))


def test_the_newest_revision_is_the_one_that_the_program_asks_for() -> None:
    config = Config()
    config.set_main_option("script_location", "sweepd.deploy.registry:migrations")
    script = ScriptDirectory.from_config(config)
    assert script.get_heads() == [HEAD]
    assert sorted(one.revision for one in script.walk_revisions()) == REVISIONS


def test_a_new_registry_has_the_tables_of_the_models(registry_url: str, tmp_path: Path) -> None:
    Registry(tmp_path, registry_url).refuse(SLOT, "no candidate passes")
    assert _differences(registry_url) == []


def _tables(url: str) -> list[str]:
    engine = sa.create_engine(url)
    found = sa.inspect(engine).get_table_names()
    engine.dispose()
    return found


def test_a_registry_is_created_by_the_first_write_and_reads_as_empty_until_then(
    registry_url: str, tmp_path: Path
) -> None:
    registry = Registry(tmp_path / "deployments", registry_url)
    registry.database.check_writable()
    assert (
        registry.slots(),
        registry.slot(SLOT).champion,
        registry.evaluations.count_holdout(["BTC/USDT"], 0, 9),
    ) == ([], None, 0)
    assert list(tmp_path.iterdir()) == []
    assert "postgresql" not in registry_url or _tables(registry_url) == []
    registry.refuse(SLOT, "no candidate passes")
    assert [event.kind for event in registry.events()] == ["refused"]


def test_an_old_registry_is_upgraded_by_the_first_write_and_reads_as_upgraded_until_then(
    registry_url: str, tmp_path: Path
) -> None:
    _fill(_upgrade(registry_url, BEFORE), revision=BEFORE)
    tables = _tables(registry_url)
    registry = Registry(tmp_path, registry_url)
    assert registry.slot(SLOT).challengers == (C,)
    assert registry.slots_of_kind("game") == {"chess"}
    assert registry.evaluations.count_panel("chess") == 1
    assert _tables(registry_url) == tables
    assert _revision(registry_url) == BEFORE
    seen = {"study": "s", "study_uid": "u", "trial": 1}
    again = registry.evaluations.record_panel("chess", 100, members_sha256=A, **seen)  # type: ignore[arg-type]
    assert (again.number, again.repeated) == (1, True)
    assert registry.evaluations.record_panel("chess", 100, members_sha256=B, **seen).number == 2  # type: ignore[arg-type]
    assert registry.slot(SLOT).challengers == (C,)
    assert _revision(registry_url) == HEAD


def _revision(url: str) -> str:
    with sa.create_engine(url).connect() as connection:
        return str(connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")))


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_revision_is_upgraded_and_keeps_what_it_knew(
    registry_url: str, tmp_path: Path, revision: str
) -> None:
    _fill(_upgrade(registry_url, revision), revision=revision)
    registry = Registry(tmp_path, registry_url, create=False)
    assert _differences(registry_url) == []
    slot = registry.slot(SLOT)
    assert (slot.champion, slot.previous, slot.challengers, slot.revision) == (A, B, (C,), 2)
    assert registry.slots_of_kind("market") == {SLOT}
    assert registry.slots_of_kind("game") == {"chess"}
    assert [event.kind for event in registry.events()] == [
        "promoted",
        "challenger",
        "challenger",
        "promoted",
    ]
    with registry.database.reading() as session:
        rows = {row.hash: row for row in session.scalars(sa.select(BundleRow))}
        assert (rows[A].timeframe, rows[A].tickers, rows[A].last_seen) == ("1h", ["BTC/USDT"], 9)
        assert (rows[D].timeframe, rows[D].tickers, rows[D].last_seen) == (None, None, None)
    if revision == BEFORE:
        assert registry.evaluations.count_holdout(["BTC/EUR"], 9, 20) == 1
        assert registry.evaluations.count_panel("chess") == 1
        assert registry.evaluations.holdout_span(A) == (0, 9)


@pytest.mark.parametrize("revision", REVISIONS)
def test_history_is_append_only_in_every_revision(registry_url: str, revision: str) -> None:
    engine = _upgrade(registry_url, BEFORE)
    _fill(engine, revision=BEFORE)
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO lane_bars (slot, lane, time, value, cash, fees, notional, trades, "
                "unfilled, dropped, crossed, units) VALUES "
                "(:s, 'account', 1, 1, 1, 0, 0, 0, 0, 0, 0, '{}')"
            ),
            {"s": SLOT},
        )
        connection.execute(
            sa.text("INSERT INTO trader_events VALUES (1, :s, 'now', 1, 'k', '')"), {"s": SLOT}
        )
        command.upgrade(_config(connection), revision)
        if revision >= "0006":
            connection.execute(
                sa.text("INSERT INTO trader_bars VALUES (:s, 't', 1, 1, 1, 1, 1, 1, false)"),
                {"s": SLOT},
            )
        if revision >= "0008":
            connection.execute(
                sa.text("INSERT INTO trader_adjustments VALUES (1, :s, 'now', 't', 1, 1, 1)"),
                {"s": SLOT},
            )
    for table in APPEND_ONLY:
        if revision < {"trader_bars": "0006", "trader_adjustments": "0008"}.get(table, ""):
            continue
        name = "looks" if (table, revision) == ("evaluations", BEFORE) else table
        column = "time = 0" if name.endswith("_bars") else "at = 'never'"
        for statement in (f"DELETE FROM {name}", f"UPDATE {name} SET {column}"):
            with (
                pytest.raises(sa.exc.DBAPIError, match="append-only"),
                engine.begin() as connection,
            ):
                connection.execute(sa.text(statement))


@pytest.mark.parametrize("revision", ["0002", None])
def test_registries_of_early_development_versions_are_refused_and_left_alone(
    registry_url: str, tmp_path: Path, revision: str | None
) -> None:
    engine = _upgrade(registry_url, BEFORE)
    with engine.begin() as connection:
        if revision is None:
            connection.execute(sa.text(f"DROP TABLE {VERSION_TABLE}"))
            connection.execute(sa.text("CREATE TABLE schema_version (version INTEGER)"))
        else:
            connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '{revision}'"))
    tables = _tables(registry_url)
    with pytest.raises(InputError, match=r"early development version.*8c2c6e1"):
        Registry(tmp_path, registry_url)
    with pytest.raises(InputError, match=r"early development version.*8c2c6e1"):
        Registry(tmp_path, registry_url, create=False)
    assert _tables(registry_url) == tables


def test_tables_of_a_newer_program_are_refused_and_left_alone(
    registry_url: str, tmp_path: Path
) -> None:
    engine = _upgrade(registry_url, HEAD)
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(InputError, match="newer sweepd"):
        Registry(tmp_path, registry_url)
    with engine.begin() as connection:
        assert connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")) == "9999"


def test_the_database_of_another_program_is_refused_and_left_alone(
    registry_url: str, tmp_path: Path
) -> None:
    engine = sa.create_engine(registry_url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE events (id INTEGER)"))
    with pytest.raises(InputError, match="another program"):
        Registry(tmp_path, registry_url)
    assert sa.inspect(engine).get_table_names() == ["events"]


def test_a_database_of_studies_can_be_the_registry_too(registry_url: str, tmp_path: Path) -> None:
    optuna.create_study(storage=registry_url, study_name="s")
    registry = Registry(tmp_path, registry_url)
    registry.promote(SLOT, small_bundle(), expected=None, reason="")
    assert optuna.get_all_study_names(registry_url) == ["s"]
    assert Registry(tmp_path, registry_url, create=False).slot(SLOT).champion


def test_a_database_without_a_registry_is_not_made_into_one_by_asking(
    registry_url: str, tmp_path: Path
) -> None:
    engine = sa.create_engine(registry_url)
    with engine.connect():  # SQLite makes the file
        pass
    with pytest.raises(InputError, match="there is no registry"):
        Registry(tmp_path, registry_url, create=False)
    assert sa.inspect(engine).get_table_names() == []


def _open(url: str, folder: Path, start: object, out: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    Registry(folder, url).refuse(SLOT, "no candidate passes")
    out.put(1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("revision", [None, BEFORE])
def test_processes_may_open_a_new_or_an_old_registry_at_once(
    registry_url: str, tmp_path: Path, revision: str | None
) -> None:
    if revision is not None:
        _upgrade(registry_url, revision).dispose()
    context = multiprocessing.get_context("fork")
    start, out = context.Barrier(4), context.Queue()
    openers = [
        context.Process(target=_open, args=(registry_url, tmp_path, start, out)) for _ in range(4)
    ]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join(60)
    assert [opener.exitcode for opener in openers] == [0] * 4
    assert _differences(registry_url) == []
