"""Limits of the risk rules, and how they are written on the command line.

Shares are fractions (0.2 is 20%), durations are seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.support.errors import InputError

HALTED = "halted: "  # begins the reason of an operator's halt among those of risk rules
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


@dataclass(frozen=True)
class RiskLimits:
    """Limits of the risk rules; None is off. Shares are fractions of the value, durations seconds.

    max_position, cash_reserve, trailing_stop: as in `EnvParams`.
    drawdown: fall from the highest value.
    cooldown: how long nothing is held after that.
    daily_loss: loss since the last close of the previous day (UTC).
    orders_per_hour: orders in any 60 minutes.
    stale: age of the newest closed bar.

    Raises:
        InputError: a value is out of its range.
    """

    max_position: float | None = None
    cash_reserve: float | None = None
    trailing_stop: float | None = None
    drawdown: float | None = None
    cooldown: float = UNITS["d"]
    daily_loss: float | None = None
    orders_per_hour: int | None = None
    stale: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            _, wanted, test = _LIMITS[field.name]
            if value is not None and not (math.isfinite(value) and test(value)):
                raise InputError(f"--risk {_flag(field.name)}={value:g}: it must be {wanted}")


def tightened(params: EnvParams, limits: RiskLimits) -> EnvParams:
    """Return the parameters, with the limits that are stricter."""
    stop = params.trailing_stop
    if limits.trailing_stop is not None:
        stop = min(stop or 1.0, limits.trailing_stop)  # 0 is off
    return replace(
        params,
        max_position=min(
            params.max_position, 1.0 if limits.max_position is None else limits.max_position
        ),
        cash_reserve=max(params.cash_reserve, limits.cash_reserve or 0.0),
        trailing_stop=stop,
    )


def parse_limits(texts: Sequence[str]) -> RiskLimits:
    """Parse `["drawdown=0.2", "cooldown=24h"]`.

    Raises:
        InputError: a text is not a limit.
    """
    values: dict[str, float] = {}
    for text in texts:
        flag, _, value = (part.strip() for part in text.partition("="))
        name = flag.replace("-", "_")
        if name not in _LIMITS or flag != _flag(name):
            known = ", ".join(f"{_flag(key)}={example}" for key, (example, _, _) in _LIMITS.items())
            raise InputError(f"--risk {text}: there is no such rule; rules are given like {known}")
        if name in values:
            raise InputError(f"--risk {flag} is given twice")
        example, wanted, _ = _LIMITS[name]
        number = _seconds(value) if example[-1] in UNITS else _number(value)
        if number is None or (name == "orders_per_hour" and number % 1):
            raise InputError(f"--risk {text}: it must be {wanted}, like {flag}={example}")
        values[name] = int(number) if name == "orders_per_hour" else number
    if "cooldown" in values and "drawdown" not in values:
        raise InputError(
            "--risk cooldown needs --risk drawdown=SHARE: it is the length of a drawdown stop"
        )
    return RiskLimits(**values)  # type: ignore[arg-type]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _seconds(text: str) -> float | None:
    """Return `90m` as 5400."""
    found = _DURATION.fullmatch(text)
    return None if found is None else float(found[1]) * UNITS[found[2]]


def duration_text(seconds: float) -> str:
    """Return 5400 as `90m`."""
    unit = max(
        (unit for unit in UNITS if seconds % UNITS[unit] == 0.0), key=UNITS.__getitem__, default="s"
    )
    return f"{seconds / UNITS[unit]:g}{unit}"


def _flag(name: str) -> str:
    return name.replace("_", "-")


_SHARE = "a share above 0 and below 1 (0.2 is 20%)"
_TIME = "a number of seconds, minutes, hours or days above 0"
# Example, requirement, and its check.
_LIMITS: dict[str, tuple[str, str, Callable[[float], bool]]] = {
    "max_position": ("0.5", "a share above 0, at most 1 (0.5 is 50%)", lambda v: 0 < v <= 1),
    "cash_reserve": ("0.1", "a share from 0 to below 1 (0.1 is 10%)", lambda v: 0 <= v < 1),
    "trailing_stop": ("0.1", _SHARE, lambda v: 0 < v < 1),
    "drawdown": ("0.2", _SHARE, lambda v: 0 < v < 1),
    "cooldown": ("24h", _TIME, lambda v: v > 0),
    "daily_loss": ("0.05", _SHARE, lambda v: 0 < v < 1),
    "orders_per_hour": ("60", "a whole number of at least 1", lambda v: v >= 1 and v % 1 == 0),
    "stale": ("15m", _TIME, lambda v: v > 0),
}
