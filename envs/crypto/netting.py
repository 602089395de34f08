"""Sub-accounts: the rows of a ledger as parts of one account, whose orders are netted before they reach the venue.

Every row decides for itself, as if it were alone, at its own share of the capital. What some rows buy and others sell
of the same asset at the same close changes hands between them at that close, without fee or slippage: the account's
cash and units stay what they are, so nothing is gained or lost. Only what is left, the net order, goes to the venue,
fills at the next bar's open like any order, and must keep the venue's limits (minimum order, increments). The rows
share it in proportion to what each still wants, so the account is at all times the sum of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from envs.crypto.ledger import ROUNDING_NOISE, SMALLEST_ORDER, Ledger
from envs.crypto.params import EnvParams, Instruments


@dataclass(frozen=True)
class Netted:
    """What netting came to at one close.

    buy, sell_units: (N,) the account's orders, quote units to spend and units to sell; of an asset it is one or the
    other. whole: (N,) bool, the sell closes the account's position. crossed: (N,) quote units that changed hands
    between rows. dropped: (N,) bool, net orders that the venue would not take.
    """

    buy: Tensor
    sell_units: Tensor
    whole: Tensor
    crossed: Tensor
    dropped: Tensor

    @property
    def sent(self) -> Tensor:
        """(N,) bool: assets with an order."""
        return (self.buy > 0) | (self.sell_units > 0)


class Venue:
    """The limits that an account's net orders must keep."""

    def __init__(self, params: EnvParams, instruments: Instruments) -> None:
        """params: of the account, whose minimum order counts where the ticker's is not larger."""
        at_least = max(params.minimum_order, SMALLEST_ORDER)
        self._minimum = torch.tensor(instruments.minimum_order, dtype=torch.float64).clamp_min(
            at_least
        )
        self._increment = torch.tensor(instruments.increment, dtype=torch.float64)

    def net(self, ledger: Ledger, close: Tensor) -> Netted:
        """Cross the orders in the ledger's `buy` and `sell` at a close (N, R), and leave in them each row's part of the
        net orders. To be called between `plan` and `fill`.

        Where nothing is crossed and no limit met, no bit of the ledger changes.
        """
        crossed = _cross(ledger, close)
        buy, units = ledger.buy.sum(1), (ledger.sell * ledger.units).sum(1)
        whole = ((ledger.sell == 1.0) | (ledger.units <= 0.0)).all(1) & (units > 0)
        allowed_buy, allowed_units = self._allowed(buy, units, close[:, 0], whole)
        for orders, wanted, allowed in (
            (ledger.buy, buy, allowed_buy),
            (ledger.sell, units, allowed_units),
        ):
            share = torch.where(allowed == wanted, 1.0, allowed / wanted.clamp_min(1e-200))
            orders.mul_(share.unsqueeze(1))
        dropped = ((buy > SMALLEST_ORDER) & (allowed_buy == 0)) | (
            (units > 0) & (allowed_units == 0)
        )
        return Netted(allowed_buy, allowed_units, whole & (allowed_units > 0), crossed, dropped)

    def _allowed(
        self, buy: Tensor, units: Tensor, close: Tensor, whole: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(N,) each: net orders as the venue takes them. A whole position may always be sold, and is sold whole."""
        buy = torch.where(buy >= self._minimum, buy, 0.0)
        units = torch.where((units * close >= self._minimum) | whole, units, 0.0)
        rounds = self._increment > 0
        step = torch.where(rounds, self._increment, 1.0)
        buy = torch.where(rounds, torch.floor(buy * 100.0 + ROUNDING_NOISE) / 100.0, buy)
        steps = torch.floor(units / step + ROUNDING_NOISE) * step
        return buy, torch.where(rounds & ~whole, steps.minimum(units), units)


def _cross(ledger: Ledger, close: Tensor) -> Tensor:
    """Let units and cash change hands at the close; (N,) quote units that did. Buyers of what many want, and sellers of
    what few want, get and give in proportion to their orders; a position sold whole that is crossed in full is closed.
    """
    units, buy, sell = ledger.units, ledger.buy, ledger.sell
    sold = sell * units * close
    bought_all, sold_all = buy.sum(1, keepdim=True), sold.sum(1, keepdim=True)
    crossed = torch.minimum(bought_all, sold_all)
    meet = crossed > 0
    taken = torch.where(meet, buy * (crossed / bought_all), 0.0)
    given = torch.where(meet, sold * (crossed / sold_all), 0.0)
    closed = (sell == 1.0) & (sold_all <= crossed)
    kept = torch.where(meet, torch.where(closed, 0.0, units - given / close).clamp_min(0.0), units)
    opened = (kept == 0) & (taken > 0)
    # What is still to be sold, as a share of what is kept; a whole position stays one.
    rest = torch.where(
        (sell == 1.0) | (kept == 0), sell, ((sold - given) / close / kept).clamp_max(1.0)
    )
    ledger.sell.copy_(
        torch.where(meet, torch.where((sold_all > crossed) & (sold > 0), rest, 0.0), sell)
    )
    ledger.buy.copy_(torch.where(meet, torch.where(bought_all > crossed, buy - taken, 0.0), buy))
    ledger.paid.copy_(torch.where(given > 0, ledger.paid * (kept / units), ledger.paid).add_(taken))
    ledger.units.copy_(torch.where(taken > 0, kept + taken / close, kept))
    ledger.held.copy_(torch.where(opened | (meet & (ledger.units == 0)), 0.0, ledger.held))
    ledger.high.copy_(torch.where(opened, close, ledger.high))
    ledger.cash.copy_((ledger.cash + given.sum(0) - taken.sum(0)).clamp_min(0.0))
    return crossed.squeeze(1)


def sub_account(params: EnvParams, share: float) -> EnvParams:
    """The parameters of a part of an account. Cash and minimum order are of its size, so that by itself it would trade
    exactly as the whole account does, on a smaller scale.
    """
    return replace(
        params, initial_cash=params.initial_cash * share, minimum_order=params.minimum_order * share
    )
