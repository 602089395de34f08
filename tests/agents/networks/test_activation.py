"""Activations of whole programs: bits, export, frozen policies, opponents, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sweepd.agents.algorithms.elegantrl_agents import ElegantAgents
from sweepd.agents.networks.activation import ACTIVATIONS, RELU, Activation
from sweepd.agents.networks.shape import Shape
from sweepd.agents.policy.bank import Bank
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import actor_of, load_members, save_members
from sweepd.envs.native.build import VARIABLE
from sweepd.envs.support.errors import InputError
from tests.agents import helpers, off_policy_helpers
from tests.agents.toy_env import ChoiceEnv, ToyEnv

SLOTS, ENVS = 4, 5
OTHERS = [kind for kind in ACTIVATIONS if kind != RELU]


def started(env: ToyEnv, members: dict[int, int], algorithm: str, activation: str) -> Any:
    if algorithm == "ppo":
        return helpers.start(env, members, activation=activation), env
    return off_policy_helpers.started(env, members, activation=activation)


def made(algorithm: str) -> ToyEnv:
    kind = {"ppo": ToyEnv, "sac": ToyEnv, "d3qn": ChoiceEnv}[algorithm]
    return kind(SLOTS, ENVS)


@pytest.mark.parametrize(
    ("algorithm", "activation", "kernels"),
    [
        (algorithm, activation, ("torch", "")[(row + column) % 2])
        for row, algorithm in enumerate(["ppo", "sac", "d3qn"])
        for column, activation in enumerate(OTHERS)
    ],
)
def test_a_member_has_the_same_bits_in_any_company_and_after_resuming(
    algorithm: str, activation: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, kernels)

    def trained(members: dict[int, int], rollouts: int) -> tuple[Any, ToyEnv]:
        program, env = started(made(algorithm), members, algorithm, activation)
        program.train(env, rollouts)
        return program, env

    alone, _ = trained({1: 2}, 4)
    assert (alone._native is None) == (kernels == "torch")
    torch.set_num_threads(2)
    crowd, _ = trained({0: 1, 3: 2, 2: 5}, 4)
    helpers.assert_same(alone.get_member(1), crowd.get_member(3))
    half, half_env = trained({1: 2}, 2)
    program, env = started(made(algorithm), {0: 3, 3: 1}, algorithm, activation)
    program.train(env, 1)
    program.set_member(2, half.get_member(1))
    env.set_member(2, half_env.get_member(1))
    program.train(env, 2)
    helpers.assert_same(alone.get_member(1), program.get_member(2))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("algorithm", ["ppo", "sac", "d3qn"])
def test_exported_members_act_like_the_program(
    algorithm: str, activation: str, tmp_path: Any
) -> None:
    """As frozen policies, one row at a time and in batches, from a file, and as opponents."""
    env = made(algorithm)
    program, _ = started(env, {0: 1, 2: 5}, algorithm, activation)
    program.train(env, 3)
    actor = actor_of(program, 2)
    save_members(tmp_path / "members.safetensors", [actor])
    policy = FrozenPolicy(load_members(tmp_path / "members.safetensors"))
    obs = torch.randn(SLOTS, 9, env.state_dim, generator=torch.Generator().manual_seed(1))
    wanted = program.act_fn()(obs.flatten(0, 1)).view(SLOTS, 9, -1)[2].double()
    batch = policy.act_batch(obs[2]).view(9, -1).double()
    torch.testing.assert_close(batch, wanted, rtol=0.0, atol=2e-5)
    rows = np.stack([policy.act(row.numpy()) for row in obs[2]])
    np.testing.assert_allclose(rows, batch.numpy(), atol=1.001e-6)
    bank = Bank(program.actor_spec, SLOTS, 1, torch.device("cpu"))
    bank.put(0, program.acting_weights())
    nobody = torch.zeros(SLOTS, 9, dtype=torch.int64)
    drawn = torch.zeros(SLOTS, 9, env.action_dim, dtype=torch.float64)
    found, _ = bank.act(obs, nobody, drawn, nobody > 0, None)
    torch.testing.assert_close(found[2].view(9, -1).double(), wanted, rtol=0.0, atol=2e-5)
    # The activation matters: with another one, the same weights act differently.
    another = RELU if activation != RELU else "tanh"
    other = actor._replace(spec=replace(actor.spec, activation=another))
    outputs = [FrozenPolicy([one])._outputs(obs[2])[0] for one in (actor, other)]
    assert float((outputs[0] - outputs[1]).abs().max()) > 1e-4


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    apart = x - x.mean(-1, keepdim=True)
    scale = (apart.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    return torch.addcmul(bias, apart * scale, weight).relu()


def _residual(x: Tensor, matrix: Tensor) -> Tensor:
    return x + torch.bmm(x.relu(), matrix)


OWN = {
    "layer norm": (
        Activation(
            _layer_norm,
            lambda width: {"norm.weight": torch.ones(width), "norm.bias": torch.zeros(width)},
        ),
        lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias).relu(),
    ),
    "residual": (
        Activation(_residual, lambda width: {"inner": nn.Linear(width, width).weight.detach()}),
        lambda x, matrix: x + functional.linear(x.relu(), matrix),
    ),
}


@pytest.mark.parametrize("algorithm", ["ppo", "sac", "d3qn"])
@pytest.mark.parametrize("name", OWN)
def test_a_layer_type_is_one_entry(
    name: str, algorithm: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """It is trained, has the same bits in any slot, and acts as torch's from a file."""
    own, plain = OWN[name]
    monkeypatch.setitem(ACTIVATIONS, name, own)
    env = made(algorithm)
    alone, _ = started(env, {1: 2}, algorithm, name)
    alone.train(env, 3)
    crowd, other = started(made(algorithm), {0: 1, 3: 2, 2: 5}, algorithm, name)
    crowd.train(other, 3)
    helpers.assert_same(alone.get_member(1), crowd.get_member(3))
    assert alone._native is None
    assert alone.diverged == [False] * SLOTS
    actor = actor_of(alone, 1)
    save_members(tmp_path / "members.safetensors", [actor])
    obs = torch.randn(9, env.state_dim, generator=torch.Generator().manual_seed(1))
    [found] = FrozenPolicy(load_members(tmp_path / "members.safetensors"))._outputs(obs)
    tensors, spec = actor.tensors, actor.spec
    x = (obs - tensors["state_avg"]) / tensors["state_std"]
    fresh = own.new(16) if own.new is not None else {}
    for index, layer in enumerate(spec.trunk):
        x = functional.linear(x, tensors[f"{layer}.weight"], tensors[f"{layer}.bias"])
        if not (spec.linear_top and index == len(spec.hidden) - 1):
            x = plain(x, *(tensors[f"{layer}.{part}"] for part in fresh))
            assert all(
                not torch.equal(tensors[f"{layer}.{part}"], value) for part, value in fresh.items()
            )
    [head, *_] = spec.heads
    x = functional.linear(x, tensors[f"{head}.weight"], tensors[f"{head}.bias"])
    torch.testing.assert_close(found[0].float(), x, rtol=1e-4, atol=1e-5)


def test_an_ensemble_may_mix_activations() -> None:
    env = made("ppo")
    programs = [started(made("ppo"), {0: 1}, "ppo", kind)[0] for kind in ACTIVATIONS]
    actors = [actor_of(program, 0) for program in programs]
    row = torch.randn(env.state_dim, generator=torch.Generator().manual_seed(2)).numpy()
    together = FrozenPolicy(actors).act(row)
    apart = [FrozenPolicy([actor]).act(row) for actor in actors]
    np.testing.assert_allclose(together, np.mean(apart, axis=0), atol=1.001e-6)


def test_unknown_activations_and_algorithms_without_a_choice_are_refused() -> None:
    with pytest.raises(InputError, match="must be one of relu, tanh, silu, elu, not 'gelu'"):
        Shape(state_dim=2, action_dim=1, activation="gelu")
    shape = Shape(state_dim=2, action_dim=1, algorithm="elegantrl:ppo", activation="tanh")
    with pytest.raises(InputError, match="activation must be 'relu' for elegantrl:ppo"):
        ElegantAgents(shape)


def test_deviations_may_start_above_1_and_never_exceed_their_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that start below stay at most 1. High entropy pushes all of them up."""
    for kernels in ("", "torch"):
        monkeypatch.setenv(VARIABLE, kernels)
        env = ToyEnv(2, ENVS)
        program = helpers.PPO(helpers.shape_for(env, slots=2, num_envs=ENVS))
        starts = (0.7, -0.01)
        for slot, start in enumerate(starts):
            params = helpers.PPOParams(initial_log_std=start, entropy_coef=50.0)
            avg, std = torch.zeros(env.state_dim), torch.ones(env.state_dim)
            program.add_member(slot, params, slot, 8, avg, std)
        program.begin(env.reset([1, 2]))
        log_std = program.population.actor.weights["action_std_log"]
        assert log_std[0].unique().tolist() == pytest.approx([0.7])
        program.train(env, 8)
        assert log_std[0].unique().tolist() == pytest.approx([0.7])
        assert log_std[1].unique().tolist() == [0.0]
