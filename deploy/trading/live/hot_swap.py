"""What a champion that takes over must have in common with the traded bundle."""

from __future__ import annotations

from dataclasses import dataclass

from sweepd.deploy.market.bundle import Bundle, alpaca_symbols
from sweepd.envs.support.errors import InputError


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


def mismatch(own: Traded, traded: Traded) -> str | None:
    """Return how a champion's market differs from the traded one, None if they are equal."""
    if own.timeframe != traded.timeframe:
        return f"it trades bars of {own.timeframe}, and the slot is traded on {traded.timeframe}"
    if set(own.tickers) != set(traded.tickers):
        return f"it trades {', '.join(own.tickers)}, and the slot holds {', '.join(traded.tickers)}"
    return None


def unfit(bundle: Bundle, traded: Traded, *, broker: str, feed: str, shorts: bool) -> str | None:
    """Return why a bundle cannot be traded in place of another one, None if it can.

    Args:
        bundle: the bundle.
        traded: the other one.
        broker: name of the slot's; Alpaca needs a symbol for each ticker.
        feed: name of the slot's.
        shorts: the slot's account has short positions.
    """
    own = Traded.of(bundle)
    if problem := mismatch(own, traded):
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
    return None
