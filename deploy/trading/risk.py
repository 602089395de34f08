"""Risk rules of a slot: what may be ordered at a close, whatever the policy wants.

Replays and live traders run the same code. Limits per position and the cash reserve are parameters
of the bundle that `plan` applies; `tightened` makes them stricter, never looser. A rule
about the whole account judges the situation after every bar. The strictest verdicts together are
applied to the planned orders. All rules are off by default. Shares are fractions (0.2 is 20%),
durations are seconds.

A rule that stops trading sells at the next bar's open, like any order. Losses until then remain. In
these rules, to sell is to reduce a position, and to buy is to increase one; of a short position,
buying it back reduces it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sweepd.deploy.trading.flows import rebased
from sweepd.deploy.trading.risk_limits import HALTED, RiskLimits, duration_text
from sweepd.envs.crypto.data.timeframe import DAY, format_time
from sweepd.envs.crypto.portfolio import Orders, Portfolio
from sweepd.envs.support.formatting import short_percent

HOUR = 3600


@dataclass(frozen=True)
class Conditions:
    """Input of the risk rules besides the account.

    now: seconds since the epoch. data_age: seconds since the bar closed. halt: why the operator
    stopped trading, or None; halt_sells: everything is sold first.
    """

    now: float
    data_age: float = 0.0
    halt: str | None = None
    halt_sells: bool = False


@dataclass(frozen=True)
class Situation:
    """Input of the risk rules once a bar has closed.

    time: open of the bar, seconds since the epoch.
    value: of the account at the close, quote units.
    conditions: those at that time; in a replay, `now` is the bar's end.
    flow: net transfers into the account in the bar, quote units; included in the value, no gain.
    """

    time: int
    value: float
    conditions: Conditions
    flow: float = 0.0


@dataclass(frozen=True)
class RiskVerdict:
    """What may be ordered.

    sell_all: sell every position completely, and buy nothing.
    buys, sells: whether any are sent.
    most_orders: maximum number of orders, None without a limit.
    reasons: one sentence per rule that restricts trading; constant while the rule does.
    """

    sell_all: bool = False
    buys: bool = True
    sells: bool = True
    most_orders: int | None = None
    reasons: tuple[str, ...] = ()


FREE = RiskVerdict()


class RiskRule:
    """One rule.

    name: its flag.
    words: its effect, in a sentence.
    remembered: attributes that a restart keeps.
    """

    name: str
    words: str
    remembered: tuple[str, ...] = ()

    def judge(self, situation: Situation) -> RiskVerdict:
        """Return what the rule allows; called once after every closed bar, in order."""
        raise NotImplementedError

    def sent(self, time: float, count: int) -> None:
        """Note that `count` orders were sent at `time`, seconds since the epoch."""

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs, for JSON; empty for a rule without memory."""
        return {name: getattr(self, name) for name in self.remembered}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        for name in self.remembered:
            setattr(self, name, state[name])


class DrawdownStop(RiskRule):
    """Sell everything after a drawdown, and buy nothing until the cool-down has ended.

    After that, the peak starts at the present value, so the same drawdown does not stop trading
    again.
    """

    name = "drawdown"
    remembered = ("peak", "until", "reason")

    def __init__(self, limit: float, cooldown: float) -> None:
        self.words = (
            f"sells everything once the account is {short_percent(limit)} below its highest "
            f"value, and buys nothing for {duration_text(cooldown)}"
        )
        self._limit, self._cooldown = limit, cooldown
        self.peak: float | None = None
        self.until: float | None = None  # open of the first bar that may trade again
        self.reason = ""

    def judge(self, situation: Situation) -> RiskVerdict:
        """Sell everything during the cool-down."""
        if self.peak is not None:
            self.peak = rebased(self.peak, situation.value, situation.flow)
        # A new peak starts after the cool-down; otherwise the same fall would stop trading again.
        if self.until is not None and situation.time >= self.until:
            self.until, self.peak = None, None
        if self.until is None:
            self.peak = max(situation.value, self.peak or situation.value)
            if situation.value <= self.peak * (1.0 - self._limit) and self.peak > 0.0:
                self.until = situation.time + self._cooldown
                fall = short_percent(1.0 - situation.value / self.peak)
                self.reason = (
                    f"drawdown stop: {fall} below the highest value, {self.peak:,.2f}; nothing is "
                    f"bought until {format_time(math.ceil(self.until))}"
                )
        return FREE if self.until is None else _sell_all(self.reason)


class DailyLossLimit(RiskRule):
    """Sell everything after a daily loss, and buy nothing until the next UTC day.

    A bar belongs to the day in which it opens. A day's loss counts from the last close of the
    previous day.
    """

    name = "daily-loss"
    remembered = ("day", "base", "last", "reason")

    def __init__(self, limit: float) -> None:
        self.words = (
            f"sells everything once a UTC day has lost {short_percent(limit)}, and buys nothing "
            "until the next day"
        )
        self._limit = limit
        self.day: int | None = None
        self.base, self.last = 0.0, 0.0  # the day's initial value; the last value
        self.reason = ""  # why trading is stopped today

    def judge(self, situation: Situation) -> RiskVerdict:
        """Sell everything for the rest of the day."""
        day = situation.time // DAY
        if day != self.day:
            # The day before may lie some days back; its last close counts all the same.
            self.base = situation.value if self.day is None else self.last
            self.day, self.reason = day, ""
        self.base = rebased(self.base, situation.value, situation.flow)
        self.last = situation.value
        if (
            not self.reason
            and situation.value <= self.base * (1.0 - self._limit)
            and self.base > 0.0
        ):
            lost = short_percent(1.0 - situation.value / self.base)
            self.reason = (
                f"daily loss limit: {lost} of {self.base:,.2f} lost on "
                f"{format_time(day * DAY)[:10]}; nothing is bought until the next day (UTC)"
            )
        return _sell_all(self.reason) if self.reason else FREE


class OrderLimit(RiskRule):
    """Limit the number of orders in any 60 minutes.

    Orders that close a position are sent first, then other sells, then buys, large ones before
    small ones. The others are dropped, and the policy may order them again at a later bar. If
    another rule sells everything, these orders count but are not limited: there are no more than
    positions.
    """

    name = "orders-per-hour"

    def __init__(self, limit: int) -> None:
        self.words = f"sends at most {limit} orders in any 60 minutes, closing positions first"
        self._limit = limit
        self._sent: deque[tuple[float, int]] = deque()

    def sent(self, time: float, count: int) -> None:
        """Note that `count` orders were sent at `time`, seconds since the epoch."""
        if count:
            self._sent.append((time, count))

    def judge(self, situation: Situation) -> RiskVerdict:
        """Return the remaining number of orders."""
        # By the times of sending: late bars may be decided close together.
        while self._sent and situation.conditions.now - self._sent[0][0] >= HOUR:
            self._sent.popleft()
        left = max(0, self._limit - sum(count for _, count in self._sent))
        reason = f"order limit: {self._limit} orders were sent within the last 60 minutes"
        return RiskVerdict(most_orders=left, reasons=() if left else (reason,))

    def state(self) -> dict[str, Any]:
        """Return the orders of the last 60 minutes."""
        return {"sent": [[time, count] for time, count in self._sent]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._sent = deque((float(time), int(count)) for time, count in state["sent"])


class StaleHalt(RiskRule):
    """Send no orders on old data; rules that sell do so on the next fresh bar."""

    name = "stale"

    def __init__(self, limit: float) -> None:
        self.words = f"sends nothing if the newest bar closed more than {duration_text(limit)} ago"
        self._limit = limit

    def judge(self, situation: Situation) -> RiskVerdict:
        """Allow everything or nothing."""
        if situation.conditions.data_age <= self._limit:
            return FREE
        reason = f"stale data: the newest bar closed more than {duration_text(self._limit)} ago"
        return RiskVerdict(buys=False, sells=False, reasons=(reason,))


class RiskRules:
    """The rules of `limits`, and the operator's halt.

    words: effects of the rules, one sentence each.
    """

    def __init__(self, limits: RiskLimits) -> None:
        self._rules = _rules(limits)
        self.words = tuple(rule.words for rule in self._rules)

    def judge(self, situation: Situation) -> RiskVerdict:
        """Return what all rules allow.

        It must be called once after every closed bar, even if nothing is decided, because rules
        follow the value. The operator's halt takes precedence: one that sells does so on stale
        data, too (a complete position is sold without a price), and one that does not sell keeps
        all positions. Stale data prevents other rules from selling.
        """
        # Every rule judges every bar, also during a halt, because rules follow the value.
        verdicts = [rule.judge(situation) for rule in self._rules]
        reasons = tuple(reason for verdict in verdicts for reason in verdict.reasons)
        halt, sells = situation.conditions.halt, situation.conditions.halt_sells
        if halt is not None:
            return RiskVerdict(
                sells, buys=False, sells=sells, reasons=(f"{HALTED}{halt}", *reasons)
            )
        sells = all(verdict.sells for verdict in verdicts)
        sell_all = sells and any(verdict.sell_all for verdict in verdicts)
        limits = [verdict.most_orders for verdict in verdicts if verdict.most_orders is not None]
        return RiskVerdict(
            sell_all=sell_all,
            buys=all(verdict.buys for verdict in verdicts),
            sells=sells,
            # Selling everything is never limited: it needs one order per position.
            most_orders=None if sell_all else min(limits, default=None),
            reasons=reasons,
        )

    def sent(self, time: float, count: int) -> None:
        """Note that `count` orders were sent at `time`, the `now` of their bar."""
        for rule in self._rules:
            rule.sent(time, count)

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs for the same verdicts, for JSON."""
        return {rule.name: rule.state() for rule in self._rules}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; rules that were off start fresh."""
        for rule in self._rules:
            if rule.name in state:
                rule.restore(state[rule.name])


def _sell_all(reason: str) -> RiskVerdict:
    return RiskVerdict(sell_all=True, buys=False, reasons=(reason,))


def _rules(limits: RiskLimits) -> list[RiskRule]:
    rules: list[RiskRule] = []
    if limits.drawdown is not None:
        rules.append(DrawdownStop(limits.drawdown, limits.cooldown))
    if limits.daily_loss is not None:
        rules.append(DailyLossLimit(limits.daily_loss))
    if limits.orders_per_hour is not None:
        rules.append(OrderLimit(limits.orders_per_hour))
    if limits.stale is not None:
        rules.append(StaleHalt(limits.stale))
    return rules


def apply(
    verdict: RiskVerdict, plan: Orders, portfolio: Portfolio, close: Tensor
) -> tuple[Orders, int]:
    """Apply a verdict to planned orders.

    Args:
        verdict: what may be ordered.
        plan: R rows, which together are one account: per asset, what rows buy is one order, and
            what they sell is one order.
        portfolio: R rows, present holdings after netting.
        close: (R, N).

    Returns:
        The remaining orders, and the number of dropped ones. Only a verdict that sells everything
        sells more than planned, and then nothing else is ordered.
    """
    short_sale = (plan.sell_units > 0) & (portfolio.units <= 0)
    reduced = torch.where(short_sale, 0.0, plan.sell_units + plan.cover_units)
    increased = torch.where(short_sale, plan.sell_units * close, plan.buy_notional)
    sells, buys = reduced > 0, increased > 0
    if verdict.sell_all:
        nothing = torch.zeros_like(plan.buy_notional)
        everything = Orders(
            sell_units=portfolio.units.clamp_min(0.0),
            buy_notional=nothing,
            cover_units=(-portfolio.units).clamp_min(0.0),
            whole=portfolio.units != 0,
            restart_clock=nothing > 0,
            dropped=plan.dropped,
        )
        return everything, int(buys.any(0).sum())
    # Most important first, so that a limit keeps the head of the list.
    forced = ((plan.whole | plan.restart_clock) & sells).any(0).tolist()
    planned = _by_importance(reduced * close, increased, forced)
    wanted = [
        (side, asset)
        for side, asset in planned
        if (verdict.sells if side == "sell" else verdict.buys)
    ]
    kept = set(wanted[: verdict.most_orders])
    assets = range(plan.sell_units.shape[1])
    keep_sell, keep_buy = (
        torch.tensor([(side, asset) in kept for asset in assets]) for side in ("sell", "buy")
    )
    left = Orders(
        sell_units=torch.where(torch.where(short_sale, keep_buy, keep_sell), plan.sell_units, 0.0),
        buy_notional=torch.where(keep_buy, plan.buy_notional, 0.0),
        cover_units=torch.where(keep_sell, plan.cover_units, 0.0),
        whole=plan.whole & keep_sell,
        restart_clock=plan.restart_clock
        & (keep_sell | ~sells),  # a sell that is not sent is due again at the next bar
        dropped=plan.dropped,
    )
    return left, len(planned) - len(kept)


def _by_importance(sold: Tensor, bought: Tensor, forced: list[bool]) -> list[tuple[str, int]]:
    """Return the account's orders as (side, asset), the most important first.

    The order is: sells that close a position or are forced, other sells, buys; large ones first.

    Args:
        sold: (R, N), value by which positions are reduced.
        bought: (R, N), value by which they are increased.
        forced: N, which of the former close a position or are forced.
    """
    ranked = []
    for side, rank, amounts in (("sell", 1, sold), ("buy", 2, bought)):
        for asset, amount in enumerate(amounts.sum(0).tolist()):
            if amount > 0.0:
                ranked.append(
                    (0 if side == "sell" and forced[asset] else rank, -amount, asset, side)
                )
    return [(side, asset) for _, _, asset, side in sorted(ranked)]
