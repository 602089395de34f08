"""Samplers and pruners keep the laws of their contracts (`sweepd.testing`), broken ones do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution

from sweepd.testing import PrunerTestCase, SamplerTestCase

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
HERE = __name__


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


class TestTPE(SamplerTestCase):
    sampler = "tpe"


class TestGP(SamplerTestCase):
    sampler = 'optuna.samplers:GPSampler {"n_startup_trials": 4}'


class TestNearTheBest(SamplerTestCase):
    """The sampler of `examples/own_sampler.py`."""

    sampler = 'own_sampler:NearTheBest {"first": 3}'


class TestHyperband(PrunerTestCase):
    pruner = "hyperband"


class TestPercentile(PrunerTestCase):
    pruner = 'optuna.pruners:PercentilePruner {"percentile": 50.0, "n_startup_trials": 1}'


class TestStalled(PrunerTestCase):
    """The pruner of `examples/own_pruner.py`."""

    pruner = 'own_pruner:Stalled {"rungs": 2}'


class Outside(optuna.samplers.RandomSampler):
    """Draws too large numbers."""

    def sample_independent(
        self, study: Any, trial: Any, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        drawn = super().sample_independent(study, trial, param_name, param_distribution)
        return 2 * drawn if param_name == "clip" else drawn


class Constant(optuna.samplers.RandomSampler):
    """Ignores its seed in one way or the other."""

    def __init__(self, seed: int, same: bool = True) -> None:
        super().__init__(1 if same else None)
        del seed


class NeedsValues(optuna.samplers.RandomSampler):
    """Reads the value of every trial."""

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        del trial, search_space
        sorted(own.value for own in study.get_trials(states=tuple(optuna.trial.TrialState)[1:]))
        return {}


class Impatient(optuna.pruners.BasePruner):
    def prune(self, study: Any, trial: Any) -> bool:
        del study
        return trial.last_step is None


class PrunesTheBest(optuna.pruners.BasePruner):
    def prune(self, study: Any, trial: Any) -> bool:
        others = [own.intermediate_values.get(1, 0.0) for own in study.trials]
        return len(others) > 1 and trial.intermediate_values.get(1) == max(others)


class Fragile(optuna.pruners.BasePruner):
    def prune(self, study: Any, trial: Any) -> bool:
        values = [round(own.intermediate_values.get(1, 0)) for own in study.trials]
        return trial.intermediate_values.get(1, 0.0) < min(values)


HALVING = 'optuna.pruners:SuccessiveHalvingPruner {"min_resource": 1, "reduction_factor": 2}'


@pytest.mark.parametrize(
    ("suite", "name", "law"),
    [
        (SamplerTestCase, "Outside", "every_parameter_is_drawn_within_its_distribution"),
        (SamplerTestCase, "Constant", "draws_differ"),
        (
            SamplerTestCase,
            'Constant {"same": false}',
            "the_same_history_and_seed_give_the_same_draw",
        ),
        (SamplerTestCase, "NeedsValues", "trials_that_were_pruned_or_failed_are_no_obstacle"),
        (PrunerTestCase, "Impatient", "a_trial_without_reports_is_not_pruned"),
        (PrunerTestCase, "PrunesTheBest", "the_best_trial_is_not_pruned"),
        (PrunerTestCase, HALVING, "the_order_of_a_batch_does_not_matter"),
        (PrunerTestCase, "Fragile", "a_trial_that_diverged_is_no_obstacle"),
    ],
)
def test_a_broken_one_fails(suite: type[Any], name: str, law: str) -> None:
    class Broken(suite):  # type: ignore[misc]
        sampler = pruner = name if ":" in name.partition(" ")[0] else f"{HERE}:{name}"

    with pytest.raises((AssertionError, TypeError, ValueError)):
        getattr(Broken(), f"test_{law}")()
