"""Every page in a browser: no script errors, no scrolling sideways, no violation of axe-core."""

from __future__ import annotations

import shutil
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("plotly")

from sweepd.deploy.dashboard.access import Guard
from sweepd.deploy.dashboard.actions import Places
from sweepd.deploy.dashboard.source import PaperSource
from sweepd.deploy.dashboard.web import Dashboard
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.store import TraderStore
from tests.deploy.dashboard.browser import AXE_VARIABLE, CHROMIUM, Browser, axe_file, served
from tests.deploy.dashboard.conftest import Made
from tests.deploy.dashboard.test_access import TOKEN
from tests.deploy.dashboard.test_web import OneStudy

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
VIEWS = ("", "chart", "trades", "days", "orders", "events", "parity", "night")
PATHS = (
    *(f"/{view}?slot=demo-1h" for view in VIEWS),
    "/?slot=halted-1h",
    "/?slot=never-1h",
    "/chart?slot=never-1h",
    "/alerts",
    "/chart?slot=demo-1h&days=all&indicator=rsi_14,day_sine",
    "/training",
)


ACTIONS = (
    "/actions",
    "/actions/slot/halt?slot=demo-1h",
    "/actions/slot/resume?slot=demo-1h",
    "/actions/study/dry-run?study=btc",
    "/?slot=demo-1h",
    "/training",
)


@pytest.fixture(scope="module")
def address(made: Made) -> Iterator[str]:
    with served(Dashboard(PaperSource(RegistryFlags(made.folder)), OneStudy())) as found:
        yield found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("path", PATHS)
def test_pages_fit_the_window_and_are_accessible(
    browser: Browser, address: str, path: str, width: int, dark: bool
) -> None:
    assert browser.open(address + path, width=width, dark=dark) == []
    assert not browser.scrolls_sideways()
    axe = axe_file()
    if axe is None:
        pytest.skip(f"{AXE_VARIABLE} does not name axe-core's axe.min.js (npm pack axe-core)")
    assert browser.violations(axe) == []


@pytest.fixture(scope="module")
def acting(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The dashboard with token and actions on a folder of its own."""
    folder = shutil.copytree(made.folder, tmp_path_factory.mktemp("acting") / "deployments")
    where = RegistryFlags(folder)
    application = Dashboard(PaperSource(where), OneStudy(), Places(where))
    with served(Guard(application, TOKEN)) as found:
        yield found, folder


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_pages_of_actions_fit_the_window_and_are_accessible(
    browser: Browser, acting: tuple[str, Path], width: int, dark: bool
) -> None:
    address, axe = acting[0], axe_file()
    browser.open(f"{address}/login", width=width, dark=dark)
    for path in (None, f"/?token={TOKEN}", *ACTIONS):
        if path is not None:
            assert browser.open(address + path, width=width, dark=dark) == [], path
            assert browser.evaluate("location.href").find(TOKEN) < 0
            assert browser.evaluate("document.cookie") == "", "scripts cannot read it"
        assert not browser.scrolls_sideways(), path
        assert axe is None or browser.violations(axe) == [], path


def test_a_slot_is_halted_in_the_browser(browser: Browser, acting: tuple[str, Path]) -> None:
    address, folder = acting
    click = "[...document.querySelectorAll('a, button')].find((one) => one.textContent.trim() === {}).click()"
    browser.open(f"{address}/?slot=silent-1h&token={TOKEN}")
    browser.evaluate(click.format("'Halt …'"))
    browser.settle()
    assert "sells all its positions" in browser.evaluate("document.body.textContent")
    store = TraderStore(Registry(folder).database)
    trader = store.trader("silent-1h")
    assert trader is not None
    assert trader.halt is None, "not yet confirmed"
    browser.evaluate("document.querySelector('[name=reason]').value = 'it strays'")
    button = "document.querySelector('form.act button').click()"
    browser.evaluate(f"{button}; {button}")  # a double click
    until = time.monotonic() + 60.0
    while "ended after" not in browser.evaluate("document.body.textContent"):
        assert time.monotonic() < until, browser.evaluate("document.body.textContent")
        browser.settle()
    assert browser.evaluate("location.search") == "?number=1"
    assert not browser.scrolls_sideways()
    axe = axe_file()
    assert axe is None or browser.violations(axe) == []
    trader = store.trader("silent-1h")
    assert trader is not None
    assert str(trader.halt).endswith("in the dashboard: it strays")
    browser.evaluate(click.format("'Back'"))
    browser.settle()
    text = browser.evaluate("document.body.textContent")
    assert "in the dashboard: it strays" in text
    assert "Resume …" in text


def test_a_wrong_number_is_refused_before_a_command_starts(
    browser: Browser, acting: tuple[str, Path]
) -> None:
    browser.open(f"{acting[0]}/?token={TOKEN}")
    browser.open(f"{acting[0]}/actions/study/dry-run?study=btc")
    browser.evaluate("document.querySelector('[name=trial]').value = '-1'")
    browser.evaluate("document.querySelector('form.act button').click()")
    browser.settle()
    assert browser.evaluate("location.pathname") == "/actions/study/dry-run"
    assert browser.evaluate("document.querySelector('input:invalid').name") == "trial"
    assert not browser.evaluate("document.querySelector('form.act button').disabled")


def test_a_link_of_a_notification_needs_the_token_once(
    browser: Browser, acting: tuple[str, Path]
) -> None:
    """The page of another site links to the dashboard; the cookie is SameSite=Strict."""
    address = acting[0]
    browser.open(f"{address}/?token={TOKEN}")
    link = f"<a href='{address}/?slot=never-1h'>look</a>"
    browser.open("data:text/html," + urllib.parse.quote(link))
    browser.evaluate("document.querySelector('a').click()")
    browser.settle()
    assert browser.evaluate("document.title") == "never-1h · sweepd"


def test_the_theme_can_be_chosen(browser: Browser, address: str) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    browser.open(address + "/", dark=False)
    before = browser.evaluate(ground)
    browser.evaluate("for (const _ of [1, 2]) document.getElementById('theme').click()")
    dark = browser.evaluate(ground)
    assert browser.evaluate("document.getElementById('theme').textContent") == "theme: dark"
    assert dark != before
    browser.open(address + "/training", dark=False)
    assert browser.evaluate(ground) == dark, "it is remembered"
    browser.evaluate("document.getElementById('theme').click()")
    assert browser.evaluate(ground) == before, "the system's again"


def test_filters_become_the_address(browser: Browser, address: str) -> None:
    browser.open(address + "/orders?slot=demo-1h&page=1")
    browser.evaluate(
        """(() => { const form = document.querySelector("form.filters");
        form.side.value = "sell"; form.from.value = "2026-01-31"; form.requestSubmit(); })()"""
    )
    browser.settle()
    assert browser.evaluate("location.pathname + location.search") == (
        "/orders?slot=demo-1h&side=sell&from=2026-01-31"
    )
    chosen = "document.querySelector('select[name=side]').value"
    assert browser.evaluate(chosen) == "sell"


def test_zooming_asks_for_the_new_range_without_a_reload(browser: Browser, address: str) -> None:
    browser.open(address + "/chart?slot=demo-1h&asset=BTC/USDT&days=all")
    shown = "document.getElementById('candles-text').textContent.match(/from (.+?) to/)[1]"
    browser.evaluate("window.kept = true")
    before = browser.evaluate(shown)
    for step in ("in", "in"):
        browser.evaluate(f"document.querySelector('[data-zoom={step}]').click()")
        browser.settle()
        browser.settle()
    assert browser.evaluate(shown) > before
    assert browser.evaluate("window.kept"), "the page was not loaded again"
    first, stop = browser.evaluate(
        "['first', 'stop'].map((name) => new URLSearchParams(location.search).get(name))"
    )
    assert first < stop
    browser.evaluate(
        "void Plotly.relayout(document.querySelector('[data-zooms]'), {'xaxis.autorange': true})"
    )
    browser.settle()
    assert browser.evaluate("location.search") == "?slot=demo-1h&asset=BTC%2FUSDT"


def test_tables_that_scroll_say_so(browser: Browser, address: str) -> None:
    label = "document.querySelector('.scroll').getAttribute('aria-label')"
    hint = "document.querySelector('.sideways').hidden"
    browser.open(address + "/orders?slot=demo-1h", width=390)
    assert (browser.evaluate(label), browser.evaluate(hint)) == ("Orders, scrolls sideways", False)
    browser.open(address + "/orders?slot=demo-1h", width=1280)
    assert (browser.evaluate(label), browser.evaluate(hint)) == ("Orders", True)


def test_a_page_updates_itself_and_keeps_its_chart(browser: Browser, address: str) -> None:
    browser.open(address + "/chart?slot=demo-1h&asset=BTC/USDT")
    drawn = "document.querySelectorAll('[data-figure] .main-svg').length"
    before = browser.evaluate(drawn)
    assert before > 0
    browser.evaluate(
        """(() => { const part = document.getElementById("candles-text");
        part.textContent = "old"; document.dispatchEvent(new Event("visibilitychange")); })()"""
    )
    browser.settle()
    assert browser.evaluate("document.getElementById('candles-text').textContent") != "old"
    assert browser.evaluate(drawn) == before
