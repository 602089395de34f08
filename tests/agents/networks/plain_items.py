"""The layer over items in plain torch, one place at a time, for comparison."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sweepd.envs.core.items import Items


def item_columns(items: Items, weights: Mapping[str, Tensor], obs: Tensor) -> Tensor:
    """What the first layer reads, (rows, inputs), of normalised observations (rows, columns).

    weights: `items.embedding`, `items.weight` and `items.bias` of one network.
    """
    facts = obs.new_tensor(items.facts or [()] * items.vocabulary)
    names = [name for name, _ in items.features]
    sums, vectors, column = [], [], 0
    for group in items.groups:
        own = []
        for _ in range(group.count):
            ids, column = obs[:, column].long(), column + 1
            features = obs.new_zeros(len(obs), len(names))
            for name in group.features:
                features[:, names.index(name)] = obs[:, column]
                column += 1
            known = torch.cat((facts[ids], features), 1)
            vector = weights["items.embedding"][ids] + weights["items.bias"]
            if known.shape[1]:
                vector = vector + known @ weights["items.weight"].mT
            own.append(torch.where((ids > 0).unsqueeze(1), vector.relu(), 0.0))
        vectors += own
        sums.append(torch.stack(own).sum(0))
    assert obs.shape[1] - column == len(items.plain)
    return torch.cat((*vectors, *sums, obs[:, column:]), 1)
