"""View of a slot in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Column, Table
from rich.text import Text

from sweepd.deploy.dashboard.alerts import LEVELS, Alert
from sweepd.deploy.dashboard.formatting import moment, money, ratio, share, span
from sweepd.deploy.dashboard.health import Health
from sweepd.deploy.dashboard.view import AccountView, Holdings, MonitorView, OrderView, SlotView
from sweepd.deploy.promotion.sections import short
from sweepd.envs.support.formatting import counted, minute, percent, sparkline

STYLES = {"good": "green", "warning": "yellow", "bad": "bold red", "none": "dim"}
SHOWN_ORDERS, SHOWN_EVENTS = 8, 6


def slots_table(slots: Mapping[str, Health]) -> RenderableType:
    """Return a table of all slots."""
    table = _table("Slots", ("slot", "state"), (), ("",))
    for name, found in slots.items():
        table.add_row(
            Text(name),
            Text(found.state, style=STYLES[found.level]),
            Text(" ".join(found.sentences)),
        )
    return table


def slot_screen(view: SlotView) -> RenderableType:
    """Return everything about one slot."""
    parts: list[RenderableType] = [_head(view)]
    if view.alerts:
        parts.append(_alerts(view.alerts))
    if view.accounts:
        parts.append(_Accounts(view.accounts))
    if view.holdings is not None:
        parts.append(_holdings(view.holdings))
    if view.orders:
        parts.append(_orders(view.orders[:SHOWN_ORDERS]))
    if view.challengers:
        parts.append(_arena(view))
    if view.monitor is not None:
        parts.append(_monitor(view.monitor))
    parts.append(_history(view))
    return Group(*parts)


def _head(view: SlotView) -> RenderableType:
    grid = Table.grid(Column(style="bold", no_wrap=True), "", padding=(0, 2))
    champion = "none"
    if view.champion is not None:
        since, origin = minute(view.champion_since), view.champion_origin
        champion = f"{short(view.champion)} since {since} UTC ({origin}): {view.champion_why}"
    grid.add_row("champion", Text(champion))
    if view.trader is not None:
        trader = view.trader
        behind = view.health.bars_behind
        late = (
            ""
            if behind is None
            else f", {counted(behind, 'bar')} behind"
            if behind
            else ", up to date"
        )
        grid.add_row(
            "trader",
            Text(
                f"broker {trader['broker']}, {trader['timeframe']} bars from {trader['feed']}; "
                f"last bar {moment(trader['last_bar'])} UTC{late}"
            ),
        )
    if view.risk:
        grid.add_row("risk rules", Text("; ".join(view.risk), style="yellow"))
    if view.summary:
        grid.add_row("account", Text(view.summary))
    title = Text.assemble(
        (f"slot {view.slot}", "bold cyan"),
        "  ",
        (view.health.state, STYLES[view.health.level]),
        ("  SYNTHETIC MARKET" if view.health.synthetic else "", "yellow"),
        "  ",
        " ".join(view.health.sentences),
    )
    return Group(title, grid, "")


def _alerts(alerts: Iterable[Alert]) -> Table:
    table = _table("Alerts", ("since (UTC)", "severity"), (), ("",))
    for one in alerts:
        severity = Text(LEVELS[one.level], style=STYLES[one.level])
        table.add_row(minute(one.since), severity, Text(f"{one.title}: {one.text}"))
    return table


def _table(
    title: str, left: Iterable[str], right: Iterable[str], last: Iterable[str] = ()
) -> Table:
    """Return an empty table. left, right: columns by alignment; last: takes the remaining width."""
    return Table(
        *(Column(name, no_wrap=True) for name in left),
        *(Column(name, justify="right", no_wrap=True) for name in right),
        *(Column(name, ratio=1) for name in last),
        title=title,
        title_justify="left",
    )


class _Accounts:
    """Table of the accounts; wide terminals get a sparkline and more columns."""

    def __init__(self, accounts: Sequence[AccountView]) -> None:
        self._accounts = accounts

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        wide, wider = options.max_width >= 132, options.max_width >= 151
        longer = ("30 days", "7 days", "1 day") if wide else ()
        traded = ("invested", "trades") if wide else ()
        table = _table(
            "Equity, after fees",
            ("account", *(("curve",) if wider else ())),
            ("value", "return", *longer, "Sharpe", "below peak", "worst", *traded),
        )
        for account in self._accounts:
            own = account.kind != "benchmark"
            style = "bold" if account.kind == "account" else "dim" if account.retired else ""
            table.add_row(
                Text(account.name, style=style),
                *((sparkline(account.growth),) if wider else ()),
                money(account.value),
                percent(account.total_return),
                *(
                    (percent(account.month), percent(account.week), percent(account.day))
                    if wide
                    else ()
                ),
                ratio(account.sharpe),
                share(account.drawdown),
                share(account.max_drawdown),
                *(
                    (share(account.exposure) if own else "", str(account.trades) if own else "")
                    if wide
                    else ()
                ),
            )
        yield table


def _holdings(found: Holdings) -> Table:
    table = _table(f"Positions at the close of {moment(found.time)} UTC", ("",), Holdings.COLUMNS)
    for one in found.positions:
        if one.units:
            table.add_row(Text(one.ticker), *one.cells)
    table.add_row("cash", "", "", money(found.cash), share(found.free))
    return table


def _orders(orders: Iterable[OrderView]) -> Table:
    columns = OrderView.COLUMNS
    table = _table("Newest orders", columns[:2], columns[2:], ("result",))
    for order in orders:
        result = order.status if not order.reason else f"{order.status}: {order.reason}"
        table.add_row(*map(Text, order.cells), Text(result))
    return table


def _arena(view: SlotView) -> Table:
    table = _table(
        "Arena: challengers and champion on the same bars",
        ("challenger",),
        view.challengers[0].COLUMNS,
        ("state",),
    )
    for one in view.challengers:
        table.add_row(Text(short(one.bundle)), *one.cells, Text(one.state))
    return table


def _monitor(found: MonitorView) -> RenderableType:
    title = Text.assemble(
        ("Live monitor: ", "italic"), (found.verdict, STYLES[found.level]), "  ", found.text
    )
    if not found.statistics:
        return title
    table = _table("", ("",), found.statistics[0].COLUMNS)
    table.title = None
    for one in found.statistics:
        table.add_row(one.name, *one.cells)
    return Group(title, table)


def _history(view: SlotView) -> Table:
    """Return the events of slot and trader in one table, newest first."""
    lines = [(move.at, move.kind, short(move.bundle), move.reason) for move in view.moves]
    lines += [(event.at, event.kind, "", event.text) for event in view.events]
    table = _table("Events", ("time (UTC)", "event", "bundle"), (), ("",))
    for at, kind, bundle, text in sorted(lines, reverse=True)[: 2 * SHOWN_EVENTS]:
        table.add_row(minute(at), Text(kind), bundle if bundle != "none" else "", Text(text))
    return table


def age_line(now: float, every: float) -> Text:
    """Return the line below a screen that updates itself."""
    return Text(f"{moment(now)} UTC, every {span(every)}; Ctrl-C ends it", style="dim")
