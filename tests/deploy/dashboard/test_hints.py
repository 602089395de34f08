"""Commands that pages and the terminal print: the program parses each one as printed."""

from __future__ import annotations

import dataclasses
import re
import shlex
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from sweepd.commands import CommandTable, UnloadedCommand, build_app
from sweepd.deploy.dashboard.alerts import RULES, TO_DO, slot_alerts, study_alerts
from sweepd.deploy.dashboard.health import health
from sweepd.deploy.dashboard.hints import SlotCommands
from sweepd.deploy.dashboard.source import PaperSource
from sweepd.deploy.registry.flags import RegistryFlags, registry_flags
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.invocation import program
from tests.deploy.builders import small_bundle
from tests.deploy.dashboard.test_web import OneStudy
from tests.deploy.trading.test_paper_trader import TICKERS, market_bars

SLOT = "demo's 1h"  # a name that a shell splits
# What may follow a command in a sentence.
END = r"(?= \(|; |, |\. |\.$|\)| – |$)"


def commands(texts: Iterable[str]) -> list[list[str]]:
    """Return the words of all commands in some texts."""
    found = re.findall(rf"{re.escape(program())} (.+?){END}", "\n".join(texts), re.MULTILINE)
    return [shlex.split(one) for one in found]


def check(words: list[str]) -> None:
    """Parse a command as the program does, without running it."""
    table = typer.main.get_command(build_app())
    assert isinstance(table, CommandTable)
    name, *rest = words
    unloaded = table.commands[name]
    assert isinstance(unloaded, UnloadedCommand)
    command = unloaded.load()
    while isinstance(command, TyperGroup):
        name, *rest = rest
        command = command.commands[name]
    command.make_context(name, rest)


@pytest.mark.parametrize("synthetic", [True, False])
def test_every_hint_about_a_slot_runs_as_printed(tmp_path: Path, synthetic: bool) -> None:
    folder = tmp_path / "my deployments"
    registry = Registry(folder)
    data = small_bundle(1).manifest.data.model_copy(update={"synthetic": synthetic})
    registry.promote(SLOT, small_bundle(1, data=data), expected=None, reason="test")
    source = PaperSource(RegistryFlags(folder))
    [never] = commands(source.slots()[SLOT].sentences)
    feed = ["--feed", "recorded"] if synthetic else []
    assert never == ["trade", SLOT, *feed, "--deployments", str(folder)]
    check(never)

    store = TraderStore(registry.database)
    token = store.take_over(SLOT, broker="sim", feed="binance", timeframe="1h")
    store.halt(SLOT, "a test", sells=False)
    for rule in RULES:
        store.note(SLOT, rule.kind, f"about {rule.kind}")
    store.beat(SLOT, token, "waits")
    trader = store.trader(SLOT)
    assert trader is not None
    where = registry_flags(registry)
    printed: list[str] = []
    for changed in (
        trader,
        dataclasses.replace(trader, status="stopped"),
        dataclasses.replace(trader, host="elsewhere", beat="2026-01-01T00:00:00Z"),
        dataclasses.replace(trader, pid=2**22, beat="2026-01-01T00:00:00Z", halt=None),
    ):
        state = health(changed, time.time(), slot=SLOT, where=where)
        records = Records(registry.database)
        alerts = slot_alerts(records, changed, SLOT, state, time.time(), where=where)
        printed += [*state.sentences, *(one.todo for one in alerts)]
    found = commands(printed)
    assert {words[0] for words in found} == {"trade", "trader", "rollback", "registry"}
    for words in {tuple(one) for one in found}:
        check(list(words))
        assert words[-2:] == ("--deployments", str(folder))
        assert SLOT in words
    assert ["trade", SLOT, "--feed", "binance", "--deployments", str(folder)] in found


def test_every_command_of_an_alert_is_one_that_runs() -> None:
    about = SlotCommands.of(SLOT, synthetic=True)
    texts = [
        text.format(commands=about, program=program(), study="'my study'")
        for text in TO_DO.values()
    ]
    found = commands(texts)
    assert len(found) == sum(
        text.count("{commands.") + text.count("{program}") for text in TO_DO.values()
    )
    every = [*found, *commands([about.replay, about.parity, about.trade])]
    for words in {tuple(one) for one in every}:
        check(list(words))


def test_hints_of_studies_and_empty_folders_run_as_printed(tmp_path: Path) -> None:
    found = OneStudy(study="my study", unhealthy=["no worker is alive"]).found
    for words in commands(one.todo for one in study_alerts(found)):
        assert words == ["train", "--study-name", "my study"]
        check(words)
    Registry(tmp_path / "d").refuse(SLOT, "no candidate passes")
    with pytest.raises(InputError) as problem:
        PaperSource(RegistryFlags(tmp_path / "d")).slots()
    [words] = commands([str(problem.value)])
    assert words == ["promote", "--deployments", str(tmp_path / "d")]
    check(words)


def test_the_hint_of_a_synthetic_slot_trades_recorded_bars(tmp_path: Path) -> None:
    bars = market_bars(1, bars=640)
    write_bars(dataclasses.replace(bars, synthetic=True), tmp_path / "bars")
    data = small_bundle(2, tickers=TICKERS).manifest.data.model_copy(update={"synthetic": True})
    bundle = small_bundle(2, tickers=TICKERS, data=data, last_seen=int(bars.time[620]))
    folder = tmp_path / "deployments"
    Registry(folder).promote(
        SLOT, bundle, expected=None, reason="test", data_dir=str(tmp_path / "bars")
    )
    source = PaperSource(RegistryFlags(folder))
    [words] = commands(source.slots()[SLOT].sentences)
    result = CliRunner().invoke(build_app(), words)
    assert result.exit_code == 0, result.output
    view = PaperSource(RegistryFlags(folder)).view(SLOT)
    own = view.account("account")
    assert own is not None
    assert own.bars == 20
