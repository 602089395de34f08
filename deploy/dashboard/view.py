"""All that people see of a slot, as plain values, made from what its trader and the registry have written down."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.cli.registry_view import last_move, state_of
from deploy.dashboard.health import Health, health
from deploy.dashboard.series import EquityCurve, Series, SeriesCache, curves
from deploy.dashboard.words import figure, share
from deploy.registry.bundle_files import GAME
from deploy.registry.records import Event, Version
from deploy.registry.registry import Registry
from deploy.trading.live.benchmarks import EQUAL_WEIGHT
from deploy.trading.live.store import (
    SLOT_ACCOUNT,
    AccountBar,
    OrderLine,
    Trader,
    TraderEvent,
    TraderStore,
)
from envs.crypto.timeframe import DAY
from envs.support.formatting import percent

MOST_POINTS = 600  # of an account in a picture
NEWEST = 25  # orders and events shown
ORDER_OF_KINDS = ("account", "shadow", "challenger", "benchmark")


@dataclass(frozen=True)
class AccountView:
    """What an account came to. value, cash, fees, flow (net transfers, which are no part of the returns): quote units.
    returns: over all its bars, and the last day, 7 and 30 days where it is as old. drawdown: share below its peak now;
    max_drawdown: at worst. sharpe: annual; None for few bars. exposure: share of the value not in cash now. days: from
    its first bar to its last.
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
class ChallengerView:
    """A challenger beside the champion on the same bars. bundle: its hash. state: how it stands, in words; the numbers
    are None for one that does not trade beside the champion.
    """

    bundle: str
    state: str
    days: float | None = None
    total_return: float | None = None
    champion_return: float | None = None
    sharpe: float | None = None
    champion_sharpe: float | None = None
    max_drawdown: float | None = None
    trades: int | None = None

    @property
    def ahead(self) -> float | None:
        """Return over the champion's."""
        if self.total_return is None or self.champion_return is None:
            return None
        return self.total_return - self.champion_return


@dataclass(frozen=True)
class Position:
    """units of an asset that the account holds; price, value: quote units, at the last close; weight: share of the
    account; None where the price is not known. action: what the policy said last, -1 … 1.
    """

    ticker: str
    units: float
    price: float | None
    value: float | None
    weight: float | None
    action: float | None


@dataclass(frozen=True)
class Holdings:
    """What the account held at the close of the bar that opened at `time`."""

    time: int
    value: float
    cash: float
    positions: list[Position]


@dataclass(frozen=True)
class OrderView:
    """An order and what became of it. asked: notional of a buy, units of a sell. status: filled, unfilled, intended."""

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


@dataclass(frozen=True)
class Move:
    """Something in the registry's history of the slot."""

    at: str
    kind: str
    bundle: str | None
    previous: str | None
    reason: str


@dataclass(frozen=True)
class VersionView:
    """A bundle that came to the slot. state: what it is there now; origin: study and trial."""

    number: int
    bundle: str
    at: str
    state: str
    origin: str


@dataclass(frozen=True)
class Statistic:
    """Something that the live monitor compared: live, scored, and where 90 % of live values lie if all is as scored
    (low, high); p: chance of one as bad. What is missing is None.
    """

    name: str
    live: float | None
    scored: float | None
    low: float | None
    high: float | None
    p: float | None


@dataclass(frozen=True)
class MonitorView:
    """The live monitor's newest. level: good, bad or none. facts: the single numbers of it, by name."""

    verdict: str
    level: str
    text: str
    statistics: list[Statistic]
    facts: dict[str, str]


@dataclass(frozen=True)
class SlotView:
    """A slot at `now` (UTC, seconds since the epoch). trader: its row but for token and session. marks: bars (opens)
    from which the account traded another bundle, and its hash. risk: what risk rules have against trading now. summary:
    the numbers that matter most, in a sentence.
    """

    slot: str
    now: float
    health: Health
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
    moves: list[Move]
    events: list[TraderEvent]
    curves: list[EquityCurve]
    marks: list[tuple[int, str]]
    summary: str

    def account(self, name: str) -> AccountView | None:
        """The account of that name."""
        return next((account for account in self.accounts if account.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: all but the pictures' points."""
        content = dataclasses.asdict(self)
        del content["curves"]
        for account in content["accounts"]:
            del account["growth"]
        return content


def slot_names(registry: Registry, store: TraderStore) -> list[str]:
    """Slots with a champion, a challenger or a trader, by name; slots of games, which are not traded, are left out."""
    names = {slot.name for slot in registry.slots()} | {trader.slot for trader in store.traders()}
    return sorted(names - registry.slots_of_kind(GAME))


def slot_view(
    registry: Registry, cache: SeriesCache, slot: str, now: float, *, days: float | None = None
) -> SlotView:
    """A slot as it is. now: seconds since the epoch. days: how far back the curves go; None: to the beginning."""
    store, place = cache.store, registry.slot(slot)
    trader = store.trader(slot)
    every = [
        series
        for account in store.accounts(slot)
        if (series := cache.read(slot, account)).lines.time.size
    ]
    every.sort(key=lambda series: (ORDER_OF_KINDS.index(series.account.kind), series.account.since))
    timeframe = trader.timeframe if trader else "1h"
    last = max((int(series.lines.time[-1]) for series in every), default=None)
    since = None if days is None or last is None else last - round(days * DAY)
    move = last_move(registry, place, place.champion)
    accounts = [account_view(series, timeframe) for series in every]
    moves = registry.events(slot, newest=NEWEST)
    return SlotView(
        slot=slot,
        now=now,
        health=health(trader, now, slot=slot, synthetic=registry.synthetic(place.champion)),
        champion=place.champion,
        champion_since=move.at if move else None,
        champion_origin=_origin(registry, place.champion),
        champion_why=move.reason if move else "",
        trader=None if trader is None else _facts(trader),
        accounts=accounts,
        holdings=None if trader is None else _holdings(store, trader),
        orders=[_order(line) for line in store.orders(slot, account=SLOT_ACCOUNT, newest=NEWEST)][
            ::-1
        ],
        challengers=_challengers(every, place.challengers, timeframe),
        monitor=monitor_view(trader.state.get("monitor")) if trader else None,
        risk=_texts(trader.state.get("risk")) if trader else [],
        versions=[
            _version(registry, version, state_of(place, version.bundle))
            for version in registry.versions(slot)
        ][::-1],
        moves=[_move(event) for event in moves][::-1],
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
    """The numbers of an account that has lines."""
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
        said, LEVELS.get(said, "none"), str(found.get("text", "")), statistics, facts
    )


LEVELS = {"as scored": "good", "worse than scored": "bad", "tracking off": "bad"}
COUNTS = {"bars": "bars in the record", "judged": "judged at", "next_look": "next look at"}
TRACKING = {"error": "tracking error a year", "gap": "account ahead of the simulator"}
STATISTICS = {
    "edge": "over equal weight, a bar",
    "mean_return": "return a bar",
    "drawdown": "largest drawdown",
}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _texts(found: object) -> list[str]:
    return [str(one) for one in found] if isinstance(found, list | tuple) else []


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


def _version(registry: Registry, version: Version, state: str) -> VersionView:
    return VersionView(
        version.number, version.bundle, version.at, state, _origin(registry, version.bundle)
    )


def _move(event: Event) -> Move:
    return Move(event.at, event.kind, event.bundle, event.previous, event.reason)


def _order(line: OrderLine) -> OrderView:
    order, fill = line.order, line.fill
    return OrderView(
        decided=order.decided,
        account=line.account,
        ticker=order.ticker,
        side=order.side,
        asked=order.notional if order.side == "buy" else order.units,
        status="intended" if fill is None else fill.status,
        units=fill.units if fill else 0.0,
        notional=fill.notional if fill else 0.0,
        price=fill.price if fill and fill.price else None,
        fee=fill.fee if fill else 0.0,
        reason=fill.reason if fill else "",
    )


def _holdings(store: TraderStore, trader: Trader) -> Holdings | None:
    """The account at its last bar. Prices are those that the trader noted; of a single position they follow from its
    value.
    """
    lines = store.account_bars(trader.slot, SLOT_ACCOUNT, newest=1)
    if not lines:
        return None
    (line,) = lines
    noted = trader.state.get("prices")
    prices: dict[str, float] = (
        {k: float(v) for k, v in noted.items()} if isinstance(noted, Mapping) else {}
    )
    held = {ticker: units for ticker, units in line.units.items() if units}
    if len(held) == 1:
        ((ticker, units),) = held.items()
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


def _challengers(
    every: Sequence[Series], waiting: Sequence[str], timeframe: str
) -> list[ChallengerView]:
    """Challengers, those that trade first, best return over the champion's first; then retired and waiting ones."""
    champion = next(
        (one for kind in ("shadow", "account") for one in every if one.account.kind == kind), None
    )
    rivals = [
        _challenger(one, champion, timeframe) for one in every if one.account.kind == "challenger"
    ]
    trading = {one.account.bundle for one in every if one.account.kind == "challenger"}
    rivals += [
        ChallengerView(bundle, "waits for a place in the arena")
        for bundle in waiting
        if bundle not in trading
    ]
    return sorted(
        rivals, key=lambda one: (one.state != "trading", one.days is None, -(one.ahead or 0.0))
    )


def _challenger(series: Series, champion: Series | None, timeframe: str) -> ChallengerView:
    lines, account = series.lines, series.account
    first, last = int(lines.time[0]), int(lines.time[-1])
    beside = None if champion is None else champion.cut(first, last)
    return ChallengerView(
        bundle=account.bundle or account.name,
        state="trading" if account.retired is None else f"retired: {account.retired}",
        days=(last - first) / DAY,
        total_return=float(series.growth[-1] - 1.0),
        champion_return=None if beside is None else float(beside.growth[-1] - 1.0),
        sharpe=series.sharpe(timeframe),
        champion_sharpe=None if beside is None else beside.sharpe(timeframe),
        max_drawdown=float(series.drawdown.max()),
        trades=int(lines.trades.sum()),
    )


def _summary(accounts: Sequence[AccountView]) -> str:
    own = next((account for account in accounts if account.name == SLOT_ACCOUNT), None)
    if own is None:
        return ""
    text = f"The account made {percent(own.total_return)} in {own.days:.1f} days"
    equal = next((account for account in accounts if account.name == EQUAL_WEIGHT), None)
    if equal is not None:
        text += f", equal weight {percent(equal.total_return)}"
    if own.flow:
        text += f", besides transfers of {own.flow:+,.2f}"
    return f"{text}; it is {share(own.drawdown)} below its peak, at worst it was {share(own.max_drawdown)}."
