"""The folds and the hold-out of a study on a market, as its spec fixes them, without its bars."""

from __future__ import annotations

from sweepd.envs.crypto.data.timeframe import later
from sweepd.envs.crypto.splits import CrossValidation, Splits, make_splits
from sweepd.optimize.study.record.specs import CryptoSpec, StudySpec


def holdout_span(spec: StudySpec) -> tuple[tuple[str, ...], int, int] | None:
    """Return the assets of the hold-out, and the opens of its first and last bar.

    Returns:
        None if there is no hold-out, as for a game.
    """
    if not isinstance(spec, CryptoSpec):
        return None
    times = holdout_times(spec)
    return None if times is None else (spec.data.tickers, *times)


def holdout_times(spec: CryptoSpec) -> tuple[int, int] | None:
    """Return the opens of the hold-out's first and last bar, in seconds since the epoch.

    Returns:
        None if the study set no bars aside.
    """
    bars = round(spec.holdout * spec.data.bars)
    if not bars:
        return None
    _, last = spec.data.span
    return later(spec.data.timeframe, last, 1 - bars), last


def unseen_from(spec: CryptoSpec) -> int:
    """Return the open of the first bar that no trial of a study used, in seconds since the epoch."""
    times = holdout_times(spec)
    if times is not None:
        return times[0]
    return later(spec.data.timeframe, spec.data.span[1])


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
