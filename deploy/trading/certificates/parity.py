"""Parity of a live account with the simulator, day by day, recomputed from what was stored.

The machine that traded processes its stored events again, with the stored bars:

* **decisions**: the slot's own account hears the recorded fills, cash and units of every bar, and
  the policy decides again. A decision that differs means that other bars, another policy or another
  version of the program decided. The return is recomputed, too: a difference means that the
  recorded bars, fills and transfers do not explain the recorded value.
* **simulator**: the same bundles from the same start with the simulated broker, which the tests
  hold to the environment's numbers. Its return differs from the account's by what the venue's fills
  cost. Halts and risk rules restrict it as they did the account.

Both decide at the bars at which the account decided, hand over to a new champion at the same bars,
and receive the same transfers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.certificates.simulated import Simulator, growth
from sweepd.deploy.trading.certificates.stored_events import committed, own_event
from sweepd.deploy.trading.live.events import BarClosed, ChampionIs, Event, Reviewed, Started
from sweepd.deploy.trading.live.machine import Machine
from sweepd.deploy.trading.live.queries import Records
from sweepd.deploy.trading.live.recorded_run import dry_run
from sweepd.deploy.trading.live.records import SLOT_ACCOUNT, AccountBar, Changes, ParityDay
from sweepd.deploy.trading.live.revisions import adjusted
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.deploy.trading.paper_trader import bars_needed
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import DAY, format_time
from sweepd.envs.support.errors import InputError


def parity(
    registry: Registry, slot: str, *, progress: Callable[[int, int], None] = lambda _n, _of: None
) -> list[ParityDay]:
    """Recompute the slot's own account from its record. Returns the days, oldest first.

    Bars of an earlier version of the program, which stored no events, are left out.

    Args:
        registry: the registry that holds the slot.
        slot: its name.
        progress: called with the number of bars done and of all bars.

    Raises:
        InputError: the slot was never traded, or its record lacks bars or a bundle.
    """
    store = TraderStore(registry.database)
    lines = {line.time: line for line in store.account_bars(slot, SLOT_ACCOUNT)}
    if store.trader(slot) is None or not lines:
        raise InputError(f"slot {slot!r} has no account that was ever traded: sweepd trade {slot}")
    days: list[ParityDay] = []
    for number, step in enumerate(_steps(registry, slot, lines)):
        if not days or days[-1].day != step.time // DAY * DAY:
            days.append(ParityDay(step.time // DAY * DAY))
        days[-1] = _with(days[-1], step)
        progress(number + 1, len(lines))
    if not days:
        raise InputError(
            f"an earlier version of sweepd recorded slot {slot!r}, and stored no events: only bars "
            "that this version trades can be recomputed"
        )
    return days


@dataclass(frozen=True)
class _Step:
    """One bar: the difference of the action (None without a decision), and the returns.

    growth, again, simulated: as recorded, recomputed from the record, and of the simulator.
    """

    time: int
    action: float | None
    growth: float = 0.0
    again: float = 0.0
    simulated: float = 0.0


def _steps(registry: Registry, slot: str, lines: Mapping[int, AccountBar]) -> Iterator[_Step]:
    """Process the stored events, and yield what is compared at every bar."""
    before: AccountBar | None = None
    own, simulated = 0.0, 0.0  # values at the last close: recomputed, and the simulator's
    simulator: Simulator | None = None
    for machine, event, changes in recomputed(registry, slot):
        if isinstance(event, Reviewed) and simulator is not None:
            simulator.follow(machine.history, event)
        if not isinstance(event, BarClosed):
            continue
        [again] = [line for line in changes.bars if line.account == SLOT_ACCOUNT]
        line = lines.get(again.time)
        if line is None:
            raise InputError(f"the registry lacks the account's bar of {format_time(again.time)}")
        if simulator is None:
            simulator = Simulator(slot, machine, line=line)
        value = simulator.on_bar(machine, event)
        action = None
        if line.action is not None and again.action is not None:
            action = max(abs(line.action[name] - again.action[name]) for name in line.action)
        if before is None:
            yield _Step(line.time, action)
        else:
            yield _Step(
                line.time,
                action,
                growth(before.value, line.value, line.flow),
                growth(own, again.value, again.flow),
                growth(simulated, value, line.flow),
            )
        before, own, simulated = line, again.value, value


def recomputed(registry: Registry, slot: str) -> Iterator[tuple[Machine, Event, Changes]]:
    """Let a machine process the stored events of a slot, without its virtual accounts.

    Yields:
        The machine after each event, the event, and what it would write.

    Raises:
        InputError: bars or bundles are missing.
    """
    store = TraderStore(registry.database)
    inputs = store.inputs(slot)
    while inputs and inputs[0].kind != "Started":
        inputs = inputs[1:]
    if not inputs:
        return
    trader = store.trader(slot)
    assert trader is not None
    traded = {line.bundle for line in store.account_bars(slot, SLOT_ACCOUNT)}
    first = registry.bundle(inputs[0].content["bundle"], Bundle)
    library, tickers = {first.hash: first}, first.manifest.tickers
    bars = Records(registry.database).bars(slot, trader.timeframe, tickers)
    seen = store.adjustments(slot)
    reviews = [one.content["review"] for one in inputs if one.kind == "Reviewed"]
    # Those that precede the stored events; the events have the others.
    known = seen[: len(seen) - sum(len(one["adjustments"]) for one in reviews)]
    machine: Machine | None = None
    for one in inputs:
        event = own_event(one.kind, one.content, one.bar, bars)
        if isinstance(event, Started):
            if event.bundle not in library:
                library[event.bundle] = registry.bundle(event.bundle, Bundle)
            end = int(np.searchsorted(bars.time, one.bar, side="right"))
            if end < bars_needed(library[event.bundle]):
                raise InputError(
                    f"the stored bars of slot {slot!r} begin at {_first(bars)}, too late for the "
                    f"first decision after {format_time(one.bar)}"
                )
            history = adjusted(bars.slice(max(0, end - event.history), end), known)
            if machine is None:
                machine = Machine(slot, library, history, one.snapshot, dry_run=dry_run)
            machine.history = history
        if isinstance(event, ChampionIs) and event.problem is None:
            try:
                library[event.hash] = registry.bundle(event.hash, Bundle)
            except InputError as error:
                if event.hash in traded:
                    raise
                event = replace(event, problem=str(error))  # it was refused then, too
        if isinstance(event, Reviewed):
            known = [*known, *event.review.adjustments]
        assert machine is not None
        yield machine, event, committed(machine.handle(event))


def _first(bars: Bars) -> str:
    return format_time(int(bars.time[0])) if len(bars) else "no time"


def _with(day: ParityDay, step: _Step) -> ParityDay:
    return dataclasses.replace(
        day,
        bars=day.bars + 1,
        decisions=day.decisions + (step.action is not None),
        action=max(day.action, step.action or 0.0),
        growth=(1.0 + day.growth) * (1.0 + step.growth) - 1.0,
        simulated=(1.0 + day.simulated) * (1.0 + step.simulated) - 1.0,
        bar=max(day.bar, abs(step.growth - step.simulated)),
        unexplained=max(day.unexplained, abs(step.growth - step.again)),
    )
