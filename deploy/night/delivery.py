"""The night's step `report`: read the rows, write the report's files, and send it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sweepd.deploy.night.facts import AccountLine, NightFacts, SlotRows, TraderFact, night_facts
from sweepd.deploy.night.records import NightStore
from sweepd.deploy.night.report import night_report
from sweepd.deploy.night.shell import Context, Result
from sweepd.deploy.promotion.documents import to_html, to_png
from sweepd.deploy.promotion.markdown import to_markdown
from sweepd.deploy.promotion.sections import Report
from sweepd.deploy.registry.arena_rows import ArenaRows
from sweepd.deploy.registry.flags import registry_flags
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.registry.slots import slot_name
from sweepd.deploy.trading.flows import growth
from sweepd.deploy.trading.live.notify import Notifier
from sweepd.deploy.trading.live.records import CASH, EQUAL_WEIGHT, SHADOW, SLOT_ACCOUNT
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic

SENDING = 60.0  # seconds that addresses have to answer
EVENTS = 200  # the newest of a slot's history that are read


@dataclass(frozen=True)
class Written:
    """A report and its files. png: None without a picture."""

    report: Report
    html: Path
    markdown: Path
    png: Path | None


def report(context: Context) -> Result:
    """Write the report and send it. An address that fails is said, and fails nothing."""
    config, said = context.config, list[str]()
    facts = read_facts(context.registry, config.slot, context.night.night, context.now())
    written = write_report(facts, Path(config.report.folder))
    if config.report.notify:
        try:
            sender = Notifier.from_environment(os.environ, said.append)
        except InputError as error:
            said.append(str(error))
        else:
            send(sender, facts, written)
    files = {"html": str(written.html), "markdown": str(written.markdown)}
    return Result("done", files | ({"reason": "; ".join(said)} if said else {}))


def read_facts(registry: Registry, slot: str, night: str, now: float) -> NightFacts:
    """Read the rows of a night, and how its slot stands.

    Args:
        registry: the registry.
        slot: the slot.
        night: the night's UTC day.
        now: seconds since the epoch.

    Raises:
        InputError: the slot has had no such night.
    """
    nights, store = NightStore(registry.database), TraderStore(registry.database)
    found = nights.night(slot, night)
    if found is None:
        raise InputError(f"slot {slot!r} has had no night {night}")
    arena, trader = ArenaRows(registry.database), store.trader(slot)
    reign = arena.reign(slot)
    fact = None
    if trader is not None:
        silent = now - datetime.fromisoformat(trader.beat).timestamp()
        fact = TraderFact(trader.status, trader.halt, silent)
    steps = [row for row in nights.steps(slot) if row.night <= night]
    rows = SlotRows(
        champion=registry.slot(slot).champion,
        events=registry.events(slot, newest=EVENTS),
        reign=reign,
        entries=() if reign is None else arena.entries(slot, reign.number),
        days=() if reign is None else arena.days(slot, reign.number),
        accounts=account_lines(store, slot),
        disks=[row.facts for row in steps if row.step == "disk"],
        trader=fact,
        where=registry_flags(registry),
    )
    return night_facts(found, [row for row in steps if row.night == night], rows)


def account_lines(store: TraderStore, slot: str) -> Sequence[AccountLine]:
    """Return the slot's own account, its shadow, equal weight and cash, in this order."""
    wanted = {SLOT_ACCOUNT: 0, SHADOW: 1, EQUAL_WEIGHT: 2, CASH: 3}
    found = []
    for one in store.accounts(slot):
        place = wanted.get(one.kind, wanted.get(one.name))
        if place is None or one.retired is not None:
            continue
        lines = store.account_history(slot, one.name, since=one.since)
        if len(lines.time):
            grown = growth(lines.value, lines.flow)
            line = AccountLine(one.name, one.kind, lines.time, grown, float(lines.value[-1]))
            found.append((place, line))
    return [line for _, line in sorted(found, key=lambda one: one[0])]


def write_report(facts: NightFacts, folder: Path) -> Written:
    """Write SLOT-NIGHT.html, .md and .png into a folder; the same night replaces them."""
    made, base = night_report(facts), f"{slot_name(facts.slot)}-{facts.night}"
    png = None if made.picture is None else to_png(made.picture.draw())
    paths = Written(
        made,
        folder / f"{base}.html",
        folder / f"{base}.md",
        None if png is None else folder / f"{base}.png",
    )
    write_atomic(paths.html, to_html(made, png))
    write_atomic(paths.markdown, to_markdown(made))
    if paths.png is not None and png is not None:
        write_atomic(paths.png, png)
    return paths


def send(sender: Notifier, facts: NightFacts, written: Written) -> None:
    """Send a report to all addresses that want nights, and wait for them."""
    attach = () if written.png is None else (written.png,)
    text = written.markdown.read_text(encoding="utf-8")
    html = written.html.read_text(encoding="utf-8")
    sender.notify("night", written.report.headline, text, facts.slot, html=html, attach=attach)
    sender.close(SENDING)
