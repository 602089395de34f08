"""Alerts: what is shown, until when, and that each says what to do."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sweepd.deploy.cli.trader_commands import trader_app
from sweepd.deploy.dashboard.alerts import Alert, slot_alerts, study_alerts
from sweepd.deploy.dashboard.health import health
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.records import STRAYS, TRADERS, Changes
from sweepd.deploy.trading.live.start import NOTICES
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.deploy.trading.risk import Conditions, RiskRules, Situation
from sweepd.deploy.trading.risk_limits import RiskLimits
from sweepd.envs.support.formatting import minute
from tests.deploy.dashboard.conftest import Made
from tests.deploy.dashboard.synthetic import ALERT, bundles, write_session

pytest.importorskip("plotly")
from tests.deploy.dashboard.test_terminal import printed
from tests.deploy.dashboard.test_web import Checked, NoStudies, OneStudy, client, get

SLOT = "s"


def status(folder: Path, *words: str) -> str:
    """Return the output of `sweepd trader status`."""
    words = ("status", SLOT, *words, "--deployments", str(folder))
    return CliRunner().invoke(trader_app, words, catch_exceptions=False).output


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
    slot.store.resume(SLOT, "checked")
    assert ("bad", "halted") not in slot.alerts()


def test_a_stale_feed_until_it_is_fresh(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    slot.event("stale", "binance has had no new bar for too long")
    assert slot.alerts() == [("bad", "the feed is stale")]
    later = [one.title for one in slot.full(time.time() + 8 * 86400)]
    assert later == ["silent", "the feed is stale"], "it lasts"
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


def test_a_halt_is_no_risk_rule(tmp_path: Path) -> None:
    slot, rule = Slot(tmp_path), "daily loss of 5.1%, limit 5%"
    slot.store.halt(SLOT, "holidays", sells=True)
    conditions = Conditions(0.0, halt="holidays", halt_sells=True)
    reasons = RiskRules(RiskLimits()).judge(Situation(0, 1.0, conditions)).reasons
    slot.store.commit(SLOT, slot.session.token, Changes(state={"risk": [*reasons, rule]}))
    assert slot.alerts() == [("bad", "halted"), ("warning", "a risk rule restricts trading")]
    assert [one.text for one in slot.full()] == ["holidays", rule]


@pytest.mark.parametrize("kind", [kind for kind, sent in NOTICES.items() if sent == "alert"])
def test_each_alert_that_is_sent_is_on_every_screen(tmp_path: Path, kind: str) -> None:
    """With slot, time and text. What lasts is shown from the trader's row, until it ends."""
    slot, text = Slot(tmp_path), f"what happened: {kind}"
    slot.event(kind, text)
    if kind == "halted":
        slot.store.halt(SLOT, text, sells=False)
    elif kind == "risk":
        slot.store.commit(SLOT, slot.session.token, Changes(state={"risk": [text]}))
    elif kind == "clock":
        slot.store.commit(SLOT, slot.session.token, Changes(state={"skew": 90.0}))
        text = "The clock of"
    elif kind == "fresh":
        assert slot.alerts() == [], "it ends an alert"
        return
    [alert] = slot.full()
    assert (alert.subject, text in alert.text) == (SLOT, True)
    at = slot.store.events(SLOT)[-1].at
    assert alert.since == at
    assert slot.full(time.time() + 6 * 86400)[-1:] == [alert] or kind == "clock"
    page = get(client(tmp_path), "/alerts").text
    assert text in page
    assert minute(at) in page
    for path in ("/", "/orders"):
        assert text in get(client(tmp_path), f"{path}?slot={SLOT}").text
    assert re.search(rf"Alerts.*{minute(at)}.*{text}", printed(tmp_path, SLOT, "--once"), re.DOTALL)
    [shown] = json.loads(printed(tmp_path, SLOT, "--json"))["slots"][0]["alerts"]
    assert (shown["subject"], shown["since"], shown["text"]) == (SLOT, at, alert.text)
    [state] = json.loads(status(tmp_path, "--json"))["traders"]
    assert state["alerts"] == [shown]
    assert text in status(tmp_path)


def test_each_alert_is_listed_for_a_week(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    for text in (
        "parity: decisions differ",
        "three bars came too late",
        "parity: decisions differ",
    ):
        slot.event("alert", text)
    slot.event("rolled back", "from a to b")
    assert [(one.title, one.text) for one in slot.full()] == [
        ("an alert of the trader", "parity: decisions differ"),
        ("an alert of the trader", "three bars came too late"),
        ("the monitor rolled back", "from a to b"),
    ]
    week = time.time() + 7 * 86400 + 60
    assert {one.title for one in slot.full(week)} == {"silent"}
    for number in range(60):
        slot.event("alert", f"number {number}")
    texts = [one.text for one in slot.full() if one.title == "an alert of the trader"]
    assert texts[0] == "number 59"
    assert texts[-1] == "13 older events of this kind in the last 7 days"


def test_a_wrong_clock_is_shown_beside_a_halt(tmp_path: Path) -> None:
    slot = Slot(tmp_path, skew=90.0)
    slot.store.halt(SLOT, "by the operator", sells=False)
    assert slot.alerts() == [("warning", "clock"), ("bad", "halted")]


def test_what_strays_is_not_called_by_another_alert(tmp_path: Path) -> None:
    slot = Slot(tmp_path, monitor={"strays": True})
    slot.event("alert", f"the account {STRAYS}: tracking error 9.1% a year, gap +1.00%")
    slot.event("alert", "parity: decisions differ")
    assert [(one.title, "tracking error" in one.text) for one in slot.full()] == [
        (STRAYS, True),
        ("an alert of the trader", False),
    ]


def test_a_trader_that_does_not_run(tmp_path: Path) -> None:
    slot = Slot(tmp_path)
    with slot.registry.database.writing() as connection:
        # No process has that number.
        connection.execute(TRADERS.update(slot=SLOT).values(pid=2**22 + 1))
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
