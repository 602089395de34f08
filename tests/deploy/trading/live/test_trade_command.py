"""`sweepd trade` and `sweepd trader` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import sweepd.deploy.trading.live.start as start_module
from sweepd.commands import build_app
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.deploy.trading.replay import replay
from sweepd.envs.crypto.data.bars import Bars, write_bars
from sweepd.envs.support.errors import InputError, TryAgainLater
from tests.deploy.alpaca_server import Exchange, serving
from tests.deploy.trading.live.test_session import FIRST, LAST, TICKERS, bars_of, bundle_of
from tests.deploy.trading.live.world import SLOT


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with a registry and bars, some of which the champion has seen."""
    bars = bars_of()
    write_bars(bars, tmp_path / "bars")
    bundle = bundle_of(last_seen=int(bars.time[FIRST]))
    registry = Registry(tmp_path / "deployments")
    registry.promote(SLOT, bundle, expected=None, reason="test", data_dir=str(tmp_path / "bars"))
    return tmp_path


def trade(place: Path, *words: str) -> str:
    """Return what `sweepd trade` prints. Its errors are raised."""
    return run(place, "trade", *words)


def trader(place: Path, *words: str) -> str:
    """Return what `sweepd trader` prints. Its errors are raised."""
    return run(place, "trader", *words)


def run(place: Path, *words: str) -> str:
    app = build_app()
    result = CliRunner().invoke(
        app, [*words, "--deployments", str(place / "deployments")], catch_exceptions=True
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def values(place: Path) -> list[float]:
    store = TraderStore(Registry(place / "deployments").database)
    return [line.value for line in store.account_bars(SLOT, "account")]


def expected(place: Path, bars: Bars, **changes: Any) -> list[float]:
    registry = Registry(place / "deployments")
    champion = registry.slot(SLOT).champion
    assert champion is not None
    return [
        entry.value
        for entry in replay(
            registry.bundle(champion, Bundle), bars, (FIRST, LAST), **changes
        ).entries
    ]


def test_recorded_bars_are_traded_from_the_first_unseen_one_to_the_last(place: Path) -> None:
    output = trade(place, "--feed", "recorded")
    assert "Research software, paper trading only" in output
    assert "started:" in output
    assert "stopped; the same command continues from here" in output
    assert values(place) == expected(place, bars_of())


def test_a_slot_that_has_traded_before_asks_to_be_restarted(place: Path) -> None:
    """A supervisor repeats code 75, and not code 2, with which a first start fails."""
    bars, words = place / "bars", ("--feed", "recorded", "--data-dir", str(place / "bars"))
    write_bars(bars_of().slice(0, FIRST + 8), place / "less")
    bars.rename(place / "away")
    with pytest.raises(InputError, match="bars") as first:
        trade(place, *words)
    assert first.value.exit_code == 2
    trade(place, "--feed", "recorded", "--data-dir", str(place / "less"))
    with pytest.raises(TryAgainLater, match="has traded before, so this may pass") as later:
        trade(place, *words)
    assert later.value.exit_code == 75
    (place / "away").rename(bars)
    registry = Registry(place / "deployments")
    weights = registry.path(str(registry.slot(SLOT).champion)) / "members.safetensors"
    weights.rename(place / "weights")
    with pytest.raises(TryAgainLater, match="members"):
        trade(place, *words)
    (place / "weights").rename(weights)
    with pytest.raises(InputError, match="broker"):  # a flag is wrong, and would be again
        trade(place, *words, "--broker", "alpaca")
    assert "continues after the bar of" in trade(place, *words)
    assert values(place) == expected(place, bars_of())


def test_a_missing_registry_of_a_trader_that_was_started_before_may_come_back(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--feed", "recorded", "--data-dir", str(place / "bars"))
    database, away = place / "deployments" / "registry.db", place / "away.db"
    database.rename(away)
    with pytest.raises(InputError, match="there is no registry"):  # a first start
        trade(place, *words, SLOT)
    away.rename(database)
    write_bars(bars_of().slice(0, FIRST + 8), place / "less")
    trade(place, "--feed", "recorded", "--data-dir", str(place / "less"))
    database.rename(away)
    for slot in ([], [SLOT]):
        with pytest.raises(TryAgainLater, match="started in this folder before"):
            trade(place, *words, *slot)
    with pytest.raises(InputError, match="there is no registry"):
        trade(place, *words, "another")
    (place / "deployments").rename(place / "unmounted")
    with pytest.raises(InputError, match="there is no registry"):  # a mistyped folder at a terminal
        trade(place, *words)
    monkeypatch.setenv("NOTIFY_SOCKET", str(place / "socket"))
    with pytest.raises(TryAgainLater, match="A service is started, so this may pass") as later:
        trade(place, *words)
    assert later.value.exit_code == 75
    monkeypatch.delenv("NOTIFY_SOCKET")
    (place / "unmounted").rename(place / "deployments")
    away.rename(database)
    assert "continues after the bar of" in trade(place, *words)
    assert values(place) == expected(place, bars_of())


def test_the_same_command_continues_and_prints_risk_rules(place: Path) -> None:
    bars = bars_of()
    write_bars(bars.slice(0, FIRST + 8), place / "less")
    output = trade(
        place,
        SLOT,
        "--feed",
        "recorded",
        "--data-dir",
        str(place / "less"),
        "--risk",
        "drawdown=0.3",
    )
    assert "risk rule: sells everything once the account is 30%" in output
    assert len(values(place)) == 8
    assert "continues after the bar of" in trade(
        place, SLOT, "--feed", "recorded", "--risk", "drawdown=0.3"
    )
    assert values(place) == expected(place, bars)


def test_a_folder_feed_uses_the_real_clock(place: Path) -> None:
    # Its bars are old: the trader finds no recent ones, and refuses before it trades.
    with pytest.raises(InputError, match="has no bars of BTC/USDT since"):
        trade(place, "--feed", "folder")
    assert values(place) == []


class Messages:
    """A notifier that records its messages."""

    words = "everything"

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.closed = False

    def notify(self, kind: str, title: str, _text: str, _slot: str) -> None:
        assert title.startswith(f"sweepd {SLOT}: ")
        self.kinds.append(kind)

    def close(self) -> None:
        self.closed = True


def test_trades_days_and_alerts_are_sent_as_notifications(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = Messages()
    monkeypatch.setattr(start_module.Notifier, "from_environment", lambda *_: messages)
    assert "notifications: everything" in trade(
        place, "--feed", "recorded", "--risk", "drawdown=0.002"
    )
    assert {"trade", "daily", "alert"} <= set(messages.kinds)
    assert messages.closed


def test_halt_and_resume(place: Path) -> None:
    with pytest.raises(InputError, match="was never traded"):
        trader(place, "halt", SLOT)
    trade(place, "--feed", "recorded")
    output = trader(place, "halt", SLOT)
    assert f"sends no other orders until: sweepd trader resume {SLOT}" in output
    assert "sells all its positions" in output
    found = TraderStore(Registry(place / "deployments").database).trader(SLOT)
    assert found is not None
    assert (found.halt, found.halt_sells) == ("by the operator", True)
    assert "may trade again" in trader(place, "resume", SLOT)
    with pytest.raises(InputError, match="is not halted"):
        trader(place, "resume", SLOT)
    assert "keeps its positions" in trader(place, "halt", SLOT, "--keep")


def test_status_of_a_trader(place: Path) -> None:
    Registry(place / "deployments").slot(SLOT)
    assert "no slot was ever traded" in trader(place, "status")
    trade(place, "--feed", "recorded")
    assert f"{SLOT}: stopped. " in trader(place, "status", SLOT)
    trader(place, "halt", SLOT)
    assert f"sweepd trader resume {SLOT}" in trader(place, "status")
    [facts] = json.loads(trader(place, "status", "--json"))["traders"]
    assert (facts["slot"], facts["halt"]) == (SLOT, "by the operator")
    assert not {"token", "state"} & set(facts)
    with pytest.raises(InputError, match=f"was never traded; traded slots: {SLOT}"):
        trader(place, "status", "other-1h")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["unknown"], "slot 'unknown' has no champion"),
        (
            ["--broker", "kraken"],
            "--broker 'kraken' is not known; choose one of sim, alpaca, or name",
        ),
        (["--url", "http://127.0.0.1:1"], "--url is for --broker alpaca"),
        (["--speed", "10"], "--speed and --from are for --feed recorded"),
        (["--feed", "recorded", "--from", "soon"], "--from 'soon' is not a time"),
        (["--feed", "recorded", "--from", "2090-01-01"], "leaves nothing to trade"),
        (["--feed", "recorded", "--data-dir", "/nowhere"], "/nowhere"),
        (["--feed", "no-such-exchange"], "no-such-exchange"),
        (["--broker", "alpaca", "--cash", "5"], "--cash is for --broker sim"),
        (["--risk", "luck=1"], "there is no such rule"),
        (["--bundle", "x"], "--bundle is for --replay"),
        (["--feed", "recorded", "--cash", "1"], "outside half to three times"),
    ],
)
def test_wrong_input_is_one_sentence(place: Path, words: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        trade(place, *words)
    assert "\n" not in str(caught.value)


def test_the_alpaca_broker_needs_keys_and_a_paper_address(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("alpaca", reason="alpaca-py is not installed")
    monkeypatch.delenv("APCA_API_KEY_ID", raising=False)
    with pytest.raises(InputError, match="needs the keys of a paper account in APCA_API_KEY_ID"):
        trade(place, "--feed", "recorded", "--broker", "alpaca")
    monkeypatch.setenv("APCA_API_KEY_ID", "key")
    monkeypatch.setenv("APCA_API_SECRET_KEY", "secret")
    with pytest.raises(
        InputError, match=r"only https://paper-api\.alpaca\.markets and this machine"
    ):
        trade(
            place, "--feed", "recorded", "--broker", "alpaca", "--url", "https://api.alpaca.markets"
        )


@pytest.mark.parametrize("words", [["--broker", "alpaca", "--feed", "recorded"], []])
def test_a_bundle_with_one_symbol_for_two_tickers_is_not_traded_at_alpaca(
    place: Path, words: list[str]
) -> None:
    """Versions that did not refuse its promotion may have made it."""
    registry = Registry(place / "deployments")
    champion = registry.slot(SLOT).champion
    symbols = {"alpaca": dict.fromkeys(TICKERS, "BTC/USD") | {TICKERS[2]: "LINK/USD"}}
    made = bundle_of(last_seen=int(bars_of().time[FIRST]), symbols=symbols)
    registry.promote(SLOT, made, expected=champion, reason="", data_dir=str(place / "bars"))
    refused = "BTC/USDT and ETH/USDT are both BTC/USD at Alpaca, where they would be one position"
    with pytest.raises(InputError, match=refused) as first:
        trade(place, *words)
    assert first.value.exit_code == 2
    assert "\n" not in str(first.value)
    trade(place, "--feed", "recorded")  # the simulator has a position for each
    if not words:
        with pytest.raises(TryAgainLater, match=refused) as later:
            trade(place)
        assert later.value.exit_code == 75


def test_the_command_trades_on_a_local_alpaca(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("alpaca", reason="alpaca-py is not installed")
    monkeypatch.setenv("APCA_API_KEY_ID", "key")
    monkeypatch.setenv("APCA_API_SECRET_KEY", "secret")
    from decimal import Decimal

    market = Exchange({ticker.replace("USDT", "USD"): Decimal(100) for ticker in TICKERS})
    with serving(market):
        output = trade(place, "--feed", "recorded", "--broker", "alpaca", "--url", market.url)
    assert "traded symbols differ from the training data: BTC/USDT as BTC/USD" in output
    assert len(market.orders) > 5
    assert "secret" not in output
    assert len(values(place)) == LAST - FIRST + 1
