"""Round trips of an account, and its profit and loss by trip, ticker and day.

A round trip begins with the buy that opens a position and ends with the sell that closes it; a
short one begins with a sale and ends with the buy that closes it, and its cost is negative. The
cost of a position is its average cost, as in the trader's books (`sweepd.deploy.trading.book`) and
in the policy's observations: a buy adds what was paid, with its fee, and a sale realises its
proceeds after fees minus the same fraction of the cost as of the units.

The identity, up to rounding:

    last value = first value + transfers + realised + unrealised + unexplained

Units that a bar's end shows and no order explains are a transfer: what came in counts as bought at
that bar's close, what went out as sold there. `unexplained` are the costs that left the account
without an order (fees that a venue charges later, and borrow fees); without short positions it is 0
in the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from sweepd.envs.crypto.data.timeframe import DAY

CENT = 0.01  # quote units: the rest of a complete sale
ROUNDING = 1e-9  # relative: of a position that was sold, and of an account's value


@dataclass(frozen=True)
class Deal:
    """Units that an order bought or sold.

    decided: open of the bar at whose close the order was decided; a later bar's line contains it.
    at: seconds since the epoch.
    units: more than 0. money: quote units that were paid, or received after the fee.
    whole: the order closes the complete position.
    """

    ticker: str
    side: Literal["buy", "sell"]
    decided: int
    at: int
    units: float
    money: float
    fee: float
    whole: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """What an account held at the close of the bar that opened at `time`; closes by ticker.

    end: moment of that close.
    """

    time: int
    end: int
    value: float
    flow: float
    units: Mapping[str, float]
    closes: Mapping[str, float]


@dataclass(frozen=True)
class RoundTrip:
    """A position from its opening to its complete close. Money in quote units.

    closed: None while it is open. buys, sells: number of orders, with transfers.
    bought, sold, held: units; held is negative if short. paid, received: with fees. cost: of the
    units that are still held; of a short position, minus its proceeds.
    realised: profit of what was closed. unrealised: of `held` at the last close; None if that is
    unknown. short: whether it began with a sale.
    """

    ticker: str
    opened: int
    closed: int | None = None
    buys: int = 0
    sells: int = 0
    bought: float = 0.0
    sold: float = 0.0
    held: float = 0.0
    paid: float = 0.0
    received: float = 0.0
    fees: float = 0.0
    cost: float = 0.0
    realised: float = 0.0
    unrealised: float | None = None
    short: bool = False

    @property
    def profit(self) -> float:
        """Realised and unrealised."""
        return self.realised + (self.unrealised or 0.0)

    @property
    def ratio(self) -> float:
        """Profit as a fraction of what was paid; if short, of what was received."""
        base = self.received if self.short else self.paid
        return self.profit / base if base > 0.0 else 0.0

    @property
    def entry(self) -> float:
        """Average price per unit of the orders that opened it, after fees."""
        return (self._sale if self.short else self._purchase) or 0.0

    @property
    def exit(self) -> float | None:
        """Average price per unit of the orders that closed it, after fees; None without one."""
        return self._purchase if self.short else self._sale

    @property
    def _purchase(self) -> float | None:
        return self.paid / self.bought if self.bought > 0.0 else None

    @property
    def _sale(self) -> float | None:
        return self.received / self.sold if self.sold > 0.0 else None


@dataclass(frozen=True)
class Sale:
    """The profit that one sale, or one cover of a short position, realised at `at`."""

    ticker: str
    at: int
    realised: float


@dataclass(frozen=True)
class Result:
    """Profit and loss of one ticker, or of the whole account.

    wins, losses: closed round trips with and without a profit. gained, lost: their profits, both
    at least 0. seconds: duration of the closed ones together.
    """

    name: str
    trips: int = 0
    wins: int = 0
    losses: int = 0
    open: int = 0
    realised: float = 0.0
    unrealised: float = 0.0
    fees: float = 0.0
    gained: float = 0.0
    lost: float = 0.0
    seconds: int = 0
    best: float = 0.0
    worst: float = 0.0

    @property
    def profit(self) -> float:
        """Realised and unrealised."""
        return self.realised + self.unrealised

    @property
    def win_rate(self) -> float | None:
        """Fraction of the closed round trips with a profit; None without any."""
        closed = self.wins + self.losses
        return self.wins / closed if closed else None

    @property
    def profit_factor(self) -> float | None:
        """Gains divided by losses of the closed round trips; None without losses."""
        return self.gained / self.lost if self.lost > 0.0 else None

    @property
    def duration(self) -> float | None:
        """Mean duration of a closed round trip, seconds; None without any."""
        closed = self.wins + self.losses
        return self.seconds / closed if closed else None


@dataclass(frozen=True)
class Profits:
    """Profit and loss of an account.

    trips: oldest first. sales: what each one realised, oldest first.
    total, assets: of all tickers, and by ticker.
    first, last: values; flows: transfers between them.
    unexplained: the rest of the identity above; None if a last price is unknown.
    """

    trips: list[RoundTrip]
    sales: list[Sale]
    total: Result
    assets: list[Result]
    first: float
    last: float
    flows: float
    unexplained: float | None

    def by_day(self) -> dict[int, float]:
        """Return the realised profit by day (seconds since the epoch of its start, UTC)."""
        found: dict[int, float] = {}
        for sale in self.sales:
            day = sale.at // DAY * DAY
            found[day] = found.get(day, 0.0) + sale.realised
        return found


@dataclass
class _Books:
    """The open round trips by ticker, and what is closed.

    shorts: whether a sale without a position is short.
    """

    shorts: bool = False
    open: dict[str, RoundTrip] = field(default_factory=dict)
    closed: list[RoundTrip] = field(default_factory=list)
    sales: list[Sale] = field(default_factory=list)

    def book(self, deal: Deal) -> None:
        """Book an order's result."""
        if deal.side == "buy":
            self.buy(deal.ticker, deal.at, deal.units, deal.money, deal.fee, deal.whole)
        else:
            self.sell(deal.ticker, deal.at, deal.units, deal.money, deal.fee, deal.whole)

    def buy(
        self,
        ticker: str,
        at: int,
        units: float,
        money: float,
        fee: float = 0.0,
        complete: bool = False,
    ) -> None:
        trip = self.open.get(ticker) or RoundTrip(ticker, at)
        trip = replace(
            trip,
            buys=trip.buys + 1,
            bought=trip.bought + units,
            paid=trip.paid + money,
            fees=trip.fees + fee,
        )
        if trip.held < 0.0:
            self._close(trip, at, units, -money, complete)
        else:
            self.open[ticker] = replace(trip, held=trip.held + units, cost=trip.cost + money)

    def sell(
        self,
        ticker: str,
        at: int,
        units: float,
        money: float,
        fee: float = 0.0,
        complete: bool = False,
    ) -> None:
        # Sold without a position where nothing is short: a venue filled more than was known; all of
        # it is a gain.
        trip = self.open.get(ticker) or RoundTrip(ticker, at, short=self.shorts)
        trip = replace(
            trip,
            sells=trip.sells + 1,
            sold=trip.sold + units,
            received=trip.received + money,
            fees=trip.fees + fee,
        )
        if trip.short:
            self.open[ticker] = replace(trip, held=trip.held - units, cost=trip.cost - money)
        else:
            self._close(trip, at, units, money, complete)

    def _close(self, trip: RoundTrip, at: int, units: float, money: float, complete: bool) -> None:
        """Close units of a position; `money` is what they bring, negative for a short one."""
        size = abs(trip.held)
        rest = size - units
        # Venues round units: a complete sale may leave dust, which the account no longer counts.
        dust = complete and rest * abs(money) <= CENT * units
        whole = dust or rest <= ROUNDING * size
        cost = trip.cost if whole else trip.cost * (units / size)
        trip = replace(
            trip,
            held=0.0 if whole else math.copysign(rest, trip.held),
            cost=0.0 if whole else trip.cost - cost,
            realised=trip.realised + money - cost,
        )
        self.sales.append(Sale(trip.ticker, at, money - cost))
        if whole:
            self.open.pop(trip.ticker, None)
            self.closed.append(replace(trip, closed=at))
        else:
            self.open[trip.ticker] = trip

    def settle(self, point: Checkpoint) -> None:
        """Book the units that no order explains as transfers at the close."""
        for ticker in sorted({*self.open, *point.units}):
            trip, close = self.open.get(ticker), point.closes.get(ticker)
            held = trip.held if trip else 0.0
            moved = point.units.get(ticker, 0.0) - held
            if close is None or abs(moved) * close <= ROUNDING * point.value:
                continue
            if moved > 0.0:
                self.buy(ticker, point.end, moved, moved * close)
            else:
                self.sell(ticker, point.end, -moved, -moved * close)


def profits(
    deals: Sequence[Deal], points: Sequence[Checkpoint], *, shorts: bool = False
) -> Profits | None:
    """Return the profit and loss of an account; None without any checkpoint.

    Args:
        deals: all filled orders, in the order of their bars.
        points: the account's first line, those with a transfer, and its last one, by time.
        shorts: whether the account sells short.
    """
    if not points:
        return None
    books, place = _Books(shorts), 0
    for point in points:
        while place < len(deals) and deals[place].decided < point.time:
            books.book(deals[place])
            place += 1
        books.settle(point)
    last = points[-1]
    held = [
        replace(trip, unrealised=None if close is None else trip.held * close - trip.cost)
        for trip in books.open.values()
        for close in [last.closes.get(trip.ticker)]
    ]
    trips = sorted([*books.closed, *held], key=lambda trip: (trip.opened, trip.ticker))
    total = _result("all", trips)
    flows = sum(point.flow for point in points[1:])
    known = all(trip.unrealised is not None for trip in held)
    return Profits(
        trips=trips,
        sales=books.sales,
        total=total,
        assets=[
            _result(ticker, [trip for trip in trips if trip.ticker == ticker])
            for ticker in sorted({trip.ticker for trip in trips})
        ],
        first=points[0].value,
        last=last.value,
        flows=flows,
        unexplained=last.value - points[0].value - flows - total.profit if known else None,
    )


def _result(name: str, trips: Iterable[RoundTrip]) -> Result:
    found = list(trips)
    closed = [trip for trip in found if trip.closed is not None]
    profits = [trip.realised for trip in closed]
    return Result(
        name=name,
        trips=len(found),
        wins=sum(profit > 0.0 for profit in profits),
        losses=sum(profit <= 0.0 for profit in profits),
        open=len(found) - len(closed),
        realised=sum(trip.realised for trip in found),
        unrealised=sum(trip.unrealised or 0.0 for trip in found),
        fees=sum(trip.fees for trip in found),
        gained=sum(profit for profit in profits if profit > 0.0),
        lost=-sum(profit for profit in profits if profit < 0.0),
        seconds=sum((trip.closed or trip.opened) - trip.opened for trip in closed),
        best=max(profits, default=0.0),
        worst=min(profits, default=0.0),
    )
