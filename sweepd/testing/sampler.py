"""The suite for samplers that `--sampler` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState

from sweepd.optimize.study.sampling.samplers import make_sampler


class SamplerTestCase:
    """What sweepd needs of a sampler. A subclass names it as `--sampler` does:

    class TestMySampler(SamplerTestCase):
        sampler = 'my_samplers:MySampler {"size": 8}'

    As in a study, every trial has a new object.

    Attributes:
        sampler: the name, with arguments.
        space: the parameters to draw.
        seeded: whether it takes a seed; without one, studies cannot be repeated.
    """

    sampler: ClassVar[str]
    space: ClassVar[Mapping[str, BaseDistribution]] = {
        "learning_rate": FloatDistribution(1e-5, 1e-2, log=True),
        "clip": FloatDistribution(0.1, 0.3),
        "epochs": IntDistribution(2, 8),
        "net_width": CategoricalDistribution([32, 64, 128]),
    }
    seeded: ClassVar[bool] = True

    def asked(
        self, study: optuna.Study, number: int, fixed: Mapping[str, Any] | None = None
    ) -> optuna.Trial:
        """Return the study's next trial, with its parameters, from a sampler of its own."""
        study.sampler = make_sampler(self.sampler, 1000 + number, fixed)
        return study.ask(dict(self.space))

    def searched(self, trials: int, at_once: int = 1) -> list[dict[str, Any]]:
        """Return the parameters of a study's trials, which run `at_once` at a time."""
        study = optuna.create_study(direction="maximize")
        while len(study.trials) < trials:
            first = len(study.trials)
            batch = [self.asked(study, first + place) for place in range(at_once)]
            for trial in batch:
                study.tell(trial, -abs(trial.params["clip"] - 0.2))
        return [trial.params for trial in study.trials]

    def test_every_parameter_is_drawn_within_its_distribution(self) -> None:
        """Of floats, whole numbers and choices."""
        for params in self.searched(8):
            assert params.keys() == self.space.keys()
            for name, distribution in self.space.items():
                inner = distribution.to_internal_repr(params[name])
                assert distribution._contains(inner), f"{name} = {params[name]!r}"

    def test_draws_differ(self) -> None:
        """A sampler without a state of its own proposes something new to each trial of a batch."""
        drawn = [params["learning_rate"] for params in self.searched(6, at_once=3)]
        assert len(set(drawn)) == len(drawn), f"the same learning_rate was drawn twice: {drawn}"

    def test_the_same_history_and_seed_give_the_same_draw(self) -> None:
        """So a study can be repeated, and another worker decides alike."""
        if self.seeded:
            assert self.searched(6, at_once=2) == self.searched(6, at_once=2)

    def test_fixed_parameters_stay(self) -> None:
        """The trials of a batch have one shape, which the first of them drew."""
        study = optuna.create_study(direction="maximize")
        for number in range(4):
            trial = self.asked(study, number, {"net_width": 64})
            assert trial.params["net_width"] == 64
            study.tell(trial, float(number))

    def test_trials_that_were_pruned_or_failed_are_no_obstacle(self) -> None:
        """Nor are trials without a single report, or a study in which all failed."""
        study = optuna.create_study(direction="maximize")
        for number in range(6):
            trial = self.asked(study, number)
            if number % 3 == 0:
                study.tell(trial, state=TrialState.FAIL)
            elif number % 3 == 1:
                trial.report(float(number), 1)
                study.tell(trial, state=TrialState.PRUNED)
            else:
                study.tell(trial, float(number))
        assert self.asked(study, 6).params.keys() == self.space.keys()
