"""New networks of PPO, SAC and D3QN, with the names, shapes and first weights of ElegantRL's.

For the same seed of torch's generator, weights and biases equal those of ElegantRL 0.3.6 to the
bit, and `state_dict`s are exchanged with its modules both ways. So the order of draws must not
change: every layer draws its default weights when it is made, one chain after another; then the
last layer of each chain that ends in outputs gets an orthogonal matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import nn

_OUTPUT_BIAS = 1e-6


def ppo_actor(
    net_dims: Sequence[int], state_dim: int, action_dim: int, *, discrete: bool
) -> nn.Module:
    """Return a new `ActorPPO`, or with discrete actions an `ActorDiscretePPO`."""
    actor = _network(state_dim, {"net": (state_dim, *net_dims, action_dim)}, gain=0.1)
    if not discrete:
        actor.register_parameter("action_std_log", nn.Parameter(torch.zeros(1, action_dim)))
    return actor


def ppo_critic(net_dims: Sequence[int], state_dim: int) -> nn.Module:
    """Return a new `CriticPPO`."""
    return _network(state_dim, {"net": (state_dim, *net_dims, 1)}, gain=0.5, values=True)


def sac_actor(net_dims: Sequence[int], state_dim: int, action_dim: int) -> nn.Module:
    """Return a new `ActorSAC`."""
    chains = {"net_s": (state_dim, *net_dims), "net_a": (net_dims[-1], 2 * action_dim)}
    return _network(state_dim, chains, encoder="net_s", gain=0.1)


def sac_critic(net_dims: Sequence[int], state_dim: int, action_dim: int) -> nn.Module:
    """Return a new `CriticTwin`."""
    chains = {"net": (state_dim + action_dim, *net_dims, 2)}
    return _network(state_dim, chains, gain=0.5, values=True)


def d3qn_network(net_dims: Sequence[int], state_dim: int, action_dim: int) -> nn.Module:
    """Return a new `QNetTwinDuel`."""
    chains = {"net_state": (state_dim, *net_dims)} | {
        f"net_{head}{which}": (net_dims[-1], size)
        for which in (1, 2)
        for head, size in (("adv", 1), ("val", action_dim))
    }
    return _network(state_dim, chains, encoder="net_state", gain=0.1, values=True)


def _network(
    state_dim: int,
    chains: Mapping[str, Sequence[int]],
    *,
    gain: float,
    encoder: str = "",
    values: bool = False,
) -> nn.Module:
    """Return new layers with their normalisers.

    Args:
        state_dim: number of columns that are normalised.
        chains: sizes of the layers of each chain by its name.
        gain: of the orthogonal matrices.
        encoder: name of the chain that others continue, which has no outputs.
        values: whether outputs are values, which are normalised too.
    """
    module = nn.Module()
    for name, size in (("state", state_dim), ("value", 1))[: 1 + values]:
        for part in (f"{name}_avg", f"{name}_std"):
            start = torch.full((size,), float(part.endswith("std")))
            module.register_parameter(part, nn.Parameter(start, requires_grad=False))
    for name, sizes in chains.items():
        layers = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
        module.add_module(name, nn.Sequential(*layers[:-1]))
    for name in chains:
        if name != encoder:
            *_, last = module.get_submodule(name).children()
            assert isinstance(last, nn.Linear)
            nn.init.orthogonal_(last.weight, gain)
            nn.init.constant_(last.bias, _OUTPUT_BIAS)
    return module
