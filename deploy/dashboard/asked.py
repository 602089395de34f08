"""What a request asks for: an account of a traded slot, from its trader or from a replay."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from werkzeug.exceptions import BadRequest
from werkzeug.wrappers import Request

from sweepd.deploy.dashboard.health import Health
from sweepd.deploy.dashboard.pages import Address
from sweepd.deploy.dashboard.source import Opened
from sweepd.deploy.trading.live.records import Trader

MOMENT = "%Y-%m-%dT%H:%M"  # of an address


@dataclass(frozen=True)
class Asked:
    """A request about an account of a traded slot."""

    request: Request
    opened: Opened
    slots: Mapping[str, Health]
    trader: Trader
    accounts: list[str]
    account: str
    tickers: list[str]
    asset: str

    @property
    def slot(self) -> str:
        return self.trader.slot

    def address(self, *names: str) -> Address:
        """Return the request's address with these parameters, slot, account and replay."""
        return Address.of(self.request, "slot", "account", "replay", *names)

    @property
    def name(self) -> str:
        """Of a file about the account."""
        replay = self.opened.replay
        return f"{self.slot}-{self.account}" if replay is None else f"replay-{replay.name}"

    def day(self, name: str) -> int | None:
        """Return the start of a day of the query, seconds since the epoch."""
        text = self.request.args.get(name)
        if not text:
            return None
        try:
            found = dt.datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=dt.UTC)
        except ValueError:
            raise BadRequest(f"{name}={text}: give a day like 2026-01-31.") from None
        return int(found.timestamp())

    def moment(self, name: str) -> int | None:
        """Return a moment of the query, seconds since the epoch."""
        text = self.request.args.get(name)
        if not text:
            return None
        try:
            found = dt.datetime.strptime(text, MOMENT).replace(tzinfo=dt.UTC)
        except ValueError:
            raise BadRequest(f"{name}={text}: give a UTC time like 2026-01-31T12:00.") from None
        return int(found.timestamp())


def date_of(seconds: int) -> str:
    """Return the day of seconds since the epoch, UTC."""
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%d}"


def moment_of(seconds: int) -> str:
    """Return seconds since the epoch as a moment of an address, UTC."""
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):{MOMENT}}"
