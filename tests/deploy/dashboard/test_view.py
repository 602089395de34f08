"""Views of slots: each number is compared with an independent computation from the written data."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sweepd.deploy.dashboard.health import health
from sweepd.deploy.dashboard.series import SeriesCache, thin
from sweepd.deploy.dashboard.view import monitor_view, slot_names, slot_view
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.records import AccountBar, AccountRecord, Changes
from sweepd.deploy.trading.live.store import TraderStore
from tests.deploy.builders import small_bundle
from tests.deploy.dashboard.conftest import Made
from tests.deploy.dashboard.synthetic import HOUR, MONITOR, TICKERS, bundles

DAY = 24 * HOUR


def test_numbers_of_accounts(made: Made) -> None:
    """Compare with plain loops."""
    session, view = made.sessions["demo-1h"], made.view("demo-1h")
    assert [account.kind for account in view.accounts] == [
        "account",
        "shadow",
        *["challenger"] * 3,
        *["benchmark"] * 5,
    ]
    for name in ("account", "equal weight", "hold SOL/USDT", "cash"):
        account, values = view.account(name), session.equities[name].tolist()
        assert account is not None
        returns = [after / before - 1.0 for before, after in itertools.pairwise(values)]
        peak, below = values[0], []
        for value in values:
            peak = max(peak, value)
            below.append(1.0 - value / peak)
        assert account.total_return == pytest.approx(
            values[-1] / values[0] - 1.0, rel=1e-12, abs=1e-12
        )
        assert account.week == pytest.approx(values[-1] / values[-1 - 7 * 24] - 1.0, abs=1e-12)
        assert account.month == pytest.approx(values[-1] / values[-1 - 30 * 24] - 1.0, abs=1e-12)
        assert account.drawdown == pytest.approx(below[-1], abs=1e-12)
        assert account.max_drawdown == pytest.approx(max(below), abs=1e-12)
        assert account.sharpe is not None
        deviation = statistics.stdev(returns)
        expected = (
            math.sqrt(365.25 * 24) * statistics.fmean(returns) / deviation if deviation else 0.0
        )
        assert account.sharpe == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert account.days == pytest.approx((len(values) - 1) / 24)
    own = view.account("account")
    assert own is not None
    assert (own.trades, own.fees) == (137, pytest.approx(137 * 0.4))  # a trade every seventh bar
    assert own.value == session.equities["account"][-1]


def test_positions_have_the_recorded_prices(made: Made) -> None:
    session, holdings = made.sessions["demo-1h"], made.view("demo-1h").holdings
    assert holdings is not None
    assert holdings.time == session.time[-1]
    assert [one.ticker for one in holdings.positions] == list(TICKERS)
    for place, one in enumerate(holdings.positions):
        assert one.price == session.prices[-1, place]
        assert one.value == pytest.approx(one.units * session.prices[-1, place])
        assert one.weight == pytest.approx(one.units * session.prices[-1, place] / holdings.value)
    assert sum(one.value or 0.0 for one in holdings.positions) + holdings.cash == pytest.approx(
        holdings.value
    )


def test_single_position_without_recorded_prices_has_a_value(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    store = TraderStore(registry.database)
    token = store.take_over("s", broker="sim", feed="f", timeframe="1h")

    def bar(time: int, units: dict[str, float]) -> Changes:
        return Changes(
            last_bar=time, bars=[AccountBar("account", time, None, 1000.0, 400.0, units=units)]
        )

    store.commit(
        "s", token, Changes(accounts=[AccountRecord("account", "account", None, 0, None, {})])
    )
    store.commit("s", token, bar(0, {"A/B": 2.0, "C/D": 0.0}))
    holdings = _view(registry, store, "s").holdings
    assert holdings is not None
    assert [(one.price, one.value) for one in holdings.positions] == [(300.0, 600.0), (None, 0.0)]
    store.commit("s", token, bar(HOUR, {"A/B": 2.0, "C/D": 1.0}))
    holdings = _view(registry, store, "s").holdings
    assert holdings is not None
    assert [(one.price, one.value, one.weight) for one in holdings.positions] == [
        (None, None, None)
    ] * 2


def _view(registry: Registry, store: TraderStore, slot: str):  # type: ignore[no-untyped-def]
    return slot_view(registry, SeriesCache(store), slot, time.time())


def test_orders_have_results_and_are_newest_first(made: Made) -> None:
    orders = made.view("demo-1h").orders
    assert len(orders) == 12
    assert orders[0].decided > orders[-1].decided
    assert [order.status for order in orders].count("filled") == 10
    newest = orders[0]
    assert (newest.status, newest.price, newest.units) == ("intended", None, 0.0)
    (refused,) = [order for order in orders if order.status == "unfilled"]
    assert "minimum" in refused.reason
    assert {order.side: order.asked for order in orders}["buy"] == 400.0


def test_a_challenger_is_compared_with_the_champion_on_its_own_bars(made: Made) -> None:
    session, view = made.sessions["demo-1h"], made.view("demo-1h")
    assert [rival.state.split(":")[0] for rival in view.challengers] == [
        "trading",
        "trading",
        "retired",
    ]
    shadow = session.equities["shadow"]
    for rival in view.challengers:
        account = next(
            account
            for account in view.accounts
            if account.bundle == rival.bundle and account.kind == "challenger"
        )
        first = int(np.searchsorted(session.time, account.since))
        last = first + account.bars - 1
        own = session.equities[account.name]
        assert rival.total_return == pytest.approx(own[last] / own[first] - 1.0)
        assert rival.champion_return == pytest.approx(shadow[last] / shadow[first] - 1.0)
        assert rival.ahead == pytest.approx(
            (rival.total_return or 0.0) - (rival.champion_return or 0.0)
        )
    assert (view.challengers[0].ahead or 0.0) >= (view.challengers[1].ahead or 0.0)


def test_challenger_that_does_not_trade_yet(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    bundle = small_bundle(0)
    registry.challenger("s", bundle, reason="")
    (rival,) = _view(registry, TraderStore(registry.database), "s").challengers
    assert (rival.bundle, rival.total_return, rival.ahead) == (bundle.hash, None, None)
    assert "waits" in rival.state


def test_curves_start_at_one_and_later_ones_on_the_account(made: Made) -> None:
    session, view = made.sessions["demo-1h"], made.view("demo-1h")
    account = view.curves[0]
    assert account.account == "account"
    assert account.value[0] == 1.0
    assert account.value[-1] == pytest.approx(session.equities["account"][-1] / 10_000.0, abs=1e-6)
    for curve in view.curves[1:]:
        account = view.account(curve.account)
        assert account is not None
        bar = int(np.searchsorted(session.time, account.since))
        joined = session.equities["account"][bar] / session.equities["account"][0]
        assert curve.value[0] == pytest.approx(joined, abs=2e-6)
        assert curve.value[-1] / curve.value[0] == pytest.approx(
            1.0 + account.total_return, abs=1e-5
        )
    week = made.view("demo-1h", days=7).curves[0]
    assert week.time[0] == session.time[-1] - 7 * DAY
    assert week.value[0] == 1.0
    assert week.value[-1] == pytest.approx(
        session.equities["account"][-1] / session.equities["account"][-1 - 7 * 24]
    )


def test_figure_marks_the_bar_of_a_new_champion(made: Made) -> None:
    session = made.sessions["demo-1h"]
    assert made.view("demo-1h").marks == [
        (int(session.time[len(session.time) // 3]), bundles()[0].hash)
    ]


@given(arrays(np.float64, st.integers(1, 400), elements=st.floats(-1e6, 1e6)), st.integers(4, 100))
def test_thinning_keeps_ends_and_extremes(values: np.ndarray, most: int) -> None:
    kept = thin(values, most)
    assert np.all(np.diff(kept) > 0)
    assert len(kept) <= most or len(kept) == len(values) <= most
    assert (kept[0], kept[-1]) == (0, len(values) - 1)
    assert values[kept].min() == values.min()
    assert values[kept].max() == values.max()
    stretches = np.linspace(0, len(values), most // 4 + 1).astype(int)
    for start, stop in itertools.pairwise(stretches):
        if stop > start:
            inside = values[kept[(kept >= start) & (kept < stop)]]
            assert (inside.min(), inside.max()) == (
                values[start:stop].min(),
                values[start:stop].max(),
            )


def test_thinned_curves_include_the_largest_drawdown(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    store = TraderStore(registry.database)
    token = store.take_over("s", broker="sim", feed="f", timeframe="5m")
    values = 1000.0 + np.cumsum(np.random.default_rng(0).standard_normal(5_000))
    values[3_456] = 300.0
    account = AccountRecord("account", "account", None, 0, None, {})
    bars = [
        AccountBar("account", 300 * bar, None, float(value), 0.0)
        for bar, value in enumerate(values)
    ]
    store.commit("s", token, Changes(accounts=[account], bars=bars))
    (curve,) = _view(registry, store, "s").curves
    assert len(curve.time) <= 610
    assert 300 * 3_456 in curve.time
    assert max(curve.drawdown) == pytest.approx(1.0 - 300.0 / values[:3_456].max(), abs=1e-6)


def test_only_new_lines_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TraderStore(Registry(tmp_path).database)
    token = store.take_over("s", broker="sim", feed="f", timeframe="1h")
    account = AccountRecord("account", "account", None, HOUR, None, {})
    asked, read = [], TraderStore.account_history

    def watched(self: TraderStore, slot: str, name: str, *, since: int):  # type: ignore[no-untyped-def]
        asked.append(since)
        return read(self, slot, name, since=since)

    monkeypatch.setattr(TraderStore, "account_history", watched)
    cache = SeriesCache(store)
    assert cache.read("s", account).lines.time.size == 0
    for bar in range(1, 4):
        store.commit(
            "s",
            token,
            Changes(
                bars=[AccountBar("account", HOUR * bar, f"b{bar}", 100.0 + bar, 1.0, trades=bar)]
            ),
        )
        lines = cache.read("s", account).lines
        assert lines.time.tolist() == [HOUR * (1 + place) for place in range(bar)]
    assert (lines.value.tolist(), lines.trades.tolist()) == ([101.0, 102.0, 103.0], [1, 2, 3])
    assert lines.bundle.tolist() == ["b1", "b2", "b3"]
    assert asked == [HOUR, HOUR, HOUR + 1, 2 * HOUR + 1]


def test_account_after_a_total_loss(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    store = TraderStore(registry.database)
    token = store.take_over("s", broker="sim", feed="f", timeframe="1h")
    bars = [
        AccountBar("account", HOUR * bar, None, value, 0.0)
        for bar, value in enumerate((100.0, 50.0, 0.0, 0.0))
    ]
    store.commit(
        "s",
        token,
        Changes(accounts=[AccountRecord("account", "account", None, 0, None, {})], bars=bars),
    )
    (account,) = _view(registry, store, "s").accounts
    assert (account.total_return, account.drawdown, account.sharpe) == (-1.0, 1.0, None)


def test_slot_that_was_never_traded(made: Made) -> None:
    view = made.view("never-1h")
    assert (view.health.state, view.health.level) == ("never traded", "none")
    where = f"--deployments {made.folder}"
    assert view.health.sentences == [
        f"Slot never-1h was never traded. To start: sweepd trade never-1h {where}"
    ]
    assert view.accounts == view.orders == view.events == view.curves == []
    assert view.holdings is None
    assert view.champion == bundles()[2].hash


def test_names_of_all_slots(made: Made) -> None:
    assert slot_names(made.registry, made.store) == [
        "demo-1h",
        "halted-1h",
        "never-1h",
        "silent-1h",
    ]


def test_halted_trader_shows_reason_and_command(made: Made) -> None:
    found = made.view("halted-1h").health
    assert (found.state, found.level) == ("halted", "warning")
    assert "portfolio drawdown of 20.3%" in found.sentences[0]
    assert "Holdings are sold first." in found.sentences[0]
    assert "resume halted-1h" in found.sentences[0]


def test_silent_trader_is_bad(made: Made) -> None:
    found = made.view("silent-1h").health
    assert (found.state, found.level) == ("silent", "bad")
    assert "the data shown are old" in found.sentences[0]


def test_late_bars_are_counted_without_one_in_progress(tmp_path: Path) -> None:
    store = TraderStore(Registry(tmp_path).database)
    store.take_over("s", broker="sim", feed="f", timeframe="1h")
    trader = store.trader("s")
    assert trader is not None
    closed = 101 * HOUR  # of the last bar acted on
    now = time.time()

    def at(moment: int, **changes: object) -> tuple[str, int | None]:
        """As if the clock stood there, with a fresh beat."""
        shifted = dataclasses.replace(
            trader, **({"last_bar": int(now) - moment + 100 * HOUR} | changes)
        )
        found = health(shifted, now, slot="s")
        return found.state, found.bars_behind

    assert at(closed) == ("trading", 0)
    assert at(closed + HOUR - 5) == ("trading", 0)
    assert at(closed + HOUR + 5) == ("trading", 1)
    assert at(closed + 2 * HOUR + 5) == ("late", 2)
    assert at(closed + 50 * HOUR, feed="recorded") == ("trading", None)
    assert at(closed + 50 * HOUR, last_bar=None) == ("trading", None)
    assert at(closed, status="stopped: asked to")[0] == "stopped"


def test_trader_whose_process_ended(tmp_path: Path) -> None:
    store = TraderStore(Registry(tmp_path).database)
    store.take_over("s", broker="sim", feed="f", timeframe="1h")
    trader = store.trader("s")
    assert trader is not None
    assert health(trader, time.time(), slot="s").state == "trading"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert trader.pid == os.getpid()
    gone, later = dataclasses.replace(trader, pid=ended.pid), time.time() + 30.0
    found = health(gone, later, slot="s")
    assert (found.state, found.level) == ("not running", "bad")
    assert health(dataclasses.replace(gone, host="another"), later, slot="s").state == "trading"
    # A recent heartbeat: the trader runs in another container of the same host name.
    assert health(gone, time.time(), slot="s").state == "trading"


def test_monitor_results_of_any_form_are_accepted(made: Made) -> None:
    found = made.view("demo-1h").monitor
    assert found is not None
    assert (found.verdict, found.level, found.text) == ("as scored", "good", MONITOR["text"])
    edge = found.statistics[0]
    assert (edge.name, edge.live, edge.scored, edge.p) == (
        "over equal weight, a bar",
        7.1e-5,
        9.4e-5,
        0.41,
    )
    assert found.facts["tracking error a year"] == "+0.21%"
    assert found.facts["next look at"] == "2,688"
    halted = made.view("halted-1h").monitor
    assert halted is not None
    assert halted.level == "bad"
    assert monitor_view(None) is monitor_view({}) is monitor_view("text") is None
    odd = monitor_view(
        {"bars": "many", "edge": "high", "drawdown": {"live": "?"}, "tracking": {"error": None}}
    )
    assert odd is not None
    assert (odd.verdict, odd.level, odd.facts["tracking error a year"]) == ("unknown", "none", "–")
    assert odd.statistics[0].live is None


def test_view_as_json(made: Made) -> None:
    content = json.loads(json.dumps(made.view("demo-1h").to_dict()))
    assert "curves" not in content
    assert content["accounts"][0]["name"] == "account"
