"""What may be set about the crypto environment, and about the instruments traded in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from envs.support.errors import InputError


@dataclass(frozen=True)
class EnvParams:
    """Parameters of one member's environment. Every one but `lookback` may differ from row to row of one batch.

    Shares are of the portfolio's value V; money is in quote units; `fee` and `slippage` are shares of an order's
    notional. Raises InputError where a value is out of its range.
    """

    action_scale: float = 0.2  # an action of 1 orders this share of V
    cash_reserve: float = 0.02  # buys leave at least this share of V in cash
    max_position: float = 1.0  # buys stop where a position is worth this share of V
    trailing_stop: float = (
        0.0  # sell all when the close is this share below the highest since opening; 0 is off
    )
    max_holding_bars: int = (
        0  # a position this old sells `max_holding_fraction` of itself; 0 is off
    )
    max_holding_fraction: float = 1.0
    alpha_weight: float = 0.5  # how much of the reward is measured against equal weight
    drawdown_penalty: float = 0.0
    volatility_penalty: float = 0.0
    concentration_penalty: float = 0.0
    concentration_limit: float = 0.4
    cash_penalty: float = 0.0
    time_decay_floor: float = (
        1.0  # the reward's weight falls from 1 to this over an episode; 1 is off
    )
    reward_scale: float = 100.0
    fee: float = 0.0025
    slippage: float = 0.0005
    minimum_order: float = 10.0
    lookback: int = 1  # bars of features in an observation
    episode_bars: int = 0  # 0: one week of bars, capped by the shortest training segment
    initial_cash: float = 10_000.0
    held_scale: float = (
        0.0  # bars held are observed as min(1, bars / held_scale); 0: one week of bars
    )

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
_SHARE: _Range = ("from 0 to 1", lambda v: 0 <= v <= 1)
_SHARE_BELOW_ONE: _Range = ("from 0 to below 1", lambda v: 0 <= v < 1)
_POSITIVE_SHARE: _Range = ("above 0, at most 1", lambda v: 0 < v <= 1)
_NOT_NEGATIVE: _Range = ("of at least 0", lambda v: v >= 0)
_POSITIVE: _Range = ("above 0", lambda v: v > 0)

_RANGES: dict[str, _Range] = {
    "action_scale": _POSITIVE_SHARE,
    "cash_reserve": _SHARE_BELOW_ONE,
    "max_position": _POSITIVE_SHARE,
    "trailing_stop": _SHARE_BELOW_ONE,
    "max_holding_bars": _NOT_NEGATIVE,
    "max_holding_fraction": _POSITIVE_SHARE,
    "alpha_weight": _SHARE,
    "drawdown_penalty": _NOT_NEGATIVE,
    "volatility_penalty": _NOT_NEGATIVE,
    "concentration_penalty": _NOT_NEGATIVE,
    "concentration_limit": _SHARE,
    "cash_penalty": _NOT_NEGATIVE,
    "time_decay_floor": _SHARE,
    "reward_scale": _POSITIVE,
    "fee": _SHARE_BELOW_ONE,
    "slippage": _SHARE_BELOW_ONE,
    "minimum_order": _NOT_NEGATIVE,
    "lookback": ("of at least 1", lambda v: v >= 1),
    "episode_bars": _NOT_NEGATIVE,
    "initial_cash": _POSITIVE,
    "held_scale": _NOT_NEGATIVE,
}


@dataclass(frozen=True)
class Instruments:
    """What an exchange says about its tickers, in the tickers' order.

    minimum_order: smallest order in quote units (0: none; the larger of this and `EnvParams.minimum_order` holds).
    increment: the step of quantities in units of the asset. 0: none, and then buys aren't rounded to cents either.
    """

    minimum_order: tuple[float, ...]
    increment: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.minimum_order) != len(self.increment):
            raise InputError(
                f"instruments have {len(self.minimum_order)} minimum orders and {len(self.increment)} increments; "
                "there must be one of each per ticker"
            )
        for name, values in (("minimum order", self.minimum_order), ("increment", self.increment)):
            for value in values:
                if not math.isfinite(value) or value < 0:
                    raise InputError(
                        f"an instrument's {name} is {value!r}; it must be a number of at least 0"
                    )

    @classmethod
    def unrestricted(cls, assets: int) -> Instruments:
        """No increments, and no minimum orders but `EnvParams.minimum_order`."""
        return cls((0.0,) * assets, (0.0,) * assets)


def resolve_episode_bars(
    params: EnvParams, windows: Sequence[tuple[int, int]], bars_per_week: int
) -> int:
    """The length of an episode in bars: `episode_bars`, or a week, but never longer than the shortest window."""
    shortest = min(last - first for first, last in windows)
    return min(params.episode_bars or bars_per_week, shortest)
