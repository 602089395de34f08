"""The pages of one account: chart, round trips, days, orders, events; orders and others as files."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Request, Response

from sweepd.deploy.dashboard.alerts import LEVELS, kinds_of, level_of
from sweepd.deploy.dashboard.asked import Asked, date_of
from sweepd.deploy.dashboard.chart_page import chart
from sweepd.deploy.dashboard.figures import days_figure, parity_figure
from sweepd.deploy.dashboard.health import never_traded
from sweepd.deploy.dashboard.hints import SlotCommands
from sweepd.deploy.dashboard.pages import Handler, Pages, Paging, chosen, export
from sweepd.deploy.dashboard.series import Day, days_of
from sweepd.deploy.dashboard.slot_pages import OF_TRADERS, alerts_of, known_slots, slot_links
from sweepd.deploy.dashboard.source import PaperSource
from sweepd.deploy.registry.flags import registry_flags
from sweepd.deploy.trading.live.queries import ORDER_STATUSES, EventFilter, EventRecord, OrderFilter
from sweepd.deploy.trading.live.records import (
    BENCHMARK,
    DIFFERS,
    EQUAL_WEIGHT,
    SLOT_ACCOUNT,
    OrderRecord,
    ParityDay,
)
from sweepd.deploy.trading.live.store import stored_certificates, stored_parity
from sweepd.deploy.trading.round_trips import RoundTrip
from sweepd.envs.crypto.data.timeframe import DAY
from sweepd.envs.support.errors import InputError, RunError

DAYS_PER_PAGE = 31
CERTIFICATES_SHOWN = 31
SORTS = {
    "": "newest first",
    "profit": "highest profit first",
    "loss": "lowest profit first",
    "ratio": "highest return first",
}
STATES = {"open": "open", "gain": "closed with a gain", "loss": "closed with a loss"}
SAME = 1e-9  # returns that differ by less are equal up to rounding
LAST_MOMENT = "T23:59:59.999Z"


class TradePages:
    """An account's chart, round trips, days, orders and events."""

    def __init__(self, pages: Pages, paper: PaperSource) -> None:
        self._pages, self._paper = pages, paper

    def routes(self) -> Mapping[str, Handler]:
        """Return the pages and the exports by path."""
        found: dict[str, Handler] = {
            "/chart": self._chart,
            "/trades": self._trades,
            "/days": self._days,
            "/orders": self._orders,
            "/events": self._events,
            "/parity": self._parity,
        }
        exports = {
            "/trades": self._export_trades,
            "/days": self._export_days,
            "/orders": self._export_orders,
            "/events": self._export_events,
            "/parity": self._export_parity,
        }
        for path, make in exports.items():
            for kind in ("csv", "json"):
                found[f"{path}.{kind}"] = functools.partial(make, kind)
        return found

    # ---- pages ----

    def _chart(self, request: Request) -> Response:
        return self._page(request, "chart.html", chart)

    def _trades(self, request: Request) -> Response:
        def content(asked: Asked) -> dict[str, Any]:
            found = asked.opened.profits.read(asked.trader, asked.account)
            trips = _chosen_trips(asked)
            paging = Paging.of(request, len(trips))
            return {
                "found": found,
                "trips": trips[paging.start : paging.stop],
                "paging": paging,
                "sorts": list(SORTS.items())[1:],
                "states": list(STATES.items()),
                "chosen": {"sort": request.args.get("sort"), "state": request.args.get("state")},
                "address": asked.address("asset", "state", "sort"),
            }

        return self._page(request, "trades.html", content)

    def _days(self, request: Request) -> Response:
        def content(asked: Asked) -> dict[str, Any]:
            days = _days(asked)
            paging = Paging.of(request, len(days), size=DAYS_PER_PAGE)
            return {
                "days": days[paging.start : paging.stop],
                "count": len(days),
                "ups": sum(day.profit > 0.0 for day in days),
                "best": max(days, key=lambda day: day.growth, default=None),
                "worst": min(days, key=lambda day: day.growth, default=None),
                "paging": paging,
                "figures": {"days": days_figure(days)} if days else {},
                "address": asked.address(),
            }

        return self._page(request, "days.html", content)

    def _orders(self, request: Request) -> Response:
        def content(asked: Asked) -> dict[str, Any]:
            records, wanted = asked.opened.records, _order_filter(asked)
            paging = Paging.of(request, records.count_orders(wanted))
            return {
                "orders": records.orders(wanted, offset=paging.start, limit=paging.size),
                "paging": paging,
                "statuses": ORDER_STATUSES,
                "chosen": wanted,
                "address": asked.address("asset", "side", "status", "from", "to"),
            }

        return self._page(request, "orders.html", content)

    def _events(self, request: Request) -> Response:
        def content(asked: Asked) -> dict[str, Any]:
            records, wanted = asked.opened.records, _event_filter(asked)
            paging = Paging.of(request, records.count_events(wanted))
            found = records.events(wanted, offset=paging.start, limit=paging.size)
            return {
                "events": [(one, level_of(one.kind)) for one in found],
                "kinds": records.event_kinds(asked.slot),
                "levels": LEVELS,
                "paging": paging,
                "chosen": {
                    name: request.args.get(name, "") for name in ("kind", "level", "source", "text")
                },
                "address": asked.address("kind", "level", "source", "text", "from", "to"),
            }

        return self._page(request, "events.html", content)

    def _parity(self, request: Request) -> Response:
        def content(asked: Asked) -> dict[str, Any]:
            days, at = stored_parity(asked.opened.registry.database, asked.slot)
            paging = Paging.of(request, len(days), size=DAYS_PER_PAGE)
            return {
                "days": days[::-1][paging.start : paging.stop],
                "at": at,
                "commands": SlotCommands.of(
                    asked.slot, where=registry_flags(asked.opened.registry)
                ),
                "through": days[-1].day if days else None,
                "decisions": sum(day.decisions for day in days),
                "action": max((day.action for day in days), default=0.0),
                "differs": DIFFERS,
                "changed": sum(day.action > DIFFERS for day in days),
                "unexplained": any(day.unexplained > DIFFERS for day in days),
                "gap": max(days, key=lambda day: abs(day.gap), default=None),
                "bar": max((day.bar for day in days), default=0.0),
                "certificates": stored_certificates(
                    asked.opened.registry.database, asked.slot, newest=CERTIFICATES_SHOWN
                )[::-1],
                "paging": paging,
                "figures": {"parity": parity_figure(days)}
                if any(abs(day.gap) > SAME for day in days)
                else {},
                "address": asked.address(),
            }

        return self._page(request, "parity.html", content)

    # ---- exports ----

    def _export_orders(self, kind: str, request: Request) -> Response:
        asked = self._asked(request)
        names = (field.name for field in dataclasses.fields(OrderRecord))
        columns = [name for name in names if name != "restart_clock"]  # the trader's own
        rows = (
            {name: getattr(one, name) for name in columns}
            | {"decided": _moment(one.decided), "at": _moment(one.at)}
            for one in asked.opened.records.stream_orders(_order_filter(asked))
        )
        return export(rows, columns, kind, f"orders-{asked.name}")

    def _export_events(self, kind: str, request: Request) -> Response:
        asked = self._asked(request)
        rows = (
            one._asdict() | {"bar": _moment(one.bar), "level": LEVELS[level_of(one.kind)]}
            for one in asked.opened.records.stream_events(_event_filter(asked))
        )
        columns = (*EventRecord._fields, "level")
        return export(rows, columns, kind, f"events-{asked.slot}")

    def _export_trades(self, kind: str, request: Request) -> Response:
        asked = self._asked(request)
        columns = [field.name for field in dataclasses.fields(RoundTrip)]
        more = ("profit", "ratio", "entry", "exit")

        def rows() -> Iterator[dict[str, Any]]:
            for trip in _chosen_trips(asked):
                values = {name: getattr(trip, name) for name in (*columns, *more)}
                yield values | {"opened": _moment(trip.opened), "closed": _moment(trip.closed)}

        return export(rows(), (*columns, *more), kind, f"trades-{asked.name}")

    def _export_days(self, kind: str, request: Request) -> Response:
        asked = self._asked(request)
        rows = (dataclasses.asdict(day) | {"day": date_of(day.day)} for day in _days(asked))
        columns = [field.name for field in dataclasses.fields(Day)]
        return export(rows, columns, kind, f"days-{asked.name}")

    def _export_parity(self, kind: str, request: Request) -> Response:
        asked = self._asked(request)
        days, _at = stored_parity(asked.opened.registry.database, asked.slot)
        rows = (
            dataclasses.asdict(one) | {"day": date_of(one.day), "gap": one.gap}
            for one in days[::-1]
        )
        columns = [field.name for field in dataclasses.fields(ParityDay)]
        return export(rows, (*columns, "gap"), kind, f"parity-{asked.slot}")

    # ---- what all of them need ----

    def _asked(self, request: Request) -> Asked:
        """Return what a request asks for.

        Raises:
            NotFound: there is no such slot, account or asset.
            InputError: there is no slot, or it was never traded.
        """
        slots = self._paper.slots()
        slot = request.args.get("slot") or next(iter(slots))
        if slot not in slots:
            raise NotFound(f"There is no slot {slot!r}.")
        replay = request.args.get("replay")
        if request.path.partition(".")[0] in OF_TRADERS:
            opened = self._paper.open()
        else:
            opened = self._paper.account(slot, replay)
        trader = opened.store.trader(slot)
        if trader is None:
            synthetic = slots[slot].synthetic
            where = registry_flags(opened.registry)
            raise InputError(never_traded(SlotCommands.of(slot, where=where, synthetic=synthetic)))
        accounts = [one.name for one in opened.store.accounts(slot) if one.kind != BENCHMARK]
        account = request.args.get("account") or SLOT_ACCOUNT
        if account not in accounts and account != SLOT_ACCOUNT:
            raise NotFound(f"Slot {slot!r} has no account {account!r}.")
        tickers, asset = opened.records.order_tickers(slot), request.args.get("asset") or ""
        if asset and asset not in tickers:
            raise NotFound(f"Slot {slot!r} does not trade {asset!r}.")
        return Asked(request, opened, slots, trader, accounts, account, tickers, asset)

    def _page(self, request: Request, template: str, content: Any) -> Response:
        try:
            asked = self._asked(request)
            return self._pages.render(
                template,
                "/",
                **slot_links(
                    asked.slots,
                    asked.slot,
                    request,
                    asked.opened,
                    self._paper.replays(asked.slot),
                    alerts_of(self._paper.open(), asked.slot, asked.slots[asked.slot]),
                ),
                account=asked.account,
                # Its own account is the choice of an address without one.
                accounts=[name for name in asked.accounts if name != SLOT_ACCOUNT],
                tickers=asked.tickers,
                asset=asked.asset,
                trader=asked.trader,
                **content(asked),
            )
        except (InputError, RunError) as problem:
            slots = known_slots(self._paper)
            links = slot_links(slots, request.args.get("slot"), request)
            return self._pages.render("slot.html", "/", problem, **links)


def _chosen_trips(asked: Asked) -> list[RoundTrip]:
    """Return the round trips that the query asks for, in its order."""
    found = asked.opened.profits.read(asked.trader, asked.account)
    state, sort = chosen(asked.request, "state", STATES), chosen(asked.request, "sort", SORTS)
    trips = [
        trip
        for trip in (found.trips if found else [])
        if (not asked.asset or trip.ticker == asked.asset) and (not state or state == _state(trip))
    ]
    if sort == "ratio":
        return sorted(trips, key=lambda trip: trip.ratio, reverse=True)
    if sort:
        return sorted(trips, key=lambda trip: trip.profit, reverse=sort == "profit")
    # Open ones first, then by their end.
    return sorted(trips, key=lambda trip: (trip.closed is None, trip.closed or trip.opened))[::-1]


def _state(trip: RoundTrip) -> str:
    return "open" if trip.closed is None else "gain" if trip.realised > 0.0 else "loss"


def _days(asked: Asked) -> list[Day]:
    accounts = {one.name: one for one in asked.opened.store.accounts(asked.slot)}
    if asked.account not in accounts:
        return []
    series, equal = (
        asked.opened.cache.read(asked.slot, accounts[name]) if name in accounts else None
        for name in (asked.account, EQUAL_WEIGHT)
    )
    assert series is not None
    found = asked.opened.profits.read(asked.trader, asked.account)
    return days_of(series, equal, found.by_day() if found else {})


def _order_filter(asked: Asked) -> OrderFilter:
    request, last = asked.request, asked.day("to")
    return OrderFilter(
        asked.slot,
        asked.account,
        asked.asset,
        chosen(request, "side", ("buy", "sell")),
        chosen(request, "status", ORDER_STATUSES),
        asked.day("from"),
        None if last is None else last + DAY - 1,
    )


def _event_filter(asked: Asked) -> EventFilter:
    request = asked.request
    known = asked.opened.records.event_kinds(asked.slot)
    kind, level = chosen(request, "kind", known), chosen(request, "level", LEVELS)
    kinds = [kind] if kind else []
    if level:
        # No kind of an event is empty, so that this finds nothing if no kind has the level.
        kinds = [one for one in kinds_of(level, known) if one in (kinds or known)] or [""]
    first, last = asked.day("from"), asked.day("to")
    return EventFilter(
        asked.slot,
        kinds,
        chosen(request, "source", ("trader", "registry")),
        request.args.get("text", "").strip(),
        "" if first is None else date_of(first),
        "" if last is None else date_of(last) + LAST_MOMENT,
    )


def _moment(seconds: int | None) -> str | None:
    """Return seconds since the epoch as UTC text for files."""
    if seconds is None:
        return None
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%dT%H:%M:%SZ}"
