"""A layer that all entities of an observation share, such as the assets of a market.

With the columns x_e of entity e, weights W and bias b, the first hidden layer reads

    v_e = max(x_e W + b, 0)   of all entities e, one after the other, then the other columns

in place of all columns. So what a network learns of one asset it knows of all, and its first layer
has a fraction of the weights. (As the evaluators of Jiang et al., 2017, arXiv:1706.10059.) No
operation mixes members.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sweepd.agents.networks.layers import affine
from sweepd.agents.networks.part import Part
from sweepd.envs.core.entities import Entities

ROUND = 16  # the native kernels' columns: widths are multiples


def entity_inputs(entities: Entities, width: int, columns: int) -> int:
    """Return the inputs of the first layer: all vectors, then the other columns."""
    return columns + entities.count * (width - entities.width)


def parts(entities: Entities | None, width: int) -> list[Part]:
    """Return the weights of the layer over entities; none for None."""
    if entities is None:
        return []
    return [
        Part("entities.weight", entities.width, width, "entities"),
        Part("entities.bias", 1, width, "entities"),
    ]


def new_entity_weights(entities: Entities, width: int) -> dict[str, Tensor]:
    """Return the weights of a new layer over entities, initialised as torch's Linear."""
    linear = nn.Linear(entities.width, width).state_dict()
    return {f"entities.{name}": own for name, own in linear.items()}


class EntityEncoder:
    """The layer over entities of N networks, whose weights `parts` names."""

    def __init__(self, entities: Entities, columns: int, device: torch.device) -> None:
        self._entities = entities
        self._order = torch.tensor(entities.order(columns), device=device)

    def __call__(self, weights: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """Return (N, rows, `entity_inputs`).

        Args:
            weights: by name.
            obs: (N, rows, columns or more), normalised.
        """
        networks, rows, _ = obs.shape
        count, width = self._entities.count, self._entities.width
        ordered = obs.index_select(-1, self._order)
        own, other = ordered.tensor_split([count * width], -1)
        each = own.reshape(networks, rows * count, width)
        vectors = affine(each, weights["entities.weight"], weights["entities.bias"]).relu()
        return torch.cat((vectors.view(networks, rows, -1), other), -1)
