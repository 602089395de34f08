"""The Alpaca broker against a local server: orders arrive once and the accounts agree."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from tests.deploy.alpaca_server import Exchange, Fault, serving

pytest.importorskip("alpaca", reason="alpaca-py is not installed")

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sweepd.deploy.trading.brokers.alpaca import SHARE_ORDERS, AlpacaBroker, venue_id
from sweepd.deploy.trading.brokers.alpaca_api import PAPER_URL, check_url
from sweepd.deploy.trading.brokers.base import Fill, Order
from sweepd.envs.support.errors import InputError, RunError, TryAgainLater

SYMBOLS = {"BTC/USDT": "BTC/USD", "ETH/USDT": "ETH/USD"}


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    with serving(Exchange({"BTC/USD": Decimal(50_000), "ETH/USD": Decimal("2500.5")})) as made:
        yield made


def broker_on(exchange: Exchange, **changes: Any) -> AlpacaBroker:
    settings = {
        "key": "key",
        "secret": "secret",
        "patience": 5.0,
        "timeout": 0.5,
        "sleep": lambda _: None,
        **changes,
    }
    return AlpacaBroker(SYMBOLS, url=exchange.url, **settings)


def buy(notional: float, ticker: str = "BTC/USDT", bar: int = 0) -> Order:
    return Order(f"crypto-5m-{bar}-{ticker}", ticker, "buy", bar, notional=notional)


def sell(units: float, ticker: str = "BTC/USDT", bar: int = 1, *, whole: bool = False) -> Order:
    return Order(f"crypto-5m-{bar}-{ticker}", ticker, "sell", bar, units=units, whole=whole)


def one(broker: AlpacaBroker, order: Order) -> Fill:
    broker.submit([order])
    [fill] = broker.fills()
    return fill


def assert_same_account(broker: AlpacaBroker, exchange: Exchange) -> None:
    account = broker.account()
    assert account.cash == pytest.approx(float(exchange.cash), abs=1e-9)
    for ticker, symbol in SYMBOLS.items():
        held = float(exchange.units.get(symbol, 0))
        assert account.units[ticker] == pytest.approx(held, abs=1e-9)  # the smallest step


def test_a_buy_and_a_whole_sell(exchange: Exchange) -> None:
    broker = broker_on(exchange)
    bought = one(broker, buy(1000.0))
    assert (bought.status, bought.price, bought.notional, bought.fee) == (
        "filled",
        50_000.0,
        1000.0,
        2.5,
    )
    assert bought.units == 0.01995  # the fee is taken from what is received
    assert_same_account(broker, exchange)
    sold = one(broker, sell(0.0199, whole=True))  # a float that misses the position by a little
    assert sold.status == "filled"
    assert exchange.units["BTC/USD"] == 0
    assert exchange.cash == Decimal(9000) + Decimal("0.01995") * 50_000 * Decimal("0.9975")
    assert broker.fills() == []
    assert_same_account(broker, exchange)


def test_sells_go_first_and_are_rounded_down_to_the_increment(exchange: Exchange) -> None:
    exchange.increment = exchange.minimum = Decimal("0.001")
    exchange.units["BTC/USD"] = Decimal("0.0105")
    broker = broker_on(exchange)
    broker.submit([buy(123.456, "ETH/USDT", bar=1), sell(0.0089)])
    assert [order["side"] for order in exchange.orders.values()] == ["sell", "buy"]
    assert [order["qty"] or order["notional"] for order in exchange.orders.values()] == [
        "0.008",
        "123.45",
    ]
    assert broker.instruments(["ETH/USDT"]).increment == (0.001,)
    assert broker.instruments(["ETH/USDT"]).minimum_order == (10.0,)


def test_orders_below_the_minimum_are_not_sent(exchange: Exchange) -> None:
    exchange.minimum = Decimal("0.01")
    exchange.units["BTC/USD"] = Decimal(1)
    broker = broker_on(exchange)
    for order, words in (
        (buy(9.999), "below the minimum of 10 USD"),
        (sell(0.009), "below the minimum of 0.01"),
    ):
        fill = one(broker, order)
        assert fill.status == "unfilled"
        assert words in fill.reason.replace("10", "10 USD") or words in fill.reason
    assert exchange.orders == {}


@pytest.mark.parametrize("kind", [429, 500, 503, 504, "lost", "refused", "slow", "text", "odd"])
@pytest.mark.parametrize("times", [1, 3])
def test_an_order_arrives_once_although_its_answer_fails(
    exchange: Exchange, kind: int | str, times: int
) -> None:
    broker = broker_on(exchange)
    exchange.faults = [Fault(kind, seconds=0.8) for _ in range(times)]
    fill = one(broker, buy(1000.0))
    assert fill.status == "filled"
    assert len(exchange.orders) == 1
    assert exchange.cash == 9000
    assert_same_account(broker, exchange)


@pytest.mark.parametrize("kind", [429, 502, "lost", "refused", "text", "odd"])
def test_requests_are_retried(exchange: Exchange, kind: int | str) -> None:
    broker = broker_on(exchange)
    exchange.faults = [
        Fault(kind, "GET", path)
        for path in ("/v2/account", "/v2/positions", "/v2/positions", "/v2/orders")
    ]
    assert one(broker, buy(500.0)).status == "filled"
    assert_same_account(broker, exchange)
    assert exchange.faults == []


def test_a_lost_answer_to_the_lookup_is_retried(exchange: Exchange) -> None:
    broker = broker_on(exchange)
    exchange.faults = [
        Fault("lost"),
        Fault(503, "GET", "/v2/orders:"),
        Fault("refused", "GET", "/v2/orders:"),
    ]
    assert one(broker, buy(1000.0)).status == "filled"
    assert exchange.cash == 9000


def test_an_order_is_found_after_an_outage_of_the_server(exchange: Exchange) -> None:
    broker = broker_on(exchange, patience=0.3)
    away = [Fault("refused", method, "/v2") for _ in range(20_000) for method in ("GET", "POST")]
    exchange.faults = [Fault("lost"), *away]
    with pytest.raises(
        TryAgainLater, match="Alpaca does not answer about order crypto-5m-0-BTC/USDT"
    ):
        broker.submit([buy(1000.0)])
    exchange.faults = []
    later = broker_on(exchange)
    assert later.adopt([buy(1000.0), buy(2000.0, "ETH/USDT")]) == [buy(2000.0, "ETH/USDT")]
    [fill] = later.fills()
    assert (fill.order, fill.status, fill.notional) == (buy(1000.0), "filled", 1000.0)
    assert exchange.cash == 9000


def test_a_rejection_is_reported_with_its_reason(exchange: Exchange) -> None:
    broker = broker_on(exchange)
    fill = one(broker, buy(10_000.01))
    assert (fill.status, fill.reason) == (
        "unfilled",
        "insufficient balance for USD (requested: 10000.01, available: 10000)",
    )
    exchange.blocked = True
    assert one(broker, buy(100.0, bar=2)).reason == "account is restricted to liquidation only"
    assert exchange.cash == 10_000


@pytest.mark.parametrize("share", ["0.25", "0"])
def test_orders_may_be_filled_partially(exchange: Exchange, share: str) -> None:
    exchange.fill_share = Decimal(share)
    broker = broker_on(exchange)
    fill = one(broker, buy(1000.0))
    assert fill.notional == 1000.0 * float(share)
    assert fill.status == ("filled" if float(share) else "unfilled")
    assert "cancel" in fill.reason
    assert_same_account(broker, exchange)


def test_slow_orders_are_cancelled_after_a_while(exchange: Exchange) -> None:
    exchange.settle_after = 3
    broker = broker_on(exchange)
    assert one(broker, buy(1000.0)).status == "filled"
    exchange.settle_after = 10**9
    stuck = one(broker_on(exchange, patience=0.2), buy(500.0, bar=2))
    assert (stuck.status, stuck.reason) == ("unfilled", "Alpaca's status: canceled")
    assert exchange.cash == 9000


def test_a_skewed_clock_is_measured(exchange: Exchange) -> None:
    exchange.skew, broker = 90.0, broker_on(exchange)
    assert broker.clock_skew() == pytest.approx(90.0, abs=5.0)
    exchange.faults = [Fault(502, "GET", "/v2/clock")]
    with pytest.raises(TryAgainLater):  # an answer to a repeated request would tell another time
        broker.clock_skew()


@pytest.mark.parametrize(
    ("denied", "words"), [(None, "request is not authorized"), (403, "forbidden")]
)
def test_wrong_keys_are_refused_in_one_sentence(
    exchange: Exchange, denied: int | None, words: str
) -> None:
    exchange.denied = denied
    with pytest.raises(
        InputError, match=rf"Alpaca refuses the keys \({words}\): APCA_API_KEY_ID and"
    ) as caught:
        broker_on(exchange, key="another")
    assert "\n" not in str(caught.value)


def test_other_refusals_are_errors_that_a_trader_survives(exchange: Exchange) -> None:
    broker = broker_on(exchange)
    exchange.faults = [Fault(422, "GET", "/v2/account")]
    with pytest.raises(RunError, match="Alpaca answers 422: told to fail"):
        broker.account()


@pytest.mark.parametrize("gone", ["untradable", "unlisted"])
def test_an_untradable_ticker_does_not_affect_others(exchange: Exchange, gone: str) -> None:
    exchange.units["ETH/USD"] = Decimal("1.5")
    getattr(exchange, gone).add("ETH/USD")
    broker = broker_on(exchange)
    assert broker.untradable == {"ETH/USDT": "Alpaca does not trade ETH/USD"}
    broker.submit([buy(100.0), sell(1.5, "ETH/USDT", whole=True), buy(100.0, "ETH/USDT", bar=5)])
    fills = {fill.order.client_id: (fill.status, fill.reason) for fill in broker.fills()}
    assert fills.pop("crypto-5m-0-BTC/USDT") == ("filled", "")
    assert set(fills.values()) == {("unfilled", "Alpaca does not trade ETH/USD")}
    assert broker.account().units["ETH/USDT"] == 1.5


@pytest.mark.parametrize(
    "record", [{"status": "inactive"}, {"tradable": False}], ids=["inactive", "not tradable"]
)
def test_increments_of_untradable_assets_are_not_read(
    exchange: Exchange, record: dict[str, Any]
) -> None:
    listed = exchange._asset

    def asset(symbol: str) -> dict[str, Any]:
        unreadable = record | {"min_trade_increment": None, "min_order_size": ""}
        return listed(symbol) | (unreadable if symbol == "ETH/USD" else {})

    exchange._asset = asset  # type: ignore[method-assign]
    broker = broker_on(exchange)
    assert broker.untradable == {"ETH/USDT": "Alpaca does not trade ETH/USD"}
    assert one(broker, buy(100.0)).status == "filled"


@pytest.mark.parametrize("lag", [1, 3, 6])
def test_an_acknowledged_order_may_be_listed_late(exchange: Exchange, lag: int) -> None:
    exchange.lag = lag
    broker = broker_on(exchange)
    fill = one(broker, buy(1000.0))
    assert (fill.status, fill.notional) == ("filled", 1000.0)
    # Without an answer to the order there is only its client id; sent again, Alpaca refuses it.
    exchange.faults = [Fault("lost")]
    assert one(broker, buy(500.0, bar=2)).status == "filled"
    assert exchange.cash == 8500
    exchange.lag = 10**9
    assert one(broker_on(exchange), buy(500.0, bar=3)).reason == "Alpaca no longer lists it"


def test_a_final_lookup_is_repeated(exchange: Exchange) -> None:
    first = broker_on(exchange)
    exchange.lag = 4
    first.submit([buy(1000.0), buy(300.0, "ETH/USDT")])
    later = broker_on(exchange)
    assert later.adopt([buy(1000.0)]) == [buy(1000.0)]
    assert later.adopt([buy(1000.0), buy(300.0, "ETH/USDT"), buy(5.0, bar=9)], final=True) == [
        buy(5.0, bar=9)
    ]
    assert [fill.status for fill in later.fills()] == ["filled", "filled"]
    assert float(exchange.cash) == pytest.approx(8700)


def test_long_client_ids_are_shortened_and_stay_unique(exchange: Exchange) -> None:
    broker, slot = broker_on(exchange), "x" * 140
    orders = [
        Order(f"{slot}-{bar}-BTC/USDT", "BTC/USDT", "buy", bar, notional=100.0) for bar in (1, 2)
    ]
    broker.submit(orders)
    assert [fill.status for fill in broker.fills()] == ["filled", "filled"]
    assert sorted(map(len, exchange.orders)) == [128, 128]
    assert broker_on(exchange).adopt(orders) == []
    assert venue_id("crypto-5m-0-BTC/USDT") == "crypto-5m-0-BTC/USDT"


def test_quantities_are_exact_decimals(exchange: Exchange) -> None:
    """As floats, most positions of a cheap coin would be larger than what is held."""
    exchange.prices["ETH/USD"] = Decimal("0.00001234")
    broker, digits = broker_on(exchange), random.Random(1)
    for bar in range(40):
        held = Decimal(digits.randrange(10**16, 10**18)).scaleb(-9)
        exchange.units["ETH/USD"] = held
        fill = one(broker, sell(float(held), "ETH/USDT", bar, whole=bar % 2 == 0))
        assert (fill.status, fill.reason) == ("filled", "")
        assert exchange.units["ETH/USD"] < Decimal("1e-6")
        assert exchange.units["ETH/USD"] == 0 or bar % 2


@pytest.mark.parametrize(
    "url",
    [
        "https://api.alpaca.markets",
        "http://paper-api.alpaca.markets",
        "https://paper-api.alpaca.markets:8443",
        "https://paper-api.alpaca.markets.example.org",
        "https://user:word@paper-api.alpaca.markets",
        "http://192.168.0.7:80",
        "ftp://127.0.0.1",
        "paper-api.alpaca.markets",
        "",
        "http://127.0.0.1.example.org",
        "http://key@localhost",
    ],
)
def test_other_hosts_are_refused(url: str) -> None:
    with pytest.raises(InputError, match="is refused"):
        check_url(url)
    with pytest.raises(InputError, match="is refused"):
        AlpacaBroker(SYMBOLS, key="key", secret="secret", url=url)


@pytest.mark.parametrize(
    "url",
    [PAPER_URL, PAPER_URL + "/", "http://127.0.0.1:8080", "http://localhost", "http://[::1]:9"],
)
def test_the_paper_host_and_this_machine_are_accepted(url: str) -> None:
    check_url(url)


FAULTS = st.builds(
    Fault,
    kind=st.sampled_from([429, 500, 504, "lost", "refused", "text", "odd"]),
    method=st.sampled_from(["POST", "GET"]),
    path=st.sampled_from(["/v2/orders", "/v2/positions", "/v2/account"]),
)
WISHES = st.tuples(st.sampled_from(sorted(SYMBOLS)), st.floats(-1.0, 1.0))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    bars=st.lists(
        st.tuples(
            st.lists(WISHES, max_size=2, unique_by=lambda w: w[0]), st.lists(FAULTS, max_size=4)
        ),
        max_size=6,
    ),
    share=st.sampled_from(["1", "0.5"]),
)
@example(  # a lost answer, no lookup, and the refusal of the repetition in words that cannot be read
    bars=[
        (
            [("BTC/USDT", 1.0)],
            [
                Fault(kind=429, method="GET", path="/v2/orders"),
                Fault(kind="lost", method="POST", path="/v2/orders"),
                Fault(kind="text", method="POST", path="/v2/orders"),
            ],
        )
    ],
    share="1",
)
def test_the_fills_add_up_to_the_account(
    exchange: Exchange, bars: list[tuple[list[tuple[str, float]], list[Fault]]], share: str
) -> None:
    """Cash and units follow from the reported fills alone, to far less than a cent."""
    exchange.cash, exchange.units, exchange.orders, exchange.faults = Decimal(10_000), {}, {}, []
    exchange.fill_share = Decimal(share)
    broker = broker_on(exchange, patience=60.0)
    cash, units = 10_000.0, dict.fromkeys(SYMBOLS, 0.0)
    for bar, (wishes, faults) in enumerate(bars):
        exchange.faults = list(faults)
        orders = [
            buy(wish * 3000.0, ticker, bar)
            if wish > 0
            else sell(-wish * units[ticker], ticker, bar)
            for ticker, wish in wishes
        ]
        broker.submit(orders)
        fills = broker.fills()
        assert sorted(fill.order.client_id for fill in fills) == sorted(
            order.client_id for order in orders
        )
        for fill in fills:
            if fill.order.side == "buy":
                cash, units[fill.order.ticker] = (
                    cash - fill.notional,
                    units[fill.order.ticker] + fill.units,
                )
            else:
                cash += fill.notional - fill.fee
                units[fill.order.ticker] -= fill.units
        exchange.faults = []
        account = broker.account()
        assert account.cash == pytest.approx(cash, abs=1e-6)
        assert account.units == pytest.approx(units, abs=1e-9)
        assert_same_account(broker, exchange)


# ---- shares ----

SHARE_SYMBOLS = {"AAPL/USD": "AAPL", "KO/USD": "KO"}


@pytest.fixture
def stocks() -> Iterator[Exchange]:
    with serving(
        Exchange({"AAPL": Decimal(200), "KO": Decimal("62.5"), "BTC/USD": Decimal(1)})
    ) as m:
        yield m


def share_broker(exchange: Exchange, **changes: Any) -> AlpacaBroker:
    given = {"key": "key", "secret": "secret", "patience": 0.2, "timeout": 0.5, "fee": 0.0}
    return AlpacaBroker(
        SHARE_SYMBOLS, SHARE_ORDERS, url=exchange.url, sleep=lambda _: None, **(given | changes)
    )


def test_fractions_of_shares_are_traded_in_orders_of_the_day_without_a_fee(
    stocks: Exchange,
) -> None:
    broker = share_broker(stocks)
    bought = one(broker, buy(1234.56, "AAPL/USD"))
    assert (bought.status, bought.units, bought.fee) == ("filled", 6.1728, 0.0)
    assert stocks.units["AAPL"] == Decimal("6.1728")
    assert one(broker, buy(0.99, "KO/USD")).reason == "a buy of 0.99 USD is below the minimum of 1"
    assert one(broker, buy(1.0, "KO/USD", bar=2)).status == "filled"
    sold = one(broker, sell(6.1, "AAPL/USD", whole=True))
    assert (sold.units, sold.notional, sold.fee) == (6.1728, 1234.56, 0.0)
    assert stocks.units["AAPL"] == 0
    assert {order["time_in_force"] for order in stocks.orders.values()} == {"day"}
    assert broker.instruments(["KO/USD"]).minimum_order == (1.0,)
    # Orders of shares have no upper limit.
    assert broker.parts(buy(1e6, "AAPL/USD", bar=3), 200.0) == (buy(1e6, "AAPL/USD", bar=3),)


def test_shares_without_fractions_and_unknown_ones_are_not_tradable(stocks: Exchange) -> None:
    stocks.whole_only = {"KO"}
    stocks.untradable = {"AAPL"}
    broker = share_broker(stocks)
    assert broker.untradable == {
        "AAPL/USD": "Alpaca does not trade AAPL",
        "KO/USD": "Alpaca trades only whole shares of KO, and orders are in fractions",
    }
    fill = one(broker, buy(100.0, "KO/USD"))
    assert (fill.status, fill.reason) == ("unfilled", broker.untradable["KO/USD"])
    assert stocks.orders == {}


def test_orders_wait_for_the_opening_and_are_found_by_another_process(stocks: Exchange) -> None:
    stocks.is_open = False
    stocks.units["KO"] = Decimal(4)
    broker = share_broker(stocks)
    assert not broker.fills_now()
    orders = [buy(500.0, "AAPL/USD"), sell(4.0, "KO/USD", bar=0, whole=True)]
    broker.submit(orders)
    assert broker.fills() == []
    assert stocks.cash == 10_000
    # Another process at night; it does not cancel them, however long it waits.
    again = share_broker(stocks)
    assert again.adopt(orders, final=True) == []
    for _ in range(3):
        assert again.fills() == []
    assert len(stocks.orders) == 2
    stocks.prices = {"AAPL": Decimal(250), "KO": Decimal(60)}
    stocks.open_market()
    fills = {fill.order.ticker: fill for fill in again.fills()}
    assert (fills["AAPL/USD"].units, fills["AAPL/USD"].price) == (2.0, 250.0)
    assert (fills["KO/USD"].units, fills["KO/USD"].price) == (4.0, 60.0)
    assert again.fills() == []


def test_a_refusal_while_the_market_is_closed_is_known_at_once(stocks: Exchange) -> None:
    stocks.is_open = False
    broker = share_broker(stocks)
    fill = one(broker, buy(50_000.0, "AAPL/USD"))
    assert fill.status == "unfilled"
    assert "insufficient" in fill.reason
    # An order that Alpaca ends before the opening is reported, and the others wait.
    broker.submit([buy(100.0, "AAPL/USD", bar=2), buy(100.0, "KO/USD", bar=2)])
    stocks.orders["crypto-5m-2-KO/USD"]["status"] = "canceled"
    [fill] = broker.fills()
    assert (fill.order.ticker, fill.reason) == ("KO/USD", "Alpaca's status: canceled")
    assert broker.fills() == []


def test_an_order_that_no_one_fills_is_cancelled_while_the_market_is_open(stocks: Exchange) -> None:
    stocks.settle_after = 10**6  # as in a trading halt of the share
    broker = share_broker(stocks)
    fill = one(broker, buy(500.0, "AAPL/USD"))
    assert (fill.status, fill.reason) == ("unfilled", "Alpaca's status: canceled")


def test_coins_are_not_looked_up_among_shares(stocks: Exchange) -> None:
    broker = AlpacaBroker(
        {"BTC/USD": "BTC/USD"}, SHARE_ORDERS, key="key", secret="secret", url=stocks.url
    )
    assert broker.untradable == {"BTC/USD": "Alpaca does not trade BTC/USD"}
