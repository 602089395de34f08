"""Risk rules of a slot: what may be ordered at a close, whatever the policy wants. The same code in a replay and live.

Limits per position and the cash reserve are parameters of the bundle that `plan_orders` applies already; `tightened`
makes them stricter, never looser. Rules about the whole account are small plugins: each looks at the situation after a
bar and answers with a verdict, and what the strictest ones say together is applied to the planned orders. All of them
are off unless asked for. Shares are fractions (0.2 is 20 %), durations are seconds.

Whatever stops trading sells at the next bar's open, like any order: what the market does until then is not undone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deploy.market.bundle import format_time
from deploy.trading.flows import rebased
from deploy.trading.risk_limits import RiskLimits, duration_text, parse_limits, tightened
from envs.crypto.portfolio import Orders, Portfolio
from envs.crypto.timeframe import DAY
from envs.support.formatting import short_percent

__all__ = [
    "Conditions",
    "RiskLimits",
    "RiskRules",
    "RiskVerdict",
    "Situation",
    "apply",
    "parse_limits",
    "tightened",
]

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
    """What the rules look at once a bar has closed.

    time: its open, seconds since the epoch. now: seconds since the epoch; in a replay the bar's end. value: of the
    account at its close, quote units. data_age: seconds since it closed. halt: why the operator stopped trading, or
    None. halt_sells: everything is to be sold first. flow: quote units that were transferred into the account in the
    bar (negative: out of it); the value includes them, but they are no gain.
    """

    time: int
    now: float
    value: float
    data_age: float
    halt: str | None
    halt_sells: bool
    flow: float = 0.0


@dataclass(frozen=True)
class RiskVerdict:
    """What may be ordered. sell_all: every position is sold whole, and nothing bought. buys, sells: whether any are
    sent. most_orders: None without a limit. reasons: a sentence per rule that has something against it; it stays the
    same as long as the rule does.
    """

    sell_all: bool = False
    buys: bool = True
    sells: bool = True
    most_orders: int | None = None
    reasons: tuple[str, ...] = ()


FREE = RiskVerdict()


class RiskRule:
    """One rule. name: its flag. words: what it does, a sentence."""

    name: str
    words: str

    def judge(self, situation: Situation) -> RiskVerdict:
        """Asked once after every closed bar, in order."""
        raise NotImplementedError

    def sent(self, time: float, count: int) -> None:
        """`count` orders were sent at `time`, seconds since the epoch."""

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON has it; empty where nothing is remembered."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""


class DrawdownStop(RiskRule):
    """Everything is sold once the account has fallen that far from its highest value, and nothing is bought until the
    cool-down is over. Then the highest value counts from the present one, so that the same fall doesn't stop it again.
    """

    name = "drawdown"

    def __init__(self, limit: float, cooldown: float) -> None:
        self.words = (
            f"sells everything once the account is {short_percent(limit)} below its highest value, and buys nothing for "
            f"{duration_text(cooldown)}"
        )
        self._limit, self._cooldown = limit, cooldown
        self._peak: float | None = None
        self._until: float | None = None  # open of the first bar that may trade again
        self._reason = ""

    def judge(self, situation: Situation) -> RiskVerdict:
        """Sell all while it lasts."""
        if self._peak is not None:
            self._peak = rebased(self._peak, situation.value, situation.flow)
        if self._until is not None and situation.time >= self._until:
            self._until, self._peak = None, None
        if self._until is None:
            self._peak = max(situation.value, self._peak or situation.value)
            if situation.value <= self._peak * (1.0 - self._limit) and self._peak > 0.0:
                self._until = situation.time + self._cooldown
                self._reason = (
                    f"drawdown stop: {short_percent(1.0 - situation.value / self._peak)} below the highest value, "
                    f"{self._peak:,.2f}; nothing is bought until {format_time(math.ceil(self._until))}"
                )
        return (
            FREE
            if self._until is None
            else RiskVerdict(sell_all=True, buys=False, reasons=(self._reason,))
        )

    def state(self) -> dict[str, Any]:
        """Peak, and until when it stops why."""
        return {"peak": self._peak, "until": self._until, "reason": self._reason}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._peak, self._until, self._reason = state["peak"], state["until"], state["reason"]


class DailyLossLimit(RiskRule):
    """Everything is sold once the day has lost that much, and nothing is bought until the next UTC day.

    A bar belongs to the day in which it opens, and a day's loss counts from the last close of the day before.
    """

    name = "daily-loss"

    def __init__(self, limit: float) -> None:
        self.words = f"sells everything once a UTC day has lost {short_percent(limit)}, and buys nothing until the next one"
        self._limit = limit
        self._day: int | None = None
        self._base, self._last = 0.0, 0.0  # the day's starting value; the last value seen
        self._reason = ""  # why it stops, this day

    def judge(self, situation: Situation) -> RiskVerdict:
        """Sell all for the rest of the day."""
        day = situation.time // DAY
        if day != self._day:
            self._base = situation.value if self._day is None else self._last
            self._day, self._reason = day, ""
        self._base = rebased(self._base, situation.value, situation.flow)
        self._last = situation.value
        if (
            not self._reason
            and situation.value <= self._base * (1.0 - self._limit)
            and self._base > 0.0
        ):
            self._reason = (
                f"daily loss limit: {short_percent(1.0 - situation.value / self._base)} of {self._base:,.2f} lost on "
                f"{format_time(day * DAY)[:10]}; nothing is bought until the next day (UTC)"
            )
        return (
            RiskVerdict(sell_all=True, buys=False, reasons=(self._reason,))
            if self._reason
            else FREE
        )

    def state(self) -> dict[str, Any]:
        """The day, its starting value, the last value and why it stops."""
        return {"day": self._day, "base": self._base, "last": self._last, "reason": self._reason}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._day, self._base, self._last = state["day"], state["base"], state["last"]
        self._reason = state["reason"]


class OrderLimit(RiskRule):
    """So many orders in any 60 minutes. What closes a position goes first, then other sells, then buys, the large ones
    before the small ones; the rest is dropped, for the policy to order again at a later bar if it still wants to.

    Where another rule sells everything, that is counted but not held back: such orders are no more than positions.
    """

    name = "orders-per-hour"

    def __init__(self, limit: int) -> None:
        self.words = f"sends at most {limit} orders in any 60 minutes, what closes positions first"
        self._limit = limit
        self._sent: deque[tuple[float, int]] = deque()

    def sent(self, time: float, count: int) -> None:
        """`count` orders were sent at `time`, seconds since the epoch."""
        if count:
            self._sent.append((time, count))

    def judge(self, situation: Situation) -> RiskVerdict:
        """What is left of the limit."""
        while self._sent and situation.now - self._sent[0][0] >= HOUR:
            self._sent.popleft()
        left = max(0, self._limit - sum(count for _, count in self._sent))
        reason = f"order limit: {self._limit} orders were sent within the last 60 minutes"
        return RiskVerdict(most_orders=left, reasons=() if left else (reason,))

    def state(self) -> dict[str, Any]:
        """The orders of the last 60 minutes."""
        return {"sent": [[time, count] for time, count in self._sent]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._sent = deque((float(time), int(count)) for time, count in state["sent"])


class StaleHalt(RiskRule):
    """No orders at all on data that old. Other rules that want to sell do so on the next fresh bar."""

    name = "stale"

    def __init__(self, limit: float) -> None:
        self.words = (
            f"sends nothing where the newest bar closed more than {duration_text(limit)} ago"
        )
        self._limit = limit

    def judge(self, situation: Situation) -> RiskVerdict:
        """Nothing, or anything."""
        if situation.data_age <= self._limit:
            return FREE
        reason = f"stale data: the newest bar closed more than {duration_text(self._limit)} ago"
        return RiskVerdict(buys=False, sells=False, reasons=(reason,))


class RiskRules:
    """The rules that `limits` ask for, and the operator's halt, which is always obeyed.

    words: what the rules do, a sentence each; empty where none is on.
    """

    def __init__(self, limits: RiskLimits) -> None:
        self._rules = _rules(limits)
        self.words = tuple(rule.words for rule in self._rules)

    def judge(self, situation: Situation) -> RiskVerdict:
        """What may be ordered now: nothing that any rule is against. To be asked once after every closed bar, also
        where nothing would be decided, since rules follow the value.

        The operator has the last word: a halt that sells does so on stale data, too (a whole position is sold without
        a price), and one that doesn't keeps everything as it is. Stale data keeps other rules from selling.
        """
        verdicts = [rule.judge(situation) for rule in self._rules]
        reasons = tuple(reason for verdict in verdicts for reason in verdict.reasons)
        if situation.halt is not None:
            sells = situation.halt_sells
            return RiskVerdict(
                sells, buys=False, sells=sells, reasons=(f"halted: {situation.halt}", *reasons)
            )
        sells = all(verdict.sells for verdict in verdicts)
        sell_all = sells and any(verdict.sell_all for verdict in verdicts)
        limits = [verdict.most_orders for verdict in verdicts if verdict.most_orders is not None]
        return RiskVerdict(
            sell_all=sell_all,
            buys=all(verdict.buys for verdict in verdicts),
            sells=sells,
            most_orders=None if sell_all else min(limits, default=None),
            reasons=reasons,
        )

    def sent(self, time: float, count: int) -> None:
        """`count` orders were sent at `time`: `Situation.now` of the bar they were decided at."""
        for rule in self._rules:
            rule.sent(time, count)

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on to the same verdicts, as JSON has it."""
        return {rule.name: rule.state() for rule in self._rules}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there. A rule that was off then begins anew; the state of one that is off now is left aside."""
        for rule in self._rules:
            if rule.name in state:
                rule.restore(state[rule.name])


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
    """The orders that the verdict leaves of `plan` (R rows, which together are one account, as after netting: what rows
    buy of an asset is one order, and what they sell is one), and how many of them it drops.

    portfolio: R rows, what they hold now (after netting). close: (R, N). Sells more than was planned only where
    everything is sold, and then keeps no order but those.
    """
    sells, buys = plan.sell_units > 0, plan.buy_notional > 0
    if verdict.sell_all:
        nothing = torch.zeros_like(plan.buy_notional)
        everything = Orders(
            portfolio.units.clone(), nothing, portfolio.units > 0, nothing > 0, plan.dropped
        )
        return everything, int(buys.any(0).sum())
    planned = _by_importance(plan, close)
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
        sell_units=torch.where(keep_sell, plan.sell_units, 0.0),
        buy_notional=torch.where(keep_buy, plan.buy_notional, 0.0),
        whole=plan.whole & keep_sell,
        restart_clock=plan.restart_clock
        & (keep_sell | ~sells),  # a sell that isn't sent is due at the next bar again
        dropped=plan.dropped,
    )
    return left, len(planned) - len(kept)


def _by_importance(plan: Orders, close: Tensor) -> list[tuple[str, int]]:
    """The account's orders, (side, asset): what closes a position or is forced, other sells, buys; large ones first."""
    forced = ((plan.whole | plan.restart_clock) & (plan.sell_units > 0)).any(0).tolist()
    ranked = []
    for side, rank, amounts in (
        ("sell", 1, plan.sell_units * close),
        ("buy", 2, plan.buy_notional),
    ):
        for asset, amount in enumerate(amounts.sum(0).tolist()):
            if amount > 0.0:
                ranked.append(
                    (0 if side == "sell" and forced[asset] else rank, -amount, asset, side)
                )
    return [(side, asset) for _, _, asset, side in sorted(ranked)]
