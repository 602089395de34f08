"""Whether a new champion may take over: it is tried on the newest bars before it gets the account."""

from __future__ import annotations

from deploy.market.bundle import Bundle
from deploy.trading.brokers.sim import sim_broker
from deploy.trading.paper_trader import ClosedBar, PaperTrader
from envs.crypto.bars import Bars
from envs.support.errors import InputError, RunError

DRY_RUN_BARS = 100


def problem_with(bundle: Bundle, running: Bundle, history: Bars) -> str | None:
    """Why `bundle` cannot take over from `running`, one sentence; None where it can.

    history: the newest bars. It must trade the same tickers at the same timeframe, and act on the last 100 bars of a
    dry run with virtual money without a fault.
    """
    ours, theirs = running.manifest, bundle.manifest
    if theirs.timeframe != ours.timeframe:
        return f"it trades bars of {theirs.timeframe}, and the slot is traded on {ours.timeframe}"
    if set(theirs.tickers) != set(ours.tickers):
        return (
            f"it trades {', '.join(theirs.tickers)}, and the slot holds {', '.join(ours.tickers)}"
        )
    broker, trader = sim_broker(bundle), PaperTrader(bundle, slot="dry-run")
    first = len(history) - DRY_RUN_BARS
    if first < trader.bars_needed:
        return f"it needs {trader.bars_needed + DRY_RUN_BARS} bars for a dry run, and there are {len(history)}"
    try:
        trader.start(history.slice(0, first), broker.account())
        for number in range(first, len(history)):
            bar = ClosedBar.of(history, number).in_order(history.tickers, theirs.tickers)
            broker.next_bar(bar.time, bar.open, bar.hole)
            broker.submit(trader.on_bar(bar, broker.fills(), broker.account()).orders)
    except (InputError, RunError, ValueError, RuntimeError) as error:
        return f"its dry run over the last {DRY_RUN_BARS} bars failed: {error}"
    return None
