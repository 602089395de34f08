"""Sub-accounts: rows of portfolios as parts of one account, with netted orders.

Each row decides independently for its fraction of the capital. Opposite orders of rows for the same
asset at the same close are crossed internally at that close, without fee or slippage. The account's
total cash and units do not change by that, so nothing is gained or lost. Only the net order goes to
the venue, where it fills at the next bar's open and must respect the venue's limits (minimum order,
increments). Its fill is distributed over the rows in proportion to their remaining orders, so the
account always equals the sum of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.crypto.portfolio import ROUNDING_NOISE, TINY, Orders, Portfolio
from sweepd.envs.crypto.rules import SMALLEST_ORDER


@dataclass(frozen=True)
class Netted:
    """Result of netting at one close.

    Attributes:
        buy: (N,), quote units that the account buys for. Per asset, this or `sell_units` is 0.
        sell_units: (N,), units that the account sells.
        whole: (N,) bool, whether the sell closes the account's position.
        crossed: (N,), quote units crossed between rows.
        dropped: (N,) bool, net orders outside the venue's limits.
    """

    buy: Tensor
    sell_units: Tensor
    whole: Tensor
    crossed: Tensor
    dropped: Tensor

    @property
    def sent(self) -> Tensor:
        """Return which assets have an order: (N,) bool."""
        return (self.buy > 0) | (self.sell_units > 0)


class Venue:
    """The limits that an account's net orders must respect."""

    def __init__(self, params: EnvParams, instruments: Instruments) -> None:
        """Take the limits of `instruments`, with the account's minimum order as lower bound."""
        at_least = max(params.minimum_order, SMALLEST_ORDER)
        self._minimum = torch.tensor(instruments.minimum_order, dtype=torch.float64).clamp_min(
            at_least
        )
        self._increment = torch.tensor(instruments.increment, dtype=torch.float64)

    def net(
        self, portfolio: Portfolio, orders: Orders, close: Tensor
    ) -> tuple[Portfolio, Orders, Netted]:
        """Cross the rows' orders at `close` (R, N).

        Call it between `plan` and `fill`. If nothing is crossed and no limit applies, nothing
        changes, to the bit.

        Returns:
            The portfolio after crossing, each row's part of the net orders, and the net orders of
            the account.
        """
        assert orders.part is not None
        # Asset-first, because sums over rows depend on the order of memory.
        books = Portfolio(*map(_turned, portfolio))
        buy, part, closes = map(_turned, (orders.buy_notional, orders.part, close))
        # Crossing first, so that limits apply to the net orders only.
        books, buy, part, crossed = _cross(books, buy, part, closes)
        bought, units = buy.sum(1), (part * books.units).sum(1)
        whole = ((part == 1.0) | (books.units <= 0.0)).all(1) & (units > 0)
        allowed_buy, allowed_units = self._allowed(bought, units, closes[:, 0], whole)
        # Scale the rows' orders down to what the venue accepts, in proportion.
        buy = buy * _share(allowed_buy, bought)
        part = part * _share(allowed_units, units)
        dropped = ((bought > SMALLEST_ORDER) & (allowed_buy == 0)) | (
            (units > 0) & (allowed_units == 0)
        )
        netted = Netted(allowed_buy, allowed_units, whole & (allowed_units > 0), crossed, dropped)
        left = replace(
            orders,
            sell_units=_turned(part * books.units),
            buy_notional=_turned(buy),
            whole=_turned((part == 1.0) & (books.units != 0)),
            part=_turned(part),
        )
        return Portfolio(*map(_turned, books)), left, netted

    def _allowed(
        self, buy: Tensor, units: Tensor, close: Tensor, whole: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Apply the venue's limits to net orders, (N,) each.

        A whole position may be sold even below the minimum order, and is not rounded.
        """
        buy = torch.where(buy >= self._minimum, buy, 0.0)
        units = torch.where((units * close >= self._minimum) | whole, units, 0.0)
        rounds = self._increment > 0
        step = torch.where(rounds, self._increment, 1.0)
        buy = torch.where(rounds, torch.floor(buy * 100.0 + ROUNDING_NOISE) / 100.0, buy)
        steps = torch.floor(units / step + ROUNDING_NOISE) * step
        return buy, torch.where(rounds & ~whole, steps.minimum(units), units)


def _turned(tensor: Tensor) -> Tensor:
    """Return (R, N) as a contiguous (N, R), or the reverse."""
    return tensor.t().contiguous()


def _share(allowed: Tensor, wanted: Tensor) -> Tensor:
    """Return which fraction of what is wanted is allowed, (N,) each: (N, 1)."""
    share = torch.where(allowed == wanted, 1.0, allowed / wanted.clamp_min(TINY))
    return share.unsqueeze(1)


def _cross(
    books: Portfolio, buy: Tensor, part: Tensor, close: Tensor
) -> tuple[Portfolio, Tensor, Tensor, Tensor]:
    """Cross opposite orders at the close.

    The side with the larger total is filled in proportion to the orders. A position that is sold
    whole and crossed completely is closed exactly, without a rounding residue.

    Args:
        books: asset-first.
        buy: (N, R), notional to buy.
        part: (N, R), fraction of the position to sell, exactly 1 for the whole position.
        close: (N, R).

    Returns:
        The portfolio, `buy` and `part` after that, and the crossed notional, (N,) in quote units.
    """
    cash, units, paid, high, held = books
    sold = part * units * close
    bought_all, sold_all = buy.sum(1, keepdim=True), sold.sum(1, keepdim=True)
    # The smaller side is crossed completely; both sides give up the same notional.
    crossed = torch.minimum(bought_all, sold_all)
    meet = crossed > 0
    taken = torch.where(meet, buy * (crossed / bought_all), 0.0)
    given = torch.where(meet, sold * (crossed / sold_all), 0.0)
    # A whole sell that is crossed completely leaves exactly 0 units, whatever rounding says.
    closed = (part == 1.0) & (sold_all <= crossed)
    kept = torch.where(meet, torch.where(closed, 0.0, units - given / close).clamp_min(0.0), units)
    # A flat row that buys opens a position: its clock and highest close start here.
    opened = (kept == 0) & (taken > 0)
    # The remaining sell as a fraction of the remaining units. A whole sell stays exactly 1.
    rest = torch.where(
        (part == 1.0) | (kept == 0), part, ((sold - given) / close / kept).clamp_max(1.0)
    )
    part = torch.where(meet, torch.where((sold_all > crossed) & (sold > 0), rest, 0.0), part)
    buy = torch.where(meet, torch.where(bought_all > crossed, buy - taken, 0.0), buy)
    # `paid` falls in proportion to the units given and grows by the notional taken: crossing is
    # accounted like a sell and a buy at the close, without costs.
    paid = torch.where(given > 0, paid * (kept / units), paid) + taken
    units = torch.where(taken > 0, kept + taken / close, kept)
    held = torch.where(opened | (meet & (units == 0)), 0.0, held)
    high = torch.where(opened, close, high)
    cash = (cash + given.sum(0, keepdim=True) - taken.sum(0, keepdim=True)).clamp_min(0.0)
    return Portfolio(cash, units, paid, high, held), buy, part, crossed.squeeze(1)


def sub_account(params: EnvParams, fraction: float) -> EnvParams:
    """Return the parameters of a sub-account with that fraction of the capital.

    Cash and minimum order scale alike, so the sub-account alone trades exactly as the whole account
    would, on a smaller scale.
    """
    return replace(
        params,
        initial_cash=params.initial_cash * fraction,
        minimum_order=params.minimum_order * fraction,
    )
