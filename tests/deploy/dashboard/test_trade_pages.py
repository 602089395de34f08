"""Chart, round trips, days, orders and events of a real session, and their exports."""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path

import pytest

pytest.importorskip("plotly")
from werkzeug.test import Client

from sweepd.deploy.dashboard.slot_pages import VIEWS as SLOT_VIEWS
from sweepd.deploy.trading.certificates.certify import certify
from sweepd.deploy.trading.certificates.parity import parity
from sweepd.deploy.trading.live.store import store_parity
from tests.deploy.dashboard.conftest import Made
from tests.deploy.dashboard.test_web import Checked, client, figures, get
from tests.deploy.trading.live.test_session import FIRST, TICKERS, bars_of, bundle_of
from tests.deploy.trading.live.world import SLOT, World

PAGES = tuple(SLOT_VIEWS)
VIEWS = ("chart", "trades", "days", "orders", "events")
BARS = 760


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """120 bars, with holes."""
    made = World(tmp_path_factory.mktemp("world"), bundle_of(), bars_of(BARS, holes=0.02), FIRST)
    made.run()
    made.store.note(SLOT, "trouble", "the <feed> is out of reach")
    made.store.note(SLOT, "cost", "100% of a fee")
    return made


@pytest.fixture(scope="module")
def asked(world: World) -> Client:
    return client(world.folder)


def rows(asked: Client, path: str) -> list[dict[str, str]]:
    answer = get(asked, path)
    assert (answer.status_code, answer.mimetype) == (200, "text/csv")
    assert "attachment" in answer.headers["Content-Disposition"]
    return list(csv.DictReader(io.StringIO(answer.text)))


def ids(text: str) -> set[str]:
    return set(Checked(text).ids)


@pytest.mark.parametrize("view", VIEWS)
def test_views_link_each_other(asked: Client, view: str) -> None:
    text = get(asked, f"/{view}?slot={SLOT}").text
    for other in VIEWS:
        assert f'href="/{other}?slot={SLOT}"' in text
    assert text.count('aria-current="page"') >= 2


@pytest.mark.parametrize("synthetic", [True, False])
def test_slot_state_and_synthetic_stand_on_every_page(tmp_path: Path, synthetic: bool) -> None:
    """Also on those of a slot that was never traded."""
    data = bundle_of().manifest.data.model_copy(update={"synthetic": synthetic})
    world = World(tmp_path, bundle_of(data=data), bars_of(), FIRST)
    asked = client(tmp_path)

    def heads() -> set[str]:
        texts = [
            get(asked, f"{path}{query}").text for path in PAGES for query in ("", f"?slot={SLOT}")
        ]
        found = [re.findall(r'<p id="slot" data-live>(.*?)</p>', text) for text in texts]
        assert [len(one) for one in found] == [1] * len(texts), "each page has one"
        return {re.sub(r"<.*?>", "", head) for (head,) in found}

    mark = " synthetic market" if synthetic else ""
    assert heads() == {f"{SLOT} never traded{mark}"}
    world.begin()
    world.store.halt(SLOT, "by the operator", sells=False)
    assert heads() == {f"{SLOT} halted{mark}"}
    mark = ", synthetic market" if synthetic else ""
    assert f"slot {SLOT} (halted{mark})" in get(asked, "/alerts").text


def test_orders_are_paged_filtered_and_exported_with_exact_numbers(
    world: World, asked: Client
) -> None:
    lines = [line for line in world.store.orders(SLOT) if line.account == "account"][::-1]
    assert len(lines) > 60
    found = rows(asked, f"/orders.csv?slot={SLOT}")
    assert [one["client_id"] for one in found] == [line.order.client_id for line in lines]
    for one, line in zip(found, lines, strict=True):
        given = line.fill
        assert float(one["filled_units"]) == (given.units if given else 0.0)
        assert float(one["fee"]) == (given.fee if given else 0.0)
    assert get(asked, f"/orders.json?slot={SLOT}").json[3]["client_id"] == found[3]["client_id"]  # type: ignore[index]
    last = math.ceil(len(lines) / 50)
    text = get(asked, f"/orders?slot={SLOT}&page={last}").text
    assert f"page {last} of {last}" in text
    assert f"{50 * (last - 1) + 1}–{len(lines)} of {len(lines)}" in text
    assert text.count('<tr><th scope="row">') == len(lines) - 50 * (last - 1)
    chosen = [one for one in found if (one["ticker"], one["side"]) == (TICKERS[1], "sell")]
    assert rows(asked, f"/orders.csv?slot={SLOT}&asset={TICKERS[1]}&side=sell") == chosen
    assert (
        f"1–{min(50, len(chosen))} of {len(chosen)}"
        in get(asked, f"/orders?slot={SLOT}&asset={TICKERS[1]}&side=sell").text
    )
    day = found[-1]["decided"][:10]
    some = rows(asked, f"/orders.csv?slot={SLOT}&from={day}&to={day}")
    assert some == [one for one in found if one["decided"].startswith(day)]
    assert rows(asked, f"/orders.csv?slot={SLOT}&status=unfilled") == [
        one for one in found if one["status"] == "unfilled"
    ]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("orders?side=hold", 400),
        ("orders?status=x", 400),
        ("orders?from=yesterday", 400),
        ("orders?page=0", 400),
        ("orders?account=none", 404),
        ("orders?asset=none", 404),
        ("orders?slot=none", 404),
        ("orders.csv?slot=none", 404),
        ("orders.xml", 404),
        ("trades?sort=x", 400),
        ("events?kind=x", 400),
        ("chart?days=2", 400),
        ("orders?account=equal+weight", 404),
    ],
)
def test_wrong_queries_are_refused(asked: Client, query: str, code: int) -> None:
    answer = get(asked, f"/{query}")
    assert (answer.status_code, answer.mimetype) == (code, "text/plain")


def test_round_trips_and_days_sum_to_the_equity(world: World, asked: Client) -> None:
    lines = world.lines()
    change = lines[-1].value - lines[0].value
    trips = rows(asked, f"/trades.csv?slot={SLOT}")
    assert sum(float(one["profit"]) for one in trips) == pytest.approx(change, rel=1e-9)
    days = rows(asked, f"/days.csv?slot={SLOT}")
    assert sum(float(one["profit"]) for one in days) == pytest.approx(change, rel=1e-9)
    assert math.prod(1.0 + float(one["growth"]) for one in days) == pytest.approx(
        lines[-1].value / lines[0].value
    )
    realised = sum(float(one["realised"]) for one in trips)
    assert sum(float(one["realised"]) for one in days) == pytest.approx(realised)
    assert sum(int(one["trades"]) for one in days) == sum(line.trades for line in lines)
    text = get(asked, f"/trades?slot={SLOT}").text
    assert {"profit", "assets", "trips"} <= ids(text)
    assert f"{change:+,.2f}" in text
    assert "without an order" not in text
    profits = [float(one["profit"]) for one in rows(asked, f"/trades.csv?slot={SLOT}&sort=loss")]
    assert profits == sorted(profits)
    gains = rows(asked, f"/trades.csv?slot={SLOT}&state=gain")
    assert gains
    assert all(one["closed"] and float(one["realised"]) > 0.0 for one in gains)
    picture = figures(get(asked, f"/days?slot={SLOT}"))["days"]
    assert picture["data"][1]["y"][-1] == pytest.approx(change, abs=0.02)


def test_candles_show_every_order_of_the_ticker(world: World, asked: Client) -> None:
    asset = 1
    answer = get(asked, f"/chart?slot={SLOT}&asset={TICKERS[asset]}&days=7")
    traces = {one["name"]: one for one in figures(answer)["candles"]["data"]}
    bars = world.bars
    kept = ~bars.hole[:, asset]
    shown = kept & (bars.time >= bars.time[-1] + 3600 - 7 * 86400)
    assert traces["price"]["close"] == bars.close[shown, asset].tolist()
    filled = [
        line.fill
        for line in world.store.orders(SLOT, account="account")
        if line.order.ticker == TICKERS[asset] and line.fill and line.fill.status == "filled"
    ]
    for side, name in (("buy", "buys"), ("sell", "sells")):
        own = [fill for fill in filled if fill.order.side == side]
        assert traces[name]["y"] == pytest.approx([fill.price for fill in own], rel=1e-14)
        assert traces[name]["x"] == [1000 * fill.at for fill in own]
    assert f"{len(traces['buys']['x'])} buys" in answer.text
    joined = figures(get(asked, f"/chart?slot={SLOT}&asset={TICKERS[asset]}&days=30"))["candles"]
    wide = joined["data"][0]
    assert len(wide["x"]) <= 400
    assert max(wide["high"]) == bars.high[kept, asset][-720:].max()
    assert wide["close"][-1] == bars.close[kept, asset][-1]
    day = "2000-01-01"
    assert "No bars in this range" in get(asked, f"/chart?slot={SLOT}&to={day}").text


def test_events_are_filtered_by_kind_severity_text_and_time(asked: Client) -> None:
    def found(query: str) -> list[str]:
        return [one["kind"] for one in rows(asked, f"/events.csv?slot={SLOT}&{query}")]

    every = found("")
    assert {"trouble", "cost", "started", "promoted"} <= set(every)
    assert found("kind=trouble") == ["trouble"]
    assert found("level=bad") == []
    assert sorted(found("level=warning")) == ["cost", "trouble"]
    assert found("level=bad&kind=cost") == []
    assert found("text=OUT+of") == ["trouble"]
    assert found("text=%25+of") == ["cost"]
    assert found("text=%25of") == [], "% is no wildcard"
    assert set(found("source=registry")) == {"promoted"}
    assert found("to=2000-01-01") == []
    assert found("from=2000-01-01") == every
    text = get(asked, f"/events?slot={SLOT}").text
    assert "the &lt;feed&gt; is out of reach" in text


def test_a_shadow_or_challenger_has_its_own_pages(made: Made) -> None:
    asked = client(made.folder)
    for view in ("trades", "days", "orders", "chart"):
        text = get(asked, f"/{view}?slot=demo-1h&account=shadow").text
        assert '<option value="shadow" selected>' in text


def test_a_slot_without_a_trader_says_how_to_start_it(made: Made) -> None:
    for view in VIEWS:
        answer = get(client(made.folder), f"/{view}?slot=never-1h")
        assert answer.status_code == 200
        assert "To start: sweepd trade never-1h" in answer.text
        assert Checked(answer.text)


def test_texts_in_files_are_no_formulas(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    world.begin()
    world.store.note(SLOT, "=cmd()", "+1")
    [one] = rows(client(tmp_path), f"/events.csv?slot={SLOT}&text=1&kind=%3Dcmd()")
    assert (one["kind"], one["text"]) == ("'=cmd()", "'+1")


def test_new_orders_appear_without_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(), FIRST)
    world.begin()
    asked = client(tmp_path)
    before = get(asked, f"/trades?slot={SLOT}").text
    world.run()
    after = get(asked, f"/trades?slot={SLOT}").text
    assert f"{world.lines()[-1].value:,.2f} at the last close" in after
    assert before != after


def test_parity_is_shown_when_it_was_computed(world: World, asked: Client) -> None:
    path = f"/parity?slot={SLOT}"
    assert f"sweepd trader parity {SLOT}" in get(asked, path).text
    days = parity(world.registry, SLOT)
    store_parity(world.registry.database, SLOT, days)
    answer = get(asked, path)
    assert "decisions reproduced" in answer.text
    assert f"{sum(day.decisions for day in days):,}" in answer.text
    assert "The returns of account and simulator are equal." in answer.text
    found = rows(asked, f"/parity.csv?slot={SLOT}")
    assert [float(one["growth"]) for one in found] == [day.growth for day in days][::-1]


def test_certificates_are_shown(tmp_path: Path) -> None:
    world = World(tmp_path, bundle_of(), bars_of(FIRST + 10), FIRST)
    world.run()
    asked = client(tmp_path)
    assert "Certificates" not in get(asked, f"/parity?slot={SLOT}").text
    [made] = certify(world.registry, SLOT)
    text = get(asked, f"/parity?slot={SLOT}").text
    assert made.hash in text
    assert "<td>equal</td>" in text


def test_differences_from_the_simulator_are_drawn(made: Made) -> None:
    answer = get(client(made.folder), "/parity?slot=demo-1h")
    assert len(figures(answer)["parity"]["data"][0]["y"]) == 40
    assert "decisions differ" in answer.text
    assert (
        '<span class="loss">0.02</span>'
        in get(client(made.folder), "/parity?slot=demo-1h&page=1").text
    )
