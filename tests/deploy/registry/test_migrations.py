"""Migrations make and upgrade the tables of the records, also in concurrent processes."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from sweepd.deploy.night import records  # noqa: F401 (its tables)
from sweepd.deploy.registry.database import BASELINE, HEAD, RegistryDatabase
from sweepd.deploy.registry.records import Challenger
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.registry.tables import APPEND_ONLY, TABLES, VERSION_TABLE, metadata
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.store import TraderStore, stored_parity
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import small_bundle

REVISIONS = [BASELINE, "0009", "0010", "0011", "0012", "0013", HEAD]
SLOT = "crypto-1h"
A, B, C, D = "a" * 64, "b" * 64, "c" * 64, "d" * 64


@pytest.fixture(autouse=True)
def migrations_run(
    registries_migrated_once: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the migrations for each new registry, as outside of tests."""
    monkeypatch.setattr(RegistryDatabase, "_migrate", registries_migrated_once)


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


SINCE = {
    "trader_inputs": "0010",
    "reigns": "0011",
    "arena_days": "0011",
    "night_steps": "0012",
    "certificates": "0014",
}  # later tables
ROWS = f"""
INSERT INTO slots VALUES ('{SLOT}', '{A}', '{B}', 2), ('chess', '{D}', NULL, 2);
INSERT INTO versions VALUES ('{SLOT}', 1, '{A}', 'now'), ('chess', 1, '{D}', 'now');
INSERT INTO events VALUES (1, '{SLOT}', 'promoted', '1', '{B}', NULL, '', NULL),
    (2, '{SLOT}', 'challenger', '2', '{A}', NULL, '', 'null'),
    (3, '{SLOT}', 'challenger', '3', '{C}', NULL, '', NULL),
    (4, '{SLOT}', 'promoted', '4', '{A}', '{B}', '', '{{"passed": true}}');
INSERT INTO challengers (slot, bundle, at) VALUES ('{SLOT}', '{C}', '3');
INSERT INTO evaluations VALUES
    (1, 'market', 'BTC/USDT', '1h', 0, 9, NULL, 1, '{A}', 's', 'u', 1, 'now'),
    (2, 'game', 'chess', NULL, NULL, NULL, 100, 1, '{A}', 's', 'u', 1, 'now');
INSERT INTO traders VALUES ('{SLOT}', 'token', 1, 'host', 'alpaca', 'alpaca', '1h', 'now', 'now',
    'waits', 'PA1', 3600, NULL, false, '{{"prices": {{"BTC/USDT": 2.5}}}}');
INSERT INTO {{accounts}} VALUES ('{SLOT}', 'account', 'account', '{A}', 3600, NULL, '{{state}}');
INSERT INTO {{account_bars}} VALUES
    ('{SLOT}', 'account', 3600, '{A}', 1, 1, 0.5, 0, 0, 1, 0, 0, 0, '{{"BTC/USDT": 2}}', 'null');
INSERT INTO orders VALUES ('id', '{SLOT}', 'account', 3600, 'BTC/USDT', 'buy', 0, 9, false, false,
    'filled', 7200, 2, 9, 0.1, 4.5, '');
INSERT INTO trader_events VALUES (1, '{SLOT}', 'now', 3600, 'started', '');
INSERT INTO trader_bars VALUES ('{SLOT}', 'BTC/USDT', 3600, 1, 1, 1, 1, 1, false);
INSERT INTO trader_adjustments VALUES (1, '{SLOT}', 'now', 'BTC/USDT', 3600, 0.5, 2);
INSERT INTO parity_days VALUES ('{SLOT}', 0, 1, 1, 0, 0.1, 0.1, 0, 'now', 0);
"""


def _fill(engine: sa.Engine, *, revision: str) -> None:
    """At least a row in each table; the columns have the same order in all revisions."""
    market, game = "'1h', '[\"BTC/USDT\"]', 9", "NULL, NULL, NULL"
    names = ("lanes", "lane_bars") if revision == BASELINE else ("accounts", "account_bars")
    bundles = [
        f"INSERT INTO bundles VALUES ('{hash_}', '{hash_}', '{environment}', 's', 'u', 1, 'bars', "
        f"'now', '{kind}', {facts})"
        for hash_, environment, kind, facts in (
            (A, "crypto", "market", market),
            (B, "crypto", "market", market),
            (C, "crypto", "market", market),
            (D, "chess", "game", game),
        )
    ]
    rows = ROWS.replace("{accounts}", names[0]).replace("{account_bars}", names[1])
    reigns = f"('{SLOT}', 1, '{A}', '4', ''), ('chess', 1, '{D}', '', '')"
    # Earlier revisions get them from their champions.
    own = [f"INSERT INTO reigns VALUES {reigns}"] if revision >= "0011" else []
    order = {"notional": 9.0}
    state: dict[str, Any] = {"booked": []}
    if revision >= "0010":
        fill = {"order": order, "units": 4.0, "price": 2.25}
        state = {"open": [], "settled": [fill], "counted": []}
    rows = rows.replace("{state}", json.dumps(state))
    with engine.begin() as connection:
        for statement in (*bundles, *rows.strip().split(";\n"), *own):
            connection.exec_driver_sql(statement.removesuffix(";"))


def _check_filled(registry: Registry) -> None:
    """Check that everything that `_fill` wrote is known."""
    slot = registry.slot(SLOT)
    assert (slot.champion, slot.previous, slot.challengers, slot.revision) == (A, B, (C,), 2)
    assert registry.untraded_slots() == {"chess": "game"}
    reigns = [registry.arena.reign(name) for name in (SLOT, "chess", "other")]
    assert [one and (one.number, one.champion, one.at) for one in reigns] == [
        (1, A, "4"),
        (1, D, ""),
        None,
    ]
    assert registry.arena.challengers(SLOT) == [Challenger(SLOT, C, "3", refit=False)]
    assert [(event.kind, event.report) for event in registry.events()] == [
        ("promoted", None),
        ("challenger", None),
        ("challenger", None),
        ("promoted", {"passed": True}),
    ]
    assert registry.market(A) == ("1h", ("BTC/USDT",))
    assert registry.market(D) is None
    assert registry.evaluations.count_holdout(["BTC/EUR"], 9, 20) == 1
    assert registry.evaluations.count_panel("chess") == 1
    assert registry.evaluations.holdout_span(A) == (0, 9)
    store = TraderStore(registry.database)
    [trader] = store.traders()
    assert (trader.slot, trader.broker, trader.state) == (
        SLOT,
        "alpaca",
        {"prices": {"BTC/USDT": 2.5}},
    )
    [account] = store.accounts(SLOT)
    assert (account.name, account.bundle) == ("account", A)
    # The order was filled after the last bar, in the units before the adjustment.
    assert (account.state["open"], account.state["counted"]) == ([], [])
    [fill] = account.state["settled"]
    assert (fill["order"]["notional"], fill["units"], fill["price"]) == (9.0, 4.0, 2.25)
    [bar] = store.account_bars(SLOT, "account")
    assert (bar.fees, bar.flow, bar.trades, bar.units) == (0.5, 0.0, 1, {"BTC/USDT": 2})
    assert bar.action is None
    [line] = store.orders(SLOT, account="account")
    assert (line.order.notional, line.fill and line.fill.units) == (9.0, 2.0)
    assert [event.kind for event in store.events(SLOT)] == ["started"]
    assert [one.price for one in store.adjustments(SLOT)] == [0.5]
    assert len(Records(registry.database).candles(SLOT, "BTC/USDT", since=0, until=9999).time) == 1
    assert [day.growth for day in stored_parity(registry.database, SLOT)[0]] == [0.1]


def _differences(url: str) -> list[object]:
    with RegistryDatabase(url, create=False).reading() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        return list(compare_metadata(context, metadata))


def test_the_newest_revision_is_the_one_that_the_program_asks_for() -> None:
    config = Config()
    config.set_main_option("script_location", "sweepd.deploy.registry:migrations")
    script = ScriptDirectory.from_config(config)
    assert script.get_heads() == [HEAD]
    assert sorted(one.revision for one in script.walk_revisions()) == REVISIONS


def test_a_new_registry_has_the_tables_of_the_records(registry_url: str, tmp_path: Path) -> None:
    Registry(tmp_path, registry_url).refuse(SLOT, "no candidate passes")
    assert _differences(registry_url) == []
    assert set(metadata.tables) == set(TABLES)


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
    _fill(_upgrade(registry_url, BASELINE), revision=BASELINE)
    tables = _tables(registry_url)
    registry = Registry(tmp_path, registry_url)
    _check_filled(registry)
    assert _tables(registry_url) == tables
    assert _revision(registry_url) == BASELINE
    seen = {"study": "s", "study_uid": "u", "trial": 1}
    again = registry.evaluations.record_panel("chess", 100, members_sha256=A, **seen)  # type: ignore[arg-type]
    assert (again.number, again.repeated) == (1, True)
    _check_filled(registry)
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
    _check_filled(registry)


@pytest.mark.parametrize("revision", REVISIONS)
def test_history_is_append_only_in_every_revision(registry_url: str, revision: str) -> None:
    engine = _upgrade(registry_url, BASELINE)
    _fill(engine, revision=BASELINE)
    with engine.begin() as connection:
        command.upgrade(_config(connection), revision)
        if revision >= "0010":
            seen = f"('{SLOT}', 'now', 1, 3600, 'Resumed', '{{}}', NULL)"
            connection.exec_driver_sql(f"INSERT INTO trader_inputs VALUES {seen}")
        if revision >= "0011":
            day = f"('{SLOT}', 1, '{C}', 0, 24, 0.1, -0.1, 0.01, 2.5)"
            connection.exec_driver_sql(f"INSERT INTO arena_days VALUES {day}")
        if revision >= "0012":
            night = f"('{SLOT}', '20261128', 't', '{{}}', '', 0, NULL, NULL, NULL)"
            connection.exec_driver_sql(f"INSERT INTO nights VALUES {night}")
            step = f"('{SLOT}', '20261128', 'disk', '', 0, 'done', '{{}}')"
            connection.exec_driver_sql(f"INSERT INTO night_steps VALUES {step}")
        if revision >= "0014":
            row = f"('{SLOT}', 0, 0, '{A}', '', '{{}}', 'equal', NULL, '')"
            connection.exec_driver_sql(f"INSERT INTO certificates VALUES {row}")
    for table in APPEND_ONLY:
        if table in SINCE and revision < SINCE[table]:
            continue
        name = "lane_bars" if (table, revision) == ("account_bars", BASELINE) else table
        columns = {"account_bars": "time = 0", "trader_bars": "time = 0", "arena_days": "bars = 0"}
        column = columns.get(table, "at = 'never'")
        for statement in (f"DELETE FROM {name}", f"UPDATE {name} SET {column}"):
            with (
                pytest.raises(sa.exc.DBAPIError, match=f"rows of {name} are append-only"),
                engine.begin() as connection,
            ):
                connection.execute(sa.text(statement))


@pytest.mark.parametrize("revision", ["0007", "9999"])
def test_tables_of_another_version_are_refused_and_left_alone(
    registry_url: str, tmp_path: Path, revision: str
) -> None:
    engine = _upgrade(registry_url, HEAD)
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '{revision}'"))
    tables = _tables(registry_url)
    said = f"another version of sweepd .revision {revision}; this one knows {BASELINE} to {HEAD}"
    for create in (True, False):
        with pytest.raises(InputError, match=said):
            Registry(tmp_path, registry_url, create=create)
    assert (_revision(registry_url), _tables(registry_url)) == (revision, tables)


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


@pytest.mark.parametrize("revision", [None, BASELINE])
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
