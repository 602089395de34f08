"""The evaluation of a trial of a game: returns of episodes, their mean and its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sweepd.envs.games.play import LONGEST, EpisodeResults
from sweepd.envs.support.intervals import (
    EQUAL,
    Floats,
    Interval,
    block_means,
    crossed,
    outside,
    over_seeds,
)
from sweepd.optimize.objectives.games.duels import opponent_metrics
from sweepd.optimize.objectives.games.judging import EpisodeObjective, Infos
from sweepd.optimize.objectives.run import Evaluation
from sweepd.optimize.study.record.keys import blocks_key, interval_key
from sweepd.optimize.study.record.specs import GameSpec, StudySpec
from sweepd.optimize.study.record.trials import TrialRecord

# Metrics of every game, and of games that are small enough to enumerate.
NUMBERS = ("mean", "deviation", "worst", "length", "at_limit")
EXACT_NUMBERS = ("nash_conv", "nash_conv_least")


@dataclass(frozen=True)
class GameEvaluation(Evaluation):
    """Returns of a trial's members.

    Attributes:
        value: mean over seeds of the mean return per episode; equal to `final`.
        episodes: returns and lengths, (seeds, episodes).
        opponents: players of a game of two against whom the episodes were played, one after the
            other; returns are then outcomes. Empty in other games.
        limit: most steps of an episode.
        nash_conv: of every member, as it plays in the evaluation; empty in games that are not small
            enough to enumerate.
        own_episodes: see `GameSpec`.
        score_range: see `GameSpec`.
        roles: mean return of each role by its metric, in studies with roles.
        by_function: whether `value` and `scores` are those of an `EpisodeObjective`, not of returns.
    """

    episodes: EpisodeResults
    opponents: tuple[str, ...] = ()
    limit: int = LONGEST
    nash_conv: tuple[float, ...] = ()
    own_episodes: bool = False
    score_range: tuple[float, float] | None = None
    by_function: bool = False
    roles: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def games(self) -> Floats:
        """(seeds, episodes) returns; against several opponents the mean over them."""
        returns = self.episodes.returns
        against = max(1, len(self.opponents))
        return np.asarray(returns.reshape(len(returns), against, -1).mean(1))

    @cached_property
    def interval(self) -> Interval:
        """The 95 % interval of the value."""
        return over_seeds(self.scores) if self.by_function else self.return_interval

    @cached_property
    def return_interval(self) -> Interval:
        """The 95 % interval of the mean return."""
        limits = None if self._outside is not None else self.score_range
        if self.own_episodes and len(self.scores) > 1:
            return over_seeds(self.mean_returns, limits)
        return crossed(self.games, limits)

    @property
    def mean_returns(self) -> tuple[float, ...]:
        """Mean return of each member."""
        return tuple(self.episodes.returns.mean(1).tolist()) if self.by_function else self.scores

    @cached_property
    def _outside(self) -> float | None:
        """An episode's score that is not in the declared range; None if all are."""
        return None if self.score_range is None else outside(self.games, self.score_range)

    @property
    def warning(self) -> str | None:
        """What is wrong with the declared range of scores; None if nothing is."""
        if self._outside is None or self.score_range is None:
            return None
        low, high = self.score_range
        method = self.return_interval.method
        shown = "there is no interval" if method == EQUAL else f"the interval is {method}"
        return (
            f"an episode scored {self._outside:.6g}, outside the game's score_range of {low:.6g} … "
            f"{high:.6g}: Gaffke's bounds would not hold, so {shown}; correct score_range"
        )

    def rung_attributes(self, spec: StudySpec, rung: int) -> dict[str, Any]:
        found = super().rung_attributes(spec, rung)
        if not self.interval.empty:
            found[interval_key(rung)] = self.interval.to_dict()
        if spec.selection.settled(rung) and not (self.own_episodes or self.by_function):
            found[blocks_key(rung)] = block_means(self.games).tolist()
        return found

    @cached_property
    def record(self) -> TrialRecord:
        metrics = self.metrics()
        return TrialRecord(
            scores=self.scores,
            metrics=metrics,
            resampled=self.return_interval.resampled,
            interval=self.return_interval.method,
            warning=self.warning,
            nash_conv=metrics.get("nash_conv"),
            reason="; ".join(self.reasons),
        )

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the trial.

        mean return with its 95% interval; deviation and minimum of the return over all episodes;
        mean length of an episode (in games in turns, in decisions), and share of
        the episodes that lasted as long as the limit allows; results against opponents; mean
        returns of roles; mean and minimum over members of the NashConv.
        """
        returns, lengths, own = self.episodes.returns, self.episodes.lengths, self.return_interval
        bounds = {"mean_low": own.low, "mean_high": own.high} if own.known else {}
        return {
            "mean": float(np.mean(self.mean_returns)) if self.by_function else self.value,
            **bounds,
            "deviation": float(returns.std()),
            "worst": float(returns.min()),
            "length": float(lengths.mean()),
            "at_limit": float((lengths >= self.limit).mean()),
            **opponent_metrics(self.opponents, self.episodes),
            **self.roles,
            **self._exact_metrics(),
        }

    def _exact_metrics(self) -> dict[str, float]:
        if not self.nash_conv:
            return {}
        exact = float(np.mean(self.nash_conv)), min(self.nash_conv)
        return dict(zip(EXACT_NUMBERS, exact, strict=True))


def mean_interval(metrics: Mapping[str, Any], resampled: str, method: str) -> Interval:
    """Return the interval of the mean that `GameEvaluation.metrics` recorded.

    Args:
        metrics: the metrics.
        resampled: `TrialRecord.resampled`.
        method: `TrialRecord.interval`.
    """
    low, high = metrics.get("mean_low", -math.inf), metrics.get("mean_high", math.inf)
    return Interval(float(metrics["mean"]), low, high, resampled, method=method)


def judge_episodes(
    episodes: EpisodeResults,
    opponents: tuple[str, ...],
    limit: int,
    spec: GameSpec,
    objective: EpisodeObjective | None = None,
    infos: Sequence[Infos] = (),
) -> GameEvaluation | None:
    """Return the evaluation of a trial; None of a diverged policy, whose numbers mean nothing.

    Args:
        episodes: of its members.
        opponents: see `GameEvaluation`.
        limit: see `GameEvaluation`.
        spec: of the study.
        objective: what judges the episodes of a member; None: their mean return.
        infos: of the episodes of every member, for the objective.
    """
    if not np.isfinite(episodes.returns).all():
        return None
    scores = episodes.returns.mean(1)
    if objective is not None:
        every = zip(episodes.returns, episodes.lengths, infos, strict=True)
        scores = np.array([objective(*own) for own in every])
    value, kept = float(scores.mean()), tuple(scores.tolist())
    how: dict[str, Any] = {"own_episodes": spec.own_episodes, "score_range": spec.score_range}
    how["by_function"] = objective is not None
    return GameEvaluation(value, value, kept, (), episodes, opponents, limit, **how)
