"""The project's own searches on policies without skill, for the error rates of the gate.

A policy's returns follow from its hyperparameters: a smooth function of them, which is another one
in every study, plus noise of its own (the seed). So similar hyperparameters have correlated
returns, as on a market. Training moves the returns halfway towards it at every rung. Samplers,
pruner and population-based training are those of `sweepd train`, with a study in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.study import StudyDirection
from optuna.trial import TrialState
from scipy.signal import lfilter

from sweepd.deploy.promotion.overfitting import cscv
from sweepd.envs.crypto.scoring import luck
from sweepd.envs.crypto.scoring.luck import Moments
from sweepd.envs.crypto.scoring.selection import TrialReturns, mean_evaluations
from sweepd.optimize.study.record.configurations import PBT, RACE, Selection
from sweepd.optimize.study.sampling.cube import Cube
from sweepd.optimize.study.sampling.evolution import decide
from sweepd.optimize.study.search import Search
from sweepd.optimize.study.space.dimension import Dimension
from sweepd.optimize.study.space.search_space import SearchSpace

Array = NDArray[np.float64]
SEARCHES = (RACE, "tpe", "random", "cmaes", PBT)
RUNGS, BATCH, WAVES = 4, 8, 96  # BATCH: trials trained together, the population of PBT
SEED_SHARE = 0.3  # of the variance of a policy's returns
LENGTH = 0.35  # in the unit cube: policies at this distance have a correlation of .6 of the rest
STUDY = "null"
Measure = Callable[[Moments], float]
# What a search may follow: the ratio, or the ratio in units of its own standard error.
MEASURES: dict[str, Measure] = {"ratio": lambda found: found.sharpe, "score": Moments.score}


def space() -> SearchSpace:
    """Return a search space of six numbers."""
    ppo = {
        "learning_rate": Dimension("learning_rate", low=1e-5, high=1e-2, log=True),
        "one_minus_gamma": Dimension("one_minus_gamma", low=0.01, high=0.3, log=True),
        "entropy_coef": Dimension("entropy_coef", low=1e-4, high=0.1, log=True),
        "clip": Dimension("clip", low=0.1, high=0.4),
    }
    env = {
        "action_scale": Dimension("action_scale", low=0.1, high=0.5),
        "alpha_weight": Dimension("alpha_weight", low=0.1, high=1.0),
    }
    return SearchSpace(STUDY, 1, {"shape": {}, "ppo": ppo, "env": env})


class Market:
    """Returns of policies in one study.

    Args:
        bars: of a path.
        phi: first autocorrelation of the returns.
        skill: Sharpe ratio per bar of the policy in the middle of the search space; those at a
            distance have less.
        random: draws everything.
    """

    def __init__(self, bars: int, phi: float, skill: float, random: np.random.Generator) -> None:
        self.cube, self._random = Cube(space()), random
        self._phi, self._skill = phi, skill
        axes = len(self.cube.axes)
        # Random Fourier features (Rahimi and Recht 2007): the weights of two points have the
        # product exp(-distance²/(2·LENGTH²)).
        self._frequencies = random.standard_normal((axes, WAVES)) / LENGTH
        self._phases = random.uniform(0.0, 2.0 * math.pi, WAVES)
        self._waves = self.noise(bars, WAVES)

    def noise(self, bars: int, count: int) -> Array:
        """Return (count, bars) series without a mean, of variance 1."""
        drawn = self._random.standard_normal((count, bars + 100))
        scaled = math.sqrt(1.0 - self._phi**2) * lfilter([1.0], [1.0, -self._phi], drawn)
        return np.asarray(scaled[:, 100:])

    def policy(self, params: dict[str, Any]) -> Array:
        """Return the (bars,) returns of a policy with these hyperparameters and a new seed."""
        place = self.cube.place(params)
        weights = math.sqrt(2.0 / WAVES) * np.cos(place @ self._frequencies + self._phases)
        own = self.noise(self._waves.shape[1], 1)[0]
        drawn = math.sqrt(1.0 - SEED_SHARE) * (weights @ self._waves) + math.sqrt(SEED_SHARE) * own
        near = math.exp(-float(np.sum((place - 0.5) ** 2)) / (2.0 * LENGTH**2))
        return np.asarray(drawn + near * self._skill)


@dataclass
class Member:
    """A trial in training: its returns so far, which are noise at first."""

    trial: optuna.Trial
    params: dict[str, Any]
    returns: Array

    def train(self, market: Market) -> float:
        """Train to the next rung. Returns the objective, the Sharpe ratio per bar."""
        self.returns = math.sqrt(0.5) * (self.returns + market.policy(self.params))
        return float(np.mean(self.returns) / np.std(self.returns))


def search(market: Market, sampler: str, trials: int, seed: int) -> dict[str, float]:
    """Run one study and judge its best trial as the gate's first stage does."""
    storage = optuna.storages.InMemoryStorage()
    study = storage.create_new_study([StudyDirection.MAXIMIZE], STUDY)
    evolves, selection = sampler == PBT, Selection(sampler == RACE)
    searching = Search(
        space(),
        sampler="random" if evolves else sampler,
        pruner="none" if evolves or sampler == RACE else "hyperband",
        rungs=RUNGS,
        seed=seed,
        selection=selection,
    )
    kept: dict[int, Array] = {}
    for start in range(0, trials, BATCH):
        members = []
        for number in range(start, min(start + BATCH, trials)):
            row = storage.create_new_trial(study)
            trial, params = searching.draw(storage, STUDY, row, number, None, trials)
            members.append(Member(trial, params, market.noise(market.policy(params).size, 1)[0]))
        kept |= _train(market, searching, members, seed if evolves else None)
    finished = storage.get_all_trials(study, deepcopy=False)
    best = selection.best(finished)
    assert best is not None
    reports = [len(trial.intermediate_values) for trial in finished]
    return judge(kept, best.best_trial.number, trials, mean_evaluations(reports))


def _train(
    market: Market, searching: Search, members: list[Member], evolves: int | None
) -> dict[int, Array]:
    """Train a batch as `Worker` does. Returns the complete trials' returns, by number.

    Args:
        evolves: the study's seed, if the batch is a population.
    """
    for rung in range(1, RUNGS + 1):
        values = {}
        for member in members:
            values[member.trial.number] = member.train(market)
            member.trial.report(values[member.trial.number], rung)
        if rung == RUNGS:
            for member in members:
                member.trial.study.tell(member.trial.number, values[member.trial.number])
        elif evolves is not None:
            by_number = {member.trial.number: member for member in members}
            params = {number: member.params for number, member in by_number.items()}
            for number, change in decide(searching.space, evolves, rung, values, params).items():
                by_number[number].returns = by_number[change.source].returns
                by_number[number].params = change.params
        else:
            pruned = searching.judge([member.trial for member in members])
            for member, ends in zip(members, pruned, strict=True):
                if ends:
                    member.trial.study.tell(member.trial.number, state=TrialState.PRUNED)
            members = [m for m, ends in zip(members, pruned, strict=True) if not ends]
    return {member.trial.number: member.returns for member in members}


def judge(
    kept: dict[int, Array], best: int, trials: int, evaluations: float = 1.0
) -> dict[str, float]:
    """Return DSR and PBO of a trial.

    Args:
        kept: returns of the complete trials, by number.
        best: number of the trial.
        trials: of the study.
        evaluations: of a trial, on average.
    """
    returns = TrialReturns()
    for number, own in kept.items():
        returns.add(number, own[None], np.arange(own.size))
    found = returns.deflate(returns.moments[best], trials, evaluations=evaluations)
    every = np.stack(list(kept.values()), axis=1)
    return {
        "dsr": found.probability,
        "pbo": cscv(every).pbo if len(kept) > 1 else 1.0,
        "score": found.moments.score(),
        "needed": found.needed / found.moments.error,
        "effective": found.effective,
    }


def climb(
    bars: int, trials: int, correlation: float, measure: Measure, random: np.random.Generator
) -> list[Array]:
    """Return the returns of a search each of whose trials varies the best one so far."""
    every: list[Array] = []
    best, highest = np.zeros(bars), -math.inf
    for number in range(trials):
        own = random.standard_normal(bars)
        if number:
            own = correlation * best + math.sqrt(1.0 - correlation**2) * own
        every.append(own)
        if (value := measure(luck.moments(own))) > highest:
            best, highest = own, value
    return every


def best_of(every: Sequence[Array], measure: Measure) -> int:
    """Return the number of the best trial."""
    return int(np.argmax([measure(luck.moments(own)) for own in every]))


def with_copies(
    every: Sequence[Array], copies: int, measure: Measure, random: np.random.Generator
) -> list[Array]:
    """Append copies of the best trial, with a correlation of .999."""
    best = every[best_of(every, measure)]
    noise = math.sqrt(1.0 / 0.999**2 - 1.0) * float(np.std(best))
    return [*every, *(best + noise * random.standard_normal(best.size) for _ in range(copies))]
