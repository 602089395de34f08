"""Brokers and feeds keep the laws of their contracts (`sweepd.testing`), and broken ones do not."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from sweepd.deploy.trading.brokers.alpaca import AlpacaBroker
from sweepd.deploy.trading.brokers.base import Broker, Fill, Order
from sweepd.deploy.trading.brokers.sim import SimBroker
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.feeds import Feed, LiveFeed, RecordedFeed
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.testing import BrokerTestCase, FeedTestCase
from tests.deploy.alpaca_server import Exchange, serving
from tests.deploy.trading.test_feeds import BARS, STEP, Shop, feed_on

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TICKERS = ("BTC/USDT", "ETH/USDT")


class TestSim(BrokerTestCase):
    tickers = TICKERS
    kind: ClassVar[type[SimBroker]] = SimBroker

    def make(self) -> SimBroker:
        params = EnvParams(fee=0.01, slippage=0.02)
        return self.kind(TICKERS, 10_000.0, params, Instruments.unrestricted(2))

    def next_bar(self, broker: Any) -> None:
        opened = 3600 * (8 + broker.__dict__.setdefault("bar", 0))
        broker.next_bar(opened, np.array([50.0, 10.0]), np.zeros(2, dtype=bool))

    def restarted(self, broker: Any) -> Broker:
        later = self.make()
        later.restore(broker.state())
        return later


class TestOfficeHours(TestSim):
    """The broker of `examples/own_broker.py`, at noon."""

    @pytest.fixture(autouse=True)
    def kind_of_example(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        self.office = importlib.import_module("own_broker").OfficeHoursBroker

    def make(self) -> Any:
        params = EnvParams(fee=0.01, slippage=0.02)
        return self.office(TICKERS, 10_000.0, params, Instruments.unrestricted(2), timeframe="1h")

    def buy(self, *given: Any, **named: Any) -> Order:
        return at_noon(super().buy(*given, **named))

    def sell(self, *given: Any, **named: Any) -> Order:
        return at_noon(super().sell(*given, **named))


def at_noon(order: Order) -> Order:
    return dataclasses.replace(order, decided=11 * 3600 + order.decided)


class TestAlpaca(BrokerTestCase):
    tickers = TICKERS

    @pytest.fixture(autouse=True)
    def exchange(self) -> Iterator[None]:
        with serving(
            Exchange({"BTC/USD": Decimal(50_000), "ETH/USD": Decimal("2500.5")})
        ) as self.venue:
            yield

    def make(self) -> Broker:
        symbols = {"BTC/USDT": "BTC/USD", "ETH/USDT": "ETH/USD"}
        settings: dict[str, Any] = {"patience": 5.0, "timeout": 0.5, "sleep": lambda _: None}
        return AlpacaBroker(symbols, url=self.venue.url, key="key", secret="secret", **settings)

    def restarted(self, broker: Broker) -> Broker:
        del broker
        return self.make()


class Repeats(SimBroker):
    """Reports its results at every call."""

    def fills(self) -> list[Fill]:
        return list(self._settled)


class Forgets(SimBroker):
    """Takes a client id twice."""

    def submit(self, orders: Sequence[Order]) -> None:
        self._sent.clear()
        self._pending = [own for own in self._pending if own not in orders]
        super().submit(orders)


class Overcharges(SimBroker):
    """The venue takes a fee that no result names."""

    def fills(self) -> list[Fill]:
        return [
            dataclasses.replace(fill, notional=0.99 * fill.notional) for fill in super().fills()
        ]


class Arrived(SimBroker):
    """Says that all orders of an earlier process arrived."""

    def adopt(self, orders: Sequence[Order], *, final: bool = False) -> list[Order]:
        del orders, final
        return []


class Halves(SimBroker):
    """The parts of its orders are half of them."""

    def parts(self, order: Order, price: float) -> Sequence[Order]:
        del price
        return [dataclasses.replace(order, units=order.units / 2, notional=order.notional / 2)]


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (Repeats, "every_order_has_one_result"),
        (Forgets, "a_client_id_is_taken_once"),
        (Overcharges, "results_add_up_to_the_account"),
        (Arrived, "orders_of_an_earlier_process_are_filled_once"),
        (Halves, "parts_of_an_order_add_up_to_it"),
    ],
)
def test_a_broken_broker_fails(broken: type[SimBroker], law: str) -> None:
    class Broken(TestSim):
        kind = broken

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(Broken(), f"test_{law}")()


class TestLive(FeedTestCase):
    bars = BARS
    wrapped: ClassVar[Callable[[Feed], Feed]] = staticmethod(lambda feed: feed)

    def make(self, now: float) -> Feed:
        self.shop = Shop(BARS)
        self.shop.now = now
        return type(self).wrapped(feed_on(self.shop))

    def advance(self, feed: Feed, now: float) -> None:
        del feed
        self.shop.now = now

    def test_too_short_a_history_is_refused(self) -> None:
        self.shop = Shop(BARS)
        super().test_too_short_a_history_is_refused()


class TestFolder(FeedTestCase):
    bars = BARS

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def make(self, now: float) -> Feed:
        self.write(now)
        return LiveFeed.of_folder(self.path, BARS.tickers, "5m")

    def advance(self, feed: Feed, now: float) -> None:
        del feed
        self.write(now)

    def write(self, now: float) -> None:
        write_bars(BARS.slice(0, int((BARS.time + STEP <= now).sum())), self.path)


class TestRecorded(FeedTestCase):
    bars = BARS

    def make(self, now: float) -> Feed:
        del now
        return RecordedFeed(BARS)


class Wrapped:
    """A feed in front of another one, with what a broken one changes."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.kept: list[ClosedBar] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.feed, name)

    def start(self, *given: Any) -> Any:
        return self.feed.start(*given)

    def poll(self, now: float) -> list[ClosedBar]:
        return self.feed.poll(now)


class GivesTwice(Wrapped):
    def poll(self, now: float) -> list[ClosedBar]:
        self.kept = self.feed.poll(now) or self.kept
        return self.kept


class StartsAnew(Wrapped):
    def start(self, count: int, now: float, last: int | None = None) -> Any:
        del last
        return self.feed.start(count, now)


class Ageless(Wrapped):
    def age(self, now: float) -> float:
        return 0.0 * now


class Patched(Wrapped):
    """Starts with however few bars there are."""

    def start(self, count: int, now: float, last: int | None = None) -> Any:
        return self.feed.start(min(count, 20), now, last)


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (GivesTwice, "bars_are_delivered_once_each_as_they_close"),
        (StartsAnew, "a_feed_continues_after_the_last_processed_bar"),
        (Ageless, "its_age_is_that_of_the_last_delivered_bar"),
        (Patched, "too_short_a_history_is_refused"),
    ],
)
def test_a_broken_feed_fails(broken: type[Wrapped], law: str) -> None:
    class Broken(TestLive):
        wrapped: ClassVar[Callable[[Feed], Feed]] = broken  # type: ignore[assignment]

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(Broken(), f"test_{law}")()
