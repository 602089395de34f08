"""Whether a new champion may take over: it must first trade the newest bars in a dry run."""

from __future__ import annotations

from deploy.market.bundle import Bundle
from deploy.market.scoring import in_order
from deploy.trading.brokers.sim import sim_broker
from deploy.trading.paper_trader import PaperTrader
from deploy.trading.replay import replay_entries
from envs.crypto.data.bars import Bars
from envs.support.errors import InputError, RunError

DRY_RUN_BARS = 100


def problem_with(
    bundle: Bundle, running: Bundle, history: Bars, *, broker: str = "sim"
) -> str | None:
    """Return why `bundle` cannot take over from `running`, one sentence; None if it can.

    It must trade the same tickers at the same timeframe, and trade the last 100 bars of `history`
    on virtual money without an error. With short positions, it needs an account that has them:
    `broker` is the name of the slot's broker.
    """
    ours, theirs = running.manifest, bundle.manifest
    if theirs.timeframe != ours.timeframe:
        return f"it trades bars of {theirs.timeframe}, and the slot is traded on {ours.timeframe}"
    if set(theirs.tickers) != set(ours.tickers):
        return (
            f"it trades {', '.join(theirs.tickers)}, and the slot holds {', '.join(ours.tickers)}"
        )
    if bundle.account.allow_short and broker != "sim":
        return f"it was trained with --allow-short, and broker {broker} has no short positions"
    if running.account.allow_short and not bundle.account.allow_short:
        return "it trades without shorts, and the slot's account may hold short positions"
    trader, last = PaperTrader(bundle, slot="dry-run"), len(history) - 1
    first = len(history) - DRY_RUN_BARS
    if first < trader.bars_needed:
        needed = trader.bars_needed + DRY_RUN_BARS
        return f"it needs {needed} bars for a dry run, and there are {len(history)}"
    # Any error here would end the session later, with positions open.
    try:
        bars = in_order(history, bundle)
        for _ in replay_entries(trader, sim_broker(bundle), bars, first, last, decide_last=True):
            pass
    except (InputError, RunError, ValueError, RuntimeError) as error:
        return f"its dry run over the last {DRY_RUN_BARS} bars failed: {error}"
    return None
