"""The account figures of a bar: how the environment records them, and what they mean."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.envs.crypto.portfolio import Charged, Filled, Portfolio, asset_sum
from sweepd.envs.crypto.rules import Rules

RECORD_ROWS, RECORD_ROWS_WITH_SHORTS = 8, 10


class Account(NamedTuple):
    """Account figures of the last closed bar, before any autoreset, or of many: (…, R) float64.

    Attributes:
        value: V at the bar's close, in quote units.
        equal_weight: E, the value of the equal-weight benchmark at the close, in quote units.
        fees: of the orders filled in the bar, and what was charged for borrowing, in quote units.
        notional: of the orders filled in the bar, in quote units.
        trades: number of orders filled.
        exposure: 1 - cash / V; where shorts are allowed, the sum of the positions' sizes over V.
        dropped: number of orders below the minimum.
        unfilled: number of orders whose fill bar was a hole.
    """

    value: Tensor
    equal_weight: Tensor
    fees: Tensor
    notional: Tensor
    trades: Tensor
    exposure: Tensor
    dropped: Tensor
    unfilled: Tensor

    @classmethod
    def of(cls, record: Tensor, rules: Rules) -> Account:
        """Interpret records (…, RECORD_ROWS or RECORD_ROWS_WITH_SHORTS, R)."""
        columns = record.unbind(-2)
        spent, sold, equal_weight, value, cash, dropped, trades, unfilled = columns[:8]
        filled = Filled(*(part.unsqueeze(-1) for part in (spent, sold, trades, unfilled)))
        notional, fees = (of(rules).squeeze(-1) for of in (filled.notional, filled.fees))
        exposure = 1.0 - cash / value
        if len(columns) == RECORD_ROWS_WITH_SHORTS:
            charges, gross = columns[8:]
            fees, exposure = fees + charges, gross / value
        return cls(value, equal_weight, fees, notional, trades, exposure, dropped, unfilled)


def record_of(
    portfolio: Portfolio,
    total: Tensor,
    worth: Tensor,
    dropped: Tensor,
    filled: Filled,
    charged: Charged | None,
) -> Tensor:
    """Return the figures of a bar as a record, which `Account.of` interprets.

    Args:
        portfolio: at the bar's close.
        total: (2, R), E and V.
        worth: (R, N), value of the positions.
        dropped: (R,), of the orders decided at the last close.
        filled: what was done in the bar.
        charged: what the venue did at the close; None without shorts.
    """
    figures = [filled.spent, filled.sold, *total.unsqueeze(2), portfolio.cash]
    figures += [dropped.unsqueeze(1), filled.trades, filled.unfilled]
    if charged is not None:
        figures += [charged.charges, asset_sum(worth.abs())]
    return torch.cat(figures, dim=1).t()
