"""The fused kernels for GPUs, compiled for the CPU: their numbers are those of torch's operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.fused_loss import FusedLoss, agrees
from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.engine.fused_step import FusedStep
from sweepd.agents.native.choice import TORCH, VARIABLE
from sweepd.agents.networks.activation import ACTIVATIONS, NATIVE, Activation
from sweepd.agents.networks.gpu_kernels import (
    KERNELS,
    adam_agrees,
    hidden_agrees,
    samples_agree,
    stores_agree,
)
from sweepd.agents.networks.optimizer import Adam
from sweepd.envs.native.gpu import GpuKernels
from tests.agents.digests import cartpole, crypto
from tests.agents.helpers import adam_of, make_adam_steps, member_params, shape_for, start
from tests.agents.toy_env import ChoiceEnv, ToyEnv
from tests.envs.gpu_on_cpu import on_cpu


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> GpuKernels:
    return on_cpu(KERNELS, tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_adam_is_torchs(kernels: GpuKernels, scale: float) -> None:
    torch.manual_seed(0)
    flat = torch.randn(2, 4, 144)
    plain, fused = (Adam(flat.clone(), fused=False) for _ in range(2))
    fused._kernels = kernels
    make_adam_steps((plain, fused), scale)
    assert torch.equal(plain.step, fused.step)
    torch.testing.assert_close(fused._flat, plain._flat, rtol=2e-6, atol=2e-7)
    torch.testing.assert_close(fused.m, plain.m, rtol=1e-5, atol=1e-7 * scale)
    torch.testing.assert_close(fused.v, plain.v, rtol=2e-5, atol=1e-7 * scale**2)
    assert torch.equal(fused._flat[:, 3], flat[:, 3])  # never active, and its gradient is NaN


def trained(kind: type[ToyEnv], kernels: GpuKernels | None, rollouts: int) -> tuple[PPO, Any]:
    env = kind(3, 4)
    ppo = start(env, {0: 0, 1: 1, 2: 2}, epochs=8)
    own, ppo.optimizer = ppo.optimizer, adam_of(ppo)
    ppo.optimizer.eps, ppo.optimizer.weight_decay = own.eps, own.weight_decay
    if kernels is not None:
        ppo._fused_loss = FusedLoss(kernels, ppo.shape, ppo.device)
        ppo.optimizer._kernels = kernels
    return ppo, ppo.train(env, rollouts)


@pytest.mark.parametrize("kind", [ToyEnv, ChoiceEnv])
def test_ppo_learns_the_same_with_fused_kernels(
    kind: type[ToyEnv], kernels: GpuKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, TORCH)
    plain, (*_, stats) = trained(kind, None, 1)
    before = start(kind(3, 4), {0: 0, 1: 1, 2: 2}, epochs=8).population.flat
    fused, (*_, same) = trained(kind, kernels, 1)
    moved = (plain.population.flat - before).abs().amax()
    apart = (plain.population.flat - fused.population.flat).abs().amax()
    assert moved > 1e-3
    assert apart < 1e-4 * moved
    assert torch.equal(stats.updates, same.updates)  # some members stop early
    assert float(stats.updates.min()) < float(stats.updates.max())
    for name, numbers in stats._asdict().items():
        torch.testing.assert_close(getattr(same, name), numbers, rtol=1e-3, atol=1e-5, msg=name)


def test_a_member_whose_weights_are_not_finite_diverges_alone(
    kernels: GpuKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, TORCH)
    plain, _ = trained(ToyEnv, kernels, 1)
    ppo, env = plain, ToyEnv(3, 4)
    ppo.population.critic.flat[1, 0] = torch.nan
    ppo.begin(env.reset(1))
    before = ppo.get_member(0)
    ppo.train(env, 1)
    assert ppo.diverged == [False, True, False]
    assert ppo.population.flat[:, [0, 2]].isfinite().all()
    assert not torch.equal(before["weights"], ppo.get_member(0)["weights"])


@pytest.mark.parametrize("name", ["gaussian_loss", "categorical_loss"])
def test_the_check_of_the_loss_finds_a_wrong_one(
    name: str, kernels: GpuKernels, caplog: pytest.LogCaptureFixture
) -> None:
    assert agrees(kernels, torch.device("cpu"))

    def wrong(blocks: tuple[int, int], arguments: Sequence[Tensor | int]) -> None:
        launches[name](blocks, arguments)
        assert isinstance(arguments[10], Tensor)
        arguments[10][1, 7] += 1e-3

    launches: dict[str, Callable[..., None]] = dict(kernels._launches)
    assert not agrees(GpuKernels(launches | {name: wrong}), torch.device("cpu"))
    assert "fails its test" in caplog.text


def stepped(env: Callable[[int], Any], kernels: GpuKernels | None, **changes: Any) -> PPO:
    """Return a program after one rollout of recorded steps."""
    made = env(5)
    sizes = {"num_envs": made.envs_per_member, "horizon": 20, "minibatch": 50}
    ppo = PPO(shape_for(made, **sizes, **changes))
    for slot in range(5):
        params = member_params(slot)
        ppo.add_member(slot, params, slot, 8, made.state_avg, made.state_std)
    ppo.begin(made.reset(3))
    rollout = ppo.rollout
    if kernels is not None:
        stored = rollout._stored()
        rollout._fused_step = FusedStep(kernels, ppo.shape, ppo.population, stored)
    rollout.collect(made, ppo.streams, lambda step: step)
    assert rollout.replays.steps
    return ppo


@pytest.mark.parametrize("running_scale", [False, True])
@pytest.mark.parametrize("env", [cartpole, crypto], ids=["cartpole", "crypto"])
def test_rollouts_with_fused_steps_are_the_same(
    env: Callable[[int], Any],
    running_scale: bool,
    kernels: GpuKernels,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, TORCH)
    plain, fused = (
        stepped(env, given, running_scale=running_scale).rollout for given in (None, kernels)
    )
    stored = fused._stored()
    assert stored.rewards.any()
    assert (stored.terminated | stored.truncated).any()
    # The first step's actions are equal to rounding, and all later ones follow.
    for wanted, found in zip(plain._stored(), stored, strict=True):
        if found.dtype == torch.bool:
            assert torch.equal(found, wanted)
        else:
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    # Observations are normalised with the bits of torch's operations.
    if fused.raw is not None:
        again = torch.empty_like(stored.obs[:, 0])
        for step in range(fused.shape.horizon + 1):
            fused._normalise(fused.raw[:, step], again)
            assert torch.equal(again, stored.obs[:, step])


@pytest.mark.parametrize("activation", [*NATIVE, "cube"])
def test_outputs_of_fused_steps_are_those_of_the_networks(
    activation: str, kernels: GpuKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, TORCH)
    monkeypatch.setitem(ACTIVATIONS, "cube", Activation(lambda x: x**3))
    rollout = stepped(cartpole, kernels, activation=activation, net_depth=3).rollout
    stored = rollout._stored()
    for step in range(rollout.shape.horizon):
        with torch.no_grad():
            wanted, _ = rollout.population.actor.forward(stored.obs[:, step])
        torch.testing.assert_close(stored.outputs[:, step], wanted, rtol=1e-5, atol=1e-6)


# Kernels of a step with their checks, and the places of their results among the tensors.
CHECKS = {
    "hidden_layer": (hidden_agrees, (-2,)),
    "gaussian_sample": (samples_agree, (-1, -2, -3)),
    "categorical_sample": (samples_agree, (-1, -2, -3)),
    "store_step": (stores_agree, (-1, -2, -3, -4, -5, -6)),
}


@pytest.mark.parametrize(
    ("name", "result"), [(name, one) for name, (_, results) in CHECKS.items() for one in results]
)
def test_the_checks_of_steps_find_wrong_numbers(
    name: str, result: int, kernels: GpuKernels
) -> None:
    agree = CHECKS[name][0]
    assert agree(kernels, torch.device("cpu"))
    launches: dict[str, Any] = dict(kernels._launches)

    def wrong(blocks: Any, arguments: Any) -> None:
        launches[name](blocks, arguments)
        tensors = [one for one in arguments if isinstance(one, Tensor)]
        last = tensors[result].view(-1, tensors[result].shape[-1])[-1, :1]
        last.copy_(~last if last.dtype == torch.bool else last.nan_to_num() + 1)

    assert not agree(GpuKernels(launches | {name: wrong}), torch.device("cpu"))


def test_the_check_of_adam_finds_a_wrong_one(kernels: GpuKernels) -> None:
    assert adam_agrees(kernels, torch.device("cpu"))

    def wrong(blocks: tuple[int, int], arguments: Sequence[Tensor | int]) -> None:
        launches["adam"](blocks, arguments)
        arguments[0][0, 0, 7] += 0.01  # type: ignore[index]

    launches: dict[str, Callable[..., None]] = dict(kernels._launches)
    assert not adam_agrees(GpuKernels(launches | {"adam": wrong}), torch.device("cpu"))
