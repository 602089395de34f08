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
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deploy.market.bundle import Bundle, format_time
from deploy.market.scoring import in_order
from deploy.trading.book import Book, EqualWeight
from deploy.trading.brokers.base import AccountState, Fill, Order
from deploy.trading.closed_bar import ClosedBar
from deploy.trading.flows import Flow
from deploy.trading.risk import (
    Conditions,
    RiskLimits,
    RiskRules,
    RiskVerdict,
    Situation,
    apply,
    tightened,
)
from deploy.trading.sub_accounts import SubAccounts
from envs.crypto.data.bars import Bars
from envs.crypto.data.timeframe import bar_seconds, bars_per_week
from envs.crypto.features import compute_features, get_recipe
from envs.crypto.netting import Netted, Venue, sub_account
from envs.crypto.params import Instruments
from envs.crypto.portfolio import (
    Orders,
    Portfolio,
    Rules,
    observe_portfolio,
    plan_netted,
    plan_orders,
)
from envs.support.errors import InputError, RunError

Array = NDArray[np.float64]
ACCOUNT_RANGE = (0.5, 3.0)
PLAN_COLUMNS = ("sell_units", "buy_notional", "whole", "restart_clock", "dropped")


@dataclass(frozen=True)
class Entry:
    """The ledger's line for one closed bar.

    value, equal_weight, cash: quote units, at the bar's close.
    fees, notional: quote units, of the orders filled in the bar.
    trades, unfilled: number of orders that were filled in the bar, and that were not.
    exposure: 1 - cash / value.
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
        self.slot = slot
        self._policies = [act or trial.policy.act for trial in bundle.trials]
        self._any_account = any_account
        self._tickers = manifest.tickers
        self._shares = [trial.share for trial in bundle.trials]
        limits = limits or RiskLimits()
        self._rules, self._venue = _rules(bundle, limits)
        self._risk = RiskRules(limits)
        self._recipe = get_recipe(manifest.recipe.name)
        self._seconds = bar_seconds(manifest.timeframe)
        week = float(bars_per_week(manifest.timeframe))
        self._held_scales = [trial.params.held_scale or week for trial in bundle.trials]
        self._lookback = max(trial.params.lookback for trial in bundle.trials)
        self._lags: deque[NDArray[np.float32]] = deque(maxlen=self._lookback)
        self._history: Bars | None = None
        self._sub_accounts: SubAccounts | None = None
        self._benchmark: EqualWeight | None = None
        self._plan: Orders | None = None  # orders of the newest bar, one row per trial

    @property
    def bars_needed(self) -> int:
        """Bars of history that `start` needs: with the next bar, they fill recipe and all lags."""
        return self._recipe.memory + self._lookback - 2

    @property
    def books(self) -> tuple[Book, ...]:
        """The trials' books, which together are the account; empty before the start."""
        return self._sub_accounts.books if self._sub_accounts is not None else ()

    @property
    def correction(self) -> float:
        """Largest relative difference so far between the broker's account and the books' sum."""
        return self._sub_accounts.correction if self._sub_accounts is not None else 0.0

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
        close = self._load_history(history, self._lookback - 1)
        self._sub_accounts = SubAccounts(self._tickers, self._shares, account)
        self._sub_accounts.adopt(close)
        value, initial = self._sub_accounts.value(close), self.bundle.account.initial_cash
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
        self._load_history(history, self._lookback - 1)
        assert self._history is not None
        if int(self._history.time[-1]) != state["time"]:
            raise RunError(
                f"the history ends at {format_time(int(self._history.time[-1]))}, but the trader "
                f"stopped at {format_time(state['time'])}"
            )
        self._sub_accounts = SubAccounts.restored(self._tickers, self._shares, state["accounts"])
        self._benchmark = EqualWeight.restored(state["benchmark"])
        self._plan = None if state["plan"] is None else _plan_of(state["plan"])
        self._risk.restore(state["risk"])

    def take_over(self, history: Bars, other: PaperTrader) -> None:
        """Continue with the positions of another bundle's trader, after that one's `mark`.

        Args:
            history: bars up to the marked one, as for `start`.
            other: a trader of the same tickers, in any order.
        """
        self._load_history(history, self._lookback)
        assert other._sub_accounts is not None
        assert other._benchmark is not None
        order = [other._tickers.index(ticker) for ticker in self._tickers]
        self._sub_accounts = SubAccounts.split(self._tickers, self._shares, other._sub_accounts)
        self._benchmark = other._benchmark.reordered(order)
        self._risk.restore(other._risk.state())

    def state(self) -> dict[str, Any]:
        """Return what `resume` needs, for JSON; only after a bar."""
        assert self._sub_accounts is not None
        assert self._history is not None
        assert self._benchmark is not None
        return {
            "time": int(self._history.time[-1]),
            "accounts": self._sub_accounts.state(),
            "benchmark": self._benchmark.state(),
            "plan": None if self._plan is None else _plan_state(self._plan),
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
        if self._history is None or self._sub_accounts is None:
            raise RunError("the trader was not started with a history")
        expected = int(self._history.time[-1]) + self._seconds
        if bar.time != expected:
            raise RunError(
                f"the next bar should open at {format_time(expected)}, but this one opens at "
                f"{format_time(bar.time)}"
            )
        if self._benchmark is None:  # the first bar: nothing was ordered before
            self._benchmark = self._new_benchmark(bar)
        else:
            plan = self._plan or _no_orders(len(self._policies), len(self._tickers))
            self._sub_accounts.settle(bar.time, fills, account, plan, bar.hole, bar.close)
            self._benchmark.next_bar(bar.open, bar.hole)
            self._sub_accounts.mark(bar.close)
        self._append(bar)
        self._plan = None
        value, flow = self._sub_accounts.value(bar.close), self._sub_accounts.take_flow()
        seen = conditions or Conditions(expected + self._seconds)
        situation = Situation(
            bar.time, value=value, flow=flow.value(self._tickers, bar.close), **vars(seen)
        )
        verdict = self._risk.judge(situation)
        return self._entry(bar, value, (*counted, *fills), flow, verdict)

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
        accounts = self._sub_accounts
        assert accounts is not None
        if accounts.value(bar.close) <= 0.0:  # everything was withdrawn: no capital to allocate
            return dataclasses.replace(entry, units=accounts.units)
        actions = np.stack(
            [act(self.observation(bar.close, place)) for place, act in enumerate(self._policies)]
        )
        if not np.isfinite(actions).all():
            raise RunError(
                f"the policy of bundle {self.bundle.name} returns actions that are not finite"
            )
        planned = self._plan_orders(actions, bar.close)
        closes = _rows(bar.close, len(actions))
        self._plan, withheld = apply(entry.verdict, planned.orders, planned.portfolio, closes)
        orders = self._net_orders(
            bar.time, None if entry.verdict.sell_all else planned.netted, self._plan
        )
        now = bar.time + self._seconds if conditions is None else conditions.now
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
        assert self._sub_accounts is not None
        assert self._history is not None
        now = int(self._history.time[-1]) + self._seconds  # the bar in which the fills happened
        self._sub_accounts.reset(now, account, self._history.close[-1], fills)
        self._plan = None

    def observation(self, close: Array, place: int = 0) -> NDArray[np.float32]:
        """Return the policy input of trial number `place` at `close`: (state_dim,) float32.

        The layout is the environment's: portfolio, then features with the newest bar first.
        """
        if self._sub_accounts is None:
            raise RunError("the trader was not started with a history")
        book, trial = self._sub_accounts.books[place], self.bundle.trials[place]
        portfolio = observe_portfolio(book.portfolio(), _rows(close, 1), self._held_scales[place])[
            0
        ].numpy()
        obs = np.zeros(trial.policy.state_dim, dtype=np.float32)
        obs[: len(portfolio)] = portfolio
        newest_first = np.concatenate(list(reversed(self._lags))[: trial.params.lookback])
        obs[len(portfolio) : len(portfolio) + len(newest_first)] = newest_first
        return obs

    # ---- parts of `mark` ----

    def _new_benchmark(self, bar: ClosedBar) -> EqualWeight:
        """Return the equal-weight benchmark that starts at the first bar's close."""
        assert self._sub_accounts is not None
        fee, slippage = self.bundle.account.fee, self.bundle.account.slippage
        value = self._sub_accounts.value(bar.close)
        return EqualWeight(value, len(self._tickers), fee=fee, slippage=slippage)

    def _load_history(self, history: Bars, lags: int) -> Array:
        """Load the bars before the next one and the features of the last `lags` bars.

        Returns:
            The last closes, (N,).
        """
        bars = in_order(history, self.bundle)
        count = len(bars.time)
        if count < self.bars_needed:
            raise InputError(
                f"bundle {self.bundle.name} needs {self.bars_needed} bars of history before its "
                f"first decision; there are {count}"
            )
        self._lags.clear()
        if lags:
            window = bars.slice(count - (self._recipe.memory + lags - 1), count)
            self._lags.extend(compute_features(window, self._recipe)[-lags:])
        self._history = bars.slice(count - (self._recipe.memory - 1), count)
        closes: Array = bars.close[-1]
        return closes

    def _append(self, bar: ClosedBar) -> None:
        """Append a bar to the history, and compute its features from the recipe's memory."""
        assert self._history is not None
        full = bar.appended_to(self._history)
        self._lags.append(compute_features(full, self._recipe)[-1])
        self._history = full.slice(1, len(full.time))

    def _entry(
        self,
        bar: ClosedBar,
        value: float,
        fills: tuple[Fill, ...],
        flow: Flow,
        verdict: RiskVerdict,
    ) -> Entry:
        """Return the line of a bar that was settled, without a decision."""
        accounts, benchmark = self._sub_accounts, self._benchmark
        assert accounts is not None
        assert benchmark is not None
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
            fills=fills,
            flow=flow,
            verdict=verdict,
        )

    # ---- parts of `decide` ----

    def _plan_orders(self, actions: Array, close: Array) -> _Plan:
        """Return the orders that the trials' actions ask for, before risk rules.

        Args:
            actions: (R, N), one row per trial.
            close: (N,).
        """
        accounts = self._sub_accounts
        assert accounts is not None
        before, wish = accounts.portfolio(), torch.from_numpy(actions.astype(np.float64))
        closes = _rows(close, len(actions))
        if self._venue is None:
            return _Plan(plan_orders(before, closes, wish, self._rules), before)
        after, orders, netted = plan_netted(before, closes, wish, self._rules, self._venue)
        planned = _Plan(orders, after, netted)
        if planned.crossed > 0.0:
            accounts.cross(planned.portfolio)
        return planned

    def _net_orders(self, time: int, netted: Netted | None, plan: Orders) -> tuple[Order, ...]:
        """Return the account's orders: per asset, the sum over the trials.

        Args:
            time: open of the bar, seconds since the epoch.
            netted: the venue's net orders; None if `plan` alone decides.
            plan: the trials' orders that the risk rules allow, one row per trial.
        """
        if netted is None:
            units, notional = plan.sell_units.sum(0), plan.buy_notional.sum(0)
            whole = plan.whole.any(0)
        else:  # the net orders' own amounts, where the risk rules allow them
            units = torch.where(plan.sell_units.sum(0) > 0, netted.sell_units, 0.0)
            notional = torch.where(plan.buy_notional.sum(0) > 0, netted.buy, 0.0)
            whole = netted.whole
        if len(self._policies) > 1:  # rounding: the books' sum may exceed what the account holds
            assert self._sub_accounts is not None
            held = torch.from_numpy(self._sub_accounts.held)
            units = torch.where(whole & (units > 0), held, torch.minimum(units, held))
        return tuple(
            Order(
                client_id=f"{self.slot}-{time}-{ticker}",
                ticker=ticker,
                side="sell" if units[asset] > 0.0 else "buy",
                decided=time,
                units=float(units[asset]),
                notional=float(notional[asset]),
                whole=bool(whole[asset]),
                restart_clock=bool(plan.restart_clock[:, asset].any()),
            )
            for asset, ticker in enumerate(self._tickers)
            if units[asset] > 0.0 or notional[asset] > 0.0
        )


@dataclass(frozen=True)
class _Plan:
    """Planned orders before risk rules.

    orders, portfolio: one row per trial, after orders were crossed between them.
    netted: the venue's net orders of an ensemble, None for a single trial.
    """

    orders: Orders
    portfolio: Portfolio
    netted: Netted | None = None

    @property
    def dropped(self) -> int:
        """Number of orders that were too small."""
        too_small = int(self.orders.dropped.sum())
        return too_small if self.netted is None else too_small + int(self.netted.dropped.sum())

    @property
    def crossed(self) -> float:
        """Quote units that changed hands between trials."""
        return 0.0 if self.netted is None else float(self.netted.crossed.sum())


def _rules(bundle: Bundle, limits: RiskLimits) -> tuple[Rules, Venue | None]:
    """Return the order rules, one row per trial, and for an ensemble those of its net orders."""
    trials = bundle.trials
    if len(trials) == 1:
        return Rules.of(tightened(bundle.account, limits), bundle.instruments), None
    rules = Rules(len(trials), Instruments.unrestricted(len(bundle.manifest.tickers)))
    for row, trial in enumerate(trials):
        rules.set_rows(row, row + 1, sub_account(tightened(trial.params, limits), trial.share))
    return rules, Venue(bundle.account, bundle.instruments)


def _plan_state(plan: Orders) -> dict[str, Any]:
    """Return a plan for JSON."""
    return {name: getattr(plan, name).tolist() for name in PLAN_COLUMNS}


def _plan_of(state: Mapping[str, Any]) -> Orders:
    """Invert `_plan_state`."""
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


def _rows(values: Array, count: int) -> Tensor:
    return torch.from_numpy(np.tile(np.asarray(values, dtype=np.float64), (count, 1)))
