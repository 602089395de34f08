"""Stacked networks against ElegantRL's modules: forward, gradients, in and out."""

from __future__ import annotations

import pytest
import torch
from elegantrl.agents.net import ActorDiscretePPO, ActorPPO, CriticPPO
from sweepd.agents.networks.mlp import Activations, Backward, forward
from sweepd.agents.networks.weights import leaf_views, new_gradients
from torch import nn

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.engine.population import Population
from sweepd.agents.networks.activation import ACTIVATION, ACTIVATIONS
from sweepd.agents.networks.portable import OrthogonalInDouble
from sweepd.agents.networks.shape import Shape
from sweepd.envs.support.errors import InputError

CPU = torch.device("cpu")


MODULES = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU, "elu": nn.ELU}


def random_population(
    depth: int, privileged: int, activation: str = "relu"
) -> tuple[Shape, Population]:
    shape = Shape(
        state_dim=5,
        action_dim=3,
        privileged_dim=privileged,
        slots=3,
        net_width=8,
        net_depth=depth,
        activation=activation,
        num_envs=2,
        horizon=8,
        minibatch=7,
    )
    population = Population(shape, CPU)
    torch.manual_seed(depth)
    for slot in range(shape.slots):
        avg, std = torch.randn(shape.obs_dim), torch.rand(shape.obs_dim) + 0.5
        population.new_member(slot, slot, -0.5 - slot, avg, std)
        actor, critic = population.export_member(slot)
        critic["value_avg"], critic["value_std"] = (
            torch.tensor([0.3 * slot]),
            torch.tensor([1.0 + slot]),
        )
        actor["action_std_log"] += 0.1 * torch.randn(1, 3)
        population.import_member(slot, actor, critic)
    return shape, population


def modules(population: Population, slot: int) -> tuple[ActorPPO, CriticPPO]:
    shape = population.shape
    actor = ActorPPO(shape.net_dims, shape.state_dim, shape.action_dim)
    critic = CriticPPO(shape.net_dims, shape.obs_dim, shape.action_dim)
    for module, state in zip((actor, critic), population.export_member(slot), strict=True):
        state.pop(ACTIVATION, None)
        module.load_state_dict(state)
        for index in range(1, 2 * shape.net_depth, 2):
            module.net[index] = MODULES[shape.activation]()
    return actor, critic


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("privileged", [0, 2])
def test_forward_and_backward_are_elegantrl_and_autograd(
    depth: int, privileged: int, activation: str
) -> None:
    shape, population = random_population(depth, privileged, activation)
    rows = 7
    obs = torch.randn(shape.slots, rows, shape.obs_dim)
    normalised = (obs - population.state_avg) / population.state_std
    acts, grads = Activations(shape, rows, CPU), new_gradients(shape, CPU)
    forward(population.weights, normalised, acts)
    d_mean, d_value = torch.randn(shape.slots, rows, 3), torch.randn(shape.slots, rows, 1)
    Backward(shape, rows, CPU)(population.weights, normalised, acts, d_mean, d_value, grads)

    gradients = Population(shape, CPU)  # only for its names: gradients have the layout of weights
    for kind in ("shared", "actor", "critic"):
        for target, source in zip(
            getattr(gradients.weights, kind)(), getattr(grads, kind)(), strict=True
        ):
            target.copy_(source)
    for slot in range(shape.slots):
        actor, critic = modules(population, slot)
        state = obs[slot][:, : shape.state_dim]
        mean = actor.net(actor.state_norm(state))
        torch.testing.assert_close(mean, acts.output[slot], rtol=1e-5, atol=1e-6)
        raw = critic.net(critic.state_norm(obs[slot]))
        torch.testing.assert_close(raw, acts.value[slot], rtol=1e-5, atol=1e-6)
        value = torch.addcmul(population.value_avg, acts.value, population.value_std)[slot, :, 0]
        torch.testing.assert_close(critic(obs[slot]), value, rtol=1e-5, atol=1e-5)
        ((mean * d_mean[slot]).sum() + (raw * d_value[slot]).sum()).backward()
        for module, ours in zip((actor, critic), gradients.export_member(slot), strict=True):
            for name, parameter in module.named_parameters():
                if name.startswith("net."):
                    torch.testing.assert_close(
                        parameter.grad, ours[name], rtol=1e-4, atol=1e-5, msg=name
                    )


def test_actors_and_critics_can_run_separately() -> None:
    shape, population = random_population(2, 1)
    obs = torch.randn(shape.slots, 4, shape.obs_dim)
    both, alone = Activations(shape, 4, CPU), Activations(shape, 4, CPU)
    forward(population.weights, obs, both)
    forward(population.weights, obs, alone, critic=False)
    forward(population.weights, obs, alone, actor=False)
    assert torch.equal(both.output, alone.output)
    assert torch.equal(both.value, alone.value)
    # An actor does not read privileged columns.
    obs[..., shape.state_dim :] = 99.0
    forward(population.weights, obs, alone)
    assert torch.equal(both.output, alone.output)
    assert not torch.equal(both.value, alone.value)


def test_new_members_equal_elegantrls_modules() -> None:
    shape, population = random_population(2, 0)
    population.new_member(1, 42, -1.5, torch.zeros(5), torch.ones(5))
    before = torch.random.get_rng_state()
    torch.manual_seed(42)
    with OrthogonalInDouble():
        actor, critic = ActorPPO(shape.net_dims, 5, 3), CriticPPO(shape.net_dims, 5, 3)
    torch.random.set_rng_state(before)
    ours_actor, ours_critic = population.export_member(1)
    assert torch.equal(ours_actor["action_std_log"], torch.full((1, 3), -1.5))
    for name, tensor in critic.state_dict().items():
        assert torch.equal(tensor, ours_critic[name]), name
    for name, tensor in actor.state_dict().items():
        assert name == "action_std_log" or torch.equal(tensor, ours_actor[name]), name
    assert torch.equal(before, torch.random.get_rng_state())  # the global generator is unchanged


def test_new_discrete_members_equal_elegantrls_modules_without_deviation() -> None:
    shape = Shape(
        state_dim=5,
        action_dim=3,
        if_discrete=True,
        slots=2,
        net_width=8,
        num_envs=2,
        horizon=8,
        minibatch=7,
    )
    population = Population(shape, CPU)
    population.new_member(1, 42, -1.5, torch.zeros(5), torch.ones(5))
    with torch.random.fork_rng():
        torch.manual_seed(42)
        theirs = ActorDiscretePPO(shape.net_dims, 5, 3)
    actor, critic = population.export_member(1)
    theirs.load_state_dict(actor)
    assert all(torch.equal(tensor, actor[name]) for name, tensor in theirs.state_dict().items())
    other = Population(shape, CPU)
    other.import_member(0, actor, critic)
    assert torch.equal(other.flat[:, 0], population.flat[:, 1])
    with pytest.raises(InputError, match="actor's tensors"):
        other.import_member(0, {**actor, "action_std_log": torch.zeros(1, 3)}, critic)
    obs, acts = torch.randn(2, 6, 5), Activations(shape, 6, CPU)
    forward(population.weights, obs, acts)
    assert torch.equal(theirs(obs[1]), acts.output[1].argmax(-1))


def test_export_contains_the_sizes_of_choices() -> None:
    shape = Shape(state_dim=5, action_dim=5, if_discrete=True, action_dims=(3, 2), slots=1)
    population = Population(shape, CPU)
    population.new_member(0, 1, 0.0, torch.zeros(5), torch.ones(5))
    actor, critic = population.export_member(0)
    assert actor["action_dims"].tolist() == [3, 2]
    other = Population(shape, CPU)
    other.import_member(0, actor, critic)
    assert torch.equal(other.flat, population.flat)
    with pytest.raises(InputError, match=r"action_dims is \[2, 3\], not \[3, 2\]"):
        other.import_member(0, {**actor, "action_dims": torch.tensor([2, 3])}, critic)


def test_export_and_import_keep_every_bit_and_other_slots() -> None:
    shape, population = random_population(3, 2)
    other = Population(shape, CPU)
    actor, critic = population.export_member(2)
    other.import_member(0, actor, critic)
    for ours, theirs in zip(other.export_member(0), (actor, critic), strict=True):
        assert set(ours) == set(theirs)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not other.flat[:, 1:].any()
    other.clear(0)
    assert not other.flat.any()


def test_invalid_members_are_refused_and_leave_the_slot_unchanged() -> None:
    _, population = random_population(2, 0)
    before = population.flat.clone()
    actor, critic = population.export_member(0)
    for change, words in (
        (lambda a, _: a.pop("net.0.bias"), "actor's tensors"),
        (lambda a, _: a.update({"net.0.weight": torch.zeros(8, 6)}), "does not fit"),
        (lambda a, _: a.update(state_avg=torch.ones(5)), "one normaliser"),
        (lambda a, c: [d.update(state_std=torch.zeros(5)) for d in (a, c)], "above zero"),
        (lambda _, c: c.update(state_std=torch.ones(4)), "must have shape"),
    ):
        wrong_actor, wrong_critic = dict(actor), dict(critic)
        change(wrong_actor, wrong_critic)
        with pytest.raises(InputError, match=words):
            population.import_member(0, wrong_actor, wrong_critic)
        assert torch.equal(before, population.flat)


def test_invalid_shapes_are_refused() -> None:
    assert Shape(state_dim=2, action_dim=1, num_envs=4, horizon=4, minibatch=16).samples == 16
    with pytest.raises(InputError, match=r"minibatch 17 is larger than the 16 transitions"):
        Shape(state_dim=2, action_dim=1, num_envs=4, horizon=4, minibatch=17)
    with pytest.raises(InputError, match="net_depth must be a whole number of at least 1, not 0"):
        Shape(state_dim=2, action_dim=1, net_depth=0)
    assert (
        Shape(
            state_dim=2, action_dim=1, num_envs=4, horizon=4, minibatch=17, algorithm="sac"
        ).updates
        == 64
    )
    for sizes in (
        {"num_envs": 4, "horizon": 4, "minibatch": 17},
        {"num_envs": 17, "horizon": 1, "minibatch": 2},
    ):
        with pytest.raises(InputError, match="buffer 16 must hold at least a rollout"):
            Shape(state_dim=2, action_dim=1, algorithm="sac", buffer=16, **sizes)
    with pytest.raises(InputError, match="algorithm must be 'ppo' for this program, not 'sac'"):
        PPO(Shape(state_dim=2, action_dim=1, algorithm="sac"))


def test_leaves_are_views_of_the_flat_weights_without_overlap() -> None:
    shape, population = random_population(2, 1)
    flat = torch.zeros_like(population.flat)
    views = leaf_views(flat, shape)
    for leaf in (*views.shared(), *views.actor(), *views.critic()):
        assert not leaf.any()  # no two overlap
        leaf.fill_(1.0)
    sizes = sum(p.numel() for p in modules(population, 0)[0].parameters() if p.requires_grad)
    assert int(flat[0, 0].sum()) == sizes
