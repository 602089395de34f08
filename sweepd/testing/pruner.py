"""The suite for pruners that `--pruner` names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import optuna

from sweepd.optimize.study.sampling.pruners import make_pruner


class PrunerTestCase:
    """What sweepd needs of a pruner. A subclass names it as `--pruner` does:

    class TestMyPruner(PrunerTestCase):
        pruner = 'my_pruners:MyPruner {"share": 0.5}'

    The steps of a trial are its rungs, 1, 2, …; larger values are better.

    Attributes:
        pruner: the name, with arguments.
        rungs: of a trial.
    """

    pruner: ClassVar[str]
    rungs: ClassVar[int] = 4

    def verdicts(self, values: Sequence[float], order: Sequence[int] | None = None) -> list[bool]:
        """Return which of a batch's trials are pruned at their last rung.

        All trials report a rung before any is judged.

        Args:
            values: of the trials, the same at every rung.
            order: in which the trials are judged.
        """
        study = optuna.create_study(
            direction="maximize", pruner=make_pruner(self.pruner, self.rungs)
        )
        trials = [study.ask() for _ in values]
        pruned = [False] * len(values)
        for rung in range(1, self.rungs + 1):
            for trial, value in zip(trials, values, strict=True):
                trial.report(value, rung)
            for place in order or range(len(values)):
                pruned[place] |= trials[place].should_prune()
        return pruned

    def test_a_trial_without_reports_is_not_pruned(self) -> None:
        """Nor is the only trial of a study."""
        study = optuna.create_study(
            direction="maximize", pruner=make_pruner(self.pruner, self.rungs)
        )
        assert not study.ask().should_prune()
        assert self.verdicts([1.0]) == [False]

    def test_the_best_trial_is_not_pruned(self) -> None:
        """Wherever it is in the batch."""
        for best in range(8):
            values = [10.0 if place == best else float(place) for place in range(8)]
            assert not self.verdicts(values)[best]

    def test_the_order_of_a_batch_does_not_matter(self) -> None:
        """Every worker, and a repetition of the study, decides alike."""
        values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6, 5.0, 3.5]
        first = self.verdicts(values)
        assert self.verdicts(values, range(7, -1, -1)) == first
        assert self.verdicts(values) == first

    def test_a_trial_that_diverged_is_no_obstacle(self) -> None:
        """Its value is NaN."""
        values = [math.nan, *map(float, range(7))]
        assert not self.verdicts(values)[-1]
