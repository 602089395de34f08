"""Studies on a market: folds as members, judged by trading their test groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sweepd.agents.engine.acting import Actors
from sweepd.agents.engine.program import Act
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.features import get_recipe
from sweepd.envs.crypto.market import make_market, observation_normaliser
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.crypto.scoring.evaluate import WindowTrades, path_trades, trade_windows
from sweepd.envs.crypto.scoring.figures import path_metrics
from sweepd.envs.crypto.scoring.metrics import TRADE_COLUMNS, Metrics, PathTrades, objective
from sweepd.envs.crypto.splits import Fold, Splits
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.artifacts import write_trial
from sweepd.optimize.objectives.members.experiment import NO_SHAPE, Experiment
from sweepd.optimize.objectives.run import Evaluation
from sweepd.optimize.study.checkpoint import State
from sweepd.optimize.study.record.spans import study_splits
from sweepd.optimize.study.record.specs import CryptoSpec
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.space.search_space import Settings

SHOWN_JUMPS = 8  # accepted ones


@dataclass(frozen=True)
class CryptoEvaluation(Evaluation):
    """Trades of a trial in all test groups.

    Attributes:
        value: mean over folds of the objective on the fold's own test groups.
        final: objective over the back-test paths.
        path_scores: score of each path.
        paths: the paths.
        metrics: metrics of each path.
        timeframe: of the bars.
    """

    path_scores: tuple[float, ...]
    paths: PathTrades
    metrics: list[Metrics]
    timeframe: str

    @cached_property
    def record(self) -> TrialRecord:
        """The record, with the metrics of `path_metrics`."""
        return TrialRecord(
            scores=self.scores,
            path_scores=self.path_scores,
            metrics=path_metrics(self.paths, self.timeframe, self.metrics),
            reason="; ".join(self.reasons),
        )


class CryptoExperiment(Experiment):
    """Market, folds and environments of a study.

    Raises:
        InputError: there are too few bars, or the feature recipe has another version than the
            study's.
    """

    published = ("equity.png", "paths.parquet")
    spec: CryptoSpec

    def __init__(self, spec: CryptoSpec, bars: Bars, device: torch.device) -> None:
        super().__init__(spec, device)
        recipe = get_recipe(spec.recipe["name"])
        if recipe.version != spec.recipe["version"]:
            raise InputError(
                f"the study uses version {spec.recipe['version']} of feature recipe "
                f"{recipe.name!r}, and this is version {recipe.version}"
            )
        self.market = make_market(bars, recipe.name)
        self.splits: Splits = study_splits(spec)
        # The critic sees an episode's age only if some trial's reward depends on it.
        self.privileged_age = (
            "time_decay_floor" in spec.space["env"] or spec.env.get("time_decay_floor", 1.0) < 1.0
        )

    @property
    def members(self) -> int:
        return len(self.folds)

    @property
    def folds(self) -> tuple[Fold, ...]:
        """Training and test groups of the study."""
        return self.splits.folds

    def env_params(self, settings: Settings) -> EnvParams:
        return EnvParams(**self.env_settings(settings))

    def normaliser(self, member: int, settings: Settings) -> tuple[Tensor, Tensor]:
        """Return mean and deviation over the bars at which this fold decides in training."""
        lookback = self.env_params(settings).lookback
        return observation_normaliser(
            self.market, self.folds[member].train, lookback, self.spec.max_lookback
        )

    def training_env(
        self,
        slots: int,
        num_envs: int,
        shape: Mapping[str, Any] = NO_SHAPE,  # noqa: ARG002
    ) -> CryptoEnv:
        """Return an environment whose dummies use the first fold's training windows."""
        params = EnvParams(**self.spec.env)
        windows = [list(self.folds[0].train)] * slots
        env = CryptoEnv(
            self.market,
            [params] * slots,
            windows,
            num_envs,
            max_lookback=self.spec.max_lookback,
            privileged_age=self.privileged_age,
            device=self.device,
        )
        env.reset([0] * slots)  # empty slots need valid numbers too
        return env

    def seat(
        self,
        env: CryptoEnv,
        slot: int,
        member: int,
        settings: Settings,
        state: State | None = None,  # noqa: ARG002
    ) -> None:
        env.configure_member(slot, self.env_params(settings), self.folds[member].train)

    # -- evaluation

    def evaluate(
        self,
        settings: Sequence[Settings],
        rungs: Sequence[int],  # noqa: ARG002
        programs: Sequence[Act],
        slots: int,
        ask: Callable[[], None],
    ) -> list[CryptoEvaluation | None]:
        """Evaluate all test groups of all folds of all trials in one pass over the bars."""
        folds = self.splits.folds
        windows = [self.splits.test_windows(fold) for _ in settings for fold in folds]
        params = [self.env_params(own) for own in settings for _ in folds]
        dummies = len(programs) * slots - len(params)
        # One row per member and test window; each trades its window once, starting with cash only.
        env = CryptoEnv.for_windows(
            self.market,
            params + [params[0]] * dummies,
            windows + [windows[0]] * dummies,
            max_lookback=self.spec.max_lookback,
            device=self.device,
        )
        actors = _side_by_side(programs)

        def act(obs: Tensor) -> Tensor:
            ask()
            return actors(obs)

        trades = trade_windows(env, act)
        # Rows of `trades`: trial, then fold, then test group.
        order = [(fold.index, group) for fold in folds for group in fold.test_groups]
        return [self._judge(trades, trial * len(order), order) for trial in range(len(settings))]

    def _judge(
        self, trades: WindowTrades, first_row: int, order: list[tuple[int, int]]
    ) -> CryptoEvaluation | None:
        """Return the evaluation of one trial.

        Args:
            trades: trades of all rows.
            first_row: the trial's first row.
            order: (fold, group) of each of its rows.
        """
        # A diverged policy of one trial must not fail the others of the batch.
        if not np.isfinite(trades.returns[first_row : first_row + len(order)]).all():
            return None
        name, timeframe = self.spec.objective, self.spec.data.timeframe
        scores = []
        for fold in self.folds:
            mine = [
                row for row, (index, _) in enumerate(order, start=first_row) if index == fold.index
            ]
            scores.append(objective(_one_path(trades, mine), timeframe, name).value)
        paths = path_trades(self.splits, trades, order, first_row)
        final = objective(paths, timeframe, name)
        return CryptoEvaluation(
            float(np.mean(scores)),
            final.value,
            tuple(scores),
            tuple(final.reasons),
            tuple(final.path_scores),
            paths,
            paths.summarise(timeframe),
            timeframe,
        )

    # -- output

    def describe(self) -> list[str]:
        data, splits = self.spec.data, self.splits
        jumps = [
            f"accepted: {jump.file}: row {jump.row} ({jump.time} UTC): {jump.found}"
            for jump in data.accepted_jumps[:SHOWN_JUMPS]
        ]
        if more := len(data.accepted_jumps[SHOWN_JUMPS:]):
            jumps.append(f"accepted: {more:,} more, in the study's record")
        return [
            f"data: {', '.join(data.tickers)}; {data.bars:,} bars of {data.timeframe}, "
            f"{data.first} to {data.last}" + ("; SYNTHETIC" if data.synthetic else ""),
            *jumps,
            f"folds: {self.spec.cv['scheme']}, {len(splits.folds)} folds, "
            f"{len(splits.paths)} paths, purge {splits.purge} bars, "
            f"hold-out {splits.holdout[1] - splits.holdout[0]:,} bars",
        ]

    def write(self, folder: Path, evaluation: CryptoEvaluation) -> None:
        times = self.market.bars.time[self.splits.path_bars]
        write_trial(folder, evaluation.paths, evaluation.metrics, times)


def _one_path(trades: WindowTrades, rows: Sequence[int]) -> PathTrades:
    """Return the windows of one fold, concatenated as if they were a path."""
    joined = {
        name: np.concatenate([getattr(trades, name)[row, : trades.lengths[row]] for row in rows])[
            None
        ]
        for name in TRADE_COLUMNS
    }
    return PathTrades(**joined)


def _side_by_side(programs: Sequence[Act]) -> Act:
    """Return one function that acts for the members of all programs."""
    # Stacked programs are merged into one batched call; others act one after the other.
    actors = [program for program in programs if isinstance(program, Actors)]
    if len(actors) == len(programs):
        return Actors.together(actors)

    def act(obs: Tensor) -> Tensor:
        return torch.cat(
            [
                program(rows)
                for program, rows in zip(programs, obs.chunk(len(programs)), strict=True)
            ]
        )

    return act
