"""Moments of a rollout's numbers, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sweepd.agents.engine.advantages import moments


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("masked", [False, True])
def test_moments_are_those_of_numpy(masked: bool, offset: float) -> None:
    numbers = torch.randn(3, 4097) + offset
    valid = torch.rand(3, 4097) < 0.3 if masked else None
    mean, variance = moments(numbers, valid)
    for row in range(3):
        chosen = numbers[row] if valid is None else numbers[row][valid[row]]
        right = chosen.double().numpy()
        np.testing.assert_allclose(mean[row], right.mean(), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(variance[row], right.var(ddof=1), rtol=1e-4)


@pytest.mark.parametrize("number", [0.1, -7.3, 1e6])
def test_equal_numbers_have_no_variance(number: float) -> None:
    """Return scaling changes nothing where returns are constant."""
    mean, variance = moments(torch.full((2, 999), number))
    assert torch.equal(mean, torch.full((2, 1), number))
    assert torch.equal(variance, torch.zeros(2, 1))


def test_of_fewer_than_two_numbers_there_is_no_variance() -> None:
    valid = torch.tensor([[False, False], [True, False]])
    mean, variance = moments(torch.tensor([[3.0, 4.0], [5.0, 6.0]]), valid)
    assert mean.tolist() == [[0.0], [5.0]]
    assert variance.tolist() == [[0.0], [0.0]]
