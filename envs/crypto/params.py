"""Parameters of the crypto environment and of the instruments traded in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

from envs.support.errors import InputError


@dataclass(frozen=True)
class EnvParams:
    """Parameters of one member's environment. All but `lookback` may differ between rows.

    V is the portfolio's value. Money is in quote units; `fee` and `slippage` are fractions of an
    order's notional.

    Raises:
        InputError: a value is out of its range.
    """

    action_scale: float = 0.2  # fraction of V that an action of 1 orders
    cash_reserve: float = 0.02  # fraction of V that buys leave in cash
    max_position: float = 1.0  # fraction of V up to which a position can be bought
    # Sell the whole position if the close is this fraction below the highest close since the
    # position was opened; 0 is off.
    trailing_stop: float = 0.0
    # Sell `max_holding_fraction` of a position after this many bars; 0 is off.
    max_holding_bars: int = 0
    max_holding_fraction: float = 1.0
    alpha_weight: float = 0.5  # weight of the growth relative to equal weight in the reward
    drawdown_penalty: float = 0.0
    volatility_penalty: float = 0.0
    concentration_penalty: float = 0.0
    concentration_limit: float = 0.4
    cash_penalty: float = 0.0
    # The reward's weight decays from 1 to this value over an episode; 1 is off.
    time_decay_floor: float = 1.0
    reward_scale: float = 100.0
    fee: float = 0.0025
    slippage: float = 0.0005
    minimum_order: float = 10.0
    lookback: int = 1  # bars of features in an observation
    episode_bars: int = 0  # 0 is one week of bars; capped by the shortest training window
    initial_cash: float = 10_000.0
    # Bars held are observed as min(1, bars / held_scale); 0 is one week of bars.
    held_scale: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole = field.type == "int"
            wanted, test = _RANGES[field.name]
            right_type = isinstance(value, int) if whole else isinstance(value, int | float)
            if (
                isinstance(value, bool)
                or not right_type
                or not math.isfinite(value)
                or not test(value)
            ):
                kind = "a whole number" if whole else "a number"
                raise InputError(
                    f"environment parameter {field.name} is {value!r}; it must be {kind} {wanted}"
                )


_Range = tuple[str, Callable[[float], bool]]
_FRACTION: _Range = ("from 0 to 1", lambda v: 0 <= v <= 1)
_FRACTION_BELOW_ONE: _Range = ("from 0 to below 1", lambda v: 0 <= v < 1)
_POSITIVE_FRACTION: _Range = ("above 0, at most 1", lambda v: 0 < v <= 1)
_NOT_NEGATIVE: _Range = ("of at least 0", lambda v: v >= 0)
_POSITIVE: _Range = ("above 0", lambda v: v > 0)

_RANGES: dict[str, _Range] = {
    "action_scale": _POSITIVE_FRACTION,
    "cash_reserve": _FRACTION_BELOW_ONE,
    "max_position": _POSITIVE_FRACTION,
    "trailing_stop": _FRACTION_BELOW_ONE,
    "max_holding_bars": _NOT_NEGATIVE,
    "max_holding_fraction": _POSITIVE_FRACTION,
    "alpha_weight": _FRACTION,
    "drawdown_penalty": _NOT_NEGATIVE,
    "volatility_penalty": _NOT_NEGATIVE,
    "concentration_penalty": _NOT_NEGATIVE,
    "concentration_limit": _FRACTION,
    "cash_penalty": _NOT_NEGATIVE,
    "time_decay_floor": _FRACTION,
    "reward_scale": _POSITIVE,
    "fee": _FRACTION_BELOW_ONE,
    "slippage": _FRACTION_BELOW_ONE,
    "minimum_order": _NOT_NEGATIVE,
    "lookback": ("of at least 1", lambda v: v >= 1),
    "episode_bars": _NOT_NEGATIVE,
    "initial_cash": _POSITIVE,
    "held_scale": _NOT_NEGATIVE,
}


@dataclass(frozen=True)
class Instruments:
    """An exchange's limits for each ticker, in the tickers' order.

    Attributes:
        minimum_order: smallest order in quote units; 0 for none. The larger of this and
            `EnvParams.minimum_order` applies.
        increment: step of order quantities in units of the asset; 0 for none. Without one, buys are
            not rounded to cents either.
    """

    minimum_order: tuple[float, ...]
    increment: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.minimum_order) != len(self.increment):
            raise InputError(
                f"instruments have {len(self.minimum_order)} minimum orders and "
                f"{len(self.increment)} increments; there must be one of each per ticker"
            )
        for name, values in (("minimum order", self.minimum_order), ("increment", self.increment)):
            for value in values:
                if not math.isfinite(value) or value < 0:
                    raise InputError(
                        f"an instrument's {name} is {value!r}; it must be a number of at least 0"
                    )

    @classmethod
    def unrestricted(cls, assets: int) -> Instruments:
        """Return instruments without increments or minimum orders of their own."""
        return cls((0.0,) * assets, (0.0,) * assets)
