"""Configurations of a study: trials with equal parameters, which differ by their seeds only.

In a study with the sampler `RACE`, a trial is one run of a configuration, and further trials repeat
it with other seeds. The configuration is selected, not the trial: the best of several seeds is
mostly luck.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sweepd.envs.support.intervals import Floats, Interval, between, crossed, paired, solved_seeds
from sweepd.optimize.study.record.values import (
    FIRST,
    distances,
    non_dominated,
    recorded_violations,
    total_violation,
)

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
        error: standard error of their mean in a comparison with the other configurations: from the
            variance of seeds in all configurations, 0 if none has two trials, and `episode_luck`.
        blocks: (seeds, blocks) means of their episodes, see `Selection.blocks`; None where they
            are not recorded.
        limits: lowest and highest possible value, if they are known.
        second: of the selected configuration, the one that was second.
    """

    trials: tuple[FrozenTrial, ...]
    values: tuple[float, ...]
    error: float
    blocks: Floats | None = None
    limits: tuple[float, float] | None = None
    second: Configuration | None = None

    @property
    def best_trial(self) -> FrozenTrial:
        """The trial whose weights are used."""
        return self.trials[0]

    @property
    def value(self) -> float:
        """Mean over its trials."""
        return sum(self.values) / len(self.values)

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the value over seeds and the episodes that they all play.

        Of a single trial, it is over episodes alone. None where the episodes are not recorded. It
        does not say how much the selection flatters the configuration.
        """
        if self.blocks is None:
            return None
        found = crossed(self.blocks, self.limits)
        return None if found.empty else found

    @property
    def scores(self) -> tuple[float, ...]:
        """Values of its seeds; of its trials where the episodes are not recorded."""
        return self.values if self.blocks is None else tuple(self.blocks.mean(1).tolist())

    def ahead_of(self, other: Configuration) -> Interval | None:
        """Return how far its value is above another's, with the 95 % interval of paired episodes.

        None where the episodes are not recorded, or are not the same.
        """
        ours, theirs = self.blocks, other.blocks
        if ours is None or theirs is None or ours.shape[1] != theirs.shape[1]:
            return None
        found = paired(ours, theirs, self.limits)
        return None if found.empty else found

    def to_dict(self, solved: float | None = None) -> dict[str, Any]:
        """Return what the configuration was selected by, as plain data.

        Args:
            solved: score from which the game counts as solved, if there is one.

        Returns:
            `trials`, `value`, `scores` (of the seeds), `interval` (`Interval.to_dict`, or None),
            `solved` (see `solved_seeds`), `between` (a text of the last three), and `second` (None,
            or `trials`, `value` and `scores` of the second, `ahead`, `Interval.to_dict` or None,
            and `between`, a text about them).
        """
        share = None if solved is None else solved_seeds(self.scores, solved)
        return {
            "trials": sorted(trial.number for trial in self.trials),
            "value": self.value,
            "scores": list(self.scores),
            "interval": None if self.interval is None else self.interval.to_dict(),
            "solved": share,
            "between": between(self.interval, self.scores, share),
            "second": None if self.second is None else self._lead(self.second),
        }

    def _lead(self, second: Configuration) -> dict[str, Any]:
        ahead = self.ahead_of(second)
        return {
            "trials": sorted(trial.number for trial in second.trials),
            "value": second.value,
            "scores": list(second.scores),
            "ahead": None if ahead is None else ahead.to_dict(),
            "between": self.lead_words(second),
        }

    def lead_words(self, second: Configuration, form: str = "{:+.4f}") -> str:
        """Say how far the configuration is ahead of another, with an interval if seeds suffice."""
        ahead, text = self.ahead_of(second), form.format(self.value - second.value)
        if ahead is None:
            return text
        fewer = min(len(self.scores), len(second.scores))
        shown = fewer > 1 and ahead.trusted(fewer)
        return f"{text} ({ahead.between(form) if shown else 'too few seeds for an interval'})"


@dataclass(frozen=True)
class Selection:
    """How the trials of a study are compared.

    Attributes:
        racing: whether trials with equal parameters are one configuration. Otherwise every trial is
            a configuration of its own.
        rungs: number of evaluations of a trial, if its value is their mean from `SETTLED` of the
            training on: it varies less than the last one alone. None: the trial's own value.
        blocks_key: attribute of a trial with `blocks` of a rung, the number of which replaces "%".
        limits: lowest and highest possible value, if they are known.
        signs: of each value of a trial, factor that makes larger ones better.
        choose: with several values, the rule that chooses one trial of the frontier.
    """

    racing: bool = False
    rungs: int | None = None
    blocks_key: str = ""
    limits: tuple[float, float] | None = None
    signs: tuple[float, ...] = (1.0,)
    choose: str = ""

    def settled(self, rung: int) -> bool:
        """Return whether a trial's value is a mean that includes the evaluation at a rung (1 …)."""
        return self.rungs is not None and rung >= SETTLED * self.rungs - 1e-9

    def value(self, trial: FrozenTrial) -> float | None:
        """Return the value of a finished trial; None if it failed.

        The value of a pruned trial is its last evaluation.
        """
        reports = trial.intermediate_values
        value = first_value(trial) if trial.state.name == "COMPLETE" else None
        if value is None:
            value = latest(trial) if reports and trial.state.name == "PRUNED" else None
        elif self.rungs is not None:
            late = [own for rung, own in reports.items() if self.settled(rung)]
            value = sum(late) / len(late) if late else value
        return None if value is None or not math.isfinite(value) else value

    def observed(self, trial: FrozenTrial) -> float | None:
        """Return `value`; None of a trial that breaks a constraint, as of one that failed."""
        return self.value(trial) if feasible(trial) else None

    def blocks(self, trial: FrozenTrial) -> Floats | None:
        """Return what is kept of the episodes of `value`: (seeds, blocks); None if nothing is."""
        if self.rungs is None or not self.blocks_key:
            return None
        rungs = [rung for rung in trial.intermediate_values if self.settled(rung)]
        kept = [trial.user_attrs.get(self.blocks_key.replace("%", str(rung))) for rung in rungs]
        found = [np.asarray(own, dtype=np.float64) for own in kept if own is not None]
        if not found or len(found) < len(rungs) or len({own.shape for own in found}) > 1:
            return None
        return np.asarray(np.mean(found, axis=0))

    def configurations(self, trials: Iterable[FrozenTrial]) -> list[Configuration]:
        """Return the configurations whose complete trials meet the constraints, the best first.

        They are ordered by the mean minus its standard error, since a mean over few seeds is high
        by luck more often. With several values, they are ordered by the rule that chooses one of
        them. Of equal ones, the configuration with the earliest trial comes first.
        """
        groups: dict[Hashable, list[tuple[FrozenTrial, float]]] = {}
        broken: set[Hashable] = set()
        for trial in trials:
            if trial.state.name == "COMPLETE" and (value := self.value(trial)) is not None:
                key = frozenset(trial.params.items()) if self.racing else trial.number
                groups.setdefault(key, []).append((trial, value))
                if not feasible(trial):
                    broken.add(key)
        groups = {key: group for key, group in groups.items() if key not in broken}
        variance = _seed_variance([[value for _, value in group] for group in groups.values()])
        found = []
        for group in groups.values():
            group.sort(key=lambda one: (-(first_value(one[0]) or 0.0), one[0].number))
            ordered, values = zip(*group, strict=True)
            blocks = joined([self.blocks(trial) for trial in ordered])
            error = math.sqrt(variance / len(group))
            found.append(Configuration(ordered, values, error, blocks, self.limits))
        luck = episode_luck([one.blocks for one in found])
        if luck > 0.0:
            found = [replace(one, error=math.hypot(one.error, math.sqrt(luck))) for one in found]
        # Groups are in the order of their first trials, and sorting keeps it in a tie.
        if len(self.signs) > 1:
            return self._by_rule(found)
        found.sort(key=lambda one: one.error - one.value)
        if self.racing and len(found) > 1:
            found[0] = replace(found[0], second=found[1])
        return found

    def _by_rule(self, found: Sequence[Configuration]) -> list[Configuration]:
        """Return configurations of trials with several values, the chosen one first."""
        if not found:
            return []
        points = self._points(found)
        far, first = distances(points, non_dominated(points)), points[:, 0]
        keys = (far, -first) if self.choose == FIRST else (-first, far)  # the last one decides
        return [found[index] for index in np.lexsort(keys)]

    def _points(self, found: Sequence[Configuration]) -> Floats:
        """Return (configurations, values), in which larger is better."""
        points = np.array([one.best_trial.values for one in found], dtype=np.float64)
        return np.asarray(points * np.array(self.signs))

    def frontier(self, configurations: Sequence[Configuration]) -> list[Configuration]:
        """Return those than which no other is as good in every value and better in one.

        Args:
            configurations: of the study, see `configurations`; the order stays.
        """
        if not configurations:
            return []
        kept = non_dominated(self._points(configurations))
        return [one for one, own in zip(configurations, kept, strict=True) if own]

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


def joined(blocks: Sequence[Floats | None]) -> Floats | None:
    """Return (seeds, blocks) of trials that all have as many blocks; None of others."""
    known = [own for own in blocks if own is not None]
    if not known or len(known) < len(blocks) or len({own.shape[1] for own in known}) > 1:
        return None
    return np.concatenate(known)


def episode_luck(configurations: Sequence[Floats | None]) -> float:
    """Return the variance that the choice of episodes adds to each configuration's mean.

    All configurations play the same episodes, so what is common to them cancels out of comparisons.
    What remains is that some episodes suit one configuration better than another. More seeds do
    not reduce it. The part of it that differs by seed is in the variance between seeds, and is
    subtracted here.

    Args:
        configurations: (seeds, blocks) of each, see `Selection.blocks`.

    Returns:
        0 if fewer than two configurations have blocks, or none has two seeds.
    """
    known = [own for own in configurations if own is not None]
    count = max((own.shape[1] for own in known), default=0)
    known = [own for own in known if own.shape[1] == count]
    repeated = [own for own in known if len(own) > 1]
    if count < 2 or len(known) < 2 or not repeated:
        return 0.0
    freedom = sum((len(own) - 1) * (count - 1) for own in repeated)
    rests = [own - own.mean(1, keepdims=True) - own.mean(0) + own.mean() for own in repeated]
    by_seed = sum(float((rest**2).sum()) for rest in rests) / freedom
    means = np.stack([own.mean(0) - own.mean() for own in known])
    rest = float(((means - means.mean(0)) ** 2).sum()) / ((len(known) - 1) * (count - 1))
    share = float(np.mean([1.0 / len(own) for own in known]))
    return max(0.0, rest - share * by_seed) / count


def first_value(trial: FrozenTrial) -> float | None:
    """Return the objective of a trial; None without one. Other values follow it."""
    values = trial.values  # `FrozenTrial.value` raises where there are several
    return float(values[0]) if values else None


def violations(trial: FrozenTrial) -> dict[str, float]:
    """Return the recorded violations of constraints, see `Constraint.violation`, by their text."""
    return recorded_violations(trial.system_attrs)


def feasible(trial: FrozenTrial) -> bool:
    """Return whether no recorded constraint is broken."""
    return broken(trial) == 0.0


def broken(trial: FrozenTrial) -> float:
    """Return by how much a trial breaks constraints, in all: 0 if it meets them."""
    return total_violation(violations(trial))


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


def value_words(found: Mapping[str, Any]) -> str:
    """Format a value with what it rests on: `+1.2500 (95% over seeds +1.0000 … +1.5000)`.

    Args:
        found: of `Configuration.to_dict` or `FreshSeeds.to_dict`.
    """
    text = f"{found['value']:+.4f}" + (f" ({found['between']})" if found["between"] else "")
    return f"{text}; {found['judged']}" if "judged" in found else text
