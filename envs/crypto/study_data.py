"""The bars and splits of a study on a market, recovered from its spec."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from envs.crypto.data.bars import Bars, load_bars
from envs.crypto.data.timeframe import later
from envs.crypto.splits import CrossValidation, Splits, make_splits
from envs.support.errors import InputError
from envs.support.formatting import counted
from envs.support.study_record import CryptoSpec, DataSpec

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"  # of `DataSpec.first` and `last`


def load_study_bars(
    data: DataSpec, folder: Path | None = None, newer: Callable[[str], None] = lambda _: None
) -> Bars:
    """Load the bars that a study was created with.

    The folder may have grown since: bars outside the study's range are cut off.

    Args:
        data: the bars as the study recorded them.
        folder: where the bars are now; by default where they were.
        newer: receives a sentence if the folder has newer bars.

    Raises:
        InputError: the folder does not contain the same bars.
    """
    folder = folder or Path(data.dir)
    # Jumps were refused or accepted when the study was created, and the fingerprint holds them.
    present = load_bars(folder, data.timeframe, data.tickers, accept_jumps=True)
    first, last = (int(pd.Timestamp(text).timestamp()) for text in (data.first, data.last))
    bars = present.between(first, last)
    if bars.fingerprint != data.fingerprint:
        raise InputError(
            f"the bars in {folder} are not those of the study ({data.bars:,} bars from "
            f"{data.first} to {data.last}); name the folder that has them with --data-dir"
        )
    more = int((present.time > last).sum())
    if more:
        until = present.time_of(-1).strftime(TIME_FORMAT)
        newer(
            f"{folder} has {counted(more, 'newer bar')} to {until}; this study is frozen to "
            f"{data.last}"
        )
    return bars


def holdout_times(spec: CryptoSpec) -> tuple[int, int] | None:
    """Return the opens of the hold-out's first and last bar, in seconds since the epoch.

    Returns:
        None if the study set no bars aside.
    """
    data, bars = spec.data, round(spec.holdout * spec.data.bars)
    if not bars:
        return None
    last = int(pd.Timestamp(data.last).timestamp())
    return later(data.timeframe, last, 1 - bars), last


def unseen_from(spec: CryptoSpec) -> int:
    """Return the open of the first bar that no trial of a study used, in seconds since the epoch."""
    times = holdout_times(spec)
    if times is not None:
        return times[0]
    return later(spec.data.timeframe, int(pd.Timestamp(spec.data.last).timestamp()))


def study_splits(spec: CryptoSpec) -> Splits:
    """Return the folds and the hold-out of a study."""
    return make_splits(
        spec.data.bars,
        spec.data.timeframe,
        CrossValidation(**spec.cv),
        first_bar=spec.first_bar,
        holdout=spec.holdout,
        lookback=spec.max_lookback,
        memory=int(spec.recipe["memory"]),
    )
