"""Output of `sweepd dashboard`: screens, JSON and error messages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.deploy.cli import dashboard as command
from sweepd.deploy.dashboard import formatting
from sweepd.deploy.dashboard.terminal import slot_screen
from sweepd.deploy.games.gate import GameGate
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import percent
from sweepd.hooks import CommandHooks
from tests.deploy.builders import promoter_of
from tests.deploy.dashboard.conftest import Made
from tests.deploy.dashboard.synthetic import bundles, write_session
from tests.deploy.dashboard.test_web import NoStudies
from tests.deploy.games.players import GOOD, SLOT, study_of


def printed(folder: Path, *arguments: str, search: Any = None) -> str:
    """Return the output of `sweepd dashboard` with these arguments."""
    app = build_app(CommandHooks(open_studies=lambda *_: search or NoStudies()))
    done = CliRunner().invoke(
        app, ["dashboard", *arguments, "--deployments", str(folder)], catch_exceptions=False
    )
    assert done.exit_code == 0
    return done.output


def on_screen(made: Made, slot: str, width: int = 160) -> str:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(slot_screen(made.view(slot)), highlight=False)
    return capture.get()


def test_screen_of_a_slot(made: Made) -> None:
    text, view = on_screen(made, "demo-1h"), made.view("demo-1h")
    for title in (
        "slot demo-1h  trading",
        "Equity, after fees",
        "Positions",
        "Newest orders",
        "Arena",
        "Live monitor",
        "Events",
    ):
        assert title in text, title
    for account in view.accounts:
        line = next(line for line in text.splitlines() if line.startswith(f"│ {account.name} "))
        for word in (
            f"{account.value:,.2f}",
            percent(account.total_return),
            formatting.share(account.max_drawdown),
        ):
            assert word in line, (account.name, word)
    assert re.search(r"buy BTC/USDT .* 400\.00", text)
    assert "unfilled: below the venue's minimum of 10 USD" in text
    assert "beats the champion on the same bars" in text
    assert "1h bars from binance" in text


@pytest.mark.parametrize("width", [70, 100, 240])
def test_screen_fits_the_width_of_the_terminal(made: Made, width: int) -> None:
    for slot in ("demo-1h", "halted-1h", "never-1h", "silent-1h"):
        assert max(map(len, on_screen(made, slot, width).splitlines())) <= width


def test_halt_and_risk_rules_are_shown_first(made: Made) -> None:
    text = on_screen(made, "halted-1h")
    assert "slot halted-1h  halted" in text.splitlines()[0]
    assert "portfolio drawdown of 20.3%" in text
    assert "daily loss of 5.1%" in text


def test_once_prints_all_slots_or_one(made: Made) -> None:
    text = printed(made.folder, "--once")
    for slot in ("demo-1h", "halted-1h", "never-1h", "silent-1h"):
        assert f"slot {slot}  " in text
    one = printed(made.folder, "--once", "never-1h")
    assert "Slot never-1h was never traded. To start: sweepd trade never-1h" in one
    assert "demo-1h" not in one
    assert (
        printed(made.folder, "--terminal", "never-1h").splitlines()[0] == one.splitlines()[0]
    )  # no terminal: once


def test_json_equals_the_view(made: Made) -> None:
    (slot,) = json.loads(printed(made.folder, "--json", "demo-1h"))["slots"]
    view = made.view("demo-1h")
    assert slot["accounts"][0]["total_return"] == view.accounts[0].total_return
    assert [one["name"] for one in slot["accounts"]] == [account.name for account in view.accounts]
    assert slot["monitor"]["verdict"] == "as scored"
    assert len(json.loads(printed(made.folder, "--json"))["slots"]) == 4


def test_missing_slots_and_studies_are_refused(made: Made, tmp_path: Path) -> None:
    for folder, arguments, says in (
        (tmp_path, ("--once",), "there is no registry at"),
        (
            made.folder,
            ("--once", "none"),
            "there is no slot 'none'; slots: demo-1h, halted-1h, never-1h, silent-1h",
        ),
        (made.folder, ("--training", "--once"), "for a study: sweepd watch"),
        (made.folder, ("--training", "--terminal"), "for a study: sweepd watch"),
        (made.folder, ("--training", "--json"), "for a study: sweepd watch"),
        (made.folder, ("--training", "--once", "demo-1h"), "name a study with --study-name"),
    ):
        with pytest.raises(InputError) as refused:
            printed(folder, *arguments)
        assert says in str(refused.value)
    Registry(tmp_path).refuse("s", "no candidate passes")
    with pytest.raises(InputError, match=r"has a champion yet: .* \(sweepd promote --deployments"):
        printed(tmp_path, "--once")


def test_slots_of_games_are_refused(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "deployments")
    promoter_of(GameGate, study_of(tmp_path, [GOOD]), registry, games=16).run()
    with pytest.raises(
        InputError,
        match=f"no slot in .* trades: {SLOT} plays a game .to show it: sweepd play {SLOT} --dep",
    ):
        printed(registry.folder, "--json")
    registry.promote("demo-1h", bundles()[0], expected=None, reason="")
    assert SLOT not in printed(registry.folder, "--once")
    with pytest.raises(InputError, match=f"'{SLOT}' plays a game: sweepd play {SLOT} --.* shows"):
        printed(registry.folder, "--once", SLOT)


def test_markup_in_names_is_text(tmp_path: Path) -> None:
    evil = "[bold]x[red]"
    registry = Registry(tmp_path)
    registry.promote(evil, bundles()[0], expected=None, reason=evil)
    store = TraderStore(registry.database)
    write_session(
        store,
        evil,
        bundles()[:1],
        bars=40,
        state={"monitor": {"verdict": evil, "text": evil}},
        feed=evil,
    )
    store.halt(evil, evil, sells=False)
    assert printed(tmp_path, "--once").count(evil) >= 6


def test_terminal_is_updated_until_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def sleep(_seconds: float) -> None:
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", sleep)
    command._watch(lambda: looks.append(1) or "screen")  # type: ignore[func-returns-value]
    assert len(looks) == 3


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (3, "3 s"),
        (119, "119 s"),
        (600, "10 min"),
        (7300, "2.0 h"),
        (100 * 3600, "4.2 days"),
        (400 * 86400, "400 days"),
    ],
)
def test_durations_in_their_largest_unit(seconds: float, says: str) -> None:
    assert formatting.span(seconds) == says


def test_number_formats() -> None:
    assert [percent(value) for value in (0.1, -0.001234, 123.0, None, float("nan"))] == [
        "+10.00%",
        "-0.12%",
        "+12,300%",
        "–",
        "–",
    ]
    assert [formatting.price(value) for value in (60_000.0, 0.00001234, 9.5, None)] == [
        "60,000.00",
        "1.234e-05",
        "9.5",
        "–",
    ]
    assert formatting.money(0.0) == "0.00"
    assert formatting.moment(0) == "1970-01-01 00:00"


def test_options_of_the_registry_are_passed_to_the_studies(tmp_path: Path) -> None:
    asked: list[Any] = []

    def open_studies(*given: Any) -> Any:
        asked.append(given)
        return NoStudies()

    app = build_app(CommandHooks(open_studies=open_studies))
    flags = [
        "--deployments",
        str(tmp_path),
        "--registry",
        f"sqlite:///{tmp_path}/r.db",
        "--storage",
        "x",
        "--json",
    ]
    CliRunner().invoke(app, ["dashboard", *flags])
    assert [given[-1] for given in asked] == [RegistryFlags(tmp_path, f"sqlite:///{tmp_path}/r.db")]
