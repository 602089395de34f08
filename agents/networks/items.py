"""A layer over items that are looked up by id, as one product for all members.

Every item is encoded by one shared layer, as in DeepSets (Zaheer et al., 2017, arXiv:1703.06114).
With the embedding E, the facts f that are known of each id, an item's features x, and weights A and
C with bias c:

    v = max(E[id] + f[id] A + x C + c, 0)  of an item,   v = 0  where there is none (id 0)

What depends on the id alone, E + f A + c, is a small table that is looked up, and its gradient is a
sum over the places with an id. The rest is a product over (rows * places). No operation mixes
members.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sweepd.envs.core.items import Items
from sweepd.envs.support.errors import RunError


def item_inputs(items: Items, item_width: int) -> int:
    """Return the inputs of the first layer: item vectors, their sums per group, plain columns."""
    return (items.places + len(items.groups)) * item_width + len(items.plain)


def item_sizes(items: Items, item_width: int) -> list[tuple[int, int]]:
    """Return (rows, columns) of embedding, weight and bias of the layer over items."""
    columns = items.fact_count + len(items.features)
    return [(items.vocabulary, item_width), (columns, item_width), (1, item_width)]


def item_facts(items: Items) -> dict[str, Tensor]:
    """Return what the weights do not determine, as tensors of an exported actor.

    Returns:
        `items.groups` (groups, 1 + features) int64, a group's places and whether its items have
        each feature; `items.facts` (vocabulary, facts) if there are any.
    """
    groups = [
        [group.count, *(int(name in group.features) for name, _ in items.features)]
        for group in items.groups
    ]
    facts = {"items.facts": torch.tensor(items.facts)} if items.fact_count else {}
    return {"items.groups": torch.tensor(groups), **facts}


def new_item_weights(items: Items, item_width: int) -> dict[str, Tensor]:
    """Return the weights of a new layer over items, initialised as torch's Embedding and Linear."""
    embedding = nn.Embedding(items.vocabulary, item_width, padding_idx=0).weight.detach()
    columns = items.fact_count + len(items.features)
    if not columns:
        return {"items.embedding": embedding, "items.bias": torch.zeros(item_width)}
    linear = nn.Linear(columns, item_width).state_dict()
    return {"items.embedding": embedding} | {f"items.{name}": own for name, own in linear.items()}


def unknown_item(vocabulary: int) -> RunError:
    """Return the error of an id that is not in a vocabulary of so many ids."""
    return RunError(
        f"an observation has an item whose id is not in the vocabulary of {vocabulary} ids"
    )


class Read(NamedTuple):
    """The items of (N, rows) observations.

    Attributes:
        at: (N * rows * places,) int64, each item's row in the N tables, one after the other.
        features: (N, rows * places, features), 0 where there is no item.
    """

    at: Tensor
    features: Tensor


class Lookup:
    """The layer over items: reads observations, looks items up, and computes the gradient."""

    def __init__(self, items: Items, dtype: torch.dtype, device: torch.device) -> None:
        self._items = items
        self._ids = torch.arange(items.vocabulary, device=device)
        facts = items.facts or [()] * items.vocabulary
        self._facts = torch.tensor(facts, dtype=dtype, device=device)
        # Groups side by side with the same features are read together.
        names = [name for name, _ in items.features]
        self._blocks = [
            (sum(group.count for group in groups), [names.index(name) for name in features])
            for features, groups in groupby(items.groups, lambda group: group.features)
        ]

    def read(self, obs: Tensor) -> Read:
        """Read the items of normalised observations, (N, rows, columns).

        Raises:
            RunError: an id is not in the vocabulary (on CPUs; a GPU stops with its own error).
        """
        networks, rows, _ = obs.shape
        ids: list[Tensor] = []
        features = obs.new_zeros(networks, rows, self._items.places, len(self._items.features))
        column = place = 0
        for count, present in self._blocks:
            width = 1 + len(present)
            block = obs[..., column : column + count * width].view(networks, rows, count, width)
            ids.append(block[..., 0].long())
            there = block[..., :1].clamp(max=1.0)  # ids are whole numbers: 0 or 1
            for own, first, size in _runs(present):
                into = features[:, :, place : place + count, first : first + size]
                torch.mul(block[..., 1 + own : 1 + own + size], there, out=into)
            column, place = column + count * width, place + count
        every = torch.cat(ids, -1)
        self._check(every)
        every += self._items.vocabulary * torch.arange(networks, device=obs.device).view(-1, 1, 1)
        return Read(every.view(-1), features.flatten(1, 2))

    def vectors(self, read: Read, leaves: Sequence[Tensor], out: Tensor) -> None:
        """Write the vectors of all items.

        Args:
            read: of the observations.
            leaves: embedding (N, vocabulary, width), weight (N, facts + features, width) and bias
                (N, 1, width).
            out: (N, rows, places * width), written.
        """
        embedding, weight, bias = leaves
        networks, _, width = embedding.shape
        facts = self._facts.shape[1]
        table = embedding + bias
        if facts:
            table += torch.bmm(self._facts.expand(networks, -1, -1), weight[:, :facts])
        table[:, 0] = 0.0
        torch.index_select(table.view(-1, width), 0, read.at, out=out.view(-1, width))
        if self._items.features:
            out.view(networks, -1, width).baddbmm_(read.features, weight[:, facts:])
        out.relu_()

    def backward(self, read: Read, d_items: Tensor, into: Sequence[Tensor]) -> None:
        """Write the gradients of the leaves.

        Args:
            read: of the observations.
            d_items: (N, rows * places, width), dL/d(vectors), through ReLU: 0 where there is no
                item.
            into: gradients of embedding, weight and bias, written.
        """
        d_embedding, d_weight, d_bias = into
        networks, _, width = d_items.shape
        facts, table = self._facts.shape[1], d_embedding.shape[1]
        d_table = d_items.new_zeros(networks * table, width)
        add_rows(d_table, read.at, d_items.reshape(-1, width))
        d_table = d_table.view(networks, table, width)
        d_embedding.copy_(d_table)
        # Sums over ids are products with ones, as in `sweepd.agents.networks.mlp.Backward`.
        d_bias.copy_(torch.bmm(d_table.new_ones(networks, 1, table), d_table))
        if facts:
            d_weight[:, :facts] = torch.bmm(self._facts.mT.expand(networks, -1, -1), d_table)
        if self._items.features:
            d_weight[:, facts:] = torch.bmm(read.features.mT, d_items)

    def inputs(self, obs: Tensor, leaves: Sequence[Tensor]) -> Tensor:
        """Return the inputs of the first layer, (N, rows, `item_inputs`), for acting.

        Args:
            obs: (N, rows, columns), normalised.
            leaves: as in `vectors`.
        """
        networks, rows, columns = obs.shape
        vectors = obs.new_empty(networks, rows, self._items.places * leaves[0].shape[2])
        self.vectors(self.read(obs), leaves, vectors)
        by_place = vectors.view(networks, rows, self._items.places, -1)
        groups = torch.split(by_place, [group.count for group in self._items.groups], 2)
        plain = obs[..., columns - len(self._items.plain) :]
        return torch.cat((vectors, *(_total(group) for group in groups), plain), -1)

    def _check(self, ids: Tensor) -> None:
        # The next network's table would be read: a lookup of the outermost ids alone finds the
        # fault without reading a tensor's value.
        try:
            self._ids.index_select(0, torch.stack(ids.aminmax()))
        except IndexError as error:
            raise unknown_item(self._items.vocabulary) from error


def add_rows(into: Tensor, index: Tensor, rows: Tensor) -> None:
    """Add each row of `rows` to the row of `into` that `index` names, in order.

    On CPUs, `index_add_` sorts by row (stably) or adds one after the other, so the order of a
    row's additions is that of `rows` at any number of threads. On GPUs it uses atomic additions in
    any order; `index_put_` sorts.
    """
    if into.device.type == "cpu":
        into.index_add_(0, index, rows)
    else:
        into.index_put_((index,), rows, accumulate=True)


def _runs(columns: Sequence[int]) -> list[tuple[int, int, int]]:
    """Split ascending numbers into runs of consecutive ones: (position, first number, size)."""
    starts = [
        position
        for position, column in enumerate(columns)
        if not position or columns[position - 1] != column - 1
    ]
    ends = pairwise([*starts, len(columns)])
    return [(start, columns[start], end - start) for start, end in ends]


def _total(group: Tensor) -> Tensor:
    """Return the sum of a group's vectors (N, rows, places, width), added in order.

    The order of torch's own sum depends on the processor's vector width.
    """
    total, *others = group.unbind(2)
    for vector in others:
        total = total + vector
    return total
