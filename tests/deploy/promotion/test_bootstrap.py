"""The stationary bootstrap: block lengths, spread of the means, and size of the test."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from skfolio.utils.bootstrap import optimal_block_size

from sweepd.deploy.promotion.bootstrap import (
    DRAWS,
    batch_count,
    batch_means_p,
    block_length,
    bootstrap_means,
    bootstrap_samples,
    draws_for,
    gate_level,
    mean_above_zero,
)


def series(seed: int, n: int, phi: float) -> NDArray[np.float64]:
    """An AR(1) process."""
    noise = np.random.default_rng(seed).normal(size=n)
    for t in range(1, n):
        noise[t] += phi * noise[t - 1]
    return noise


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(50, 800), st.floats(-0.5, 0.95))
def test_the_block_length_is_that_of_an_independent_implementation(
    seed: int, n: int, phi: float
) -> None:
    values = series(seed, n, phi)
    assert block_length(values) == pytest.approx(max(1.0, optimal_block_size(values)), abs=1e-10)


def plain_means(
    values: NDArray[np.float64], block: float, draws: int, seed: int
) -> NDArray[np.float64]:
    """Bar by bar: a random bar with probability 1/block, else the next one, wrapping around."""
    rng, n = np.random.default_rng(seed), len(values)
    at = rng.integers(0, n, draws)
    total = values[at].copy()
    for _ in range(1, n):
        at = np.where(rng.random(draws) < 1.0 / block, rng.integers(0, n, draws), (at + 1) % n)
        total += values[at]
    return total / n


@pytest.mark.parametrize("block", [1.0, 1.7, 8.0, 60.0])
def test_means_are_distributed_as_those_of_the_definition(block: float) -> None:
    values = series(3, 300, 0.7) + 0.3
    ours = bootstrap_means(values, block, 20_000, np.random.default_rng(0))
    plain = plain_means(values, block, 20_000, 1)
    assert ours.mean() == pytest.approx(plain.mean(), abs=4.0 * plain.std() / math.sqrt(10_000))
    assert ours.std() == pytest.approx(plain.std(), rel=0.03)
    for share in (0.05, 0.5, 0.95):
        assert np.quantile(ours, share) == pytest.approx(
            np.quantile(plain, share), abs=0.05 * plain.std()
        )


@pytest.mark.parametrize("length", [70, 300, 1000])
def test_samples_of_another_length_are_distributed_as_those_of_the_definition(length: int) -> None:
    values, block = series(3, 300, 0.7) + 0.3, 8.0
    means = bootstrap_means(values, block, 8_000, np.random.default_rng(0), length=length)
    samples = np.concatenate(
        list(bootstrap_samples(values, block, 8_000, np.random.default_rng(1), length=length))
    )
    assert samples.shape == (8_000, length)
    assert set(np.unique(samples)) <= set(values)
    plain = samples.mean(axis=1)
    assert means.mean() == pytest.approx(plain.mean(), abs=4.0 * plain.std() / math.sqrt(4_000))
    assert means.std() == pytest.approx(plain.std(), rel=0.04)
    if length == 300:
        own = plain_means(values, block, 8_000, 2)
        assert plain.std() == pytest.approx(own.std(), rel=0.04)
        assert np.quantile(plain, 0.05) == pytest.approx(
            np.quantile(own, 0.05), abs=0.12 * own.std()
        )


@pytest.mark.parametrize("phi", [0.0, 0.5])
def test_without_a_mean_it_says_so_in_about_the_promised_share(phi: float) -> None:
    p = [mean_above_zero(series(seed, 400, phi), seed=seed, draws=300).p for seed in range(400)]
    assert np.mean(np.array(p) <= 0.05) == pytest.approx(0.05, abs=0.035)
    assert np.mean(p) == pytest.approx(0.5, abs=0.06)


def test_few_bars_that_hang_together_reject_little_more_often_than_promised() -> None:
    """The bootstrap alone rejects in 13% of such series at .05, and in 6% at .0125."""
    found = [
        mean_above_zero(series(seed, 500, 0.9)[200:], seed=seed, draws=300) for seed in range(400)
    ]
    p = np.array([one.p for one in found])
    assert np.mean(p <= 0.05) < 0.09
    assert np.mean(p <= 0.0125) < 0.04
    assert max(one.batches for one in found) < 30  # 300 bars count as few independent values
    edge = (
        3.0 * 10.0 / math.sqrt(300)
    )  # three standard errors: 1 / (1 - phi) is the long-run deviation
    p = np.array(
        [
            mean_above_zero(series(seed, 500, 0.9)[200:] + edge, seed=seed, draws=300).p
            for seed in range(100)
        ]
    )
    assert np.mean(p <= 0.05) > 0.7


def test_batch_means_are_students_t_of_the_means() -> None:
    values = series(1, 103, 0.3) + 0.2
    expected = scipy.stats.ttest_1samp(
        values[3:].reshape(10, 10).mean(axis=1), 0.0, alternative="greater"
    ).pvalue
    assert batch_means_p(values, 10) == pytest.approx(expected, rel=1e-12)
    assert [batch_count(300, block) for block in (1.0, 10.0, 60.0, 200.0)] == [100, 10, 2, 2]
    found = mean_above_zero(values, seed=0)
    assert found.batches == batch_count(103, found.block)
    assert found.p >= batch_means_p(values, found.batches)


def test_a_clear_mean_is_found_and_the_same_seed_gives_the_same_answer() -> None:
    values = 0.01 * series(0, 1000, 0.2) + 0.002
    found = mean_above_zero(values, seed=5)
    assert found == mean_above_zero(values, seed=5)
    assert found.p < 0.01
    assert found.low < found.mean < found.high
    assert mean_above_zero(-values, seed=5).p > 0.99
    # Differences that do not vary have the smallest or the largest p value.
    assert mean_above_zero(np.full(50, 1e-3), seed=0).p < 0.001
    assert mean_above_zero(np.zeros(50), seed=0).p == 1.0
    assert mean_above_zero(np.full(50, -1e-3), seed=0).p == 1.0
    assert mean_above_zero(np.array([]), seed=0).p == 1.0


def test_all_looks_together_spend_a_tenth() -> None:
    assert [gate_level(look) for look in (1, 2, 3)] == [0.05, 0.025, 0.0125]
    assert sum(gate_level(look) for look in range(1, 60)) == pytest.approx(0.1)
    reached = [1.0 / (draws_for(gate_level(look)) + 1) <= gate_level(look) for look in range(1, 16)]
    assert reached == [True] * 13 + [False] * 2
    assert {draws_for(gate_level(look)) for look in range(1, 9)} == {DRAWS}
