"""Alerts: what is shown, until when, and that each says what to do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from deploy.dashboard.alerts import Alert, slot_alerts, study_alerts
from deploy.dashboard.health import health
from deploy.registry.models import TraderRow
from deploy.registry.registry import Registry
from deploy.trading.live.queries import Records
from deploy.trading.live.records import Changes
from deploy.trading.live.store import TraderStore
from tests.deploy.dashboard.conftest import Made
from tests.deploy.dashboard.synthetic import ALERT, bundles, write_session

pytest.importorskip("plotly")
from tests.deploy.dashboard.test_web import Checked, NoStudies, OneStudy, client, get

SLOT = "s"


class Slot:
    """A slot whose trader is alive."""

    def __init__(self, folder: Path, **state: Any) -> None:
        self.registry = Registry(folder)
        self.made = bundles()[:2]
        self.registry.promote(SLOT, self.made[0], expected=None, reason="")
        self.store = TraderStore(self.registry.database)
        self.session = write_session(self.store, SLOT, self.made[:1], bars=30, state=state)
        self.store.beat(SLOT, self.session.token, "waits")

    def alerts(self) -> list[tuple[str, str]]:
        return [(one.level, one.title) for one in self.full()]

    def full(self, now: float | None = None) -> list[Alert]:
        trader, now = self.store.trader(SLOT), now or time.time()
        state = health(trader, now, slot=SLOT)
        return slot_alerts(Records(self.registry.database), trader, SLOT, state, now)

    def event(self, kind: str, text: str = "text") -> None:
        self.store.commit(SLOT, self.session.token, Changes(events=[(kind, text, None)]))


def test_a_healthy_slot_has_no_alert(tmp_path: Path) -> None:
    assert Slot(tmp_path).alerts() == []


def test_halts_risk_rules_and_the_monitor(tmp_path: Path) -> None:
    slot = Slot(tmp_path, monitor=ALERT, risk=["daily loss of 5.1%, limit 5%"])
    slot.store.halt(SLOT, "by the operator", sells=False)
    assert slot.alerts() == [
        ("bad", "halted"),
        ("warning", "a risk rule restricts trading"),
        ("bad", "worse than scored"),
    ]
    halted, risk, monitor = slot.full()
    assert (halted.text, "sweepd trader resume s" in halted.todo) == ("by the operator", True)
    assert halted.since is not None
    assert risk.text == "daily loss of 5.1%, limit 5%"
    assert "sweepd rollback s" in monitor.todo
    slot.store.resume(SLOT)
    assert ("bad", "halted") not in slot.alerts()


def test_a_stale_feed_until_it_is_fresh(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    slot.event("stale", "binance has had no new bar for too long")
    assert slot.alerts() == [("bad", "the feed is stale")]
    slot.event("fresh")
    assert slot.alerts() == []


def test_failed_promotions_until_one_succeeds(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    slot.registry.refuse(SLOT, "no candidate passes: deflated Sharpe ratio 0.61 < 0.95")
    slot.event("swap refused", "the new champion has other tickers")
    assert slot.alerts() == [
        ("bad", "a new champion cannot take over"),
        ("warning", "a promotion failed"),
    ]
    assert "deflated Sharpe ratio" in slot.full()[1].text
    assert slot.full(time.time() + 8 * 86400)[-1].title != "a promotion failed", "after a week"
    slot.registry.promote(SLOT, slot.made[1], expected=slot.made[0].hash, reason="")
    slot.event("swapped")
    assert slot.alerts() == []


def test_trouble_and_tickers_that_are_gone(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    slot.event("trouble", "the exchange does not answer")
    slot.event("untradable", "SOL/USDT: delisted any more")
    assert slot.alerts() == [
        ("bad", "a ticker is no longer traded"),
        ("warning", "the trader had trouble"),
    ]


def test_a_trader_that_does_not_run(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    with slot.registry.database.writing() as rows:
        rows.get_one(TraderRow, SLOT).pid = 2**22 + 1  # no process has that number
    [alert] = slot.full(time.time() + 60.0)
    assert (alert.level, alert.title) == ("bad", "not running")
    assert "sweepd trade s" in alert.todo


def test_workers_and_trials_of_a_study() -> None:
    found = OneStudy(unhealthy=["no worker is alive, but 5 trials are left"]).found
    found["workers"] = [found["workers"][0] | {"status": "dead"}]
    titles = [(one.level, one.title) for one in study_alerts(found)]
    assert titles == [
        ("bad", "the study is unhealthy"),
        ("warning", "a worker died"),
        ("warning", "trials failed"),
    ]
    done = found | {"unhealthy": [], "done": 10, "failures": []}
    assert study_alerts(done) == [], "a finished study needs no worker"


def test_the_page_lists_all_slots_and_the_newest_study(made: Made) -> None:
    text = get(client(made.folder, OneStudy()), "/alerts").text
    assert Checked(text)
    for word in (
        "portfolio drawdown of 20.3%",
        "sweepd trader resume halted-1h",
        "silent-1h",
        "no candidate passes",
        "trial 2: diverged",
        "study btc",
    ):
        assert word in text, word
    without = get(client(made.folder, NoStudies()), "/alerts").text
    assert "Not checked: --storage runs/sweepd.db does not exist" in without


def test_the_page_without_a_registry(tmp_path: Path) -> None:
    text = get(client(tmp_path / "none"), "/alerts").text
    assert "Nothing needs attention." in text
    assert "nothing has been promoted yet" in text
