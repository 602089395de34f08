"""The first layers of all members' networks over items that are looked up by id.

The MLP's first layer reads the vectors v_p of all places p (`sweepd.agents.networks.items`), their
sum in each group of places, and the plain columns y:

    z = Σ_p v_p W_p + Σ_group (Σ_{p in group} v_p) U_group + y Y + b

The products here use W_p + U_group, which gives the same function: the sums are never computed, and
the gradient of U_group is the sum of those of its places. No operation mixes members.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.agents.networks.items import Lookup
from sweepd.agents.networks.weights import Leaves
from sweepd.envs.core.items import Items


class ItemLayers:
    """The layers over items and the first layers of 2G networks (G actors, then G critics).

    `forward` keeps what `backward` needs, for `rows` observations per member.
    """

    def __init__(
        self, items: Items, item_width: int, slots: int, rows: int, device: torch.device
    ) -> None:
        self._items, self._slots, self._width = items, slots, item_width
        self._lookup = Lookup(items, torch.get_default_dtype(), device)
        self._vectors = torch.empty(2 * slots, rows, items.places * item_width, device=device)
        # Of one kind of networks at a time; allocated by the first `backward`.
        self._d_vectors = self._d_matrix = torch.empty(0, device=device)
        self._matrices: dict[int, Tensor] = {}  # by kind of network
        # Which places belong to each group: (groups, places) of 0 and 1.
        groups = torch.eye(len(items.groups), device=device)
        self._groups = (
            groups.repeat_interleave(
                torch.tensor([group.count for group in items.groups], device=device),
                1,
                output_size=sum(group.count for group in items.groups),
            )
            .expand(slots, -1, -1)
            .contiguous()
        )

    def forward(
        self, weights: Leaves, obs: Tensor, out: Tensor, *, actor: bool, critic: bool
    ) -> None:
        """Write the sums of the first layers, before ReLU.

        Args:
            weights: of all networks.
            obs: (G, rows, columns), normalised.
            out: (2G, rows, width), written for the networks that run.
            actor: whether to run the actors.
            critic: whether to run the critics.
        """
        self._read = self._lookup.read(obs)
        self._plain = obs[..., obs.shape[-1] - len(self._items.plain) :].contiguous()
        kinds = ((weights.actor_in, actor), (weights.critic_in, critic))
        for kind, (matrix, runs) in enumerate(kinds):
            if not runs:
                continue
            own = slice(kind * self._slots, (kind + 1) * self._slots)
            vectors = self._vectors[own]
            leaves = [leaf[own] for leaf in weights.items]
            self._lookup.vectors(self._read, leaves, vectors)
            of_places, of_sums, of_plain = self._parts(matrix)
            self._matrices[kind] = _with_sums(of_places, of_sums, self._items)
            torch.baddbmm(weights.bias[0][own], vectors, self._matrices[kind], out=out[own])
            if self._items.plain:
                out[own].baddbmm_(self._plain, of_plain)

    def backward(self, delta: Tensor, into: Leaves) -> None:
        """Write the gradients of the layers over items and the first layers after `forward`.

        Args:
            delta: (2G, rows, width), dL/dz of the first layers.
            into: written.
        """
        if not self._d_vectors.numel():
            self._d_vectors = torch.empty_like(self._vectors[: self._slots])
            self._d_matrix = torch.empty_like(self._matrices[0])
        for kind, d_matrix in enumerate((into.actor_in, into.critic_in)):
            own = slice(kind * self._slots, (kind + 1) * self._slots)
            vectors, d_vectors, d_z = self._vectors[own], self._d_vectors, delta[own]
            d_places, d_sums, d_plain = self._parts(d_matrix)
            torch.bmm(vectors.mT, d_z, out=self._d_matrix)
            d_places.copy_(self._d_matrix)
            by_place = self._d_matrix.view(len(d_z), self._items.places, -1)
            d_sums.copy_(torch.bmm(self._groups, by_place).view(d_sums.shape))
            if self._items.plain:
                d_plain.copy_(torch.bmm(self._plain.mT, d_z))
            # dL/dv = Δ Wᵀ, through ReLU: its output is above 0 where its input was.
            torch.bmm(d_z, self._matrices[kind].mT, out=d_vectors)
            torch.ops.aten.threshold_backward.grad_input(
                d_vectors, vectors, 0, grad_input=d_vectors
            )
            d_items = d_vectors.view(len(d_z), -1, self._width)
            self._lookup.backward(self._read, d_items, [leaf[own] for leaf in into.items])

    def _parts(self, matrix: Tensor) -> tuple[Tensor, ...]:
        """Split (G, inputs, width) into views for places, sums of groups, and plain columns."""
        items, width = self._items, self._width
        sizes = [items.places * width, len(items.groups) * width, len(items.plain)]
        return torch.split(matrix, sizes, 1)


def _with_sums(of_places: Tensor, of_sums: Tensor, items: Items) -> Tensor:
    """Return W_p + U_group for every place, (G, places * item width, width)."""
    slots, rows, width = of_places.shape
    by_place = of_places.view(slots, items.places, -1, width)
    by_group = of_sums.view(slots, len(items.groups), -1, width)
    summed = by_place.new_empty(by_place.shape)
    first = 0
    for index, group in enumerate(items.groups):
        places = slice(first, first + group.count)
        torch.add(by_place[:, places], by_group[:, index, None], out=summed[:, places])
        first += group.count
    return summed.view(slots, rows, width)
