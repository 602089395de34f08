"""The ratio that a study's best trial needs for significance.

It is planned before the study starts and measured while it runs. The measured figures are those of
the gate's rule `deflated-sharpe`, computed by the same function.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from optuna.trial import TrialState

from sweepd.envs.crypto.data.timeframe import bars_per_year
from sweepd.envs.crypto.scoring import luck
from sweepd.envs.crypto.scoring.figures import MEDIAN_RATIO
from sweepd.envs.crypto.scoring.selection import (
    PATHS_FILE,
    TrialReturns,
    mean_evaluations,
    read_excess,
    verdict_text,
)
from sweepd.envs.support.formatting import counted, years_or_days
from sweepd.optimize.study.record.programs import is_command
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.record.spans import study_splits
from sweepd.optimize.study.record.specs import CryptoSpec

CountLooks = Callable[[StudyReader], int]  # number of evaluations on a study's hold-out so far
MEASURABLE = 2  # complete trials from which their dependence can be measured


def outlook(
    spec: CryptoSpec,
    total: int,
    returns: TrialReturns | None = None,
    best: int | None = None,
    evaluations: float = 1.0,
) -> dict[str, Any]:
    """Return the figures for a study of `total` trials.

    Ratios are annual information ratios (Sharpe ratios of the returns in excess of equal weight).

    Args:
        spec: the study's spec.
        total: number of trials, including those among which a run's trial was chosen.
        returns: returns of the complete trials.
        best: number of the best trial.
        evaluations: of a trial, on average.

    Returns:
        The figures by name:
        planned_information_ratio: ratio for a deflated Sharpe ratio of 95% if the trials are independent of
            each other and their returns without autocorrelation; None if no ratio suffices.
        needed_information_ratio: the same, measured from how the trials depend on each other and from the
            autocorrelation of the best one's median path, as the gate requires it; as planned if it
            cannot be measured yet.
        best, information_ratio_median_path: number of the best trial and its ratio on that path; None
            if not measured.
        measured: number of complete trials that were measured.
        path, paths: index of the median path, None if not measured, and number of paths.
        effective: number of independent trials that need the same ratio as the `total` trials.
        bars, years: length of a back-test path.
        enough_years: length from which luck alone is not expected to reach an annual ratio of 1.
    """
    splits = study_splits(spec)
    bars, per_year = len(splits.path_bars), bars_per_year(spec.data.timeframe)
    planned = _annual(luck.planned_sharpe(bars, total), per_year)
    found = {
        "trials": total,
        "bars": bars,
        "years": bars / per_year,
        "planned_information_ratio": planned,
        "needed_information_ratio": planned,
        "enough_years": luck.minimum_backtest_years(total),
        "measured": 0,
        "best": None,
        MEDIAN_RATIO: None,
        "path": None,
        "paths": len(splits.paths),
        "effective": float(total),
    }
    # Dependence needs at least two trials, and the best one must be among them.
    if returns is None or best not in returns.moments or len(returns.moments) < MEASURABLE:
        return found
    deflation = returns.deflate(returns.moments[best], total, evaluations=evaluations)
    return found | {
        "needed_information_ratio": _annual(deflation.needed, per_year),
        "measured": len(returns.moments),
        "best": best,
        MEDIAN_RATIO: _annual(deflation.moments.sharpe, per_year),
        "effective": deflation.effective,
        "path": deflation.path,
        "paths": len(deflation.by_path),
    }


BY_FRESH_SEEDS = {"judged_by": "fresh seeds"}  # in place of figures, of a program


def gate_outlook(handle: StudyReader, total: int) -> dict[str, Any] | None:
    """Return what `sentence` says about the gate of a study: `study_outlook`, or `BY_FRESH_SEEDS`."""
    command = is_command(handle.spec.environment)
    return dict(BY_FRESH_SEEDS) if command else study_outlook(handle, total)


def study_outlook(handle: StudyReader, total: int) -> dict[str, Any] | None:
    """Return `outlook` for the present state of a study; None for a game, which has no such figures.

    The paths of each complete trial are read once per handle. If they are not on this machine, or
    the study was thinned, the figures are the planned ones.
    """
    if not isinstance(handle.spec, CryptoSpec):
        return None
    rows, folder = handle.rows.read(), handle.run_dir
    # Opening the missing files of thousands of trials takes a second, listing the folder does not.
    readable = folder.is_dir() and handle.thinned is None  # the luck of the best needs all of them
    present = set(os.listdir(folder)) if readable else set()
    for row in rows:
        if row.state == TrialState.COMPLETE.name and row.number not in handle.returns.moments:
            if row.folder.partition("/")[0] not in present:
                continue
            path = handle.run_dir / row.folder / PATHS_FILE
            try:
                handle.returns.add(row.number, *read_excess(path))
            except (OSError, ValueError, KeyError):
                continue  # the gate also leaves it out, and reports the reason
    best = handle.best()
    total += handle.chosen_from
    return outlook(
        handle.spec,
        total,
        handle.returns,
        None if best is None else best.best_trial.number,
        mean_evaluations([len(row.rungs) for row in rows if row.finished]),
    )


def sentence(found: dict[str, Any] | None, looks: int | None = None) -> str:
    """Return the figures as a sentence.

    Args:
        found: result of `gate_outlook`; None for a game.
        looks: number of evaluations on the hold-out so far; None if unknown.
    """
    if found is not None and BY_FRESH_SEEDS.items() <= found.items():
        return "the selected parameters are judged by their values on seeds that no trial used"
    if found is None:
        return "the best trial is evaluated on a panel of games with seeds that no trial used"
    needed = found["needed_information_ratio"]
    size = f"the best of {counted(found['trials'], 'trial')} on {years_or_days(found['years'])} of bars"
    if found["measured"]:
        text = (
            f"trial {found['best']}, the best of {found['measured']} complete, has "
            + verdict_text(
                found[MEDIAN_RATIO],
                needed,
                paths=found["paths"],
                trials=found["trials"],
                effective=found["effective"],
            )
        )
    elif needed is None:
        text = f"{size} cannot be distinguished from luck: there are too few bars"
    else:
        text = (
            f"{size} needs an annual information ratio over equal weight of {needed:+.2f} to be "
            "distinguished from luck (planned, for independent trials without skill)"
        )
    return text if looks is None else f"{text}; hold-out evaluations used: {looks}"


def _annual(ratio: float, per_year: float) -> float | None:
    # Means grow with the number of bars and deviations with its root, so ratios with the root.
    return math.sqrt(per_year) * ratio if math.isfinite(ratio) else None
