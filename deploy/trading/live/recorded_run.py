"""Trading recorded bars on virtual money with the machine that trades live."""

from __future__ import annotations

from collections.abc import Iterator

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.scoring import in_order
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.live.account import Act
from sweepd.deploy.trading.live.events import BarClosed, Instruction, Started, Submit, TraderOptions
from sweepd.deploy.trading.live.machine import Machine, deliver
from sweepd.deploy.trading.live.venue import Venue
from sweepd.deploy.trading.paper_trader import Entry, bars_needed
from sweepd.deploy.trading.risk_limits import RiskLimits
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import bar_end
from sweepd.envs.support.errors import InputError, RunError

DRY_RUN_BARS = 100


def trade_bars(
    bundle: Bundle,
    bars: Bars,
    first: int,
    last: int,
    *,
    slot: str,
    cash: float | None = None,
    any_account: bool = False,
    limits: RiskLimits | None = None,
    act: Act | None = None,
    decide_last: bool = False,
) -> Iterator[Entry]:
    """Trade recorded bars on virtual money, and yield the entry of every bar.

    Args:
        bundle: the bundle to trade.
        bars: in the order of its tickers; at least `bars_needed` before `first`.
        first: index of the first bar.
        last: index of the last bar.
        slot: prefix of the orders' client ids.
        cash: of the account; default: the bundle's initial cash.
        any_account: accept any amount of cash.
        limits: risk rules; none by default.
        act: replaces the bundle's policy.
        decide_last: whether the policy decides at the last bar, too.

    Raises:
        InputError: the account's value is out of range.
    """
    venue, needed = Venue.virtual(bundle, cash), bars_needed(bundle)
    history = bars.slice(max(0, first - needed), first)
    machine = Machine(
        slot, {bundle.hash: bundle}, history, dry_run=lambda _bundle, _history: None, act=act
    )

    def perform(instruction: Instruction) -> None:
        if isinstance(instruction, Submit):
            venue.submit(instruction.orders)

    started = Started(
        now=bar_end(bars.timeframe, int(bars.time[first - 1])),
        options=TraderOptions(limits=limits or RiskLimits(), any_account=any_account),
        bundle=bundle.hash,
        lost=None,
        immediate=False,
        shorts=True,
        untradable={},
        holdings=venue.broker.account(),
        challengers=(),
        history=len(history),
    )
    deliver(machine, started, perform)
    for number in range(first, last + 1):
        bar = ClosedBar.of(bars, number)
        end, decide = float(bar_end(bars.timeframe, bar.time)), number < last or decide_last
        reading = venue.reading(bar, bars.tickers)
        deliver(machine, BarClosed(end, decide, reading, bar), perform)
        yield machine.entry


def dry_run(bundle: Bundle, history: Bars) -> str | None:
    """Return why a bundle cannot trade the last 100 bars of a history, None if it can.

    A champion must do so before it takes over: an error would end the session later, with positions
    open.
    """
    last, needed = len(history) - 1, bars_needed(bundle)
    first = len(history) - DRY_RUN_BARS
    if first < needed:
        return f"it needs {needed + DRY_RUN_BARS} bars for a dry run, and there are {len(history)}"
    try:
        bars = in_order(history, bundle)
        for _ in trade_bars(bundle, bars, first, last, slot="dry-run", decide_last=True):
            pass
    except (InputError, RunError, ValueError, RuntimeError) as error:
        return f"its dry run over the last {DRY_RUN_BARS} bars failed: {error}"
    return None
