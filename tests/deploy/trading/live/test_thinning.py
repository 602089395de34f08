"""Lines of accounts that retired long ago become lines per day, and every figure of a day stays."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweepd.deploy.dashboard.series import Series, days_of
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live import thinning
from sweepd.deploy.trading.live.records import (
    ACCOUNT_BARS,
    CHALLENGER,
    SHADOW,
    SLOT_ACCOUNT,
    AccountBar,
    AccountKind,
    AccountRecord,
    Changes,
)
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.deploy.trading.live.thinning import KEPT_DAYS, day_line, thin_retired
from sweepd.envs.crypto.data.timeframe import DAY
from tests.deploy.builders import small_bundle

SLOT = "crypto-1h"
STEP = 4 * 3600
START = 20_000 * DAY + STEP
LATER = float(START + 1000 * DAY)


def lines(account: str, bundle: str, count: int, seed: int = 0) -> list[AccountBar]:
    random = np.random.default_rng(seed)
    value, found = 1000.0, []
    for place in range(count):
        flow = float(random.choice([0.0] * 19 + [25.0]))
        value = value * float(np.exp(random.normal(0.0, 0.02))) + flow
        found.append(
            AccountBar(
                account,
                START + place * STEP,
                bundle,
                value,
                value / 2,
                flow,
                fees=float(random.random()),
                notional=float(random.random()),
                trades=int(random.integers(0, 4)),
                units={"BTC/USDT": value / 2},
                action={"BTC/USDT": 0.5},
            )
        )
    return found


def started(folder: Path, url: str | None = None) -> tuple[Registry, TraderStore, str, str]:
    registry = Registry(folder, url or f"sqlite:///{folder / 'registry.db'}")
    bundle = small_bundle()
    registry.promote(SLOT, bundle, expected=None, reason="")
    store = TraderStore(registry.database)
    token = store.take_over(SLOT, broker="sim", feed="file", timeframe="4h")
    return registry, store, bundle.hash, token


def account(name: str, kind: AccountKind, bundle: str, retired: str | None) -> AccountRecord:
    return AccountRecord(name, kind, bundle, START, retired, {})


def test_days_fees_and_growth_of_a_retired_account_stay(registry_url: str, tmp_path: Path) -> None:
    registry, store, bundle, token = started(tmp_path, registry_url)
    gone = account("gone", CHALLENGER, bundle, "it lost")
    others = [
        account("account", SLOT_ACCOUNT, bundle, "never thinned, whatever it is"),
        account("shadow", SHADOW, bundle, None),
    ]
    own = {one.name: lines(one.name, bundle, 240, seed) for seed, one in enumerate([gone, *others])}
    bars = [line for found in own.values() for line in found]
    store.commit(SLOT, token, Changes(accounts=[gone, *others], bars=bars))
    before = Series(gone, store.account_history(SLOT, "gone", since=0))
    last = own["gone"][-1].time
    assert thin_retired(registry.database, last + KEPT_DAYS * DAY) == 0
    fewer = thin_retired(registry.database, last + KEPT_DAYS * DAY + 1)
    after = Series(gone, store.account_history(SLOT, "gone", since=0))
    assert fewer == len(before.lines.time) - len(after.lines.time) > 10
    for name in ("account", "shadow"):
        assert store.account_bars(SLOT, name) == own[name]
    assert after.lines.time[0] == before.lines.time[0]
    kept = np.isin(before.lines.time, after.lines.time)
    np.testing.assert_allclose(after.growth, before.growth[kept], rtol=1e-12)
    for one, other in zip(days_of(after, None, {}), days_of(before, None, {}), strict=True):
        mine, theirs = dataclasses.asdict(one), dataclasses.asdict(other)
        assert (mine.pop("benchmark"), theirs.pop("benchmark")) == (None, None)
        assert mine == pytest.approx(theirs, rel=1e-9)
    assert before.sharpe("4h") is not None
    assert after.sharpe("4h") is None
    assert thin_retired(registry.database, LATER) == 0  # nothing is left to do


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from([0.0, 0.0, 5.0]), st.sampled_from("ab")),
        min_size=1,
        max_size=40,
    )
)
def test_groups_keep_every_line_once_and_never_join_days_transfers_or_bundles(
    drawn: list[tuple[int, float, str]],
) -> None:
    time, made = START, []
    for step, flow, bundle in drawn:
        time += step * 3600
        made.append(AccountBar("x", time, bundle, 1.0, 1.0, flow))
    groups = list(thinning._groups(made))
    assert [line for group in groups for line in group] == made
    for group in groups:
        assert len({line.time // DAY for line in group}) == 1
        assert len({line.bundle for line in group}) == 1
        assert len(group) == 1 or not any(line.flow for line in group)
    assert len(groups[0]) == 1
    assert day_line(made).time == made[-1].time


def test_only_lines_of_retired_accounts_can_be_deleted(registry_url: str, tmp_path: Path) -> None:
    registry, store, bundle, token = started(tmp_path, registry_url)
    gone, trades = (
        account("gone", CHALLENGER, bundle, "it lost"),
        account("trades", CHALLENGER, bundle, None),
    )
    own = account("account", SLOT_ACCOUNT, bundle, "a retired account of the slot")
    bars = [line for one in (gone, trades, own) for line in lines(one.name, bundle, 3)]
    store.commit(SLOT, token, Changes(accounts=[gone, trades, own], bars=bars))
    for name in ("trades", "account"):
        with (
            pytest.raises(sa.exc.DBAPIError, match="rows of account_bars are append-only"),
            registry.database.engine.begin() as connection,
        ):
            connection.execute(ACCOUNT_BARS.table.delete().where(ACCOUNT_BARS.c.account == name))
    with registry.database.writing() as connection:
        connection.execute(ACCOUNT_BARS.delete(account="gone"))
    assert store.account_bars(SLOT, "gone") == []


def test_an_error_within_an_account_leaves_its_lines_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, store, bundle, token = started(tmp_path)
    gone = account("gone", CHALLENGER, bundle, "it lost")
    made = lines("gone", bundle, 40)
    store.commit(SLOT, token, Changes(accounts=[gone], bars=made))
    calls = []

    def failing(group: list[AccountBar]) -> AccountBar:
        calls.append(group)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return day_line(group)

    monkeypatch.setattr(thinning, "day_line", failing)
    with pytest.raises(KeyboardInterrupt):
        thin_retired(registry.database, LATER)
    assert store.account_bars(SLOT, "gone") == made
    monkeypatch.undo()
    assert thin_retired(registry.database, LATER) > 0
