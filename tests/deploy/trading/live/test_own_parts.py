"""Brokers and feeds of other packages: traded on paper, recorded, refused in one sentence."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.brokers.base import Broker, require_paper
from sweepd.deploy.trading.live.own_parts import make_own_broker, own_parts
from sweepd.deploy.trading.live.profits import fills_at_once
from sweepd.deploy.trading.live.start import LiveFlags, TraderParts
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.deploy.trading.live.venue import Venue
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.support.errors import InputError
from tests.deploy.trading.live.test_session import FIRST, TICKERS, bars_of, bundle_of
from tests.deploy.trading.live.test_trade_command import expected, trade, values
from tests.deploy.trading.live.world import SLOT
from tests.distributions import install

MODULE = """
from pathlib import Path
from sweepd.deploy.trading.brokers.alpaca import AlpacaBroker
from sweepd.deploy.trading.brokers.base import Broker, Fill
from sweepd.deploy.trading.brokers.sim import SimBroker
from sweepd.deploy.trading.feeds import LiveFeed, RecordedFeed
from sweepd.envs.crypto.data.bars import load_bars

class Choosy(SimBroker):
    def __init__(self, tickers, cash, params, instruments, *, timeframe, avoid=()):
        super().__init__(tickers, cash, params, instruments, timeframe=timeframe)
        self.avoid, self.refused = set(avoid), []

    def submit(self, orders):
        super().submit([order for order in orders if order.ticker not in self.avoid])
        self.refused += [Fill(order, "unfilled", order.decided, reason="avoided")
                         for order in orders if order.ticker in self.avoid]

    def fills(self):
        refused, self.refused = self.refused, []
        return super().fills() + refused

class Silent(Broker):
    immediate = False
    def account(self): ...
    def submit(self, orders): ...
    def adopt(self, orders, *, final=False): ...
    def fills(self): ...

class Half(Broker):
    paper = "a test"

class NoShorts(Choosy):
    shorts = False

class RealMoney(AlpacaBroker):
    def __init__(self, tickers):
        super().__init__({}, key="k", secret="s", url="https://api.alpaca.markets")

class CcxtLike:
    def create_order(self, symbol): ...

def replayed(tickers, timeframe, folder, count=10**9):
    bars = load_bars(Path(folder), timeframe, tickers)
    return RecordedFeed(bars.slice(0, min(count, len(bars))))

def others(folder):
    return replayed(("BTC",), "1h", folder)

def none(tickers):
    return 3
"""
# The installed module, and a ticker that the bundle buys.
KIT, AVOIDED = "paper_kit", TICKERS[2]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a registry and bars, and an installed package of brokers and feeds."""
    bars = bars_of()
    write_bars(bars, tmp_path / "bars")
    bundle = bundle_of(last_seen=int(bars.time[FIRST]))
    registry = Registry(tmp_path / "deployments")
    registry.promote(SLOT, bundle, expected=None, reason="test", data_dir=str(tmp_path / "bars"))
    points = {
        "sweepd.broker": {"choosy": f"{KIT}:Choosy", "sim": f"{KIT}:Silent"},
        "sweepd.feed": {"replayed": f"{KIT}:replayed", "recorded": f"{KIT}:none"},
    }
    install(tmp_path / "site", "paper-kit", {f"{KIT}.py": MODULE}, points)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield tmp_path
    sys.modules.pop(KIT, None)


def store_of(place: Path) -> TraderStore:
    return TraderStore(Registry(place / "deployments").database)


def test_a_broker_of_another_package_trades_a_slot(place: Path) -> None:
    words = ("--feed", "recorded", "--broker", f'choosy {{"avoid": ["{AVOIDED}"]}}')
    output = trade(place, *words)
    assert "broker choosy, paper-kit 1.2.3, sha256 " in output
    assert "paper account: virtual money" in output
    orders = store_of(place).orders(SLOT)
    # The result of the last one would be reported with the next bar.
    assert {(order.ticker, order.status) for order in orders[:-1]} == {(AVOIDED, "unfilled")}
    trader = store_of(place).trader(SLOT)
    assert trader is not None
    recorded = trader.state["plugins"]["broker"]
    assert (recorded["module"], recorded["version"]) == (KIT, "1.2.3")
    assert (recorded["paper"], recorded["immediate"]) == ("virtual money", False)
    assert recorded["arguments"] == {"avoid": [AVOIDED]}
    assert not fills_at_once(trader, "account")


def test_without_differences_it_trades_as_the_simulator(place: Path) -> None:
    """Bar by bar, over a restart in the middle."""
    write_bars(bars_of().slice(0, FIRST + 8), place / "less")
    words = ("--feed", "recorded", "--broker", f"{KIT}:Choosy", "--data-dir")
    trade(place, *words, str(place / "less"))
    output = trade(place, *words, str(place / "bars"))
    assert "has changed" not in output
    assert values(place) == expected(place, bars_of())


def test_a_change_is_an_event_and_another_broker_is_refused(place: Path) -> None:
    write_bars(bars_of().slice(0, FIRST + 8), place / "less")
    words = ("--feed", "recorded", "--data-dir")
    trade(place, *words, str(place / "less"), "--broker", "choosy")
    with (place / "site" / f"{KIT}.py").open("a") as file:
        file.write("# changed\n")
    output = trade(place, *words, str(place / "bars"), "--broker", "choosy")
    assert "trouble: --broker choosy has changed since it was used here last" in output
    with pytest.raises(InputError, match="has been traded with --broker choosy"):
        trade(place, *words, str(place / "bars"), "--broker", "sim")


def test_a_feed_of_another_package_is_traded(place: Path) -> None:
    """The recorded bars have closed long ago, so the trader starts after them."""
    text = f'replayed {{"folder": "{place / "bars"}"}}'
    output = trade(place, "--feed", text)
    assert "feed replayed, paper-kit 1.2.3, sha256 " in output
    trader = store_of(place).trader(SLOT)
    assert trader is not None
    assert trader.feed == text
    assert trader.state["plugins"]["feed"]["module"] == KIT


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            {"broker": "nobody"},
            "--broker 'nobody' is not known; choose one of sim, alpaca, or name",
        ),
        ({"broker": f"{KIT}:Nobody"}, "has nothing called 'Nobody'"),
        ({"broker": "no_such_kit:Broker"}, "No module named 'no_such_kit'"),
        ({"broker": f"{KIT}:CcxtLike"}, "is not a subclass of sweepd.deploy.trading.brokers.base"),
        ({"broker": f"{KIT}:none"}, "is not a subclass of sweepd.deploy.trading.brokers.base"),
        ({"broker": f"{KIT}:Silent"}, "only paper accounts are traded, and Silent does not say"),
        ({"broker": f"{KIT}:RealMoney"}, "api.alpaca.markets"),
        ({"broker": f"{KIT}:Half"}, "abstract"),
        ({"broker": f"{KIT}:Choosy {{avoid"}, "the arguments are not JSON"),
        ({"broker": f'{KIT}:Choosy {{"no": 1}}'}, "unexpected keyword argument 'no'"),
        ({"broker": f"{KIT}:Choosy", "cash": 5.0}, "--cash is for --broker sim"),
        ({"broker": f"{KIT}:Choosy", "url": "http://localhost"}, "--url is for --broker alpaca"),
        ({"feed": "nobody"}, "ccxt"),
        ({"feed": f"{KIT}:MODULE"}, "has nothing called 'MODULE'"),
        ({"feed": f"{KIT}:none"}, "3 is not a Feed, which has tickers"),
        ({"feed": f"{KIT}:replayed"}, "missing 1 required positional argument: 'folder'"),
        ({"feed": f"{KIT}:Path"}, "is not a Feed"),
        ({"feed": f"{KIT}:replayed", "speed": 3.0}, "--speed and --from are for --feed recorded"),
    ],
)
def test_what_cannot_be_used_is_refused(place: Path, flags: dict[str, Any], said: str) -> None:
    words = {"feed": "recorded"} | flags
    with pytest.raises(InputError, match=said) as refused:
        trade(place, *(part for name, value in words.items() for part in (f"--{name}", str(value))))
    assert refused.value.exit_code == 2
    assert store_of(place).trader(SLOT) is None


def test_a_feed_of_other_tickers_is_refused(place: Path) -> None:
    registry = Registry(place / "deployments")
    bundle = registry.bundle(str(registry.slot(SLOT).champion), Bundle)
    flags = LiveFlags(feed=f'replayed {{"folder": "{place / "bars"}"}}')
    parts = TraderParts(SLOT, registry, flags, bundle, print, threading.Event())
    reversed_ = dataclasses.replace(
        bundle, manifest=bundle.manifest.model_copy(update={"tickers": TICKERS[::-1]})
    )
    assert parts.feed(bundle).timeframe == bundle.manifest.timeframe
    parts._own["feed"].arguments["tickers"] = list(TICKERS)
    with pytest.raises(InputError, match=f"trades {', '.join(TICKERS[::-1])} at"):
        parts.feed(reversed_)


def test_what_is_built_in_wins(place: Path) -> None:
    assert own_parts("sim", "recorded") == {}
    assert own_parts("alpaca", "folder") == {}
    assert values(place) == []


def test_a_broker_without_shorts_is_refused_where_they_were_trained(place: Path) -> None:
    registry = Registry(place / "deployments")
    bundle = registry.bundle(str(registry.slot(SLOT).champion), Bundle)
    short = SimpleNamespace(
        name="short",
        manifest=bundle.manifest,
        account=dataclasses.replace(bundle.account, allow_short=True),
    )
    plugin = own_parts(f"{KIT}:NoShorts", "recorded")["broker"]
    assert isinstance(make_own_broker(plugin, bundle, print, print), Broker)
    with pytest.raises(InputError, match="has no short positions"):
        make_own_broker(plugin, short, print, print)  # type: ignore[arg-type]


def test_a_new_champion_takes_over_at_the_same_broker(place: Path) -> None:
    registry = Registry(place / "deployments")
    bundle = registry.bundle(str(registry.slot(SLOT).champion), Bundle)
    flags = LiveFlags(feed="recorded", broker=f'choosy {{"avoid": ["{AVOIDED}"]}}')
    parts = TraderParts(SLOT, registry, flags, bundle, print, threading.Event())
    venue = Venue(parts.broker(bundle), bundle, parts.broker)
    before = venue.broker
    venue.follow(bundle_of(1))
    assert venue.broker is not before
    assert type(venue.broker) is type(before)
    assert venue.broker.avoid == {AVOIDED}  # type: ignore[attr-defined]
    assert venue.broker.account() == before.account()


def test_every_broker_says_what_makes_its_account_a_paper_account() -> None:
    class Broken(Broker):
        paper = " "

    with pytest.raises(InputError, match="only paper accounts are traded, and Broken does not"):
        require_paper("x", Broken)
