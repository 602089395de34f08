"""Sampler that decides between a new configuration and a further seed of an earlier one.

Trials with equal parameters are seeds of one configuration, since every trial has a seed of its
own. The first trials are points of a scrambled Sobol sequence, and points near the start values of
the search space. Then a Gaussian process over the configurations (`gp`) predicts what each is worth
on average over seeds, and the trial gets the configuration with the highest upper confidence bound
(Srinivas et al. 2010, arXiv 0912.3995), be it a new one or one that ran before. A costlier network
shape needs a higher bound. Every third trial is a further seed.

Configurations of earlier studies (`prior`) are further observations of the process. They are never
drawn for their own sake, nor selected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial
from scipy.stats import qmc

from sweepd.envs.core.seeds import derive_seed
from sweepd.optimize.study.record.configurations import broken, episode_luck, joined
from sweepd.optimize.study.sampling import gp
from sweepd.optimize.study.sampling.cube import Cube, Floats
from sweepd.optimize.study.sampling.prior import Earlier, Known

STARTS = 24  # most trials before the model is used; at most a quarter of the study
INFORMED = 2  # with a prior, the number of those is divided by this
REPEATED = 3  # every third trial is a further seed: the leading means are reliable at any time
MOST_SEEDS = 7  # of a configuration
BETA = 1.5  # deviations above the mean in the confidence bound
# What e times the arithmetic must be worth, in deviations between configurations' means. With e times
# as many trials, the best of n random ones gains 1 / sqrt(2 ln n) of them, 0.33 at n = 100. The time
# of a trial grows about as the square root of the arithmetic, which halves this.
SAVING = 0.16
CANDIDATES = 100  # new configurations drawn anywhere, and as many near the best ones
NEAR, STEP = 6, 0.15  # best configurations that have neighbours, and the neighbours' deviation
MODELLED = 256  # most configurations in the model
FIT_EVERY, FITTED = 12, 128  # trials between fits of the kernel, and most configurations in one
Observe = Callable[[FrozenTrial], float | None]


@dataclass
class Arm:
    """A configuration that can be drawn.

    Attributes:
        params: its parameters.
        key: their values, in the order of the axes.
        values: of its trials; None of one that failed, or breaks a constraint.
        broken: by how much each of them breaks constraints, see `broken`.
        blocks: see `Selection.blocks`, of the trials with values.
        pending: number of its trials without a result yet.
    """

    params: Mapping[str, Any]
    key: tuple[Any, ...]
    values: list[float | None] = field(default_factory=list)
    broken: list[float] = field(default_factory=list)
    blocks: list[Floats | None] = field(default_factory=list)
    pending: int = 0

    @property
    def count(self) -> int:
        """Number of its trials."""
        return len(self.values) + self.pending

    @property
    def known(self) -> list[float]:
        """Values of the trials that have one."""
        return [value for value in self.values if value is not None]

    @property
    def mean(self) -> float:
        """Mean of its values, -inf without one."""
        return sum(self.known) / len(self.known) if self.known else -math.inf


class RaceSampler(BaseSampler):
    """One trial's draw, see the module.

    Args:
        race: what trials of the study share.
        seed: seed of this trial's candidates.
        total: number of trials that the study shall have.
        fixed: parameters with a fixed value.
    """

    def __init__(self, race: Race, seed: int, total: int, fixed: Mapping[str, Any]) -> None:
        self._race, self._seed, self._total, self._fixed = race, seed, total, fixed
        self._random = RandomSampler(seed=seed % 2**32)

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        return dict(self._race.cube.distributions)

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        return self._race.draw(trials, trial.number, self._seed, self._total, self._fixed)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        # Only parameters that the draw left out: a switch was enqueued as on, and drawn as off.
        return self._random.sample_independent(study, trial, param_name, param_distribution)


class Race:
    """The rule of one study. It keeps computed numbers only, which depend on the trials.

    Args:
        cube: the search space.
        seed: the study's seed.
        observe: returns the value of a finished trial; None if it failed, or breaks a constraint.
        blocks: returns what is kept of its episodes, see `Selection.blocks`.
        prior: configurations of earlier studies.
    """

    def __init__(
        self,
        cube: Cube,
        seed: int,
        observe: Observe,
        prior: Sequence[Known] = (),
        blocks: Callable[[FrozenTrial], Floats | None] = lambda _: None,
    ) -> None:
        self.cube, self.seed, self.observe, self.blocks = cube, seed, observe, blocks
        self._earlier = Earlier(cube, prior) if prior and cube.axes else None
        self._kernel: tuple[tuple[int, ...], gp.Kernel] | None = None  # the last one, by trials
        self._places: dict[tuple[Any, ...], Floats] = {}  # by the configuration's key

    def sampler(self, seed: int, total: int, fixed: Mapping[str, Any]) -> RaceSampler:
        """Return the sampler of one trial; see `RaceSampler`."""
        return RaceSampler(self, seed, total, fixed)

    def draw(
        self,
        trials: Sequence[FrozenTrial],
        number: int,
        seed: int,
        total: int,
        fixed: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the parameters of a trial.

        Args:
            trials: the others.
            number: its number.
            seed: of its candidates.
            total: number of trials that the study shall have.
            fixed: parameters with a fixed value.
        """
        if not self.cube.axes:
            return {}
        arms = self._arms(trials)
        if number < self._starts(total) or not any(arm.known or any(arm.broken) for arm in arms):
            return self._params(self._start(number, fixed), fixed)
        kernel = self._fitted(trials)
        arms = _kept(arms, MODELLED)
        runs = self._runs(arms)
        own = np.array([_matches(arm.params, fixed) for arm in arms])
        few = own & np.array([arm.count < MOST_SEEDS for arm in arms])
        new = np.zeros((0, len(self.cube.axes)))
        if (number + 1) % REPEATED or not few.any():
            best = np.argsort(-runs.means(kernel), kind="stable")[:NEAR]
            new = self._candidates(runs, best, np.random.default_rng(seed), fixed)
        # Every configuration of a small space may have all its seeds.
        old = few if few.any() or len(new) else own
        bounds = runs.bounds(kernel, self._features(new), old)
        if len(new):  # a further seed goes to the best configuration, whatever it costs
            bounds -= SAVING * self.cube.log_arithmetic(np.concatenate([runs.points, new]))
        chosen = int(np.argmax(bounds))
        return (
            dict(arms[chosen].params)
            if chosen < len(arms)
            else self._params(new[chosen - len(arms)], fixed)
        )

    def _starts(self, total: int) -> int:
        """Return the number of trials before the model is used."""
        starts = min(STARTS, total // 4)
        return starts if self._earlier is None else starts // INFORMED

    def _features(self, points: Floats) -> Floats:
        """Return columns for the model: with a prior, the last is the number of the study."""
        found = self.cube.features(points)
        return found if self._earlier is None else np.pad(found, ((0, 0), (0, 1)))

    def _params(self, point: Floats, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters at a point, the fixed ones to the last bit."""
        found = self.cube.params(point)
        return {name: fixed.get(name, value) for name, value in found.items()}

    def _arms(self, trials: Sequence[FrozenTrial]) -> list[Arm]:
        """Return the configurations in the order of their first trials."""
        arms: dict[tuple[Any, ...], Arm] = {}
        for trial in trials:
            params = trial.params
            key = tuple(map(params.get, self.cube.names))
            arm = arms.get(key)
            if arm is None:
                if not self.cube.complete(params):
                    continue
                arm = arms[key] = Arm(params, key)
            if trial.state.is_finished():
                arm.values.append(self.observe(trial))
                arm.broken.append(broken(trial))
                if arm.values[-1] is not None:
                    arm.blocks.append(self.blocks(trial))
            else:
                arm.pending += 1
        return list(arms.values())

    def _runs(self, arms: Sequence[Arm]) -> _Runs:
        points = np.array([self._place(arm) for arm in arms])
        return _Runs(points, self._features(points), arms, self._earlier)

    def _place(self, arm: Arm) -> Floats:
        found = self._places.get(arm.key)
        if found is None:
            found = self._places[arm.key] = self.cube.place(arm.params)
        return found

    def _fitted(self, trials: Sequence[FrozenTrial]) -> gp.Kernel:
        """Return the kernel of the first finished trials, which changes every few trials."""
        finished = [trial for trial in trials if trial.state.is_finished()]
        finished = finished[: _fit_size(len(finished))]
        numbers = tuple(trial.number for trial in finished)
        if self._kernel is None or self._kernel[0] != numbers:
            runs = self._runs(_kept([a for a in self._arms(finished) if a.values], FITTED))
            self._kernel = numbers, runs.fit()
        return self._kernel[1]

    def _start(self, number: int, fixed: Mapping[str, Any]) -> Floats:
        """Return the point of one of the first trials.

        They are points of the study's Sobol sequence. If the space has start values, every second
        trial is near them instead, and no network shape is costlier than theirs.
        """
        space, start = self.cube.space, self.cube.space.start
        if not start:
            return np.asarray(self.cube.fixed(self._sobol(number), fixed)[0])
        found = self._sobol(number // 2)
        drawn = self.cube.params(found[0])
        cheaper = min({**drawn, **start}, drawn, key=space.arithmetic)
        fixed = {**{name: cheaper[name] for name in space.shape_names}, **fixed}
        if number % 2:
            rng = np.random.default_rng(derive_seed(self.seed, "near", number))
            found = self.cube.spread(rng.random(found.shape))
            home = self.cube.fixed(found, {**start, **fixed})
            near = self.cube.fixed(self.cube.moved(home, self._steps(1, rng)), fixed)
            # Few choices may leave no neighbour within a step.
            found = found if np.allclose(near, home, equal_nan=True) else near
        return np.asarray(self.cube.fixed(found, fixed)[0])

    def _sobol(self, index: int) -> Floats:
        """Return a point of the study's sequence, (1, axes)."""
        seed = derive_seed(self.seed, "sobol") % 2**32
        sequence = qmc.Sobol(len(self.cube.axes), rng=np.random.default_rng(seed))
        return self.cube.spread(sequence.random_base2(index.bit_length())[index : index + 1])

    def _steps(self, count: int, rng: np.random.Generator) -> Floats:
        """Return steps to neighbours, (count, axes): along half of the axes on average."""
        size = (count, len(self.cube.axes))
        return np.asarray(rng.normal(0.0, STEP, size) * (rng.random(size) < 0.5))

    def _candidates(
        self, runs: _Runs, best: gp.Ints, rng: np.random.Generator, fixed: Mapping[str, Any]
    ) -> Floats:
        """Return points of new configurations, anywhere and near the best ones."""
        anywhere = self.cube.spread(rng.random((CANDIDATES, len(self.cube.axes))))
        steps = self._steps(CANDIDATES, rng)
        near = self.cube.moved(runs.points[rng.choice(best, CANDIDATES)], steps)
        found = self.cube.fixed(np.concatenate([anywhere, near]), fixed)
        ran = {point.round(9).tobytes() for point in runs.points}
        return found[[point.round(9).tobytes() not in ran for point in found]]


class _Runs:
    """Configurations as arrays.

    Args:
        points: (configurations, axes).
        features: (configurations, columns).
        arms: the configurations.
        earlier: those of earlier studies; None: there are none.
    """

    def __init__(
        self, points: Floats, features: Floats, arms: Sequence[Arm], earlier: Earlier | None = None
    ) -> None:
        self.points, self.features, self.earlier = points, features, earlier
        self.pending = np.array([arm.pending for arm in arms])
        self.seeds = np.array([len(arm.values) for arm in arms])
        self.known = np.flatnonzero(self.seeds)
        known = [arm for arm in arms if arm.values]
        runs = _ranked(known)
        means = np.array([own.mean() for own in runs])
        scale = float(means.std()) or 1.0
        self.values = (means - means.mean()) / scale
        # Of the episodes, which all configurations share: more seeds do not reduce it.
        self.luck = episode_luck([joined(arm.blocks) for arm in known]) / scale**2
        self.squares = np.zeros(len(arms))
        self.squares[self.known] = [((own - own.mean()) ** 2).sum() / scale**2 for own in runs]

    def fit(self) -> gp.Kernel:
        """Return the kernel of configurations that all have values, and of the earlier ones."""
        if self.earlier is None:
            return gp.fit(self.features, self.values, self.seeds)
        features = np.concatenate([self.features, self.earlier.features])
        return gp.fit(
            features[:, :-1],
            np.append(self.values, self.earlier.values),
            np.append(self.seeds, self.earlier.seeds),
            features[:, -1].astype(np.int64),
        )

    def means(self, kernel: gp.Kernel, new: Floats | None = None) -> Floats:
        """Return the posterior means of the configurations, and of new ones after them."""
        features = self.features if new is None else np.concatenate([self.features, new])
        noise = gp.seed_variances(kernel, self.squares, self.seeds)[self.known]
        values, count = self.values, len(features)
        if self.earlier is not None:
            values = np.append(values, self.earlier.values)
        features, run, noise = self._joined(
            kernel, features, self.known, noise / self.seeds[self.known] + self.luck
        )
        return gp.means(kernel, features, run, values, noise)[:count]

    def bounds(self, kernel: gp.Kernel, new: Floats, old: NDArray[np.bool_]) -> Floats:
        """Return upper confidence bounds; -inf for configurations that are not `old`.

        Trials without a result reduce the deviations, and leave the means as they are.
        """
        noise = gp.seed_variances(kernel, self.squares, self.seeds) / (self.seeds + self.pending)
        noise = noise + self.luck
        features = np.concatenate([self.features, new])
        count = len(features)
        features, run, noise = self._joined(kernel, features, np.arange(len(self.seeds)), noise)
        deviations = gp.deviations(kernel, features, run, noise)[:count]
        found = self.means(kernel, new) + BETA * deviations
        found[: len(old)][~old] = -np.inf
        return found

    def _joined(
        self, kernel: gp.Kernel, features: Floats, run: gp.Ints, noise: Floats
    ) -> tuple[Floats, gp.Ints, Floats]:
        """Return the points of a posterior, and its observations, with the earlier ones last."""
        if self.earlier is None:
            return features, run, noise
        added = np.arange(len(features), len(features) + len(self.earlier.values))
        return (
            np.concatenate([features, self.earlier.features]),
            np.append(run, added),
            np.append(noise, kernel.seed / self.earlier.seeds),
        )


def _ranked(arms: Sequence[Arm]) -> list[Floats]:
    """Return the values of the trials of each configuration, of those without one in their place.

    A trial that breaks constraints is below all that meet them, the more it breaks them the lower
    (Deb 2000), by as much as these span at most. A failed trial counts as the worst.
    """
    known = [value for arm in arms for value in arm.known]
    low, high = min(known, default=0.0), max(known, default=0.0)
    most = max((own for arm in arms for own in arm.broken), default=0.0)
    step = ((high - low) or 1.0) / most if most else 0.0
    lowest = low - step * most
    return [
        np.array(
            [
                value if value is not None else low - step * own if own else lowest
                for value, own in zip(arm.values, arm.broken, strict=True)
            ]
        )
        for arm in arms
    ]


def _matches(params: Mapping[str, Any], fixed: Mapping[str, Any]) -> bool:
    return all(params.get(name) == value for name, value in fixed.items())


def _fit_size(finished: int) -> int:
    """Return the number of trials by which the kernel is fitted: it grows in steps."""
    size = min(finished, FIT_EVERY)
    while (step := max(FIT_EVERY, size // 8)) <= finished - size:
        size += step
    return size


def _kept(arms: Sequence[Arm], most: int) -> list[Arm]:
    """Return at most that many configurations: pending ones, the best, and some of the others."""
    if len(arms) <= most:
        return list(arms)
    kept = {i for i, arm in enumerate(arms) if arm.pending}
    best = sorted(range(len(arms)), key=lambda i: -arms[i].mean)
    kept.update(best[: most // 2])
    # Others at even distances in the order of their first trials.
    others = [i for i in range(len(arms)) if i not in kept]
    stride = len(others) / max(1, most - len(kept))
    kept.update(others[int(k * stride)] for k in range(most - len(kept)))
    return [arms[i] for i in sorted(kept)]
