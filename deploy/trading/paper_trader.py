"""The paper trader: processes one closed bar at a time with its own history and ledger.

For every closed bar, `mark` books the fills of the previous orders, marks the books to market and
asks the risk rules what may be ordered. `decide` then computes the features from the trader's own
history, evaluates the policy and returns the orders, which the caller sends to the broker.

The trader shares the order rules, the feature recipe and the policy's canonical path with the
environment and nothing else; tests check that the two agree. Each trial of an ensemble keeps books
of its own, and their net orders are sent. `state` returns a JSON object from which another process
resumes with identical numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.scoring import in_order
from sweepd.deploy.trading.book import EqualWeight
from sweepd.deploy.trading.brokers.base import AccountState, Fill, Order
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.flows import Flow
from sweepd.deploy.trading.history import FeatureHistory
from sweepd.deploy.trading.order_plan import (
    OrderPlanner,
    as_rows,
    orders_state,
    restored_orders,
    shared_orders,
)
from sweepd.deploy.trading.risk import Conditions, RiskRules, RiskVerdict, Situation, apply
from sweepd.deploy.trading.risk_limits import RiskLimits
from sweepd.deploy.trading.sub_accounts import SubAccounts
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import bar_end, bars_per_week, format_time, later
from sweepd.envs.crypto.features import get_recipe
from sweepd.envs.crypto.portfolio import Orders, observe, value
from sweepd.envs.support.errors import InputError, RunError

Array = NDArray[np.float64]
ACCOUNT_RANGE = (0.5, 3.0)  # of the bundle's initial cash


@dataclass(frozen=True)
class Entry:
    """The ledger's line for one closed bar.

    value, equal_weight, cash: quote units, at the bar's close.
    fees, notional: quote units, of the orders filled in the bar; fees include what was charged for
        borrowing.
    trades, unfilled: number of orders that were filled in the bar, and that were not.
    exposure: 1 - cash / value; where shorts are allowed, the sum of the positions' sizes / value.
    units: (N,) held.
    fills: results of the orders sent after the previous bar.
    flow: net transfers into the account since the previous bar.
    verdict: what the risk rules allow at the bar's close.
    action: (N,) decided at the close, None if nothing was decided; for an ensemble, the mean of the
        trials' actions weighted by their shares.
    orders: to be sent at the close.
    dropped: number of orders that were too small to send or withheld by a risk rule.
    crossed: quote units that changed hands between trials at the close.
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
    fills: tuple[Fill, ...]
    flow: Flow
    verdict: RiskVerdict
    action: Array | None = None
    orders: tuple[Order, ...] = ()
    dropped: int = 0
    crossed: float = 0.0


def bars_needed(bundle: Bundle) -> int:
    """Return the number of bars of history that a bundle's trader needs to start."""
    lookback = max(trial.params.lookback for trial in bundle.trials)
    return FeatureHistory(get_recipe(bundle.manifest.recipe.name), lookback).bars_needed


class PaperTrader:
    """Trades a bundle on paper.

    Args:
        bundle: the bundle to trade.
        slot: prefix of the orders' client ids.
        act: policy, (state_dim,) float32 to (N,) float64; by default each trial's own.
        any_account: accept an account outside half to three times of the bundle's initial cash,
            where minimum orders have another weight than in training.
        limits: risk rules; none by default, because the bundle was scored without.
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
        self._policies = [act or trial.policy.act for trial in bundle.trials]
        self._any_account = any_account
        self._tickers = manifest.tickers
        self._shares = [trial.share for trial in bundle.trials]
        limits = limits or RiskLimits()
        self._planner = OrderPlanner(bundle, limits, slot)
        self._risk = RiskRules(limits)
        self._timeframe = manifest.timeframe
        week = float(bars_per_week(manifest.timeframe))
        self._held_scales = [trial.params.held_scale or week for trial in bundle.trials]
        self._lookback = max(trial.params.lookback for trial in bundle.trials)
        self._history = FeatureHistory(get_recipe(manifest.recipe.name), self._lookback)
        self._sub_accounts: SubAccounts | None = None
        self._benchmark: EqualWeight | None = None
        self._plan: Orders | None = None  # orders of the newest bar, one row per trial

    @property
    def bars_needed(self) -> int:
        """Number of bars of history that `start` needs."""
        return self._history.bars_needed

    @property
    def accounts(self) -> SubAccounts:
        """The trials' books, which together are the account.

        Raises:
            RunError: the trader was not started.
        """
        if self._sub_accounts is None:
            raise RunError("the trader was not started with a history")
        return self._sub_accounts

    # ---- start and state ----

    def start(self, history: Bars, account: AccountState) -> None:
        """Load the bars before the first traded one, and take over the account's positions.

        Args:
            history: at least `bars_needed` closed bars; tickers are matched by name.
            account: the broker's account.

        Raises:
            InputError: a ticker is missing, there are too few bars or of another timeframe, or the
                account's value is out of range.
        """
        self._load(history, self._lookback - 1)
        close = self._history.close
        accounts = self._sub_accounts = SubAccounts(self._tickers, self._shares, account)
        accounts.adopt(close)
        value, initial = accounts.value(close), self.bundle.account.initial_cash
        low, high = (share * initial for share in ACCOUNT_RANGE)
        if not self._any_account and not low <= value <= high:
            raise InputError(
                f"the account is worth {value:,.2f}, outside half to three times of the "
                f"{initial:,.2f} that bundle {self.bundle.name} was trained with ({low:,.2f} to "
                f"{high:,.2f}): minimum orders would have another weight; --any-account trades it "
                "anyway"
            )
        self._benchmark = None

    def resume(self, history: Bars, state: Mapping[str, Any]) -> None:
        """Continue after the bar at which `state` was taken, in any process.

        Args:
            history: bars up to that one, as for `start`.
            state: what `state` returned.

        Raises:
            RunError: the history ends at another bar.
        """
        self._load(history, self._lookback - 1)
        if self._history.time != state["time"]:
            raise RunError(
                f"the history ends at {format_time(self._history.time)}, but the trader stopped at "
                f"{format_time(state['time'])}"
            )
        self._sub_accounts = SubAccounts.restored(self._tickers, self._shares, state["accounts"])
        self._benchmark = EqualWeight.restored(state["benchmark"])
        self._plan = None if state["plan"] is None else restored_orders(state["plan"])
        self._risk.restore(state["risk"])

    def take_over(self, history: Bars, other: PaperTrader) -> None:
        """Continue with the positions of another bundle's trader, after that one's `mark`.

        Args:
            history: bars up to the marked one, as for `start`.
            other: a trader of the same tickers, in any order.
        """
        self._load(history, self._lookback)
        assert other._benchmark is not None
        # Bundles may list the same tickers in different orders.
        order = [other._tickers.index(ticker) for ticker in self._tickers]
        self._sub_accounts = SubAccounts.split(self._tickers, self._shares, other.accounts)
        self._benchmark = other._benchmark.reordered(order)
        self._risk.restore(other._risk.state())

    def inherit(self, history: Bars, state: Mapping[str, Any], tickers: Sequence[str]) -> None:
        """Continue after a bar of another bundle's trader, from that trader's `state` alone.

        Orders that are still to be filled are shared like the positions.

        Args:
            history: bars up to that one, as for `start`.
            state: what the other trader's `state` returned.
            tickers: the same ones, in the other bundle's order.

        Raises:
            RunError: the history ends at another bar.
        """
        self.resume(history, state)
        order = [list(tickers).index(ticker) for ticker in self._tickers]
        books = len(state["accounts"]["books"])
        other = SubAccounts.restored(tickers, [1.0 / books] * books, state["accounts"])
        self._sub_accounts = SubAccounts.split(self._tickers, self._shares, other)
        assert self._benchmark is not None
        self._benchmark = self._benchmark.reordered(order)
        if self._plan is not None:
            self._plan = shared_orders(self._plan, order, self._shares)

    def adjust(self, history: Bars, factors: Array) -> None:
        """Follow a change of units between two bars, as after a split: values stay.

        Args:
            history: bars up to the last one, as for `start`, in the present units.
            factors: (N,), of earlier prices.
        """
        self._load(history, self._lookback - 1)
        self.accounts.adjust(factors)
        if self._benchmark is not None:
            self._benchmark.adjust(factors)
        if self._plan is not None:
            by = torch.from_numpy(factors)
            sells, covers = self._plan.sell_units / by, self._plan.cover_units / by
            self._plan = dataclasses.replace(self._plan, sell_units=sells, cover_units=covers)

    def state(self) -> dict[str, Any]:
        """Return what `resume` needs, for JSON; only after a bar."""
        assert self._benchmark is not None
        return {
            "time": self._history.time,
            "accounts": self.accounts.state(),
            "benchmark": self._benchmark.state(),
            "plan": None if self._plan is None else orders_state(self._plan),
            "risk": self._risk.state(),
        }

    # ---- a bar ----

    def on_bar(
        self,
        bar: ClosedBar,
        fills: Sequence[Fill],
        account: AccountState,
        *,
        decide: bool = True,
        conditions: Conditions | None = None,
    ) -> Entry:
        """Process a closed bar: `mark` it, and `decide` unless `decide` is False."""
        entry = self.mark(bar, fills, account, conditions=conditions)
        return self.decide(bar, entry, conditions) if decide else entry

    def mark(
        self,
        bar: ClosedBar,
        fills: Sequence[Fill],
        account: AccountState,
        *,
        counted: Sequence[Fill] = (),
        conditions: Conditions | None = None,
    ) -> Entry:
        """Book the fills of the previous orders, mark the books to market, judge the risk.

        Args:
            bar: the closed bar, in the bundle's order of tickers.
            fills: results of the orders of the previous bar.
            account: the broker's account after these fills.
            counted: fills of the previous bar that `reset_positions` has booked already.
            conditions: input of the risk rules; by default those at the bar's end.

        Returns:
            The bar's line of the ledger, without a decision.

        Raises:
            RunError: the bar is not the next one.
        """
        accounts, expected = self.accounts, later(self._timeframe, self._history.time)
        if bar.time != expected:
            raise RunError(
                f"the next bar should open at {format_time(expected)}, but this one opens at "
                f"{format_time(bar.time)}"
            )
        if self._benchmark is None:  # the first bar: nothing was ordered before
            fee, slippage = self.bundle.account.fee, self.bundle.account.slippage
            initial, assets = accounts.value(bar.close), len(self._tickers)
            self._benchmark = EqualWeight(initial, assets, fee=fee, slippage=slippage)
        else:
            plan = self._plan or Orders.none(len(self._policies), len(self._tickers))
            accounts.settle(bar.time, fills, account, plan, bar.hole, bar.close)
            self._benchmark.next_bar(bar.open, bar.hole)
            accounts.mark(bar.close)
        self._history.append(bar)
        self._plan = None
        value, flow = accounts.value(bar.close), accounts.take_flow()
        seen = conditions or Conditions(bar_end(self._timeframe, expected))
        worth = flow.value(self._tickers, bar.close)
        verdict = self._risk.judge(Situation(bar.time, value, seen, worth))
        booked = (*counted, *fills)
        done = [fill for fill in booked if fill.status == "filled"]
        return Entry(
            time=bar.time,
            value=value,
            equal_weight=self._benchmark.value(bar.close),
            cash=accounts.cash,
            fees=sum(fill.fee for fill in done) + account.charges,
            notional=sum(fill.notional for fill in done),
            trades=len(done),
            unfilled=len(booked) - len(done),
            exposure=self._exposure(bar.close, value) if value > 0.0 else 0.0,
            units=accounts.units,
            fills=booked,
            flow=flow,
            verdict=verdict,
        )

    def _exposure(self, close: Array, value: float) -> float:
        """Return `Entry.exposure` of an account of this value."""
        if self.bundle.account.allow_short:
            return float(np.sum(np.abs(self.accounts.units) * close)) / value
        return 1.0 - self.accounts.cash / value

    def decide(self, bar: ClosedBar, entry: Entry, conditions: Conditions | None = None) -> Entry:
        """Evaluate the policy at the bar's close, and plan the orders that the risk rules allow.

        Args:
            bar: the bar that was marked last.
            entry: what `mark` returned for it.
            conditions: as for `mark`.

        Returns:
            `entry` with the action and the orders, which the caller sends.

        Raises:
            RunError: the policy returns actions that are not finite.
        """
        accounts = self.accounts
        if accounts.value(bar.close) <= 0.0:  # everything was withdrawn: no capital to allocate
            return dataclasses.replace(entry, units=accounts.units)
        # Each trial observes its own book, so the actions of an ensemble differ.
        actions = np.stack(
            [act(self.observation(bar.close, place)) for place, act in enumerate(self._policies)]
        )
        if not np.isfinite(actions).all():
            raise RunError(
                f"the policy of bundle {self.bundle.name} returns actions that are not finite"
            )
        planned = self._planner.plan(accounts, actions, bar.close)
        closes = as_rows(bar.close, len(actions))
        self._plan, withheld = apply(entry.verdict, planned.orders, planned.portfolio, closes)
        # The planned net orders do not matter if every position is sold completely.
        netted = None if entry.verdict.sell_all else planned.netted
        orders = self._planner.net_orders(bar.time, self._plan, netted, accounts.held)
        now = bar_end(self._timeframe, bar.time) if conditions is None else conditions.now
        # After the limit was applied: the rule about orders per hour counts net orders.
        self._risk.sent(now, len(orders))
        mean = np.average(actions, axis=0, weights=self._shares)
        return dataclasses.replace(
            entry,
            units=accounts.units,
            action=actions[0] if len(actions) == 1 else mean,
            orders=orders,
            dropped=planned.dropped + withheld,
            crossed=planned.crossed,
        )

    def reset_positions(self, account: AccountState, fills: Sequence[Fill]) -> None:
        """Set the books to the account after an operator's halt sold positions between two bars.

        Args:
            account: the broker's account now.
            fills: all fills since the previous bar; no further ones of it are expected.
        """
        now = later(self._timeframe, self._history.time)  # the bar in which the fills happened
        self.accounts.reset(now, account, self._history.close, fills)
        self._plan = None

    def observation(self, close: Array, place: int = 0) -> NDArray[np.float32]:
        """Return the policy input of trial number `place` at `close`: (state_dim,) float32.

        The layout is the environment's: portfolio, then features with the newest bar first.
        """
        book, trial = self.accounts.books[place], self.bundle.trials[place]
        held, scale = book.portfolio(), self._held_scales[place]
        portfolio = observe(held, value(held, as_rows(close, 1)), 1.0 / scale)[0].float().numpy()
        lags = self._history.lags(trial.params.lookback)
        # Lags beyond the trial's own, up to the study's maximum, are zero as in training.
        obs = np.zeros(trial.policy.state_dim, dtype=np.float32)
        obs[: len(portfolio)] = portfolio
        obs[len(portfolio) : len(portfolio) + len(lags)] = lags
        return obs

    def _load(self, history: Bars, lags: int) -> None:
        """Load the bars before the next one, and the features of the last `lags` bars."""
        bars = in_order(history, self.bundle)
        if len(bars) < self.bars_needed:
            raise InputError(
                f"bundle {self.bundle.name} needs {self.bars_needed} bars before its "
                f"first decision; there are {len(bars)}"
            )
        self._history.load(bars, lags)
