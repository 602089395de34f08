"""Image observations: forward and backward pass and a whole update against torch's modules."""

from __future__ import annotations

import pytest
import torch
from sweepd.agents.networks.mlp import Activations, Backward, forward
from sweepd.agents.networks.weights import new_gradients
from torch import Tensor, nn

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.engine.population import Population
from sweepd.agents.networks.convolution import layers
from sweepd.agents.networks.shape import Shape
from sweepd.envs.support.errors import InputError
from tests.agents.helpers import shape_for, start
from tests.agents.toy_env import ImageEnv

CPU = torch.device("cpu")
SLOTS, ROWS = 3, 5


def torch_network(state: dict[str, Tensor]) -> nn.Sequential:
    """A member's actor or critic as torch's modules, made from its export alone."""
    strides, net = (
        state["conv_strides"].tolist(),
        nn.Sequential(nn.Unflatten(1, state["image_shape"].tolist())),
    )
    parts: list[nn.Module] = []
    for index, stride in enumerate(strides):
        weight = state[f"conv.{index}.weight"]
        conv = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2], stride)
        conv.load_state_dict({name: state[f"conv.{index}.{name}"] for name in ("weight", "bias")})
        parts += [conv, nn.ReLU()]
    parts.append(nn.Flatten())
    for index in (0, 2, 4):
        weight = state[f"net.{index}.weight"]
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.load_state_dict({name: state[f"net.{index}.{name}"] for name in ("weight", "bias")})
        parts += [linear, nn.ReLU()]
    return net.extend(parts[:-1])


@pytest.mark.parametrize("image_shape", [(2, 9, 10), (1, 26, 30), (2, 50, 48)])
def test_forward_and_backward_equal_torch(image_shape: tuple[int, int, int]) -> None:
    size = image_shape[0] * image_shape[1] * image_shape[2]
    shape = Shape(
        state_dim=size,
        action_dim=3,
        if_discrete=True,
        image_shape=image_shape,
        obs_dtype="uint8",
        slots=SLOTS,
        net_width=8,
        num_envs=2,
        horizon=8,
        minibatch=ROWS,
    )
    population, gradients = Population(shape, CPU), Population(shape, CPU)
    torch.manual_seed(1)
    for slot in range(SLOTS):
        population.new_member(slot, slot, 0.0, 255.0 * torch.rand(size), 100.0 + torch.rand(size))
        for leaf in population.weights.filter_bias:
            leaf[slot] += 0.1
    images = torch.randint(0, 256, (SLOTS, ROWS, size), dtype=torch.uint8)
    acts, grads = Activations(shape, ROWS, CPU), new_gradients(shape, CPU)
    obs = population.inputs(images)
    forward(population.weights, obs, acts)
    d_output, d_value = torch.randn(SLOTS, ROWS, 3), torch.randn(SLOTS, ROWS, 1)
    Backward(shape, ROWS, CPU)(population.weights, obs, acts, d_output, d_value, grads)
    for target, source in zip(gradients.weights.every(), grads.every(), strict=True):
        target.copy_(source)
    alone = Activations(shape, ROWS, CPU)
    forward(population.weights, obs, alone, critic=False)
    forward(population.weights, obs, alone, actor=False)
    torch.testing.assert_close((alone.output, alone.value), (acts.output, acts.value))
    for slot in range(SLOTS):
        actor, critic = population.export_member(slot)
        normalised = (images[slot] - actor["state_avg"]) / actor["state_std"]
        facts = {name: actor[name] for name in ("image_shape", "conv_strides")}
        theirs = [torch_network(state | facts) for state in (actor, critic)]
        outputs = [network(normalised) for network in theirs]
        torch.testing.assert_close(
            outputs, [acts.output[slot], acts.value[slot]], rtol=1e-4, atol=1e-5
        )
        ((outputs[0] * d_output[slot]).sum() + (outputs[1] * d_value[slot]).sum()).backward()
        for network, state in zip(theirs, gradients.export_member(slot), strict=True):
            ours = [
                state[name]
                for name in sorted(state)
                if name.startswith(("conv.", "net.")) and "str" not in name
            ]
            expected = [part.grad for part in network.parameters()]
            # torch's order is weight, bias; sorted names have bias first.
            swapped = [part for pair in zip(ours[1::2], ours[::2], strict=True) for part in pair]
            torch.testing.assert_close(swapped, expected, rtol=1e-3, atol=1e-4)


def test_images_stay_uint8_until_the_network_and_a_program_learns_from_them() -> None:
    env = ImageEnv(1, 16, choices=5, max_step=20)
    ppo = PPO(shape_for(env, num_envs=16, horizon=16, minibatch=64, epochs=8, net_width=32))
    assert ppo.rollout.obs.dtype == ppo.rollout.transitions.obs.dtype == torch.uint8
    ppo.add_member(
        0, PPOParams(entropy_coef=0.01, learning_rate=3e-3), 0, 6, env.state_avg, env.state_std
    )
    ppo.begin(env.reset(3))
    before = score(env, ppo)
    ppo.train(env, 5)
    assert before < 0.6
    assert score(env, ppo) > 0.75
    assert ppo.get_member(0)["obs"].dtype == torch.uint8


def score(env: ImageEnv, ppo: PPO) -> float:
    """Mean reward of 20 steps."""
    act, obs, total = ppo.act_fn(), env.reset(77), 0.0
    for _ in range(20):
        step = env.step(act(obs))
        obs, total = step.obs, total + float(step.reward.mean())
    ppo.begin(obs)
    return total / 20


def test_invalid_image_shapes_are_refused() -> None:
    assert [layer[2:4] for layer in layers((4, 84, 84))] == [(8, 4), (4, 2)]
    with pytest.raises(InputError, match="at least 5 x 5, and image_shape is \\(1, 4, 9\\)"):
        layers((1, 4, 9))
    env = ImageEnv(1, 4)
    ppo = start(env, {0: 0})
    actor, critic = ppo.export_member(0)
    with pytest.raises(InputError, match="image_shape is"):
        ppo.population.import_member(0, {**actor, "image_shape": torch.tensor([2, 10, 9])}, critic)
