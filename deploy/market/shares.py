"""How much of the capital each trial of an ensemble gets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial

from deploy.market.manifest import Weights
from envs.support.study_record import TrialRecord

Array = NDArray[np.float64]


def choose_shares(
    trials: Sequence[FrozenTrial], weights: Weights
) -> tuple[tuple[float, ...], list[str]]:
    """(share of each trial, what is missing to choose them so). Equal ones where something is missing."""
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
    """(n,) shares from (n, folds) scores: half of the capital equally, half in proportion to the shrunken scores.

    A trial's mean score m is shrunk towards the mean over the trials M, by how much of the differences between trials
    folds explain: M + λ·(m - M), λ = B/(B + W), W the mean variance of m as its folds tell, B the trials' variance
    beyond that (empirical Bayes; C. N. Morris 1983, "Parametric Empirical Bayes Inference"). Folds overlap, so W is
    rather too small; the half that is shared equally keeps a misjudged trial from mattering much. Scores under zero
    count as zero, and where none is above, all shares are equal.
    """
    trials, folds = scores.shape
    own = scores.mean(axis=1)
    within = float(np.mean(np.var(scores, axis=1, ddof=1))) / folds if folds > 1 else 0.0
    between = max(0.0, float(np.var(own, ddof=1)) - within) if trials > 1 else 0.0
    reliability = between / (between + within) if between > 0.0 else 0.0
    shrunk = np.maximum(own.mean() + reliability * (own - own.mean()), 0.0)
    equal = np.full(trials, 1.0 / trials)
    return 0.5 * equal + 0.5 * (shrunk / shrunk.sum() if shrunk.sum() > 0.0 else equal)
