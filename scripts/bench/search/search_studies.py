"""Searches with samplers, replayed on a table one trial at a time.

`DaemonStudy` makes the decisions of a sweepd study with the functions of the worker
(`sweepd.optimize.study.search`). The others run Optuna's samplers and pruners, and SMAC3, as their
manuals show. In all of them the nearest unused configuration of the table stands for the one that
was asked for, and the trial records its parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import optuna
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from scripts.bench.search.search_tables import Floats, Table, check_seeds
from sweepd.optimize.study.record.configurations import RACE, Selection
from sweepd.optimize.study.search import Search

STUDY = "replay"


class Run:
    """One repetition of a search on a table: it trains configurations and counts the cost.

    Args:
        table: the learning curves.
        rng: orders the seeds of every configuration.
        budget: training that may be spent, in full runs.
    """

    def __init__(self, table: Table, rng: np.random.Generator, budget: float) -> None:
        configs, seeds = table.curves.shape[:2]
        order = np.argsort(rng.random((configs, seeds)), axis=1)
        rows = np.arange(configs)[:, None]
        self.table, self.budget = table, budget
        self._curves, self._failed = table.curves[rows, order], table.failed[rows, order]
        self._trained = np.zeros((configs, seeds))  # share of the budget
        self._free = np.ones(configs, dtype=np.bool_)

    @property
    def left(self) -> float:
        """Training that is left, in full runs."""
        return self.budget - float(self._trained.sum()) + 1e-9

    @property
    def exhausted(self) -> bool:
        """Whether every configuration is in use."""
        return not self._free.any()

    def stand_in(self, params: dict[str, Any]) -> int:
        """Return the nearest unused configuration, which is then in use."""
        config = self.table.nearest(params, self._free)
        self._free[config] = False
        return config

    def train(self, config: int, seeds: int, share: float = 1.0, first: int = 0) -> Floats:
        """Train seeds of a configuration, `first` the first of them, to a share of the budget.

        Returns:
            Their performance at the last checkpoint within that share, (seeds,); NaN where the run
            failed, 0 where there was no checkpoint yet.

        Raises:
            InputError: no seed would be left to score the configuration.
        """
        check_seeds(self.table, first + seeds)
        own = slice(first, first + seeds)
        self._trained[config, own] = np.maximum(self._trained[config, own], share)
        at = self.table.checkpoint(share)
        if at < 0:
            return np.zeros(seeds)
        failed = self._failed[config, own, at]
        return np.where(failed, np.nan, self._curves[config, own, at])

    def fresh(self, config: int) -> float:
        """Return the mean final performance on the seeds that were not trained."""
        return float(self._curves[config, self._trained[config] == 0.0, -1].mean())


@dataclass(frozen=True)
class Choice:
    """The configuration that a search selected, and the value by which it did."""

    config: int
    value: float


@dataclass(frozen=True)
class _Seat:
    """The configuration that stands for a trial, and the first of its seeds."""

    config: int
    first: int


@dataclass(frozen=True)
class DaemonStudy:
    """A study of sweepd with the flags of `sweepd train`; the defaults are those of TPE."""

    sampler: str = "tpe"
    pruner: str = "hyperband"
    seeds: int = 4
    rungs: int = 4
    trials_per_batch: int = 4

    def choose(self, run: Run, seed: int) -> Choice | None:
        """Replay one study by one worker, until no further trial is affordable in full."""
        racing = self.sampler == RACE
        selection = Selection(racing, self.rungs if racing else None)  # as in a study on a game
        storage = optuna.storages.InMemoryStorage()
        study_id = storage.create_new_study([StudyDirection.MAXIMIZE], STUDY)
        search = Search(
            run.table.space(),
            sampler=self.sampler,
            pruner=self.pruner,
            rungs=self.rungs,
            seed=seed,
            selection=selection,
        )
        seats: dict[int, _Seat] = {}  # by number of the trial
        # Seats of trials by parameters: a trial with those of an earlier one trains further seeds.
        taken: dict[frozenset[tuple[str, Any]], _Seat] = {}
        total = int(run.budget / self.seeds)
        while size := min(self.trials_per_batch, int(run.left / self.seeds)):
            trials: list[optuna.Trial] = []
            shape = None
            while len(trials) < size and not run.exhausted:
                trial_id = storage.create_new_trial(study_id)
                number = storage.get_trial_number_from_id(trial_id)
                trial, params = search.draw(storage, STUDY, trial_id, number, shape, total)
                shape = search.shape_known(params)
                before = taken.get(frozenset(params.items()))
                if before is None or not racing:
                    seat = _Seat(_stand_in(run, trial, params), 0)
                else:
                    seat = _Seat(before.config, before.first + self.seeds)
                taken[frozenset(storage.get_trial(trial_id).params.items())] = seat
                seats[number] = seat
                trials.append(trial)
            if not trials:
                break
            self._train(run, search, trials, seats)
        best = selection.best(storage.get_all_trials(study_id, deepcopy=False))
        return best and Choice(seats[best.best_trial.number].config, best.value)

    def _train(
        self, run: Run, search: Search, trials: list[optuna.Trial], seats: dict[int, _Seat]
    ) -> None:
        """Train a batch rung by rung, as `Worker` does."""
        for rung in range(1, self.rungs + 1):
            values: list[float] = []
            reported: list[optuna.Trial] = []
            for trial in trials:
                seat = seats[trial.number]
                scores = run.train(seat.config, self.seeds, rung / self.rungs, seat.first)
                if np.isnan(scores).any():  # a diverged member fails the trial
                    trial.study.tell(trial.number, state=TrialState.FAIL)
                    continue
                reported.append(trial)
                values.append(float(scores.mean()))
                trial.report(values[-1], rung)
            # All have reported before any is judged.
            verdicts = search.judge(reported)
            trials = []
            for trial, value, pruned in zip(reported, values, verdicts, strict=True):
                if rung == self.rungs:
                    trial.study.tell(trial.number, value)
                elif pruned:
                    trial.study.tell(trial.number, state=TrialState.PRUNED)
                else:
                    trials.append(trial)


@dataclass(frozen=True)
class OptunaStudy:
    """A study with one of Optuna's samplers, and one of its pruners or none.

    Attributes:
        sampler: makes the sampler from a seed.
        pruner: makes the pruner; it judges at every checkpoint.
    """

    sampler: Callable[[int], BaseSampler]
    pruner: Callable[[], optuna.pruners.BasePruner] = optuna.pruners.NopPruner

    def choose(self, run: Run, seed: int) -> Choice | None:
        """Replay one study, one trial at a time, while a trial is affordable in full."""
        study = optuna.create_study(
            direction="maximize", sampler=self.sampler(seed), pruner=self.pruner()
        )
        space = run.table.space()
        configs: dict[int, int] = {}  # by trial
        while run.left >= 1.0 and not run.exhausted:
            trial = study.ask()
            configs[trial.number] = _stand_in(run, trial, space.suggest(trial))
            self._train(run, study, trial, configs[trial.number])
        return _selected(study.trials, configs)

    def _train(self, run: Run, study: optuna.Study, trial: optuna.Trial, config: int) -> None:
        value = 0.0
        judged = not isinstance(study.pruner, optuna.pruners.NopPruner)
        for step, share in enumerate(run.table.shares if judged else [1.0], start=1):
            value = float(np.nan_to_num(run.train(config, 1, share))[0])
            trial.report(value, step)
            if share < 1.0 and trial.should_prune():
                study.tell(trial, state=TrialState.PRUNED)
                return
        study.tell(trial, value)


@dataclass(frozen=True)
class Smac:
    """SMAC3's facade for hyperparameter optimization: random forests, and its racing of seeds."""

    def choose(self, run: Run, seed: int) -> Choice | None:
        """Replay one search, one run at a time."""
        from ConfigSpace import Categorical, ConfigurationSpace, Float, Integer
        from smac import HyperparameterOptimizationFacade, Scenario
        from smac.runhistory.dataclasses import TrialValue

        space = ConfigurationSpace(seed=seed)
        for column in run.table.columns:
            own = column.dimension
            if own.choices:
                space.add(Categorical(own.name, list(own.choices)))
            else:
                kind = Integer if own.whole else Float
                space.add(kind(own.name, own.ends, log=own.log))
        configs: dict[Any, int] = {}
        seeds: dict[Any, list[int]] = {}
        with TemporaryDirectory() as folder:
            scenario = Scenario(
                space, n_trials=int(run.budget), seed=seed, output_directory=Path(folder)
            )
            smac = HyperparameterOptimizationFacade(
                scenario, _never_called, logging_level=False, overwrite=True
            )
            while run.left >= 1.0:
                info = smac.ask()
                if info.config not in configs:
                    if run.exhausted:
                        break
                    configs[info.config] = run.stand_in(dict(info.config))
                own_seeds = seeds.setdefault(info.config, [])
                own_seeds.append(info.seed)
                values = run.train(configs[info.config], len(own_seeds))
                smac.tell(info, TrialValue(cost=1.0 - float(np.nan_to_num(values[-1]))))
            best = smac.intensifier.get_incumbent()
        config = configs[best]
        return Choice(config, float(np.nan_to_num(run.train(config, len(seeds[best]))).mean()))


def _never_called(config: Any, seed: int) -> float:
    raise NotImplementedError


def _stand_in(run: Run, trial: optuna.Trial, params: dict[str, Any]) -> int:
    """Choose the configuration for a trial, and record its parameters as the trial's.

    Parameters that the configuration does not have stay as they were drawn.
    """
    config = run.stand_in(params)
    storage = trial.study._storage
    for name, distribution in trial.distributions.items():
        value = run.table.params[config].get(name, params[name])
        storage.set_trial_param(
            trial._trial_id, name, distribution.to_internal_repr(value), distribution
        )
    return config


def _selected(trials: list[FrozenTrial], configs: dict[int, int]) -> Choice | None:
    """Return the choice of the best complete trial; None if there is none."""
    best = Selection().best(trials)
    return best and Choice(configs[best.best_trial.number], best.value)
