"""Configurations of a study: trials with equal parameters, which differ by their seeds only.

In a study with the sampler `RACE`, a trial is one run of a configuration, and further trials repeat
it with other seeds. The configuration is selected, not the trial: the best of several seeds is
mostly luck.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

RACE = "race"  # the sampler whose trials repeat configurations
TRIALS = "trials"  # the search whose trials keep their hyperparameters
PBT = "pbt"  # population-based training, whose trials copy weights from each other
SEARCHES = (TRIALS, PBT)
SETTLED = 0.8  # share of the training from which evaluations count


@dataclass(frozen=True)
class Configuration:
    """Complete trials with equal parameters.

    Attributes:
        trials: the highest value first; of equal values the earliest first.
        values: of the trials, see `Selection.value`.
        error: standard error of their mean, from the variance of seeds in all configurations; 0 if
            none has two trials.
    """

    trials: tuple[FrozenTrial, ...]
    values: tuple[float, ...]
    error: float

    @property
    def best_trial(self) -> FrozenTrial:
        """The trial whose weights are used."""
        return self.trials[0]

    @property
    def value(self) -> float:
        """Mean over its trials."""
        return sum(self.values) / len(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95 % interval of the mean over seeds; None of a single trial.

        It says how far seeds scatter, and not how much the selection flatters the configuration.
        """
        count = len(self.values)
        if count < 2:
            return None
        from scipy.stats import t  # takes long to import

        spread = statistics.stdev(self.values) / math.sqrt(count)
        reach = float(t.ppf(0.975, count - 1)) * spread
        return self.value - reach, self.value + reach


@dataclass(frozen=True)
class Selection:
    """How the trials of a study are compared.

    Attributes:
        racing: whether trials with equal parameters are one configuration. Otherwise every trial is
            a configuration of its own.
        rungs: number of evaluations of a trial, if its value is their mean from `SETTLED` of the
            training on: it varies less than the last one alone. None: the trial's own value.
    """

    racing: bool = False
    rungs: int | None = None

    def settled(self, rung: int) -> bool:
        """Return whether a trial's value is a mean that includes the evaluation at a rung (1 …)."""
        return self.rungs is not None and rung >= SETTLED * self.rungs - 1e-9

    def value(self, trial: FrozenTrial) -> float | None:
        """Return the value of a finished trial; None if it failed.

        The value of a pruned trial is its last evaluation.
        """
        reports = trial.intermediate_values
        value = trial.value if trial.state.name == "COMPLETE" else None
        if value is None:
            value = latest(trial) if reports and trial.state.name == "PRUNED" else None
        elif self.rungs is not None:
            late = [own for rung, own in reports.items() if self.settled(rung)]
            value = sum(late) / len(late) if late else value
        return None if value is None or not math.isfinite(value) else value

    def configurations(self, trials: Iterable[FrozenTrial]) -> list[Configuration]:
        """Return the configurations of the complete trials, the best first.

        They are ordered by the mean minus its standard error, since a mean over few seeds is high
        by luck more often. Of equal ones, the configuration with the earliest trial comes first.
        """
        groups: dict[Hashable, list[tuple[FrozenTrial, float]]] = {}
        for trial in trials:
            if trial.state.name == "COMPLETE" and (value := self.value(trial)) is not None:
                key = frozenset(trial.params.items()) if self.racing else trial.number
                groups.setdefault(key, []).append((trial, value))
        variance = _seed_variance([[value for _, value in group] for group in groups.values()])
        found = []
        for group in groups.values():
            group.sort(key=lambda one: (-float(one[0].value or 0.0), one[0].number))
            ordered, values = zip(*group, strict=True)
            found.append(Configuration(ordered, values, math.sqrt(variance / len(group))))
        # Groups are in the order of their first trials, and sorting keeps it in a tie.
        return sorted(found, key=lambda one: one.error - one.value)

    def best(self, trials: Iterable[FrozenTrial]) -> Configuration | None:
        """Return the first of `configurations`; None without a complete trial."""
        return next(iter(self.configurations(trials)), None)


def _seed_variance(groups: Sequence[Sequence[float]]) -> float:
    """Return the variance within groups, estimated from all of them; 0 if none has two values."""
    freedom = sum(len(group) - 1 for group in groups)
    if not freedom:
        return 0.0
    means = [sum(group) / len(group) for group in groups]
    pairs = zip(groups, means, strict=True)
    return sum((value - mean) ** 2 for group, mean in pairs for value in group) / freedom


def leading(trials: Iterable[FrozenTrial]) -> FrozenTrial | None:
    """Return the unfinished trial with the highest latest evaluation, the earliest in a tie.

    It says where a search stands before a trial is complete. None if none has been evaluated.
    """
    return max(unfinished(trials), key=lambda one: (latest(one), -one.number), default=None)


def unfinished(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Return the unfinished trials that have been evaluated."""
    return [
        trial
        for trial in trials
        if not trial.state.is_finished()
        and trial.intermediate_values
        and math.isfinite(latest(trial))
    ]


def latest(trial: FrozenTrial) -> float:
    """Return the latest evaluation of a trial that has one."""
    return trial.intermediate_values[max(trial.intermediate_values)]
