"""The parameters of the order rules, as tensors with one row per portfolio."""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.native.memory import per_row

# Smallest amount that any exchange knows, in quote units. An order below it is a rounding residue:
# it is neither placed nor counted. Positions below it are not kept, even without a minimum order.
SMALLEST_ORDER = 1e-8
# What an account with shorts keeps when its losses exceed its capital, in quote units: the venue
# bears the rest. Growth stays a number.
BANKRUPT_VALUE = 0.01


class Rules:
    """Order parameters, (R, 1) each unless said. Rows can be changed at any time.

    The flags `stops`, `holding_rule` and `shorts` are set if any row uses that rule; `shorts` also
    if a row ever did. Rules that are off in all rows are skipped, which does not change a bit of
    the results.

    Attributes:
        per_action: (2, R, 1), fractions of V: an action's buy, and its sell (negative).
        limits: (2, R, 1), fractions of V: the position limit, and 0.
        reserve: of cash, as a fraction of V.
        fee: as a fraction of the notional.
        buy_rate: units per quote unit of notional, times the open.
        sell_rate: quote units per unit sold, over the open.
        sell_notional: the same before the fee.
        minimum: (R, N), or (R, 1) if the exchange has no minimum orders.
        increment: (N,), None if no asset has one.
        stop_level: fraction of the highest close; 0 if the rule is off.
        cover_level: of shorts, multiple of the lowest close; infinity if the rule is off.
        max_holding_bars: infinity if the rule is off.
        max_holding_fraction: share of a position that is sold then.
        sale_below: actions below it sell a flat asset short: 0 where shorts are allowed. Rows
            without have values of this and the following that never apply.
        least_cash: after buys; 0 without shorts.
        leverage: limit of the positions' sizes, as a multiple of V.
        maintenance: smallest V, as a multiple of the positions' sizes.
        borrow_rate: borrow fee per bar.
        bankrupt_value: V that a bankrupt account keeps.
        sides: (2, 1, 1), -1 and 1.
        first: (2, 1, 1) bool, true and false: makes a pair of two tensors.
        none, none_dropped: 0, what was not counted; the latter (R,).
        nothing, never: (R, N), 0 and false: what rules that are off decide.
    """

    def __init__(
        self,
        rows: int,
        instruments: Instruments,
        device: torch.device | str = "cpu",
        *,
        bars_per_year: float | None = None,
    ) -> None:
        """Make rules; `bars_per_year`, of the timeframe, is needed where shorts are allowed."""

        def column(width: int = 1) -> Tensor:
            # In the memory of native code, which is asset-first.
            return per_row(width, rows=rows, device=device).t()

        # Native code reads the first four; the last one stays 0.
        self._sizing = per_row(5, rows=rows, device=device)
        sizing = self._sizing.unsqueeze(2)
        self.per_action, self.limits, self.reserve = sizing[:2], sizing[2::2], sizing[3]
        self.fee, self.buy_rate, self.sell_rate, self.sell_notional = (column() for _ in range(4))
        self.stop_level, self.cover_level = column(), column()
        self.max_holding_bars, self.max_holding_fraction = column(), column()
        self._short_allowed = column()
        self.sale_below, self.least_cash = column(), column()
        self.leverage, self.maintenance = column(), column()
        self.borrow_rate, self.bankrupt_value = column(), column()
        self.sides = torch.tensor([-1.0, 1.0], dtype=torch.float64, device=device).view(2, 1, 1)
        self.first = self.sides < 0
        self.none, self.nothing = column(), column(len(instruments.increment))
        self.none_dropped, self.never = self.none.squeeze(1), self.nothing > 0
        minimums = instruments.minimum_order if any(instruments.minimum_order) else (0.0,)
        self._ticker_minimum = torch.tensor(minimums, dtype=torch.float64, device=device)
        self.minimum = column(len(minimums))
        self.increment: Tensor | None = None
        if any(instruments.increment):
            self.increment = torch.tensor(instruments.increment, dtype=torch.float64, device=device)
        self.stops = self.holding_rule = self.shorts = False
        self._bars_per_year = bars_per_year
        self._members: dict[tuple[int, int], EnvParams] = {}

    @classmethod
    def of(
        cls,
        params: EnvParams,
        instruments: Instruments,
        rows: int = 1,
        *,
        bars_per_year: float | None = None,
    ) -> Rules:
        """Return the same parameters for `rows` rows, on the CPU."""
        rules = cls(rows, instruments, bars_per_year=bars_per_year)
        rules.set_rows(0, rows, params)
        return rules

    def set_rows(self, first: int, stop: int, params: EnvParams) -> None:
        """Set the parameters of rows first … stop-1. Use the same ranges in all calls."""
        at = slice(first, stop)
        scale, limit, reserve = params.action_scale, params.max_position, params.cash_reserve
        for place, fraction in enumerate((scale, -scale, limit, reserve)):
            self._sizing[place, at] = fraction
        self.fee[at] = params.fee
        # A buy at the open pays slippage on the price and the fee out of its notional; a sell
        # receives the price less slippage, less the fee.
        self.buy_rate[at] = (1.0 - params.fee) / (1.0 + params.slippage)
        self.sell_notional[at] = 1.0 - params.slippage
        self.sell_rate[at] = (1.0 - params.slippage) * (1.0 - params.fee)
        stop_at = params.trailing_stop
        self.stop_level[at] = 1.0 - stop_at if stop_at else 0.0
        self.cover_level[at] = 1.0 + stop_at if stop_at else torch.inf
        self.max_holding_bars[at] = params.max_holding_bars or torch.inf
        self.max_holding_fraction[at] = params.max_holding_fraction
        self.minimum[at] = self._ticker_minimum.clamp_min(max(params.minimum_order, SMALLEST_ORDER))
        self._set_shorts(at, params)
        self._members[first, stop] = params
        # From the parameters: reading the tensors would synchronise with the device.
        self.stops = any(p.trailing_stop > 0 for p in self._members.values())
        self.holding_rule = any(p.max_holding_bars > 0 for p in self._members.values())
        self.shorts |= params.allow_short

    def _set_shorts(self, at: slice, params: EnvParams) -> None:
        self._short_allowed[at] = float(params.allow_short)
        self.sale_below[at] = 0.0 if params.allow_short else -torch.inf
        self.least_cash[at] = -torch.inf if params.allow_short else 0.0
        if not params.allow_short:
            self.leverage[at], self.maintenance[at], self.borrow_rate[at] = torch.inf, 0.0, 0.0
            self.bankrupt_value[at] = -torch.inf
            return
        if self._bars_per_year is None:
            raise ValueError("rules with shorts need bars_per_year")
        self.leverage[at] = params.max_leverage
        self.maintenance[at] = params.maintenance_margin
        self.borrow_rate[at] = params.borrow_fee / self._bars_per_year
        self.bankrupt_value[at] = BANKRUPT_VALUE

    def native_state(self) -> tuple[dict[str, int], dict[str, Tensor | None]]:
        """Return the sizes, flags and tensors of `sweepd.envs.crypto.native`."""
        sizes = {
            "minimums": self.minimum.shape[1],
            "stops": int(self.stops),
            "holding_rule": int(self.holding_rule),
            "shorts": int(self.shorts),
        }
        names = (
            *("minimum", "buy_rate", "sell_rate", "stop_level", "cover_level"),
            *("max_holding_bars", "max_holding_fraction"),
            *("leverage", "maintenance", "borrow_rate", "bankrupt_value"),
        )
        tensors: dict[str, Tensor | None] = {name: getattr(self, name).t() for name in names}
        tensors |= {"sizing": self._sizing, "short_allowed": self._short_allowed.t()}
        return sizes, tensors | {"increment": self.increment}
