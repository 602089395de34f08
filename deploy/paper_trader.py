"""The paper trader: one closed bar at a time through a broker, with its own history, its own features and its own
ledger.

For every bar that has closed: the broker's fills are settled, the portfolio is valued and written down, the features
are computed from the last W bars alone, and the policy's orders are sent, to be filled at the next bar's open. It
shares the order rules, the feature recipe and the policy's canonical path with the environment, and nothing else: that
they agree is tested, not assumed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from deploy.book import Book, EqualWeight
from deploy.brokers.base import Broker, Fill, Order, Side
from deploy.bundle import Bundle, format_time
from deploy.scoring import in_order
from envs.crypto.bars import Bars
from envs.crypto.features import compute_features, get_recipe
from envs.crypto.portfolio import Rules, observe_portfolio, plan_orders
from envs.crypto.timeframe import bar_seconds, bars_per_week
from envs.errors import InputError, RunError

Array = NDArray[np.float64]
ACCOUNT_RANGE = (0.5, 3.0)


@dataclass(frozen=True)
class ClosedBar:
    """One closed bar of all assets: time is its open (seconds since the epoch); the rest (N,), as in `Bars`."""

    time: int
    open: Array
    high: Array
    low: Array
    close: Array
    volume: Array
    hole: NDArray[np.bool_]

    @classmethod
    def of(cls, bars: Bars, bar: int) -> ClosedBar:
        """Bar number `bar` of `bars`."""
        return cls(
            int(bars.time[bar]),
            *(getattr(bars, name)[bar] for name in ("open", "high", "low", "close", "volume", "hole")),
        )


@dataclass(frozen=True)
class Entry:
    """The ledger's line for one closed bar.

    value, equal_weight, cash: quote units at its close. fees, notional: quote units, of the orders filled in it;
    trades, unfilled: how many were and were not. exposure: 1 - cash / value. units: (N,) held. action: (N,) decided at
    its close, None where none was. orders: sent at its close. dropped: orders that were too small to send. fills: what
    became of the orders sent a bar before.
    """

    time: int
    value: float
    equal_weight: float
    cash: float
    fees: float
    notional: float
    trades: int
    unfilled: int
    exposure: float
    units: Array
    action: Array | None
    orders: tuple[Order, ...]
    dropped: int
    fills: tuple[Fill, ...]


class PaperTrader:
    """Trades a bundle on paper.

    slot: the name under which orders are sent. act: the policy, by default the bundle's own: (state_dim,) float32 to
    (N,) float64. any_account: trade an account outside half to three times of the bundle's initial cash, whose minimum
    orders would weigh otherwise.
    """

    def __init__(
        self,
        bundle: Bundle,
        broker: Broker,
        *,
        slot: str,
        act: Callable[[NDArray[np.float32]], Array] | None = None,
        any_account: bool = False,
    ) -> None:
        manifest = bundle.manifest
        self.bundle = bundle
        self.slot = slot
        self._broker = broker
        self._act = act or bundle.policy.act
        self._any_account = any_account
        self._tickers = manifest.tickers
        self._params = bundle.params
        self._rules = Rules.of(bundle.params, bundle.instruments)
        self._recipe = get_recipe(manifest.recipe.name)
        self._seconds = bar_seconds(manifest.timeframe)
        self._held_scale = bundle.params.held_scale or float(bars_per_week(manifest.timeframe))
        self._lags: deque[NDArray[np.float32]] = deque(maxlen=bundle.params.lookback)
        self._history: Bars | None = None
        self._book: Book | None = None
        self._benchmark: EqualWeight | None = None
        self._restart = np.zeros(len(self._tickers), dtype=bool)

    @property
    def bars_needed(self) -> int:
        """How many bars `start` wants: with the next one they fill the recipe's memory and all lags."""
        return self._recipe.memory + self._params.lookback - 2

    def start(self, history: Bars) -> None:
        """Take the bars before the first one to be traded, and look at the account.

        history: at least `bars_needed` closed bars; its tickers are put in the bundle's order by name. Raises
        InputError where a ticker is missing, the bars are too few or of another timeframe, or the account is out of
        range.
        """
        bars = in_order(history, self.bundle)
        count = len(bars.time)
        if count < self.bars_needed:
            raise InputError(
                f"bundle {self.bundle.name} needs {self.bars_needed} bars of history before its first decision; "
                f"there are {count}"
            )
        close = bars.close[-1]
        account = self._broker.account()
        self._book = Book(self._tickers, account)
        self._book.adopt(close)
        value, initial = self._book.value(close), self._params.initial_cash
        low, high = (share * initial for share in ACCOUNT_RANGE)
        if not self._any_account and not low <= value <= high:
            raise InputError(
                f"the account is worth {value:,.2f}, outside half to three times of the {initial:,.2f} that bundle "
                f"{self.bundle.name} was "
                f"trained with ({low:,.2f} to {high:,.2f}), where minimum orders weigh otherwise; --any-account "
                "trades it all the same"
            )
        self._benchmark = None
        self._lags.clear()
        earlier = self._params.lookback - 1
        if earlier:
            window = bars.slice(count - (self._recipe.memory + earlier - 1), count)
            self._lags.extend(compute_features(window, self._recipe)[-earlier:])
        self._history = bars.slice(count - (self._recipe.memory - 1), count)

    def on_bar(self, bar: ClosedBar, *, decide: bool = True) -> Entry:
        """Act on a bar that has closed, in the bundle's order of tickers. Returns its line of the ledger.

        decide: False only keeps the ledger (the last bar of a replay). Raises RunError for a bar that is not the next
        one.
        """
        if self._history is None or self._book is None:
            raise RunError("the trader was not started with a history")
        expected = int(self._history.time[-1]) + self._seconds
        if bar.time != expected:
            raise RunError(
                f"the next bar should open at {format_time(expected)}, but this one opens at {format_time(bar.time)}"
            )
        book = self._book
        fills = tuple(self._broker.fills())
        if self._benchmark is not None:
            book.settle(fills, self._broker.account(), self._restart, bar.hole)
            self._benchmark.next_bar(bar.open, bar.hole)
            book.mark(bar.close)
        else:
            self._benchmark = EqualWeight(
                book.value(bar.close), len(self._tickers), fee=self._params.fee, slippage=self._params.slippage
            )
        self._append(bar)
        action, orders, dropped = self._decide(bar) if decide else (None, (), 0)
        self._broker.submit(orders)
        value = book.value(bar.close)
        done = [fill for fill in fills if fill.status == "filled"]
        return Entry(
            time=bar.time,
            value=value,
            equal_weight=self._benchmark.value(bar.close),
            cash=book.cash,
            fees=sum(fill.fee for fill in done),
            notional=sum(fill.notional for fill in done),
            trades=len(done),
            unfilled=len(fills) - len(done),
            exposure=1.0 - book.cash / value,
            units=book.units.copy(),
            action=action,
            orders=orders,
            dropped=dropped,
            fills=fills,
        )

    def observation(self, close: Array) -> NDArray[np.float32]:
        """(state_dim,) float32: what the policy sees at `close`, laid out as the environment does."""
        if self._book is None:
            raise RunError("the trader was not started with a history")
        portfolio = observe_portfolio(self._book.portfolio(), _row(close), self._held_scale)[0].numpy()
        policy = self.bundle.manifest.policy
        obs = np.zeros(policy.state_dim, dtype=np.float32)
        obs[: len(portfolio)] = portfolio
        newest_first = np.concatenate(list(reversed(self._lags)))
        obs[len(portfolio) : len(portfolio) + len(newest_first)] = newest_first
        return obs

    def _append(self, bar: ClosedBar) -> None:
        """Move the history on by one bar, and compute the newest features from it."""
        old = self._history
        assert old is not None
        rows = {
            name: np.concatenate([getattr(old, name), getattr(bar, name)[None]])
            for name in ("open", "high", "low", "close", "volume", "hole")
        }
        full = Bars(
            tickers=old.tickers,
            timeframe=old.timeframe,
            time=np.append(old.time, bar.time),
            synthetic=old.synthetic,
            **rows,
        )
        self._lags.append(compute_features(full, self._recipe)[-1])
        self._history = full.slice(1, len(full.time))

    def _decide(self, bar: ClosedBar) -> tuple[Array, tuple[Order, ...], int]:
        """The action at the close of `bar`, the orders that it means, and how many of those were too small."""
        assert self._book is not None
        action = self._act(self.observation(bar.close))
        plan = plan_orders(self._book.portfolio(), _row(bar.close), _row(action), self._rules)
        self._restart = plan.restart_clock[0].numpy().copy()
        orders = []
        for asset, ticker in enumerate(self._tickers):
            units, notional = float(plan.sell_units[0, asset]), float(plan.buy_notional[0, asset])
            if units > 0.0 or notional > 0.0:
                side: Side = "sell" if units > 0.0 else "buy"
                orders.append(
                    Order(
                        client_id=f"{self.slot}-{bar.time}-{ticker}",
                        ticker=ticker,
                        side=side,
                        decided=bar.time,
                        units=units,
                        notional=notional,
                        whole=bool(plan.whole[0, asset]),
                        restart_clock=bool(plan.restart_clock[0, asset]),
                    )
                )
        return action, tuple(orders), int(plan.dropped[0])


def _row(values: Array) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float64)).unsqueeze(0)
