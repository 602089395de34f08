"""Actions that are drawn and observations that are normalised natively, against torch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sweepd.agents.native.acting import ActionKernel, NormaliserKernel, action_kernel
from sweepd.agents.native.choice import KERNELS
from sweepd.agents.native.kernels import Kernels
from sweepd.agents.networks.distributions import GREATEST, distribution_of
from sweepd.agents.networks.net import Net
from sweepd.agents.networks.normaliser import normalised
from sweepd.agents.networks.shape import Shape
from sweepd.agents.networks.spec import specs_of
from sweepd.envs.native import build

try:
    build.vector_flags(), build.compiler()
except build.BuildError as error:
    pytest.skip(f"no native code: {error}", allow_module_level=True)

CPU = torch.device("cpu")
SLOTS = 3


def kernels() -> Kernels:
    found = KERNELS.library(CPU)
    assert found is not None
    return found


def drawn(shape: Shape, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return actions and what is stored of them: natively, then by torch's operations."""
    actor = Net.zeros(specs_of(shape)[0], shape.slots, CPU)
    if not shape.if_discrete:
        actor.weights["action_std_log"].detach().copy_(torch.rand(SLOTS, 1, shape.action_dim) - 1)
    kind = distribution_of(shape)
    columns = kind.columns(shape)
    side = torch.full((SLOTS, 4, shape.num_envs, columns + 3), -7.0)
    actions = ActionKernel(kernels(), shape, actor)(outputs, noise, side[:, 2])
    assert (side[:, [0, 1, 3]] == -7).all()
    assert (side[..., -2:] == -7).all()
    policy = kind(shape, outputs, actor.weights)
    wanted = torch.empty(SLOTS, shape.num_envs, columns + 1)
    with torch.no_grad():
        policy.sample(noise, wanted[..., :-1])
        wanted[..., -1] = policy.log_prob(wanted[..., :-1])
    return actions, side[:, 2, :, :-2], kind.to_env(shape, wanted[..., :-1]), wanted


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("rows", "actions"), [(1, 1), (37, 7), (600, 2)])
@pytest.mark.parametrize("discrete", [False, True])
def test_actions_are_those_of_torch(discrete: bool, rows: int, actions: int, threads: int) -> None:
    torch.set_num_threads(threads)
    shape = Shape(
        state_dim=5,
        action_dim=actions,
        slots=SLOTS,
        minibatch=16,
        num_envs=rows,
        if_discrete=discrete,
    )
    outputs = 3 * torch.randn(SLOTS, rows, actions)
    noise = torch.rand(SLOTS, rows, 1) if discrete else torch.randn(SLOTS, rows, actions)
    found, stored, right, wanted = drawn(shape, outputs, noise)
    assert found.dtype == right.dtype
    torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(stored, wanted, rtol=1e-5, atol=2e-6)


def test_options_are_drawn_at_their_bounds() -> None:
    """Never one of weight 0, nor past the last one; of numbers that are not finite, the first."""
    shape = Shape(
        state_dim=5, action_dim=3, slots=SLOTS, minibatch=16, num_envs=4, if_discrete=True
    )
    logits = torch.tensor([[-1e30, 0.0, -1e30], [0.0, 1.0, 2.0], [0, 0, 0], [0, math.nan, 0]])
    noise = torch.tensor([0.0, GREATEST, 0.5, 0.5]).view(1, 4, 1).repeat(SLOTS, 1, 1)
    found, stored, right, _ = drawn(shape, logits.repeat(SLOTS, 1, 1), noise)
    assert found.tolist() == right.tolist() == [1, 2, 1, 0] * SLOTS
    assert stored[:, 0, 1].tolist() == [0.0] * SLOTS  # log 1
    assert stored[:, 3, 1].isnan().all()


def test_an_action_of_an_output_that_is_not_finite_is_zero() -> None:
    shape = Shape(state_dim=5, action_dim=2, slots=SLOTS, minibatch=16, num_envs=3)
    outputs = torch.tensor([[math.nan, 1.0], [math.inf, 0.0], [-math.inf, 2.0]])
    found, _, right, _ = drawn(shape, outputs.repeat(SLOTS, 1, 1), torch.zeros(SLOTS, 3, 2))
    torch.testing.assert_close(found, right)
    assert found[0].tolist() == [0.0, pytest.approx(math.tanh(1.0))]


@pytest.mark.parametrize("running", [False, True])
def test_normalised_observations_are_those_of_torch(running: bool) -> None:
    shape = Shape(
        state_dim=13, action_dim=2, slots=SLOTS, minibatch=16, num_envs=29, running_scale=running
    )
    critic = Net.zeros(specs_of(shape)[1], SLOTS, CPU)
    avg, std = critic.normalisers["state_avg"], critic.normalisers["state_std"]
    avg.copy_(torch.randn(avg.shape))
    std.copy_(torch.rand(std.shape) + 0.01)
    obs = torch.randn(SLOTS * 29, 13)
    obs[4, 3] = math.nan
    into = torch.full((SLOTS, 3, 29, 13), -7.0)
    NormaliserKernel(kernels(), shape, critic)(obs, into[:, 1])
    right = normalised(obs.view(SLOTS, 29, 13), avg, std, critic.spec.clip)
    assert torch.equal(into[:, 1].nan_to_num(5.0), right.nan_to_num(5.0))
    assert (into[:, [0, 2]] == -7).all()
    assert bool((right.abs() > 10).any()) != running


def test_several_choices_are_drawn_by_torch() -> None:
    shape = Shape(
        state_dim=5, action_dim=5, action_dims=(2, 3), slots=1, minibatch=16, if_discrete=True
    )
    assert action_kernel(kernels(), shape, Net.zeros(specs_of(shape)[0], 1, CPU)) is None
