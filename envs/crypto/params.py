"""Parameters of the crypto environment and of the instruments traded in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields

from sweepd.envs.support.errors import InputError


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
    max_holding_fraction: float = 1.0  # share of the position that is sold then
    alpha_weight: float = 0.5  # weight of the growth relative to equal weight in the reward
    # The penalties are weights in the reward (`sweepd.envs.crypto.reward`).
    drawdown_penalty: float = 0.0  # of the increase of the drawdown from the episode's peak
    volatility_penalty: float = 0.0  # of the squared growth of a bar
    concentration_penalty: float = 0.0  # of the largest weight above `concentration_limit`
    concentration_limit: float = 0.4  # weight of one asset in V
    cash_penalty: float = 0.0  # of the cash that is missing to `cash_reserve`, as a fraction of V
    # The reward's weight decays from 1 to this value over an episode; 1 is off.
    time_decay_floor: float = 1.0
    reward_scale: float = 100.0  # factor on the whole reward
    fee: float = 0.0025
    slippage: float = 0.0005
    minimum_order: float = 10.0
    lookback: int = 1  # bars of features in an observation
    episode_bars: int = 0  # 0 is one week of bars; capped by the shortest training window
    initial_cash: float = 10_000.0
    # Bars held are observed as min(1, bars / held_scale); 0 is one week of bars.
    held_scale: float = 0.0
    # Whether positions may be short; without it, the three others have no effect. docs/how_to/shorts.md
    # has the formulas.
    allow_short: bool = False
    borrow_fee: float = 0.1  # per year, as a fraction of what is borrowed: units, and cash below 0
    max_leverage: float = 1.0  # orders keep the sum of all positions' sizes within this times V
    # All positions are liquidated at a close where V is below this fraction of their sizes' sum.
    maintenance_margin: float = 0.25

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "bool":
                if not isinstance(value, bool):
                    raise InputError(
                        f"environment parameter {field.name} is {value!r}; it must be true or false"
                    )
                continue
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
        if self.allow_short and self.max_leverage * self.maintenance_margin >= 1.0:
            raise InputError(
                f"maintenance_margin {self.maintenance_margin:g} times max_leverage "
                f"{self.max_leverage:g} is {self.maintenance_margin * self.max_leverage:g}; it must "
                "be below 1, or positions within the limit would be liquidated at once"
            )

    def recorded(self) -> dict[str, bool | int | float]:
        """Return the fields by name; without those of shorts if shorts are off."""
        values = asdict(self)
        return values if self.allow_short else {n: values[n] for n in values if n not in SHORTS}


SHORTS = ("allow_short", "borrow_fee", "max_leverage", "maintenance_margin")

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
    "borrow_fee": _NOT_NEGATIVE,
    "max_leverage": ("above 0, at most 10", lambda v: 0 < v <= 10),
    "maintenance_margin": _FRACTION_BELOW_ONE,
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
