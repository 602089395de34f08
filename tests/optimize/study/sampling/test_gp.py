"""The Gaussian process over configurations, held to a dense model with one row per run."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from sweepd.optimize.study.sampling import gp

COUNT, COLUMNS = 12, 3
KERNEL = gp.Kernel(np.array([0.5, 0.8, 2.0]), signal=1.3, noise=0.4)


def points(seed: int = 0, count: int = COUNT) -> gp.Floats:
    return np.asarray(np.random.default_rng(seed).random((count, COLUMNS)))


def matern(a: gp.Floats, b: gp.Floats, kernel: gp.Kernel) -> float:
    scaled = 5.0**0.5 * float(np.sqrt((((a - b) / kernel.lengths) ** 2).sum()))
    return kernel.signal * (1.0 + scaled + scaled**2 / 3.0) * float(np.exp(-scaled))


def test_the_posterior_is_that_of_a_dense_model_of_all_runs() -> None:
    rng = np.random.default_rng(1)
    places, seeds = points(), rng.integers(0, 4, COUNT)
    seeds[0] = 3
    run = np.flatnonzero(seeds)
    owner = np.repeat(np.arange(COUNT), seeds)  # one row per run
    results = rng.standard_normal(len(owner))
    truth = np.array([[matern(a, b, KERNEL) for b in places] for a in places])
    truth += KERNEL.unexplained * np.eye(COUNT)
    runs = truth[np.ix_(owner, owner)] + KERNEL.seed * np.eye(len(owner))
    gain = truth[:, owner] @ np.linalg.inv(runs)
    wanted = gain @ results
    variance = np.diag(truth - gain @ truth[owner])

    values = np.array([results[owner == i].mean() for i in run])
    noise = KERNEL.seed / seeds[run]
    assert gp.means(KERNEL, places, run, values, noise) == pytest.approx(wanted)
    assert gp.deviations(KERNEL, places, run, noise) == pytest.approx(np.sqrt(variance))


def test_the_gradient_of_the_fit_is_that_of_finite_differences() -> None:
    rng = np.random.default_rng(2)
    places = points(2)
    gaps = (places[:, None] - places[None]) ** 2
    loss = gp._Loss(gaps, rng.standard_normal(COUNT), 0.3 + 0.7 / rng.integers(1, 5, COUNT))
    for _ in range(5):
        at = rng.normal(0.0, 0.7, COLUMNS + 2)
        numeric = approx_fprime(at, lambda logs: loss(logs)[0], 1e-6)
        assert loss(at)[1] == pytest.approx(numeric, rel=1e-3, abs=1e-4)


def test_a_fit_finds_which_columns_matter_and_how_noisy_runs_are() -> None:
    rng = np.random.default_rng(3)
    places = points(3, 80)
    clean = np.sin(5.0 * places[:, 0])
    seeds = np.ones(80, dtype=np.int64)
    kernels = {}
    for noise in (0.05, 1.0):
        values = clean + noise * rng.standard_normal(80)
        kernels[noise] = gp.fit(places, (values - values.mean()) / values.std(), seeds)
    quiet, noisy = kernels[0.05], kernels[1.0]
    assert quiet.lengths[0] < 0.5 * quiet.lengths[1:].min()
    assert quiet.noise < 0.1 < 0.3 < noisy.noise


def test_a_fit_of_equal_values_and_of_one_configuration_is_finite() -> None:
    for count in (1, 5):
        kernel = gp.fit(points(4, count), np.zeros(count), np.ones(count, dtype=np.int64))
        assert np.isfinite([*kernel.lengths, kernel.signal, kernel.noise]).all()


def test_the_variance_between_seeds_is_shrunk_to_the_models() -> None:
    squares, seeds = np.array([0.0, 0.0, 900.0]), np.array([0, 1, 901])
    found = gp.seed_variances(KERNEL, squares, seeds)
    assert found[:2] == pytest.approx(KERNEL.seed)  # nothing is known yet
    assert found[2] == pytest.approx(1.0, abs=0.01)  # much is known
