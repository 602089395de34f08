"""Whether a new champion may take over: it must first trade the newest bars in a dry run.

A champion takes over at a bar at which it decides. Where the traded bundle can no longer be loaded,
it takes over at the start of a session, from what the account's record says.
"""

from __future__ import annotations

from dataclasses import dataclass

from sweepd.deploy.market.bundle import Bundle, alpaca_symbols
from sweepd.deploy.market.scoring import in_order
from sweepd.deploy.registry.bundle_files import NAME_DIGITS
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.brokers.sim import sim_broker
from sweepd.deploy.trading.live.records import SLOT_ACCOUNT
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.deploy.trading.paper_trader import PaperTrader
from sweepd.deploy.trading.replay import replay_entries
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.support.errors import InputError, RunError

DRY_RUN_BARS = 100


@dataclass(frozen=True)
class Traded:
    """What a champion that takes over must have in common with the traded bundle.

    tickers: in the bundle's order.
    shorts: the account may hold short positions.
    """

    timeframe: str
    tickers: tuple[str, ...]
    shorts: bool

    @classmethod
    def of(cls, bundle: Bundle) -> Traded:
        """Return it for a bundle."""
        manifest = bundle.manifest
        return cls(manifest.timeframe, manifest.tickers, bundle.account.allow_short)


@dataclass(frozen=True)
class LostBundle(Traded):
    """A traded bundle that cannot be loaded any more, and why."""

    name: str
    why: str

    def refused(self, champion: str, problem: str) -> str:
        """Return in one sentence that the champion cannot take over, either."""
        return f"{self.why}; the champion {champion} cannot take over: {problem}"


def bundle_to_trade(registry: Registry, slot: str) -> tuple[Bundle, LostBundle | None]:
    """Return the bundle with which a session begins.

    That is the one that holds the positions; without positions, or if it cannot be loaded any more,
    the champion.

    Returns:
        The bundle, and the one from which it takes over, None if that is the same.

    Raises:
        InputError: it cannot be loaded.
    """
    champion = registry.require(slot).champion
    assert champion is not None
    accounts = TraderStore(registry.database).accounts(slot)
    hash_ = next((one.bundle for one in accounts if one.name == SLOT_ACCOUNT), champion)
    assert hash_ is not None
    try:
        return registry.bundle(hash_, Bundle), None
    except InputError as error:
        market = registry.market(hash_)
        if hash_ == champion or market is None:
            raise
        why = str(error)
    try:
        bundle = registry.bundle(champion, Bundle)
    except InputError as error:
        raise InputError(f"{why}; the champion cannot be loaded, either: {error}") from None
    held = next(one.state["trader"]["accounts"] for one in accounts if one.name == SLOT_ACCOUNT)
    shorts = any(units < 0.0 for book in held["books"] for units in book["units"])
    lost = LostBundle(*market, shorts, hash_[:NAME_DIGITS], why)
    if problem := _mismatch(Traded.of(bundle), lost):
        raise InputError(lost.refused(bundle.name, problem))
    return bundle, lost


def problem_with(
    bundle: Bundle,
    traded: Traded,
    history: Bars,
    *,
    broker: str = "sim",
    feed: str = "",
    shorts: bool = True,
) -> str | None:
    """Return why `bundle` cannot take over from `traded`, one sentence; None if it can.

    It must trade the same tickers at the same timeframe, and trade the last 100 bars of `history`
    on virtual money without an error. With short positions, it needs an account that has them
    (`shorts`), and at Alpaca a symbol for each ticker: `broker` and `feed` are the names of the
    slot's.
    """
    own = Traded.of(bundle)
    if problem := _mismatch(own, traded):
        return problem
    if own.shorts and not shorts:
        return f"it was trained with --allow-short, and broker {broker} has no short positions"
    if traded.shorts and not own.shorts:
        return "it trades without shorts, and the slot's account may hold short positions"
    if "alpaca" in (broker, feed):
        try:
            alpaca_symbols(bundle)
        except InputError as error:
            return str(error)
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


def _mismatch(own: Traded, traded: Traded) -> str | None:
    """Return how a champion's market differs from the traded one, None if they are equal."""
    if own.timeframe != traded.timeframe:
        return f"it trades bars of {own.timeframe}, and the slot is traded on {traded.timeframe}"
    if set(own.tickers) != set(traded.tickers):
        return f"it trades {', '.join(own.tickers)}, and the slot holds {', '.join(traded.tickers)}"
    return None
