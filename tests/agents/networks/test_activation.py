"""Activations of whole programs: bits, export, frozen policies, opponents, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from sweepd.agents.algorithms.elegantrl_agents import ElegantAgents
from sweepd.agents.networks.activation import (
    ACTIVATION,
    ACTIVATIONS,
    RELU,
    activate_,
    activated,
    needs_sums,
    through_,
)
from sweepd.agents.networks.shape import Shape
from sweepd.agents.policy.bank import Bank, architecture_of
from sweepd.agents.policy.frozen import FrozenPolicy, load_members, save_members
from sweepd.agents.policy.members import check_members
from sweepd.envs.native.build import VARIABLE
from sweepd.envs.support.errors import InputError
from tests.agents import helpers, off_policy_helpers
from tests.agents.toy_env import ChoiceEnv, ToyEnv

SLOTS, ENVS = 4, 5
OTHERS = [kind for kind in ACTIVATIONS if kind != RELU]
PLAIN = {
    "relu": lambda z: max(z, 0.0),
    "tanh": math.tanh,
    "silu": lambda z: z / (1.0 + math.exp(-z)),
    "elu": lambda z: z if z > 0 else math.exp(z) - 1.0,
}


def started(env: ToyEnv, members: dict[int, int], algorithm: str, activation: str) -> Any:
    if algorithm == "ppo":
        return helpers.start(env, members, activation=activation), env
    return off_policy_helpers.started(env, members, activation=activation)


def made(algorithm: str) -> ToyEnv:
    kind = {"ppo": ToyEnv, "sac": ToyEnv, "d3qn": ChoiceEnv}[algorithm]
    return kind(SLOTS, ENVS)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_functions_and_derivatives(kind: str) -> None:
    z = torch.linspace(-6, 6, 101, dtype=torch.float64).requires_grad_()
    x = activated(kind, z)
    assert x.tolist() == pytest.approx([PLAIN[kind](number) for number in z.tolist()], abs=1e-12)
    in_place = z.detach().clone()
    activate_(kind, in_place)
    assert torch.equal(in_place, x.detach())
    [slope] = torch.autograd.grad(x.sum(), z)
    delta = torch.full_like(slope, 3.0)
    through_(kind, delta, (z if needs_sums(kind) else x).detach())
    torch.testing.assert_close(delta, 3.0 * slope)


@pytest.mark.parametrize("kernels", ["torch", ""])
@pytest.mark.parametrize("activation", OTHERS)
@pytest.mark.parametrize("algorithm", ["ppo", "sac", "d3qn"])
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
    actor = program.export_member(2)[0]
    assert (ACTIVATION in actor) == (activation != RELU)
    save_members(tmp_path / "members.safetensors", [actor])
    policy = FrozenPolicy(load_members(tmp_path / "members.safetensors"))
    obs = torch.randn(SLOTS, 9, env.state_dim, generator=torch.Generator().manual_seed(1))
    wanted = program.act_fn()(obs.flatten(0, 1)).view(SLOTS, 9, -1)[2].double()
    batch = policy.act_batch(obs[2]).view(9, -1).double()
    torch.testing.assert_close(batch, wanted, rtol=0.0, atol=2e-5)
    rows = np.stack([policy.act(row.numpy()) for row in obs[2]])
    np.testing.assert_allclose(rows, batch.numpy(), atol=1.001e-6)
    bank = Bank(architecture_of(actor, "it"), SLOTS, 1, torch.device("cpu"))
    bank.put(0, program.acting_weights())
    nobody = torch.zeros(SLOTS, 9, dtype=torch.int64)
    drawn = torch.zeros(SLOTS, 9, env.action_dim, dtype=torch.float64)
    found, _ = bank.act(obs, nobody, drawn, nobody > 0, None)
    torch.testing.assert_close(found[2].view(9, -1).double(), wanted, rtol=0.0, atol=2e-5)
    # The activation matters: with another one, the same weights act differently.
    other = {**actor, ACTIVATION: torch.tensor([(ACTIVATIONS.index(activation) + 1) % 4])}
    outputs = [FrozenPolicy([one])._outputs(obs[2])[0] for one in (actor, other)]
    assert float((outputs[0] - outputs[1]).abs().max()) > 1e-4


def test_an_ensemble_may_mix_activations() -> None:
    env = made("ppo")
    actors = [
        started(made("ppo"), {0: 1}, "ppo", kind)[0].export_member(0)[0] for kind in ACTIVATIONS
    ]
    row = torch.randn(env.state_dim, generator=torch.Generator().manual_seed(2)).numpy()
    together = FrozenPolicy(actors).act(row)
    apart = [FrozenPolicy([actor]).act(row) for actor in actors]
    np.testing.assert_allclose(together, np.mean(apart, axis=0), atol=1.001e-6)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.tensor([7]), "has activation 7, which this version does not know"),
        (torch.tensor([1.0]), "has activation as torch.float32"),
        (torch.tensor([1, 1]), r"has activation of shape \(2,\)"),
    ],
)
def test_members_with_an_invalid_activation_are_refused(tensor: torch.Tensor, words: str) -> None:
    actor = started(made("ppo"), {0: 1}, "ppo", "tanh")[0].export_member(0)[0]
    with pytest.raises(InputError, match=words):
        check_members([{**actor, ACTIVATION: tensor}])


def test_an_actor_with_another_activation_is_not_imported() -> None:
    actor = started(made("ppo"), {0: 1}, "ppo", RELU)[0].export_member(0)[0]
    program, _ = started(made("ppo"), {0: 1}, "ppo", "tanh")
    with pytest.raises(InputError, match="The actor's activation is relu, not tanh"):
        program.import_actor(0, actor)


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
        log_std = program.population.weights.log_std
        assert log_std[0].unique().tolist() == pytest.approx([0.7])
        program.train(env, 8)
        assert log_std[0].unique().tolist() == pytest.approx([0.7])
        assert log_std[1].unique().tolist() == [0.0]
