"""A layer over items that are looked up by id, as one product for all members.

Every item is encoded by one shared layer, as in DeepSets (Zaheer et al., 2017, arXiv:1703.06114).
With the embedding E, the facts f that are known of each id, an item's features x, and weights A and
C with bias c:

    v = max(E[id] + f[id] A + x C + c, 0)  of an item,   v = 0  where there is none (id 0)

What depends on the id alone, E + f A + c, is a small table that is looked up, and its gradient is a
sum over the places with an id. The rest is a product over (rows * places).

The first hidden layer reads the vectors v_p of all places, their sum in each group of places, and
the plain columns y:

    z = Σ_p v_p W_p + Σ_group (Σ_{p in group} v_p) U_group + y Y + b

The product uses W_p + U_group (`ItemEncoder.folded`), which gives the same function: the sums are
never computed. No operation mixes members.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from sweepd.agents.networks.layers import affine
from sweepd.agents.networks.part import Part
from sweepd.agents.networks.products import plus_product
from sweepd.envs.core.items import Items
from sweepd.envs.support.errors import RunError


def item_inputs(items: Items, item_width: int) -> int:
    """Return the inputs of the first layer: item vectors, their sums per group, plain columns."""
    return (items.places + len(items.groups)) * item_width + len(items.plain)


def parts(items: Items | None, item_width: int) -> list[Part]:
    """Return the weights of the layer over items; none for None."""
    if items is None:
        return []
    table = items.vocabulary, item_width
    found = [Part("items.embedding", *table, "items", table)]
    if known := items.fact_count + len(items.features):
        found.append(Part("items.weight", known, item_width, "items"))
    return [*found, Part("items.bias", 1, item_width, "items")]


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


class ItemEncoder:
    """The layer over items of N networks, whose weights `parts` names."""

    def __init__(self, items: Items, dtype: torch.dtype, device: torch.device) -> None:
        self._items = items
        self._ids = torch.arange(items.vocabulary, device=device)
        # 0 for id 0, else 1.
        self._there = self._ids.clamp(max=1).to(dtype).unsqueeze(1)
        self._facts = torch.tensor(items.facts, dtype=dtype, device=device)
        # Which group a place belongs to, (places, groups) of 0 and 1.
        rows = [
            [float(group is other) for other in items.groups]
            for group in items.groups
            for _ in range(group.count)
        ]
        self._groups = torch.tensor(rows, dtype=dtype, device=device)
        # Groups side by side with the same features are read together.
        names = [name for name, _ in items.features]
        self._blocks = [
            (sum(group.count for group in groups), [names.index(name) for name in features])
            for features, groups in groupby(items.groups, lambda group: group.features)
        ]

    def __call__(self, weights: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """Return (N, rows, places * item width + plain columns): all vectors, then plain columns.

        Args:
            weights: by name.
            obs: (N, rows, columns), normalised.

        Raises:
            RunError: an id is not in the vocabulary (on CPUs; a GPU stops with its own error).
        """
        ids, features = self._read(obs)
        networks, rows, places = ids.shape
        embedding, facts = weights["items.embedding"], self._items.fact_count
        if facts:
            known = weights["items.weight"][:, :facts]
            of_ids = affine(self._facts.expand(networks, -1, -1), known, weights["items.bias"])
        else:
            of_ids = torch.bmm(embedding.new_ones(*embedding.shape[:2], 1), weights["items.bias"])
        table = (embedding + of_ids) * self._there
        at = ids + len(self._ids) * torch.arange(networks, device=ids.device).view(-1, 1, 1)
        vectors = look_up(table.flatten(0, 1), at.flatten()).view(networks, rows * places, -1)
        if self._items.features:
            vectors = plus_product(vectors, features, weights["items.weight"][:, facts:])
        plain = obs[..., obs.shape[-1] - len(self._items.plain) :]
        return torch.cat((vectors.relu().view(networks, rows, -1), plain), -1)

    def folded(self, weight: Tensor) -> Tensor:
        """Return the first layer's matrix for what `__call__` returns: W_p + U_group, then Y.

        Args:
            weight: (N, `item_inputs`, width).
        """
        places, groups = self._groups.shape
        plain = len(self._items.plain)
        item_width = (weight.shape[1] - plain) // (places + groups)
        of_places, of_groups, of_plain = weight.split_with_sizes(
            [places * item_width, groups * item_width, plain], 1
        )
        every = self._groups.expand(len(weight), -1, -1)
        # A product with 0 and 1 copies exactly, and its gradient has the same bits in every slot.
        copied = torch.bmm(every, of_groups.reshape(len(weight), groups, -1))
        return torch.cat((of_places + copied.view(of_places.shape), of_plain), 1)

    def _read(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids (N, rows, places) int64 and features (N, rows * places, features).

        Features are 0 where there is no item.
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
            features[:, :, place : place + count, present] = block[..., 1:] * there
            column, place = column + count * width, place + count
        every = torch.cat(ids, -1)
        # The next network's table would be read: a lookup of the outermost ids alone finds the
        # fault without reading a tensor's value.
        try:
            self._ids.index_select(0, torch.stack(every.aminmax()))
        except IndexError as error:
            raise unknown_item(self._items.vocabulary) from error
        return every, features.flatten(1, 2)


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """Return rows of a table, (len(index), columns)."""
    if not torch.is_grad_enabled():
        return table.index_select(0, index)
    result: Tensor = _Lookup.apply(table, index)  # type: ignore[no-untyped-call]
    return result


class _Lookup(torch.autograd.Function):
    """`look_up`, whose gradient adds a row's parts in the order of the index.

    On CPUs, `index_add_` sorts by row (stably) or adds one after the other, so the order is the
    same at any number of threads. On GPUs it uses atomic additions in any order; `index_put_` sorts.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.size = table.shape
        return table.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        [index] = ctx.saved_tensors
        into = grads[0].new_zeros(ctx.size)
        if into.device.type == "cpu":
            into.index_add_(0, index, grads[0])
        else:
            into.index_put_((index,), grads[0], accumulate=True)
        return into, None
