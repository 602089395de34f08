"""The policy of a trial on a market, as it acts and is evaluated in Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from gymnasium.spaces import Box

from sweepd.deploy.market.scoring import score
from sweepd.deploy.promotion.gate import TrialPolicy
from sweepd.envs.crypto.data.bars import Bars, load_bars
from sweepd.envs.crypto.market import make_market
from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.crypto.splits import Window
from sweepd.envs.external.codec import SpaceCodec
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.spans import holdout_times
from sweepd.optimize.study.record.specs import CryptoSpec

Time = str | pd.Timestamp  # without a zone: UTC


def codec(policy: TrialPolicy) -> SpaceCodec:
    """Observations and actions are vectors of numbers."""
    return SpaceCodec(
        Box(-np.inf, np.inf, (policy.acting.state_dim,), np.float32),
        Box(-1.0, 1.0, (policy.acting.action_dim,), np.float32),
    )


def evaluate(
    policy: TrialPolicy, windows: Sequence[tuple[Time, Time]], data_dir: str | Path | None
) -> pd.DataFrame:
    """Score a policy on windows, see `sweepd.evaluate`."""
    assert isinstance(policy.spec, CryptoSpec)
    spec = policy.spec
    if not windows:
        raise InputError(
            'windows is empty: name at least one, such as ("2024-01-01", "2024-07-01")'
        )
    folder = Path(spec.data.dir if data_dir is None else data_dir)
    taken = bool(spec.data.accepted_jumps)  # the study took bars that look wrong
    bars = load_bars(folder, spec.data.timeframe, spec.data.tickers, accept_jumps=taken)
    earliest = int(spec.recipe["memory"]) - 1 + spec.max_lookback - 1
    spans = [_window(bars, start, end, earliest, holdout_times(spec)) for start, end in windows]
    recipe = str(spec.recipe["name"])
    market = make_market(bars, recipe, Instruments.unrestricted(len(bars.tickers)))
    params = EnvParams(**policy.env_params)
    rows = []
    for span in spans:
        found = score(policy.acting, market, params, span, max_lookback=spec.max_lookback)
        first, last = (pd.Timestamp(int(found.time[at]), unit="s", tz="UTC") for at in (0, -1))
        rows.append({"start": first, "end": last, "bars": len(found.time), **found.to_dict()})
    return pd.DataFrame(rows)


def _window(
    bars: Bars, start: Time, end: Time, earliest: int, holdout: tuple[int, int] | None
) -> Window:
    """Return the first decision and the last bar of a window; raises as `evaluate`."""
    name = f"window {start} to {end}"
    since, until = _seconds(start, name), _seconds(end, name)
    if since >= until:
        raise InputError(f"{name} is empty: its end must be after its start")
    # A decision is made at the close of the bar before the first whose return counts.
    first = int(np.searchsorted(bars.time, since, side="left")) - 1
    last = int(np.searchsorted(bars.time, until, side="left")) - 1
    if first < earliest:
        begin = pd.Timestamp(int(bars.time[min(earliest + 1, len(bars.time) - 1)]), unit="s")
        raise InputError(
            f"{name} begins too early: features need {earliest + 1} bars before it, so it may "
            f"begin at {begin:%Y-%m-%d %H:%M}"
        )
    if last <= first:
        raise InputError(f"{name} has no bar; the data ends at {bars.time_of(-1):%Y-%m-%d %H:%M}")
    if holdout is not None and bars.time[first + 1] <= holdout[1] and bars.time[last] >= holdout[0]:
        begin = pd.Timestamp(holdout[0], unit="s")
        raise InputError(
            f"{name} reaches into the hold-out, which begins at {begin:%Y-%m-%d %H:%M}: only "
            "sweepd.promote evaluates it, and counts every evaluation"
        )
    return first, last


def _seconds(time: Time, name: str) -> int:
    try:
        at = pd.Timestamp(time)
    except ValueError:
        raise InputError(f"{name}: {time!r} is not a date such as 2024-05-01") from None
    return int((at.tz_localize("UTC") if at.tzinfo is None else at).timestamp())
