"""A slot's challengers against the champion, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweepd.deploy.dashboard.series import Series
from sweepd.envs.crypto.data.timeframe import DAY


@dataclass(frozen=True)
class ChallengerView:
    """A challenger compared with the champion over the challenger's bars.

    bundle: its hash.
    state: in words; the numbers are None for a challenger that does not trade.
    """

    bundle: str
    state: str
    days: float | None = None
    total_return: float | None = None
    champion_return: float | None = None
    sharpe: float | None = None
    champion_sharpe: float | None = None
    max_drawdown: float | None = None
    trades: int | None = None

    @property
    def ahead(self) -> float | None:
        """Return minus the champion's."""
        if self.total_return is None or self.champion_return is None:
            return None
        return self.total_return - self.champion_return


def challenger_views(
    every: Sequence[Series], waiting: Sequence[str], timeframe: str
) -> list[ChallengerView]:
    """Return the challengers: trading ones by advantage, then retired and waiting ones.

    Args:
        every: series of all accounts.
        waiting: hashes of the slot's challengers.
        timeframe: of the bars.
    """
    # As in the arena: the shadow trades with the challengers' broker, the account may not.
    champion = next(
        (one for kind in ("shadow", "account") for one in every if one.account.kind == kind), None
    )
    views = [
        _challenger(one, champion, timeframe) for one in every if one.account.kind == "challenger"
    ]
    trading = {one.account.bundle for one in every if one.account.kind == "challenger"}
    views += [
        ChallengerView(bundle, "waits for a place in the arena")
        for bundle in waiting
        if bundle not in trading
    ]
    return sorted(
        views, key=lambda one: (one.state != "trading", one.days is None, -(one.ahead or 0.0))
    )


def _challenger(series: Series, champion: Series | None, timeframe: str) -> ChallengerView:
    lines, account = series.lines, series.account
    first, last = int(lines.time[0]), int(lines.time[-1])
    # Only over bars that both have: different periods are not comparable.
    own_bars = None if champion is None else champion.cut(first, last)
    return ChallengerView(
        bundle=account.bundle or account.name,
        state="trading" if account.retired is None else f"retired: {account.retired}",
        days=(last - first) / DAY,
        total_return=float(series.growth[-1] - 1.0),
        champion_return=None if own_bars is None else float(own_bars.growth[-1] - 1.0),
        sharpe=series.sharpe(timeframe),
        champion_sharpe=None if own_bars is None else own_bars.sharpe(timeframe),
        max_drawdown=float(series.drawdown.max()),
        trades=int(lines.trades.sum()),
    )
