"""Functions with the same bits on all processors are those of torch, to rounding."""

from __future__ import annotations

import torch

from sweepd.agents.networks.portable import OrthogonalInDouble, exp, log_of_sum, sqrt


def test_functions_are_those_of_torch() -> None:
    x = torch.linspace(-87, 88, 100_001)
    torch.testing.assert_close(exp(x), x.double().exp().float(), rtol=3e-7, atol=0)
    x = torch.cat((torch.linspace(1, 3, 10_001), torch.logspace(0, 6, 10_001)))
    torch.testing.assert_close(log_of_sum(x), x.double().log().float(), rtol=3e-7, atol=1e-12)
    x = torch.logspace(-30, 30, 10_001)
    torch.testing.assert_close(sqrt(x), x.double().sqrt().float(), rtol=3e-7, atol=0)


def test_functions_at_the_ends() -> None:
    ends = torch.tensor([-torch.inf, -1e30, 0.0, 1e30, torch.nan])
    assert exp(ends)[:4].tolist() == [0.0, 0.0, 1.0, torch.inf]
    assert exp(ends)[4].isnan()
    assert sqrt(torch.tensor([0.0, torch.inf])).tolist() == [0.0, torch.inf]
    assert sqrt(torch.tensor(-1.0)).isnan()


def test_orthogonal_matrices_are_those_of_torch() -> None:
    made = []
    for context in (torch.no_grad(), OrthogonalInDouble()):
        torch.manual_seed(3)
        with context:
            made.append(torch.nn.init.orthogonal_(torch.empty(7, 64), 0.1))
    torch.testing.assert_close(*made)
    assert made[1].dtype == torch.float32
