"""Every page in a browser: no script errors, no scrolling sideways, no violation of axe-core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("plotly")

from sweepd.deploy.dashboard.source import PaperSource
from sweepd.deploy.dashboard.web import Dashboard
from sweepd.deploy.registry.flags import RegistryFlags
from tests.deploy.dashboard.browser import AXE_VARIABLE, CHROMIUM, Browser, axe_file, served
from tests.deploy.dashboard.conftest import Made
from tests.deploy.dashboard.test_web import OneStudy

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
VIEWS = ("", "chart", "trades", "days", "orders", "events", "parity")
PATHS = (
    *(f"/{view}?slot=demo-1h" for view in VIEWS),
    "/?slot=halted-1h",
    "/?slot=never-1h",
    "/chart?slot=never-1h",
    "/alerts",
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
