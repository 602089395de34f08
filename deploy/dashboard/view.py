"""View of a slot as plain values, from the rows of its trader and of the registry."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sweepd.deploy.dashboard.alerts import VERDICTS, Alert, slot_alerts, sorted_alerts
from sweepd.deploy.dashboard.formatting import figure, moment, money, price, share, units
from sweepd.deploy.dashboard.health import Health, health
from sweepd.deploy.dashboard.replays import Replay
from sweepd.deploy.dashboard.series import (
    ChallengerView,
    EquityCurve,
    Series,
    SeriesCache,
    challenger_views,
    curves,
)
from sweepd.deploy.registry.flags import registry_flags
from sweepd.deploy.registry.records import Event, Slot
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.records import (
    EQUAL_WEIGHT,
    SLOT_ACCOUNT,
    AccountBar,
    OrderRecord,
    Trader,
    TraderEvent,
)
from sweepd.deploy.trading.live.revisions import units_since
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.crypto.data.timeframe import DAY
from sweepd.envs.support.formatting import MISSING, percent

MOST_POINTS = 600  # of an account in a figure
NEWEST = 25  # orders and events shown
ORDER_OF_KINDS = ("account", "shadow", "challenger", "benchmark")
# Numbers of the live monitor, and what they are called.
COUNTS = {"bars": "bars in the record", "judged": "judged at", "next_look": "next look at"}
TRACKING = {"error": "tracking error a year", "gap": "account ahead of the simulator"}
STATISTICS = {
    "edge": "over equal weight, a bar",
    "mean_return": "return a bar",
    "drawdown": "largest drawdown",
}


@dataclass(frozen=True)
class Statistic:
    """A statistic of the live monitor; missing values are None.

    low, high: the central 90% of live values if the policy trades as scored.
    p: chance of a value at least as bad in that case.
    """

    name: str
    live: float | None
    scored: float | None
    low: float | None
    high: float | None
    p: float | None

    COLUMNS: ClassVar = ("live", "scored", "90% lie in", "p")

    @property
    def cells(self) -> tuple[str, ...]:
        """Its columns as text."""
        p = MISSING if self.p is None else f"{self.p:.3g}"
        between = f"{figure(self.low)} … {figure(self.high)}"
        return figure(self.live), figure(self.scored), between, p


@dataclass(frozen=True)
class MonitorView:
    """The newest result of the live monitor.

    level: good, bad or none.
    facts: single numbers, by name.
    """

    verdict: str
    level: str
    text: str
    statistics: list[Statistic]
    facts: dict[str, str]


@dataclass(frozen=True)
class AccountView:
    """Results of an account.

    value, cash, fees, flow: quote units; flow is net transfers, which are no part of the returns.
    total_return: over all bars; day, week, month: over the last 1, 7 and 30 days, None if it is
        younger.
    drawdown: fraction below the peak now; max_drawdown: at worst.
    sharpe: annualised; None for few bars.
    exposure: fraction of the value that is not in cash now; of an account with short positions,
        long minus short.
    days: from its first bar to its last.
    growth: points of a sparkline.
    """

    name: str
    kind: str
    bundle: str | None
    since: int
    retired: str | None
    bars: int
    days: float
    value: float
    cash: float
    total_return: float
    day: float | None
    week: float | None
    month: float | None
    sharpe: float | None
    drawdown: float
    max_drawdown: float
    exposure: float
    trades: int
    fees: float
    flow: float
    growth: list[float]


@dataclass(frozen=True)
class Position:
    """A position of the account.

    price, value: quote units, at the last close; None if the price is unknown.
    weight: fraction of the account.
    action: newest action of the policy, -1 to 1.
    """

    ticker: str
    units: float
    price: float | None
    value: float | None
    weight: float | None
    action: float | None

    @property
    def cells(self) -> tuple[str, ...]:
        """Its columns as text."""
        return units(self.units), price(self.price), money(self.value), share(self.weight)


@dataclass(frozen=True)
class Holdings:
    """Holdings of the account at the close of the bar that opened at `time`."""

    time: int
    value: float
    cash: float
    positions: list[Position]

    COLUMNS: ClassVar = ("units", "price", "value", "weight")

    @property
    def free(self) -> float | None:
        """Fraction of the value that is cash."""
        return self.cash / self.value if self.value > 0.0 else None


@dataclass(frozen=True)
class OrderView:
    """An order and its result.

    asked: notional of a buy (of a cover, 0 until its price is known), units of a sell.
    status: filled, unfilled or intended.
    """

    decided: int
    account: str
    ticker: str
    side: str
    asked: float
    status: str
    units: float
    notional: float
    price: float | None
    fee: float
    reason: str

    COLUMNS: ClassVar = ("decided (UTC)", "order", "asked", "units", "price", "fee")

    @property
    def cells(self) -> tuple[str, ...]:
        """Its columns as text."""
        return (
            moment(self.decided),
            f"{self.side} {self.ticker}",
            money(self.asked) if self.side == "buy" else units(self.asked),
            units(self.units or None),
            price(self.price),
            money(self.fee or None),
        )


@dataclass(frozen=True)
class VersionView:
    """A bundle of the slot. state: its present role; origin: study and trial."""

    number: int
    bundle: str
    at: str
    state: str
    origin: str


@dataclass(frozen=True)
class SlotView:
    """A slot at `now` (seconds since the epoch).

    replay: name of the replay whose account it shows; None: that of a trader.
    trader: its row without token and state; None for a replay.
    risk: reasons for which risk rules restrict trading now.
    marks: bars (opens) from which the account traded another bundle, with its hash.
    summary: the most important numbers, in a sentence.
    """

    slot: str
    now: float
    health: Health
    replay: str | None
    alerts: list[Alert]
    champion: str | None
    champion_since: str | None
    champion_origin: str
    champion_why: str
    trader: dict[str, Any] | None
    accounts: list[AccountView]
    holdings: Holdings | None
    orders: list[OrderView]
    challengers: list[ChallengerView]
    monitor: MonitorView | None
    risk: list[str]
    versions: list[VersionView]
    moves: list[Event]
    events: list[TraderEvent]
    curves: list[EquityCurve]
    marks: list[tuple[int, str]]
    summary: str

    def account(self, name: str) -> AccountView | None:
        """Return the account of that name, or None."""
        return next((account for account in self.accounts if account.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the view for JSON, without the figures' points."""
        content = dataclasses.asdict(self)
        del content["curves"]
        for account in content["accounts"]:
            del account["growth"]
        for move in content["moves"]:
            del move["slot"], move["report"]  # the report is as long as all the rest
        return content


def slot_names(registry: Registry, store: TraderStore) -> list[str]:
    """Return the slots with a champion, a challenger or a trader, without those that trade nothing."""
    names = {slot.name for slot in registry.slots()} | {trader.slot for trader in store.traders()}
    return sorted(names - registry.untraded_slots().keys())


def slot_view(
    registry: Registry,
    cache: SeriesCache,
    slot: str,
    now: float,
    *,
    days: float | None = None,
    replay: Replay | None = None,
) -> SlotView:
    """Return the present view of a slot.

    Args:
        registry: the registry.
        cache: lines of the accounts.
        slot: the slot.
        now: seconds since the epoch.
        days: range of the curves; None: from the beginning.
        replay: the replay whose lines these are; None: they are a trader's.
    """
    store, place = cache.store, registry.slot(slot)
    trader = store.trader(slot)
    every = [
        series
        for account in store.accounts(slot)
        if (series := cache.read(slot, account)).lines.time.size
    ]
    every.sort(key=lambda series: (ORDER_OF_KINDS.index(series.account.kind), series.account.since))
    # Without a trader there are no accounts, and the value is not used.
    timeframe = trader.timeframe if trader else "1h"
    last = max((int(series.lines.time[-1]) for series in every), default=None)
    # Counted from the last bar, not from now: recorded bars are in the past.
    since = None if days is None or last is None else last - round(days * DAY)
    move = registry.last_move(place.name, place.champion)
    where, synthetic = registry_flags(registry), registry.synthetic(place.champion)
    # Beside a replay, the alerts are still those of the slot's trader.
    live = trader if replay is None else TraderStore(registry.database).trader(slot)
    state = health(live, now, slot=slot, synthetic=synthetic, where=where)
    alerts = slot_alerts(Records(registry.database), live, slot, state, now, where=where)
    # No challenger trades beside a replay.
    waiting = place.challengers if replay is None else ()
    accounts = [account_view(series, timeframe) for series in every]
    return SlotView(
        slot=slot,
        now=now,
        health=state if replay is None else replay.health,
        replay=None if replay is None else replay.name,
        alerts=sorted_alerts(alerts),
        champion=place.champion,
        champion_since=move.at if move else None,
        champion_origin=_origin(registry, place.champion),
        champion_why=move.reason if move else "",
        trader=None if trader is None or replay is not None else _facts(trader),
        accounts=accounts,
        holdings=None if trader is None else _holdings(store, trader),
        orders=[_order(one) for one in store.orders(slot, account=SLOT_ACCOUNT, newest=NEWEST)][
            ::-1
        ],
        challengers=challenger_views(every, waiting, timeframe),
        monitor=monitor_view(trader.state.get("monitor")) if trader else None,
        risk=trader.restrictions if trader else [],
        versions=_versions(registry, place),
        moves=registry.events(slot, newest=NEWEST)[::-1],
        events=store.events(slot, newest=NEWEST)[::-1],
        curves=curves(every, since=since, most=MOST_POINTS),
        marks=[
            change
            for series in every
            if series.account.kind == "account"
            for change in series.changes()
        ],
        summary=_summary(accounts),
    )


def account_view(series: Series, timeframe: str) -> AccountView:
    """Return the numbers of an account that has lines."""
    lines, account = series.lines, series.account
    drawdown, value, last = (
        series.drawdown,
        float(series.lines.value[-1]),
        int(series.lines.time[-1]),
    )

    def over(days: int) -> float | None:
        return series.since(last - days * DAY)

    return AccountView(
        name=account.name,
        kind=account.kind,
        bundle=account.bundle,
        since=account.since,
        retired=account.retired,
        bars=len(lines.time),
        days=(last - int(lines.time[0])) / DAY,
        value=value,
        cash=float(lines.cash[-1]),
        total_return=float(series.growth[-1] - 1.0),
        day=over(1),
        week=over(7),
        month=over(30),
        sharpe=series.sharpe(timeframe),
        drawdown=float(drawdown[-1]),
        max_drawdown=float(drawdown.max()),
        exposure=1.0 - float(lines.cash[-1]) / value if value > 0.0 else 0.0,
        trades=int(lines.trades.sum()),
        fees=float(lines.fees.sum()),
        flow=float(lines.flow.sum()),
        growth=series.sketch(),
    )


def monitor_view(found: object) -> MonitorView | None:
    """Return the newest result of the live monitor, None if there is none.

    Args:
        found: what the trader's row contains: normally a `MonitorReport` for JSON.
    """
    if not isinstance(found, Mapping) or not found:
        return None
    # Traders of other versions may have written fewer fields.
    said = str(found.get("verdict", "unknown"))
    statistics = [
        Statistic(
            label, *(_number(part.get(key)) for key in ("live", "scored", "low", "high", "p"))
        )
        for key, label in STATISTICS.items()
        if isinstance(part := found.get(key), Mapping)
    ]
    facts = {
        label: f"{found[key]:,}" for key, label in COUNTS.items() if isinstance(found.get(key), int)
    }
    if isinstance(tracking := found.get("tracking"), Mapping):
        facts |= {label: figure(_number(tracking.get(key))) for key, label in TRACKING.items()}
    return MonitorView(
        said, VERDICTS.get(said, "none"), str(found.get("text", "")), statistics, facts
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _facts(trader: Trader) -> dict[str, Any]:
    names = (
        "broker",
        "feed",
        "timeframe",
        "pid",
        "host",
        "started",
        "beat",
        "status",
        "last_bar",
        "halt",
    )
    return {name: getattr(trader, name) for name in names}


def _origin(registry: Registry, bundle: str | None) -> str:
    found = None if bundle is None else registry.origin(bundle)
    return "" if found is None else f"study {found[0]}, trial {found[1]}"


def _versions(registry: Registry, slot: Slot) -> list[VersionView]:
    """Return the slot's bundles, the newest first."""
    return [
        VersionView(
            version.number,
            version.bundle,
            version.at,
            slot.role_of(version.bundle),
            _origin(registry, version.bundle),
        )
        for version in reversed(registry.versions(slot.name))
    ]


def _order(one: OrderRecord) -> OrderView:
    return OrderView(
        decided=one.decided,
        account=one.account,
        ticker=one.ticker,
        side=one.side,
        asked=one.asked,
        status=one.status,
        units=one.filled_units,
        notional=one.filled_notional,
        price=one.price or None,
        fee=one.fee,
        reason=one.reason,
    )


def _holdings(store: TraderStore, trader: Trader) -> Holdings | None:
    """Return the account at its last bar, in present units.

    Prices are those that the trader stored; that of a single position follows from its value.
    """
    lines = store.account_bars(trader.slot, SLOT_ACCOUNT, newest=1)
    if not lines:
        return None
    (line,) = lines
    adjustments = store.adjustments(trader.slot)
    line = dataclasses.replace(
        line,
        units={
            ticker: units / units_since(adjustments, ticker, line.time)[0]
            for ticker, units in line.units.items()
        },
    )
    noted = trader.state.get("prices")
    prices: dict[str, float] = (
        {k: float(v) for k, v in noted.items()} if isinstance(noted, Mapping) else {}
    )
    held = {ticker: units for ticker, units in line.units.items() if units}
    if len(held) == 1:
        ((ticker, units),) = held.items()
        # value = cash + units x price, solved for the price.
        prices.setdefault(ticker, (line.value - line.cash) / units)
    return Holdings(
        line.time, line.value, line.cash, [_position(line, ticker, prices) for ticker in line.units]
    )


def _position(line: AccountBar, ticker: str, prices: Mapping[str, float]) -> Position:
    units, price = line.units[ticker], prices.get(ticker)
    value = 0.0 if units == 0.0 else None if price is None else units * price
    weight = None if value is None or line.value <= 0.0 else value / line.value
    return Position(
        ticker,
        units,
        price,
        value,
        weight,
        None if line.action is None else line.action.get(ticker),
    )


def _summary(accounts: Sequence[AccountView]) -> str:
    found = {account.name: account for account in accounts}
    if SLOT_ACCOUNT not in found:
        return ""
    own = found[SLOT_ACCOUNT]
    text = f"The account made {percent(own.total_return)} in {own.days:.1f} days"
    if EQUAL_WEIGHT in found:
        text += f", equal weight {percent(found[EQUAL_WEIGHT].total_return)}"
    if own.flow:
        text += f", without transfers of {own.flow:+,.2f}"
    now, worst = share(own.drawdown), share(own.max_drawdown)
    return f"{text}; drawdown {now} now, {worst} at most."
