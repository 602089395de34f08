"""What the winner of a study will have to show to be told from luck, said before the study starts and while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from envs.crypto import luck
from envs.crypto.splits import make_splits
from envs.crypto.timeframe import bars_per_year
from optimize.spec import CryptoSpec, StudySpec
from optimize.study import StudyHandle

CountLooks = Callable[[StudyHandle], int]  # looks taken so far at the study's hold-out bars


def outlook(spec: StudySpec, total: int, trials: Sequence[FrozenTrial] = ()) -> dict[str, Any] | None:
    """The figures for a study of `total` trials on a market; None for games, whose gate is more games.

    needed_sharpe: annual, of the return over equal weight, at which the best of so many independent trials is above
    luck with a confidence of 95 % (deflated Sharpe ratio). Until two trials are COMPLETE, as if none had any skill;
    then with the spread of their Sharpe ratios, where that is more. bars, years: of a back-test path. enough_years:
    from which on luck alone is not expected to show an annual Sharpe ratio of 1.
    """
    if not isinstance(spec, CryptoSpec):
        return None
    splits = make_splits(
        spec.data.bars,
        spec.data.timeframe,
        spec.cross_validation,
        first_bar=spec.first_bar,
        holdout=spec.holdout,
        lookback=spec.max_lookback,
        memory=spec.recipe["memory"],
    )
    bars, per_year = len(splits.path_bars), bars_per_year(spec.data.timeframe)
    ratios = [
        t.user_attrs["sweepd:metrics"]["information_ratio"]
        for t in trials
        if t.state == TrialState.COMPLETE and "information_ratio" in t.user_attrs.get("sweepd:metrics", {})
    ]
    variance = 1.0 / (bars - 1.0)
    if len(ratios) > 1:
        variance = max(variance, float(np.var(ratios, ddof=1)) / per_year)
    needed = math.sqrt(per_year) * luck.needed_sharpe(bars, total, variance)
    return {
        "trials": total,
        "bars": bars,
        "years": bars / per_year,
        "needed_sharpe": needed if math.isfinite(needed) else None,
        "enough_years": luck.minimum_backtest_years(total),
    }


def sentence(found: dict[str, Any] | None, looks: int | None = None) -> str:
    """The figures in words. looks: taken so far at the hold-out; None where nobody counts."""
    if found is None:
        return "the best trial plays a panel of games on seeds that no trial saw"
    size = f"the best of {found['trials']} trials on {found['years']:.1f} years of bars"
    if found["needed_sharpe"] is None:
        text = f"{size} cannot be told from luck: there are too few bars"
    else:
        needed = f"{found['needed_sharpe']:.2f}"
        text = f"{size} needs an annual Sharpe ratio over equal weight of {needed} to be told from luck"
    return text if looks is None else f"{text}; looks at the hold-out so far: {looks}"
