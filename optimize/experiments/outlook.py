"""What the winner of a study has to show to be told from luck: planned before the study starts, measured while it runs.

The measured figures are those of the gate's rule `deflated-sharpe`, from the same function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from optuna.trial import TrialState

from envs.crypto import luck
from envs.crypto.selection import PATHS_FILE, TrialReturns, read_excess, trial_folder
from envs.crypto.study_data import study_splits
from envs.crypto.timeframe import bars_per_year
from envs.support.study_record import CryptoSpec, StudySpec
from optimize.study.study import StudyHandle, best_trial

CountLooks = Callable[[StudyHandle], int]  # looks taken so far at the study's hold-out bars
MEASURABLE = 2  # complete trials needed to measure their spread and correlation


def outlook(
    spec: StudySpec, total: int, returns: TrialReturns | None = None, best: int | None = None
) -> dict[str, Any] | None:
    """The figures for a study of `total` trials on a market; None for games, whose gate is more games.

    returns: those of its complete trials; best: the number of the best one.

    Ratios are annual information ratios (Sharpe ratios of the returns in excess of equal weight).
    planned_sharpe: what the winner needs for a deflated Sharpe ratio of 95 % if all trials were independent and without
        skill, and their returns normal; None where no ratio would do.
    needed_sharpe: the same measured on the best trial's median path, from how much the trials differ and how alike they
        are: what the gate asks for once the study has ended. As planned where it cannot be measured yet.
    best, sharpe: that trial's number, and what it has on that path; None where nothing is measured.
    measured: complete trials that this is from; 0 where nothing is measured. effective: how many independent trials the
        `total` count as.
    bars, years: of a back-test path. enough_years: from which on luck alone is not expected to show an annual ratio of
        1.
    """
    if not isinstance(spec, CryptoSpec):
        return None
    splits = study_splits(spec)
    bars, per_year = len(splits.path_bars), bars_per_year(spec.data.timeframe)
    planned = _annual(luck.needed_sharpe(bars, total), per_year)
    found = {
        "trials": total,
        "bars": bars,
        "years": bars / per_year,
        "planned_sharpe": planned,
        "needed_sharpe": planned,
        "enough_years": luck.minimum_backtest_years(total),
        "measured": 0,
        "best": None,
        "sharpe": None,
        "effective": float(total),
    }
    if returns is None or best not in returns.moments or len(returns.moments) < MEASURABLE:
        return found
    deflation = returns.deflate(returns.moments[best], total)
    return found | {
        "needed_sharpe": _annual(deflation.needed, per_year),
        "measured": len(returns.moments),
        "best": best,
        "sharpe": _annual(deflation.moments.sharpe, per_year),
        "effective": deflation.effective,
    }


def study_outlook(handle: StudyHandle, total: int) -> dict[str, Any] | None:
    """`outlook` of a study as it is now. The paths of each complete trial are read once per handle; where they are not
    on this machine, the figures are those planned.
    """
    if isinstance(handle.spec, CryptoSpec):
        for trial in handle.trials():
            if trial.state == TrialState.COMPLETE and trial.number not in handle.returns.moments:
                path = handle.run_dir / trial_folder(trial.user_attrs, trial.number) / PATHS_FILE
                try:
                    handle.returns.add(trial.number, *read_excess(path))
                except (OSError, ValueError, KeyError):
                    continue  # the gate also leaves it out, and reports the reason
    best = best_trial(handle)
    return outlook(handle.spec, total, handle.returns, None if best is None else best.number)


def sentence(found: dict[str, Any] | None, looks: int | None = None) -> str:
    """The figures in words. looks: number of looks at the hold-out so far; None if not counted."""
    if found is None:
        return "the best trial plays a panel of games on seeds that no trial saw"
    needed, planned = found["needed_sharpe"], found["planned_sharpe"]
    size = f"the best of {found['trials']} trials on {found['years']:.1f} years of bars"
    ratio = "annual information ratio over equal weight"
    if needed is None:
        text = f"{size} cannot be told from luck: there are too few bars"
    elif found["measured"]:
        before = "" if planned is None else f"; planned was {planned:+.2f}"
        text = (
            f"trial {found['best']}, the best of {found['measured']} complete, has an {ratio} of "
            f"{found['sharpe']:+.2f} on its median path and needs {needed:+.2f} to be told from luck among "
            f"{found['trials']} trials ({found['effective']:.1f} independent ones), measured{before}"
        )
    else:
        text = f"{size} needs an {ratio} of {needed:+.2f} to be told from luck (planned, for independent trials "
        text += "without skill)"
    return text if looks is None else f"{text}; looks at the hold-out so far: {looks}"


def _annual(ratio: float, per_year: float) -> float | None:
    return math.sqrt(per_year) * ratio if math.isfinite(ratio) else None
