"""The suite for brokers of the paper trader."""

from __future__ import annotations

from typing import ClassVar

import pytest

from sweepd.deploy.trading.brokers.base import AccountState, Broker, Fill, Order

TINY = 1e-6  # quote units that rounding may lose, per order


class BrokerTestCase:
    """The laws of the contract of `Broker`. A subclass says how one is made and orders are filled:

        class TestMyBroker(BrokerTestCase):
            tickers = ("BTC/USDT", "ETH/USDT")

            def make(self):
                return MyBroker(...)   # with cash, and nothing held

            def next_bar(self, broker):
                ...                    # the bar opens at which pending orders are filled

    Attributes:
        tickers: two that can be traded.
        notional: quote currency of an order that can be filled.
    """

    tickers: ClassVar[tuple[str, str]]
    notional: ClassVar[float] = 1000.0

    def make(self) -> Broker:
        """Return a broker on a new account, with cash for a few orders, that holds nothing."""
        raise NotImplementedError("a subclass makes the broker")

    def next_bar(self, broker: Broker) -> None:
        """Let the bar come at which pending orders are filled; nothing where that is at once."""

    def restarted(self, broker: Broker) -> Broker:
        """Return a broker of another process, on the account as it is now.

        What an account of virtual money had not filled is gone with its process.
        """
        raise NotImplementedError("a subclass makes a second broker on the account")

    def buy(self, number: int = 0, *, asset: int = 0, notional: float = 0.0) -> Order:
        """Return an order to buy, by default for `notional`."""
        ticker = self.tickers[asset]
        spent = notional or self.notional
        return Order(f"law-{number}-{ticker}", ticker, "buy", number * 300, notional=spent)

    def sell(self, units: float, number: int = 1, *, whole: bool = False) -> Order:
        """Return an order to sell the first asset."""
        ticker = self.tickers[0]
        return Order(
            f"law-{number}-{ticker}", ticker, "sell", number * 300, units=units, whole=whole
        )

    def filled(self, broker: Broker, *orders: Order) -> list[Fill]:
        """Send orders and return their results."""
        broker.submit(orders)
        self.next_bar(broker)
        return broker.fills()

    def test_a_new_account_has_cash_and_holds_nothing(self) -> None:
        """Units are by the tickers of orders."""
        account = self.make().account()
        assert account.cash >= 3 * self.notional
        assert not any(account.units.values())

    def test_every_order_has_one_result(self) -> None:
        """It is reported once, names the order as it was sent, and has numbers that fit together."""
        broker = self.make()
        orders = [self.buy(), self.buy(asset=1)]
        fills = self.filled(broker, *orders)
        assert sorted(fill.order.client_id for fill in fills) == sorted(
            order.client_id for order in orders
        )
        for fill in fills:
            assert fill.order in orders, f"{fill.order} is not an order that was sent"
            assert fill.status == "filled", fill.reason
            assert fill.notional == pytest.approx(self.notional)
            assert fill.units > 0.0
            assert fill.fee >= 0.0
            assert fill.price * fill.units == pytest.approx(fill.notional - fill.fee)
        assert broker.fills() == [], "a result is reported twice"
        self.next_bar(broker)
        assert broker.fills() == [], "a result is reported twice"

    def test_results_add_up_to_the_account(self) -> None:
        """Cash and units follow from them alone."""
        broker = self.make()
        before = broker.account()
        fills = self.filled(broker, self.buy(), self.buy(asset=1))
        held = broker.account().units[self.tickers[0]]
        fills += self.filled(broker, self.sell(held / 2))
        assert_adds_up(before, fills, broker.account())
        rest = broker.account().units[self.tickers[0]]
        fills += self.filled(broker, self.sell(rest, 2, whole=True))
        assert broker.account().units.get(self.tickers[0], 0.0) == 0.0, "a whole sale leaves units"
        assert_adds_up(before, fills, broker.account())

    def test_a_client_id_is_taken_once(self) -> None:
        """A process that sends an order twice is refused, and the account has it once."""
        broker = self.make()
        before = broker.account()
        broker.submit([self.buy()])
        with pytest.raises(ValueError, match=r"\w"):
            broker.submit([self.buy()])
        self.next_bar(broker)
        assert_adds_up(before, broker.fills(), broker.account())
        assert broker.account().cash == pytest.approx(before.cash - self.notional)

    def test_orders_of_an_earlier_process_are_filled_once(self) -> None:
        """A trader that was killed after it sent an order asks for what never arrived."""
        first = self.make()
        before = first.account()
        sent, unsent = self.buy(), self.buy(asset=1)
        first.submit([sent])
        later = self.restarted(first)
        missing = later.adopt([sent, unsent])
        assert unsent in missing
        later.submit(missing)
        self.next_bar(later)
        fills = later.fills()
        assert sorted(fill.order.client_id for fill in fills) == sorted(
            order.client_id for order in (sent, unsent)
        )
        assert_adds_up(before, fills, later.account())
        assert later.account().cash == pytest.approx(before.cash - 2.0 * self.notional)

    def test_parts_of_an_order_add_up_to_it(self) -> None:
        """They have client ids of their own, which are the same in every process."""
        broker = self.make()
        for order in (self.buy(), self.sell(1e6)):
            parts = broker.parts(order, 1.0)
            assert list(parts) == list(broker.parts(order, 1.0))
            assert len({part.client_id for part in parts}) == len(parts)
            for name in ("units", "notional"):
                total = sum(getattr(part, name) for part in parts)
                assert total == pytest.approx(getattr(order, name))


def assert_adds_up(before: AccountState, fills: list[Fill], after: AccountState) -> None:
    """Check that results explain all that has changed in an account."""
    cash, units = before.cash, dict(before.units)
    for fill in fills:
        ticker, held = fill.order.ticker, units.get(fill.order.ticker, 0.0)
        if fill.status == "unfilled":
            assert fill.units == fill.notional == fill.fee == 0.0
        elif fill.order.side == "buy":
            cash, units[ticker] = cash - fill.notional, held + fill.units
        else:
            cash, units[ticker] = cash + fill.notional - fill.fee, held - fill.units
    assert after.cash == pytest.approx(cash, abs=TINY * (1 + len(fills)))
    for ticker in {*units, *after.units}:
        assert after.units.get(ticker, 0.0) == pytest.approx(units.get(ticker, 0.0), abs=1e-8)
