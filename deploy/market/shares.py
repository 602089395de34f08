"""The share of the capital that each trial of an ensemble trades."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial

from sweepd.deploy.promotion.flags import Weights
from sweepd.optimize.study.record.trials import TrialRecord

Array = NDArray[np.float64]


def choose_shares(
    trials: Sequence[FrozenTrial], weights: Weights
) -> tuple[tuple[float, ...], list[str]]:
    """Choose the shares of the capital.

    Args:
        trials: the trials of the ensemble.
        weights: how the shares are chosen.

    Returns:
        The share of each trial, and a sentence for everything that is missing for this choice;
        shares are equal then.
    """
    equal = (1.0 / len(trials),) * len(trials)
    if weights == "equal" or len(trials) == 1:
        return equal, []
    scores = [
        np.asarray(
            TrialRecord.from_attributes(trial.user_attrs).scores or [np.nan], dtype=np.float64
        )
        for trial in trials
    ]
    lacking = [
        f"trial {trial.number} did not record the scores of its folds"
        for trial, own in zip(trials, scores, strict=True)
        if not np.isfinite(own).all() or len(own) != len(scores[0])
    ]
    if lacking:
        return equal, lacking
    return tuple(float(share) for share in fold_score_shares(np.stack(scores))), []


def fold_score_shares(scores: Array) -> Array:
    """Shares by fold scores: half of the capital equally, half in proportion to shrunken scores.

    A trial's mean score m is shrunk towards the mean M over trials: M + λ·(m - M), λ = B/(B + W),
    with W the mean squared standard error of m across folds and B the variance between trials
    beyond W (empirical Bayes; C. N. Morris 1983, "Parametric Empirical Bayes Inference"). Folds
    overlap, so W is too small; the half that is shared equally limits the effect of misjudged
    trials. Negative scores count as zero, and all shares are equal if no score is positive.

    Args:
        scores: (n, folds) scores of n trials.

    Returns:
        (n,) shares that sum to 1.
    """
    trials, folds = scores.shape
    own = scores.mean(axis=1)
    # W: variance of a trial's mean over folds, averaged over trials.
    within = float(np.mean(np.var(scores, axis=1, ddof=1))) / folds if folds > 1 else 0.0
    # B: variance of the means between trials, less the part that W explains.
    between = max(0.0, float(np.var(own, ddof=1)) - within) if trials > 1 else 0.0
    reliability = between / (between + within) if between > 0.0 else 0.0
    shrunk = np.maximum(own.mean() + reliability * (own - own.mean()), 0.0)
    equal = np.full(trials, 1.0 / trials)
    return 0.5 * equal + 0.5 * (shrunk / shrunk.sum() if shrunk.sum() > 0.0 else equal)
