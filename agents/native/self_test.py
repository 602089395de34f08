"""A test of the compiled kernels at their first use: they must give the bits that they should.

A small program is trained from numbers that are the same on every machine. The digest of its
weights and outputs is stored here, since it does not depend on the processor: a compiler that
contracts, reorders or miscompiles anything gives another one. `tests/agents/native` compares the
kernels with torch. The digest names the kernels' numerics in studies' records, too.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agents.native.kernels import SOURCE, TERMS, Kernels, PolicyKernel, UpdateKernel
from agents.networks.distributions import distribution_of
from agents.networks.optimizer import Adam
from agents.networks.shape import PER_SEAT, Shape
from agents.networks.weights import flat_size, leaf_views
from envs.core.items import ItemGroup, Items
from envs.native.build import library

# After an intended change of the numerics: python -m agents.native.self_test
DIGEST = "b106b72ef4e81089"

_SIZES: dict[str, Any] = {
    "slots": 2,
    "net_width": 33,
    "num_envs": 12,
    "horizon": 10,
    "minibatch": 50,
    "epochs": 1,
}
_NUMBERS: dict[str, Any] = {"state_dim": 21, "privileged_dim": 2}
_ITEMS = Items(
    vocabulary=3,
    groups=(
        ItemGroup("hand", 3, ("power",)),
        ItemGroup("gone", 2),
        ItemGroup("row", 2, ("power", "age")),
    ),
    features=(("power", 1.0), ("age", 1.0)),
    plain=(1.0, 1.0),
    facts=((0.0, 0.0), (0.5, 1.0), (0.25, -1.0)),
)
_SHAPES = (
    Shape(**_NUMBERS, **_SIZES, action_dim=3),
    Shape(
        **_NUMBERS,
        **_SIZES,
        action_dim=9,
        action_dims=(4, 5),
        discrete=True,
        masked=True,
        autoregressive=True,
        has_absent_agents=True,
    ),
    Shape(
        **_SIZES,
        state_dim=_ITEMS.columns,
        byte_obs=True,
        items=_ITEMS,
        item_width=5,
        action_dim=4,
        discrete=True,
        policies=PER_SEAT,
        seat_column=_ITEMS.columns - 1,
    ),
)


@dataclass
class _Rollout:
    obs: Tensor
    side: Tensor
    flags: Tensor
    packed_masks: Tensor


def digest(kernels: Kernels) -> str:
    """Return 16 hexadecimal digits of a hash of everything that the kernels compute."""
    found = hashlib.sha256()
    for shape in _SHAPES:
        for tensor in _results(kernels, shape):
            found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def _numbers(*size: int, scale: float = 1.0) -> Tensor:
    """Return numbers that look random, from whole-number arithmetic: equal on every machine."""
    index = torch.arange(int(torch.tensor(size).prod()))
    return (((index * index * 7919 + index * 104729) % 2053 - 1026) * (scale / 1024)).view(size)


def _results(kernels: Kernels, shape: Shape) -> list[Tensor]:
    flat = torch.zeros(2, shape.slots, shape.sets_per_member * flat_size(shape))
    weights = leaf_views(flat, shape)
    for leaf in weights.every():
        leaf.copy_(_numbers(*leaf.shape, scale=0.25))
    optimizer = Adam(flat, shape)
    optimizer.lr = [1e-3, 2e-3]
    optimizer.weight_decay = [0.0, 1e-2]
    rollout = _rollout(shape)
    stored = (shape.horizon + 1) * shape.num_envs
    order = (torch.arange(2 * shape.minibatch) * 37) % shape.samples
    rows = torch.stack((order, order + stored)).view(2, 2, -1).transpose(0, 1).reshape(2, -1)
    terms = dict.fromkeys(TERMS, torch.ones(shape.slots)) | {
        "low": torch.full((2,), 0.75),
        "high": torch.full((2,), 1.25),
        "clip": torch.full((2,), 0.25),
        "d_entropy": torch.full((2,), -0.001),
        "d_value": torch.full((2,), 0.01),
        "target_kl": torch.full((2,), torch.inf),
    }
    state = torch.zeros(shape.slots, 1, shape.obs_dim), torch.ones(shape.slots, 1, shape.obs_dim)
    update = UpdateKernel(kernels, shape, flat, optimizer, rollout, *state)
    stats, _ = update(rows, terms, torch.ones(shape.slots, dtype=torch.bool))
    policy, obs = PolicyKernel(kernels, shape, weights), rollout.obs.flatten(1, 2).float()
    results = torch.empty(2, obs.shape[1], shape.action_dim), torch.empty(2, obs.shape[1], 1)
    for critic, into in enumerate(results):
        policy(obs, into, critic=bool(critic))
    return [flat, optimizer.m, optimizer.v, *stats.values(), *results]


def _rollout(shape: Shape) -> _Rollout:
    """Return transitions; their log-probabilities are near those of the actions."""
    size = shape.slots, shape.horizon + 1, shape.num_envs
    columns = distribution_of(shape).columns(shape)
    obs, side = _numbers(*size, shape.obs_dim, scale=2.0), _numbers(*size, columns + 3)
    side[..., -3] -= 2.0
    if shape.byte_obs:
        obs = ((obs * 512).long() % 3).to(torch.uint8)
    if shape.discrete:
        side[..., :columns] = (side[..., :columns] * 512).long() % 4
    if not shape.masked:
        return _Rollout(obs, side, torch.zeros(*size, 0), torch.zeros(*size, 0))
    flags = _numbers(*size, 1) < 0.5
    # The first eight options are legal, among them all that were chosen; the last one may be.
    masks = (_numbers(*size, 2) < 0.0).to(torch.uint8)
    masks[..., 0] = 255
    return _Rollout(obs, side, flags, masks)


def main() -> None:
    """Print the digest of this machine's kernels."""
    print(digest(Kernels(library(SOURCE))))


if __name__ == "__main__":
    main()
