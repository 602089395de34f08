"""Importances of a study's parameters, computed in a thread of their own.

PED-ANOVA (Watanabe et al. 2023; with conditional parameters Kaito et al. 2026) asks which parameters
distinguish the best tenth of the trials from all. It takes a fraction of a second for thousands of
trials, where fANOVA takes many (docs/how_to/dashboard.md has the measured times).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import optuna
from optuna.study import StudyDirection

from sweepd.optimize.study.insight.axes import Axis
from sweepd.optimize.study.record.rows import TrialRow, frozen

LEAST = 20  # complete trials: the best tenth of fewer is a single one
WAIT = 0.1  # seconds that a request waits: enough for small studies
GROWTH = 50  # computed again once there are more complete trials by this fraction: 2%
SWITCH = "_on"  # ends the name of the parameter that switches a range off


def importances(rows: Sequence[TrialRow], axes: Sequence[Axis]) -> dict[str, float] | None:
    """Return each parameter's share of importance, the largest first; the sum is 1.

    Parameters that can be switched off have their range and their switch added.

    Args:
        rows: the trials of a study.
        axes: its parameters.

    Returns:
        None if too few trials are complete. All shares are 0 if the best trials differ in none.
    """
    judged = [row for row in rows if row.judged]
    if len(judged) < LEAST:
        return None
    # Imported here: it imports scikit-learn, which would delay the start of every command.
    from optuna.importance import PedAnovaImportanceEvaluator

    found = PedAnovaImportanceEvaluator().evaluate(JudgedStudy(judged))
    sums = {axis.name: found.get(axis.name, 0.0) for axis in axes}
    for axis in axes:
        if axis.switched:
            sums[axis.name] += found.get(axis.name + SWITCH, 0.0)
    total = sum(sums.values())
    shares = {name: value / total if total > 0.0 else 0.0 for name, value in sums.items()}
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


class JudgedStudy(optuna.Study):
    """A study of some trials alone, for Optuna's evaluators.

    An evaluator only asks for trials and directions. Adding thousands of trials to a storage takes
    longer than evaluating them.
    """

    def __init__(self, judged: Sequence[TrialRow]) -> None:
        self._trials = [frozen(replace(row, further=())) for row in judged]

    @property
    def directions(self) -> list[StudyDirection]:
        return [StudyDirection.MAXIMIZE]

    def _is_multi_objective(self) -> bool:
        return False

    def get_trials(self, *_: object, **__: object) -> list[optuna.trial.FrozenTrial]:
        return self._trials


class LatestImportances:
    """The importances of one study: computed in a thread, again when the study has grown."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: tuple[dict[str, float] | None, int] = (None, 0)
        self._thread: threading.Thread | None = None

    def get(self, rows: Sequence[TrialRow], axes: Sequence[Axis]) -> dict[str, Any]:
        """Return what is known now, or within a tenth of a second.

        Returns:
            `shares`: see `importances`, None while there are none yet. `trials`: number of complete
            trials that they are of. `computing`: whether newer ones are being computed. `least`:
            number of complete trials that are needed.
        """
        judged = [row for row in rows if row.judged]
        with self._lock:
            shares, trials = self._found
            due = len(judged) >= LEAST and len(judged) - trials > trials / GROWTH
            if due and self._thread is None:
                self._thread = threading.Thread(
                    target=self._compute, args=(judged, list(axes)), daemon=True
                )
                self._thread.start()
            thread = self._thread
        if thread is not None:
            thread.join(WAIT)
            with self._lock:
                shares, trials = self._found
        computing = thread is not None and thread.is_alive()
        return {"shares": shares, "trials": trials, "computing": computing, "least": LEAST}

    def wait(self) -> None:
        """Wait until nothing is being computed."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _compute(self, judged: Sequence[TrialRow], axes: Sequence[Axis]) -> None:
        shares = importances(judged, axes)
        with self._lock:
            self._found, self._thread = (shares, len(judged)), None
