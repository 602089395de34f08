"""A sampler of your own: draws near the best trials so far.

PYTHONPATH=examples sweepd train --env cartpole --sampler 'own_sampler:NearTheBest {"best": 3}'
"""

import numpy as np
import optuna
from optuna.samplers import BaseSampler, RandomSampler


class NearTheBest(BaseSampler):
    """Draws each parameter from one of the best trials, with noise on numbers.

    Every trial has a new object: what it decides by must be in the study. `seed` is passed by
    sweepd, a new one for each trial.
    """

    def __init__(self, seed=None, best=4, first=8):
        self.random, self.independent = np.random.default_rng(seed), RandomSampler(seed)
        self.best, self.first = best, first

    def infer_relative_search_space(self, *_):
        """Return nothing: all parameters are drawn one by one."""
        return {}

    def sample_relative(self, *_):
        """Return nothing."""
        return {}

    def sample_independent(self, study, trial, name, distribution):
        """Return the value of one parameter."""
        done = [t for t in study.get_trials(deepcopy=False) if t.value is not None]
        done = [t for t in done if name in t.params]
        drawn = self.independent.sample_independent(study, trial, name, distribution)
        if len(done) < self.first or self.random.random() < 0.2:
            return drawn
        near = self.random.choice(sorted(done, key=lambda t: -t.value)[: self.best]).params[name]
        if not isinstance(distribution, optuna.distributions.FloatDistribution):
            return near
        # A tenth of the way to a random value.
        return near**0.9 * drawn**0.1 if distribution.log else 0.9 * near + 0.1 * drawn


def main() -> None:
    """Search a function of two parameters."""
    study = optuna.create_study(sampler=NearTheBest(seed=1), direction="maximize")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study.optimize(
        lambda t: -abs(t.suggest_float("x", 0, 1) - 0.3) - t.suggest_float("y", 0, 1), 60
    )
    print(f"best value: {study.best_value:.3f}")


if __name__ == "__main__":
    main()
