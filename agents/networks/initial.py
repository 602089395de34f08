"""New networks, with the names, shapes and first weights of ElegantRL's.

For the same seed of torch's generator, weights and biases equal those of ElegantRL 0.3.6 to the
bit. So the order of draws must not change: every layer draws its default weights when it is made,
one chain after another; then the last layer of each chain that ends in outputs gets an orthogonal
matrix. Layers that ElegantRL's networks do not have draw last (`own_weights`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sweepd.agents.networks import activation
from sweepd.agents.networks.entities import new_entity_weights
from sweepd.agents.networks.items import new_item_weights
from sweepd.agents.networks.normaliser import neutral
from sweepd.agents.networks.portable import OrthogonalInDouble
from sweepd.agents.networks.spec import CRITICS, MEANS, NetSpec

_OUTPUT_BIAS = 1e-6
# Gains of the orthogonal matrices, of critics and of the others.
_GAINS = {True: 0.5, False: 0.1}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within this context, new weights come from a seed; torch's global generator is restored.

    (The last bits of orthogonal matrices are not ElegantRL's: `OrthogonalInDouble`.)
    """
    with torch.random.fork_rng(devices=[]), OrthogonalInDouble():
        torch.manual_seed(seed)
        yield


def new_weights(spec: NetSpec) -> dict[str, Tensor]:
    """Return the tensors of a new network of one policy, without those of `own_weights`.

    The normalisers change nothing, and the deviations of a Gaussian are 1.
    """
    inputs, layers = spec.inputs, {}
    for name, width in zip(spec.trunk, spec.hidden, strict=True):
        layers[name] = nn.Linear(inputs, width)
        inputs = width
    names = dict.fromkeys(part.name.rpartition(".")[0] for part in spec.parts())
    heads = [name for name in names if name in spec.heads]
    for name in heads:
        layers[name] = nn.Linear(inputs, spec.heads[name])
    for name in heads:
        nn.init.orthogonal_(layers[name].weight, _GAINS[spec.kind in CRITICS])
        nn.init.constant_(layers[name].bias, _OUTPUT_BIAS)
    weights = {
        f"{name}.{part}": own.detach()
        for name, layer in layers.items()
        for part, own in layer.named_parameters()
    }
    if spec.gives == MEANS:
        weights["action_std_log"] = torch.zeros(1, spec.actions)
    for name, size in spec.normalisers.items():
        weights[name] = torch.full((size,), neutral(name))
    return weights


def own_weights(spec: NetSpec) -> dict[str, Tensor]:
    """Return new weights of the layers that ElegantRL's networks do not have."""
    channels, convolutions = (spec.image or (0,))[0], nn.ModuleList()
    for own in spec.filters:
        convolutions.append(nn.Conv2d(channels, own.channels, own.kernel))
        channels = own.channels
    modules: dict[str, nn.Module] = {"conv": convolutions}
    if spec.cell:
        cell = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}[spec.cell]
        modules["rnn"] = cell(spec.hidden[-1], spec.hidden[-1])
    weights: dict[str, Tensor] = nn.ModuleDict(modules).state_dict()
    if spec.items is not None:
        weights |= new_item_weights(spec.items, spec.item_width)
    if spec.entities is not None:
        weights |= new_entity_weights(spec.entities, spec.entity_width)
    for name, width in zip(spec.trunk, spec.hidden, strict=True):
        weights |= activation.new_weights(spec.activation, name, width)
    # Zeros: choices are independent at first.
    chains = [part for part in spec.parts() if part.group == "chain"]
    return weights | {part.name: torch.zeros(part.shape) for part in chains}
