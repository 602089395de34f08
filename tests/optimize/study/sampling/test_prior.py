"""Configurations of earlier studies in the race's model."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from sweepd.optimize.study.prior import standardised, strongest
from sweepd.optimize.study.record.configurations import Selection
from sweepd.optimize.study.sampling import gp
from sweepd.optimize.study.sampling.prior import Known, read_known
from sweepd.optimize.study.sampling.race import Race
from tests.optimize.study.sampling.test_gp import KERNEL, matern
from tests.optimize.study.sampling.test_race import SPACE, TOTAL, Study, truth

RELATED = np.array([0.8, 0.3])


def values_of(count: int, sign: float = 1.0, study: int = 1) -> list[Known]:
    rng = np.random.default_rng(9)
    found = []
    for _ in range(count):
        rate, clip = float(10 ** rng.uniform(-5, -1)), float(rng.uniform(0.1, 0.4))
        params = {"minibatch": 16, "learning_rate": rate, "clip": clip}
        found.append(Known(study, params, sign * truth(params), 1))
    return standardised(found)


class Informed(Study):
    """A race with a prior."""

    def __init__(self, prior: list[Known], **options: Any) -> None:
        self.prior = prior
        super().__init__(**options)

    def new_race(self) -> Race:
        return Race(self.cube, self.seed, Selection().value, self.prior)


def test_the_posterior_is_that_of_a_dense_model_of_all_studies() -> None:
    rng = np.random.default_rng(1)
    studies = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2])
    places = rng.random((9, 3))
    kernel = gp.Kernel(KERNEL.lengths, KERNEL.signal, KERNEL.noise, RELATED)
    # f_s = r_s f + sqrt(1 - r_s^2) h_s + level, written out by independent functions.
    f = np.array([[matern(a, b, KERNEL) for b in places] for a in places])
    weights = np.append(1.0, RELATED)[studies]
    rest = np.append(0.0, np.sqrt(1.0 - RELATED**2))[studies]
    covariance = f * np.outer(weights, weights)
    for study in (1, 2):
        own = (studies == study).astype(float)
        covariance += f * np.outer(rest * own, rest * own) + gp.LEVEL * np.outer(own, own)
    covariance += KERNEL.unexplained * np.eye(9)
    run, values = np.array([0, 1, 4, 5, 6, 7, 8]), rng.standard_normal(7)
    noise = KERNEL.seed / rng.integers(1, 4, 7)
    gain = covariance[:, run] @ np.linalg.inv(covariance[np.ix_(run, run)] + np.diag(noise))
    variance = np.diag(covariance - gain @ covariance[run])

    points = np.concatenate([places, studies[:, None].astype(float)], axis=1)
    assert gp.means(kernel, points, run, values, noise) == pytest.approx(gain @ values)
    found = gp.deviations(kernel, points, run, noise)[:4]
    assert found == pytest.approx(np.sqrt(variance[:4]))


def test_the_gradient_with_earlier_studies_is_that_of_finite_differences() -> None:
    rng = np.random.default_rng(2)
    places = rng.random((12, 3))
    gaps = (places[:, None] - places[None]) ** 2
    studies = np.repeat([0, 1, 2], [5, 4, 3])
    loss = gp._Loss(gaps, rng.standard_normal(12), 0.3 + 0.7 / rng.integers(1, 5, 12), studies)
    for _ in range(5):
        at = rng.normal(0.0, 0.7, 3 + 2 + 2)
        numeric = approx_fprime(at, lambda logs: loss(logs)[0], 1e-6)
        assert loss(at)[1] == pytest.approx(numeric, rel=1e-3, abs=1e-4)


def test_the_correlation_is_learnt_from_the_values() -> None:
    rng = np.random.default_rng(3)
    places = rng.random((64, 2))
    studies = np.repeat([0, 1, 2], [24, 20, 20])
    clean = np.sin(4.0 * places[:, 0]) + places[:, 1]
    values = np.where(studies == 2, -clean, clean) + 0.1 * rng.standard_normal(64)
    kernel = gp.fit(places, values - values.mean(), np.ones(64, dtype=np.int64), studies)
    assert kernel.related[0] > 0.7
    assert kernel.related[1] < 0.2


def test_unrelated_values_change_no_prediction() -> None:
    rng = np.random.default_rng(4)
    own = rng.random((8, 3))
    before, values = rng.random((5, 3)), rng.standard_normal(8)
    alone = gp.means(KERNEL, own, np.arange(8), values, np.full(8, 0.1))
    kernel = gp.Kernel(KERNEL.lengths, KERNEL.signal, KERNEL.noise, np.zeros(1))
    points = np.concatenate(
        [np.pad(own, ((0, 0), (0, 1))), np.pad(before, ((0, 0), (0, 1)), constant_values=1.0)]
    )
    all_values = np.append(values, rng.standard_normal(5))
    found = gp.means(kernel, points, np.arange(13), all_values, np.full(13, 0.1))
    assert found[:8] == pytest.approx(alone)


def test_decisions_follow_from_the_trials_and_the_recorded_prior() -> None:
    prior = values_of(20)
    record = json.loads(json.dumps({"configurations": [vars(one) for one in prior]}))
    first, again = Informed(prior), Informed(read_known(record), fresh=True)
    for study in (first, again):
        study.play(TOTAL)
    assert [t.params for t in first.trials] == [t.params for t in again.trials]
    plain = Study()
    plain.play(TOTAL)
    # The starts are the first of the same sequence; half of the 12 are left.
    drawn = [[t.params for t in study.trials] for study in (first, plain)]
    assert drawn[0][:4] == drawn[1][:4]
    assert drawn[0][8:] != drawn[1][8:]


def test_a_related_prior_finds_good_configurations_sooner() -> None:
    def early(prior: list[Known]) -> float:
        studies = [Informed(prior, seed=seed) for seed in range(3)]
        for study in studies:
            study.play(20)
        return float(np.mean([truth(t.params) for s in studies for t in s.trials[8:]]))

    assert early(values_of(40)) > early([]) + 0.15


def test_a_misleading_prior_is_overcome() -> None:
    study = Informed(values_of(40, sign=-1.0))
    study.play(TOTAL)
    assert max(truth(t.params) for t in study.trials[-12:]) > -0.5


def test_the_best_half_and_others_at_even_distances_are_kept() -> None:
    known = [Known(1, {}, float(value), 1) for value in (0, 9, 1, 8, 2, 7, 3, 6)]
    assert [one.value for one in strongest(known, 4)] == [0.0, 9.0, 8.0, 7.0]
    assert strongest(known, 8) == known


def test_values_are_standardised_within_their_study() -> None:
    values = np.array([one.value for one in values_of(30, sign=7.0)])
    assert (values.mean(), values.std()) == pytest.approx((0.0, 1.0))
    equal = standardised([Known(1, {}, 5.0, 1)] * 4)
    assert [one.value for one in equal] == [0.0] * 4


def test_parameters_of_the_prior_are_in_the_space() -> None:
    for one in values_of(5):
        SPACE.fixed_params(one.params)
