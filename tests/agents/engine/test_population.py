"""The networks of PPO's members: new ones, and those that are imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from elegantrl.agents.net import ActorDiscretePPO, ActorPPO, CriticPPO
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.engine.population import Population
from sweepd.agents.networks.portable import OrthogonalInDouble
from sweepd.agents.networks.shape import Shape
from sweepd.envs.support.errors import InputError

CPU = torch.device("cpu")
State = dict[str, Tensor]


def population_of(**changes: Any) -> Population:
    sizes = {"slots": 3, "net_width": 8, "num_envs": 2, "horizon": 8, "minibatch": 7}
    shape = Shape(**{"state_dim": 5, "action_dim": 3, **sizes, **changes})  # type: ignore[arg-type]
    population = Population(shape, CPU)
    torch.manual_seed(2)
    for slot in range(shape.slots):
        avg, std = torch.randn(shape.obs_dim), torch.rand(shape.obs_dim) + 0.5
        population.new_member(slot, slot, -0.5 - slot, avg, std)
    return population


@pytest.mark.parametrize("discrete", [False, True])
def test_new_members_are_elegantrls_of_the_same_seed(discrete: bool) -> None:
    population = population_of(if_discrete=discrete)
    before = torch.random.get_rng_state()
    population.new_member(1, 42, -1.5, torch.zeros(5), torch.ones(5))
    assert torch.equal(before, torch.random.get_rng_state())  # the global generator is unchanged
    actor_type = ActorDiscretePPO if discrete else ActorPPO
    dims = population.shape.net_dims
    with torch.random.fork_rng(), OrthogonalInDouble():
        torch.manual_seed(42)
        modules = actor_type(dims, 5, 3), CriticPPO(dims, 5, 3)
    for ours, module in zip(population.export_member(1), modules, strict=True):
        if "action_std_log" in ours:
            assert ours.pop("action_std_log").eq(-1.5).all()
            module.state_dict()["action_std_log"].fill_(-1.5)
        theirs = module.state_dict()
        for name, tensor in ours.items():
            assert torch.equal(tensor, theirs[name]), name
        module.load_state_dict(ours, strict=discrete)


def test_import_changes_one_slot() -> None:
    population, other = population_of(privileged_dim=2), population_of(privileged_dim=2)
    before = other.flat.clone()
    other.import_member(0, *population.export_member(2))
    assert torch.equal(other.flat[:, 0], population.flat[:, 2])
    assert torch.equal(other.flat[:, 1:], before[:, 1:])
    for ours, theirs in zip(other.export_member(0), population.export_member(2), strict=True):
        assert set(ours) == set(theirs)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_invalid_members_are_refused_and_leave_the_slot_unchanged() -> None:
    population = population_of()
    before = population.flat.clone()
    actor, critic = population.export_member(0)
    wrong: list[tuple[Callable[[State, State], Any], str]] = [
        (lambda a, _: a.pop("net.0.bias"), "lack.*net.0.bias"),
        (lambda _, c: c.update({"net.0.weight": torch.zeros(8, 6)}), r"the shape \(8, 6\)"),
        (lambda a, _: a.update(state_avg=torch.ones(5)), "one normaliser"),
        (lambda a, c: [d.update(state_std=torch.zeros(5)) for d in (a, c)], "above zero"),
        (lambda a, c: [d.update(state_avg=torch.full((5,), torch.nan)) for d in (a, c)], "finite"),
        (lambda _, c: c.update(state_std=torch.ones(4)), r"the shape \(4,\)"),
    ]
    for change, words in wrong:
        wrong_actor, wrong_critic = dict(actor), dict(critic)
        change(wrong_actor, wrong_critic)
        with pytest.raises(InputError, match=words):
            population.import_member(0, wrong_actor, wrong_critic)
        assert torch.equal(before, population.flat)
    with pytest.raises(InputError, match=r"must have shape \(5,\), not \(4,\)"):
        population.new_member(0, 1, 0.0, torch.zeros(4), torch.ones(4))


def test_invalid_shapes_are_refused() -> None:
    sizes = {"state_dim": 2, "action_dim": 1, "num_envs": 4, "horizon": 4}
    assert Shape(**sizes, minibatch=16).samples == 16
    with pytest.raises(InputError, match=r"minibatch 17 is larger than the 16 transitions"):
        Shape(**sizes, minibatch=17)
    with pytest.raises(InputError, match="net_depth must be a whole number of at least 1, not 0"):
        Shape(state_dim=2, action_dim=1, net_depth=0)
    with pytest.raises(InputError, match="if_discrete must be true or false, not 1"):
        Shape(state_dim=2, action_dim=1, if_discrete=1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="sum to action_dim 4"):
        Shape(state_dim=2, action_dim=4, if_discrete=True, action_dims=(2, 3))
    assert Shape(**sizes, minibatch=17, algorithm="sac").updates == 64
    for changes in (
        {"num_envs": 4, "horizon": 4, "minibatch": 17},
        {"num_envs": 17, "horizon": 1, "minibatch": 2},
    ):
        with pytest.raises(InputError, match="buffer 16 must hold at least a rollout"):
            Shape(state_dim=2, action_dim=1, algorithm="sac", buffer=16, **changes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="algorithm must be 'ppo' for this program, not 'sac'"):
        PPO(Shape(state_dim=2, action_dim=1, algorithm="sac"))
