"""The paper trader: one closed bar at a time, with its own history, its own features and its own ledger.

For every bar that has closed: what a broker reported is settled, the portfolio is valued and written down, the features
are computed from the last W bars alone, and the policy's orders are handed back, for whoever talks to the broker to
send. It shares the order rules, the feature recipe and the policy's canonical path with the environment, and nothing
else: that they agree is tested, not assumed. Of several trials, each keeps a book of its own, and their net orders are
sent. What it must remember is a JSON object (`state`), from which another process goes on to the same numbers.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deploy.market.bundle import Bundle, format_time
from deploy.market.scoring import in_order
from deploy.trading.book import Book, EqualWeight
from deploy.trading.brokers.base import AccountState, Fill, Order, Side
from deploy.trading.flows import Flow
from deploy.trading.live.risk import RiskLimits, RiskRules, Situation, Verdict, apply, tightened
from deploy.trading.sub_accounts import SubAccounts
from envs.crypto.bars import Bars
from envs.crypto.features import compute_features, get_recipe
from envs.crypto.netting import Venue, sub_account
from envs.crypto.params import Instruments
from envs.crypto.portfolio import Orders, Rules, observe_portfolio, plan_netted, plan_orders
from envs.crypto.timeframe import bar_seconds, bars_per_week
from envs.support.errors import InputError, RunError

Array = NDArray[np.float64]
ACCOUNT_RANGE = (0.5, 3.0)
BAR_COLUMNS = ("open", "high", "low", "close", "volume", "hole")
PLAN_COLUMNS = ("sell_units", "buy_notional", "whole", "restart_clock", "dropped")


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
        return cls(int(bars.time[bar]), *(getattr(bars, name)[bar] for name in BAR_COLUMNS))

    def after(self, bars: Bars) -> Bars:
        """`bars` with this one at the end."""
        rows = {
            name: np.concatenate([getattr(bars, name), getattr(self, name)[None]])
            for name in BAR_COLUMNS
        }
        return Bars(
            tickers=bars.tickers,
            timeframe=bars.timeframe,
            time=np.append(bars.time, self.time),
            synthetic=bars.synthetic,
            **rows,
        )

    def in_order(self, tickers: Sequence[str], wanted: Sequence[str]) -> ClosedBar:
        """The bar of `tickers` with the assets `wanted`, in that order. Raises RunError where one is missing."""
        if tuple(tickers) == tuple(wanted):
            return self
        places = {ticker: place for place, ticker in enumerate(tickers)}
        missing = [ticker for ticker in wanted if ticker not in places]
        if missing:
            raise RunError(f"the bars lack {', '.join(missing)}")
        order = [places[ticker] for ticker in wanted]
        return ClosedBar(self.time, *(getattr(self, name)[order] for name in BAR_COLUMNS))


@dataclass(frozen=True)
class Conditions:
    """What risk rules look at besides the value. now: seconds since the epoch. data_age: seconds since the bar closed.
    halt: why the operator stopped trading, or None; halt_sells: everything is to be sold first.
    """

    now: float
    data_age: float = 0.0
    halt: str | None = None
    halt_sells: bool = False


@dataclass(frozen=True)
class Entry:
    """The ledger's line for one closed bar.

    value, equal_weight, cash: quote units at its close. fees, notional: quote units, of the orders filled in it;
    trades, unfilled: how many were and were not. exposure: 1 - cash / value. units: (N,) held. action: (N,) decided at
    its close, None where none was; of several trials their mean, weighted by share. orders: sent at its close. dropped:
    orders that were too small to send, or held back by a risk rule. crossed: quote units that changed hands between
    trials at its close. fills: what became of the orders sent a bar before. flow: what was transferred into the account
    or out of it since the bar before. risk: what risk rules had against trading.
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
    crossed: float
    fills: tuple[Fill, ...]
    flow: Flow
    risk: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Decision:
    """What was decided at a close. plan: the trials' parts of the orders, a row each; orders: as sent."""

    action: Array | None
    plan: Orders | None
    orders: tuple[Order, ...] = ()
    dropped: int = 0
    crossed: float = 0.0


class PaperTrader:
    """Trades a bundle on paper.

    slot: the name under which orders are sent. act: the policy, by default the bundle's own (of several trials, each
    its own): (state_dim,) float32 to (N,) float64. any_account: trade an account outside half to three times of the
    bundle's initial cash, whose minimum orders would weigh otherwise. limits: risk rules; none by default, since the
    bundle was scored without.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        slot: str,
        act: Callable[[NDArray[np.float32]], Array] | None = None,
        any_account: bool = False,
        limits: RiskLimits | None = None,
    ) -> None:
        manifest = bundle.manifest
        self.bundle = bundle
        self.slot = slot
        self._acts = [act or trial.policy.act for trial in bundle.trials]
        self._any_account = any_account
        self._tickers = manifest.tickers
        self._shares = [trial.share for trial in bundle.trials]
        limits = limits or RiskLimits()
        self._rules, self._venue = _rules(bundle, limits)
        self._risk, self._verdict = RiskRules(limits), Verdict()
        self._recipe = get_recipe(manifest.recipe.name)
        self._seconds = bar_seconds(manifest.timeframe)
        week = float(bars_per_week(manifest.timeframe))
        self._held_scales = [trial.params.held_scale or week for trial in bundle.trials]
        self._lookback = max(trial.params.lookback for trial in bundle.trials)
        self._lags: deque[NDArray[np.float32]] = deque(maxlen=self._lookback)
        self._history: Bars | None = None
        self._accounts: SubAccounts | None = None
        self._benchmark: EqualWeight | None = None
        self._decided = _Decision(None, None)

    @property
    def bars_needed(self) -> int:
        """How many bars `start` wants: with the next one they fill the recipe's memory and all lags."""
        return self._recipe.memory + self._lookback - 2

    @property
    def books(self) -> tuple[Book, ...]:
        """The trials' books, which together are the account; none before the start."""
        return self._accounts.books if self._accounts is not None else ()

    @property
    def correction(self) -> float:
        """The largest relative difference so far between the broker's account and the sum of the books."""
        return self._accounts.correction if self._accounts is not None else 0.0

    def start(self, history: Bars, account: AccountState) -> None:
        """Take the bars before the first one to be traded, and look at the account.

        history: at least `bars_needed` closed bars; its tickers are put in the bundle's order by name. Raises
        InputError where a ticker is missing, the bars are too few or of another timeframe, or the account is out of
        range.
        """
        close = self._look_back(history, self._lookback - 1)
        self._accounts = SubAccounts(self._tickers, self._shares, account)
        self._accounts.adopt(close)
        value, initial = self._accounts.value(close), self.bundle.account.initial_cash
        low, high = (share * initial for share in ACCOUNT_RANGE)
        if not self._any_account and not low <= value <= high:
            raise InputError(
                f"the account is worth {value:,.2f}, outside half to three times of the {initial:,.2f} that bundle "
                f"{self.bundle.name} was "
                f"trained with ({low:,.2f} to {high:,.2f}), where minimum orders weigh otherwise; --any-account "
                "trades it all the same"
            )
        self._benchmark = None

    def go_on(self, history: Bars, state: Mapping[str, Any]) -> None:
        """Go on after the bar at which `state` was taken, by any process. history: bars up to that one, as `start`
        wants them. Raises RunError where it ends elsewhere.
        """
        self._look_back(history, self._lookback - 1)
        assert self._history is not None
        if int(self._history.time[-1]) != state["time"]:
            raise RunError(
                f"the history ends at {format_time(int(self._history.time[-1]))}; {format_time(state['time'])} is "
                "where the trader stopped"
            )
        self._accounts = SubAccounts.restored(self._tickers, self._shares, state["accounts"])
        self._benchmark = EqualWeight.restored(state["benchmark"])
        self._decided = _Decision(None, None if state["plan"] is None else _plan_of(state["plan"]))
        self._risk.restore(state["risk"])

    def take_over(self, history: Bars, other: PaperTrader) -> None:
        """Go on with another bundle's positions after the bar that `other` has closed and decided nothing at.

        history: as `go_on` wants it. The tickers must be the same ones, in whatever order.
        """
        self._look_back(history, self._lookback)
        assert other._accounts is not None
        assert other._benchmark is not None
        order = [other._tickers.index(ticker) for ticker in self._tickers]
        self._accounts = SubAccounts.split(self._tickers, self._shares, other._accounts)
        self._benchmark = other._benchmark.reordered(order)
        self._risk.restore(other._risk.state())
        self._verdict = other._verdict

    def state(self) -> dict[str, Any]:
        """What `go_on` needs, as JSON has it. Only after a bar."""
        assert self._accounts is not None
        assert self._history is not None
        assert self._benchmark is not None
        return {
            "time": int(self._history.time[-1]),
            "accounts": self._accounts.state(),
            "benchmark": self._benchmark.state(),
            "plan": None if self._decided.plan is None else _plan_state(self._decided.plan),
            "risk": self._risk.state(),
        }

    def on_bar(
        self,
        bar: ClosedBar,
        fills: Sequence[Fill],
        account: AccountState,
        *,
        counted: Sequence[Fill] = (),
        decide: bool = True,
        conditions: Conditions | None = None,
    ) -> Entry:
        """Act on a bar that has closed, in the bundle's order of tickers. Returns its line of the ledger, with the
        orders to be sent now.

        fills: what became of the orders of the bar before. counted: of those that `sold_out` has booked. account: the
        broker's, after them. decide: False only keeps the ledger. conditions: by default as the bar ends. Raises
        RunError for a bar that is not the next one, and for a policy that does not give numbers.
        """
        accounts = self._accounts
        if self._history is None or accounts is None:
            raise RunError("the trader was not started with a history")
        expected = int(self._history.time[-1]) + self._seconds
        if bar.time != expected:
            raise RunError(
                f"the next bar should open at {format_time(expected)}, but this one opens at {format_time(bar.time)}"
            )
        if self._benchmark is not None:
            plan = self._decided.plan or _no_orders(len(self._acts), len(self._tickers))
            accounts.settle(bar.time, fills, account, plan, bar.hole, bar.close)
            self._benchmark.next_bar(bar.open, bar.hole)
            accounts.mark(bar.close)
        else:
            fee, slippage = self.bundle.account.fee, self.bundle.account.slippage
            self._benchmark = EqualWeight(
                accounts.value(bar.close), len(self._tickers), fee=fee, slippage=slippage
            )
        self._append(bar)
        self._decided = _Decision(None, None)
        entry = self._entry(bar, (*counted, *fills))
        flow, seen = (
            entry.flow.value(self._tickers, bar.close),
            conditions or Conditions(expected + self._seconds),
        )
        self._verdict = self._risk.judge(
            Situation(bar.time, value=entry.value, flow=flow, **vars(seen))
        )
        return self.decide(bar, entry, conditions) if decide else entry

    def decide(self, bar: ClosedBar, entry: Entry, conditions: Conditions | None = None) -> Entry:
        """The bar's entry with what the policy does at its close, where `on_bar` left that open."""
        self._decided = decided = self._decision(bar)
        self._risk.sent(
            bar.time + self._seconds if conditions is None else conditions.now, len(decided.orders)
        )
        assert self._accounts is not None
        return dataclasses.replace(
            entry,
            units=self._accounts.units,
            action=decided.action,
            orders=decided.orders,
            dropped=decided.dropped,
            crossed=decided.crossed,
            risk=self._verdict.reasons,
        )

    def sold_out(self, account: AccountState, fills: Sequence[Fill]) -> None:
        """Positions were sold between two bars, by an operator's halt: the books are what the account is now, and wait
        for no more fills of the bar before. fills: all since that bar.
        """
        assert self._accounts is not None
        assert self._history is not None
        now = int(self._history.time[-1]) + self._seconds  # the bar in which the fills happened
        self._accounts.reset(now, account, self._history.close[-1], fills)
        self._decided = _Decision(None, None)

    def _entry(self, bar: ClosedBar, fills: tuple[Fill, ...]) -> Entry:
        """The line of a bar that was settled, without a decision."""
        accounts, benchmark = self._accounts, self._benchmark
        assert accounts is not None
        assert benchmark is not None
        value = accounts.value(bar.close)
        done = [fill for fill in fills if fill.status == "filled"]
        return Entry(
            time=bar.time,
            value=value,
            equal_weight=benchmark.value(bar.close),
            cash=accounts.cash,
            fees=sum(fill.fee for fill in done),
            notional=sum(fill.notional for fill in done),
            trades=len(done),
            unfilled=len(fills) - len(done),
            exposure=1.0 - accounts.cash / value if value > 0.0 else 0.0,
            units=accounts.units,
            action=None,
            orders=(),
            dropped=0,
            crossed=0.0,
            fills=fills,
            flow=accounts.take_flow(),
        )

    def _look_back(self, history: Bars, lags: int) -> Array:
        """Take the bars before the next one, and the features of the last `lags`. Returns the last closes (N,)."""
        bars = in_order(history, self.bundle)
        count = len(bars.time)
        if count < self.bars_needed:
            raise InputError(
                f"bundle {self.bundle.name} needs {self.bars_needed} bars of history before its first decision; "
                f"there are {count}"
            )
        self._lags.clear()
        if lags:
            window = bars.slice(count - (self._recipe.memory + lags - 1), count)
            self._lags.extend(compute_features(window, self._recipe)[-lags:])
        self._history = bars.slice(count - (self._recipe.memory - 1), count)
        closes: Array = bars.close[-1]
        return closes

    def observation(self, close: Array, place: int = 0) -> NDArray[np.float32]:
        """(state_dim,) float32: what the policy of a trial (by its place) sees at `close`, laid out as ever."""
        if self._accounts is None:
            raise RunError("the trader was not started with a history")
        book, trial = self._accounts.books[place], self.bundle.trials[place]
        portfolio = observe_portfolio(book.portfolio(), _rows(close, 1), self._held_scales[place])[
            0
        ].numpy()
        obs = np.zeros(trial.policy.state_dim, dtype=np.float32)
        obs[: len(portfolio)] = portfolio
        newest_first = np.concatenate(list(reversed(self._lags))[: trial.params.lookback])
        obs[len(portfolio) : len(portfolio) + len(newest_first)] = newest_first
        return obs

    def _append(self, bar: ClosedBar) -> None:
        """Move the history on by one bar, and compute the newest features from it."""
        old = self._history
        assert old is not None
        full = bar.after(old)
        self._lags.append(compute_features(full, self._recipe)[-1])
        self._history = full.slice(1, len(full.time))

    def _decision(self, bar: ClosedBar) -> _Decision:
        """What the trials do at the close of `bar`, and what they order together."""
        accounts = self._accounts
        assert accounts is not None
        if (
            accounts.value(bar.close) <= 0.0
        ):  # all was withdrawn: there is no share of it to decide about
            return _Decision(None, None)
        actions = np.stack(
            [act(self.observation(bar.close, place)) for place, act in enumerate(self._acts)]
        )
        if not np.isfinite(actions).all():
            raise RunError(
                f"the policy of bundle {self.bundle.name} gives actions that are no numbers"
            )
        before, close = accounts.portfolio(), _rows(bar.close, len(actions))
        wish = torch.from_numpy(actions.astype(np.float64))
        if self._venue is None:
            after, plan = before, plan_orders(before, close, wish, self._rules)
            dropped, crossed = int(plan.dropped[0]), 0.0
        else:
            after, plan, netted = plan_netted(before, close, wish, self._rules, self._venue)
            dropped, crossed = (
                int(plan.dropped.sum() + netted.dropped.sum()),
                float(netted.crossed.sum()),
            )
            if crossed > 0.0:
                accounts.cross(after)
        plan, held_back = apply(self._verdict, plan, after, close)
        if self._venue is None or self._verdict.sell_all:
            units, notional = plan.sell_units.sum(0), plan.buy_notional.sum(0)
            whole = plan.whole.any(0)
        else:  # the net orders' own amounts, as far as risk rules leave them
            units = torch.where(plan.sell_units.sum(0) > 0, netted.sell_units, 0.0)
            notional = torch.where(plan.buy_notional.sum(0) > 0, netted.buy, 0.0)
            whole = netted.whole
        if (
            len(actions) > 1
        ):  # the sum of the books may be a last bit more than what the account holds
            held = torch.from_numpy(accounts.held)
            units = torch.where(whole & (units > 0), held, torch.minimum(units, held))
        orders = []
        for asset, ticker in enumerate(self._tickers):
            if units[asset] > 0.0 or notional[asset] > 0.0:
                side: Side = "sell" if units[asset] > 0.0 else "buy"
                orders.append(
                    Order(
                        client_id=f"{self.slot}-{bar.time}-{ticker}",
                        ticker=ticker,
                        side=side,
                        decided=bar.time,
                        units=float(units[asset]),
                        notional=float(notional[asset]),
                        whole=bool(whole[asset]),
                        restart_clock=bool(plan.restart_clock[:, asset].any()),
                    )
                )
        action = (
            actions[0] if len(actions) == 1 else np.average(actions, axis=0, weights=self._shares)
        )
        return _Decision(action, plan, tuple(orders), dropped + held_back, crossed)


def _rules(bundle: Bundle, limits: RiskLimits) -> tuple[Rules, Venue | None]:
    """The order rules of a bundle's trials, a row each; of several, the limits that their net orders must keep, too."""
    trials = bundle.trials
    if len(trials) == 1:
        return Rules.of(tightened(bundle.account, limits), bundle.instruments), None
    rules = Rules(len(trials), Instruments.unrestricted(len(bundle.manifest.tickers)))
    for row, trial in enumerate(trials):
        rules.set_rows(row, row + 1, sub_account(tightened(trial.params, limits), trial.share))
    return rules, Venue(bundle.account, bundle.instruments)


def _plan_state(plan: Orders) -> dict[str, Any]:
    """A plan as JSON has it."""
    return {name: getattr(plan, name).tolist() for name in PLAN_COLUMNS}


def _plan_of(state: Mapping[str, Any]) -> Orders:
    """The inverse of `_plan_state`."""
    number, flag = (
        {name: torch.tensor(state[name], dtype=dtype) for name in PLAN_COLUMNS}
        for dtype in (torch.float64, torch.bool)
    )
    return Orders(
        sell_units=number["sell_units"],
        buy_notional=number["buy_notional"],
        whole=flag["whole"],
        restart_clock=flag["restart_clock"],
        dropped=number["dropped"],
    )


def _no_orders(trials: int, assets: int) -> Orders:
    none = torch.zeros(trials, assets, dtype=torch.float64)
    return Orders(none, none, none > 0, none > 0, none[:, 0])


def _rows(values: Array, count: int) -> torch.Tensor:
    return torch.from_numpy(np.tile(np.asarray(values, dtype=np.float64), (count, 1)))
