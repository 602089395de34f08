"""A test of the compiled kernels at their first use: they must give the bits that they should.

Small programs are trained from numbers that are the same on every machine. The digest of its
weights and outputs is stored here, since it does not depend on the processor: a compiler that
contracts, reorders or miscompiles anything gives another one. `tests/agents/native` compares the
kernels with torch. The digest names the kernels' numerics in studies' records, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from sweepd.agents.native.acting import ActionKernel, NormaliserKernel
from sweepd.agents.native.kernels import SOURCE, Kernels, NetKernel, UpdateKernel, places
from sweepd.agents.native.off_policy import ReplayKernel, Trained
from sweepd.agents.networks.activation import NATIVE
from sweepd.agents.networks.distributions import distribution_of
from sweepd.agents.networks.net import Net
from sweepd.agents.networks.optimizer import Adam
from sweepd.agents.networks.part import cut
from sweepd.agents.networks.recurrence import Memory, state_size
from sweepd.agents.networks.shape import PER_SEAT, Shape
from sweepd.agents.networks.spec import NetSpec, specs_of
from sweepd.envs.core.env_spec import BYTES
from sweepd.envs.core.items import ItemGroup, Items
from sweepd.envs.native.build import library
from sweepd.envs.native.use import scattered

# Of networks without other layers, with a recurrent layer, and of images. After an intended change of
# the numerics: python -m sweepd.agents.native.self_test
FEED_FORWARD, RECURRENT, IMAGES = "b1aafd7c19139fe7", "b4e5ba9cf703360f", "1fc1e6bf8ad504db"
DIGEST = f"{FEED_FORWARD} {RECURRENT} {IMAGES}"

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
_PPO = (
    Shape(**_NUMBERS, **_SIZES, action_dim=3),
    # Two parts of a minibatch.
    Shape(**_NUMBERS, **_SIZES | {"num_envs": 40, "minibatch": 400}, action_dim=3),
    Shape(
        **_NUMBERS,
        **_SIZES,
        action_dim=9,
        action_dims=(4, 5),
        if_discrete=True,
        masked=True,
        autoregressive=True,
        has_absent_agents=True,
    ),
    Shape(
        **_SIZES,
        state_dim=_ITEMS.columns,
        obs_dtype=BYTES,
        items=_ITEMS,
        item_width=5,
        action_dim=4,
        if_discrete=True,
        policies=PER_SEAT,
        seat_column=_ITEMS.columns - 1,
    ),
)
# More sequences in a minibatch than pass through a network together. (Tensors are so small that torch
# starts no threads: the test may run in a forked process.)
_SEQUENCES: dict[str, Any] = _NUMBERS | _SIZES
_SEQUENCES |= {"num_envs": 20, "horizon": 12, "bptt": 6, "minibatch": 120, "net_width": 17}
_RECURRENT = (
    Shape(**_SEQUENCES, recurrent="gru", action_dim=3, has_absent_agents=True),
    Shape(**_SEQUENCES, recurrent="lstm", action_dim=9, if_discrete=True),
)
# Likewise more images than pass through the convolutions together, in as small tensors.
_IMAGES = (
    Shape(
        **_SIZES | {"minibatch": 110, "net_width": 17},
        state_dim=2 * 7 * 8,
        obs_dtype=BYTES,
        image_shape=(2, 7, 8),
        action_dim=3,
        if_discrete=True,
    ),
    Shape(
        **_SIZES | {"minibatch": 40, "net_width": 9, "bptt": 5},
        state_dim=7 * 8,
        obs_dtype=BYTES,
        image_shape=(1, 7, 8),
        action_dim=2,
        activation="tanh",
        recurrent="gru",
    ),
)
# A minibatch of two chunks of rows.
_REPLAYED: dict[str, Any] = {"slots": 2, "net_width": 33, "num_envs": 5, "horizon": 24}
_REPLAYED |= {"state_dim": 21, "action_dim": 5, "minibatch": 110, "updates": 2, "buffer": 120}
_OFF_POLICY = (
    Shape(**_REPLAYED, algorithm="sac"),
    Shape(**_REPLAYED, algorithm="d3qn", if_discrete=True),
)
_RATES = [1e-3, 2e-3]
_LINEAR = ("weight", "bias")
_PPO_NUMBERS = {"clip": 0.25, "entropy_coef": 0.05, "target_kl": 0.0, "initial_log_std": 0.0}
_PPO_NUMBERS |= {"value_coef": 0.5, "max_grad_norm": 1.0}
_PPO_NUMBERS |= {"value_avg": 1.0, "value_std": 1.0, "value_unit": 1.0}
_REPLAY_NUMBERS = {"gamma": 0.5, "soft_update_tau": 0.5, "max_grad_norm": 0.5}
_REPLAY_NUMBERS |= {"target_entropy": 0.1, "value_avg": 0.5, "value_std": 1.25}


@dataclass
class _Rollout:
    obs: Tensor
    side: Tensor
    flags: Tensor
    packed_masks: Tensor
    memory: Tensor


def digest(kernels: Kernels) -> str:
    """Return hashes of what the kernels compute, as `DIGEST`."""
    results = [
        _acted(kernels, Shape(**_NUMBERS, **_SIZES, action_dim=3, if_discrete=discrete))
        for discrete in (False, True)
    ]
    for activation in NATIVE:
        ppo, replays = (
            [replace(shape, activation=activation) for shape in shapes]
            for shapes in (_PPO, _OFF_POLICY)
        )
        results += [_after_ppo(kernels, shape) for shape in ppo]
        results += [_after_replays(kernels, shape) for shape in replays]
    recurrent, images = (
        [_after_ppo(kernels, shape) for shape in shapes] for shapes in (_RECURRENT, _IMAGES)
    )
    return f"{_hash(results)} {_hash(recurrent)} {_hash(images)}"


def _hash(results: Iterable[Iterable[Tensor]]) -> str:
    """Return 16 hexadecimal digits."""
    found = hashlib.sha256()
    for tensor in chain.from_iterable(results):
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def _numbers(*size: int, scale: float = 1.0) -> Tensor:
    """Return numbers that look random."""
    return (scattered(*size, below=2053) - 1026).float() * (scale / 1024)


def _both(numbers: dict[str, float]) -> dict[str, Tensor]:
    """Return numbers that both members have."""
    return {name: torch.tensor([number] * 2) for name, number in numbers.items()}


def _adam(flat: Tensor) -> Adam:
    """Return an optimizer whose first moments are subnormal numbers: kernels take them for zero."""
    optimizer = Adam(flat)
    optimizer.m.fill_(1e-39)
    return optimizer


def _acted(kernels: Kernels, shape: Shape) -> list[Tensor]:
    """Return drawn actions, what is stored of them, and normalised observations."""
    actor, critic = (Net.zeros(spec, shape.slots, torch.device("cpu")) for spec in specs_of(shape))
    size = shape.slots, shape.num_envs
    for name in ("state_avg", "state_std"):
        critic.normalisers[name] += _numbers(shape.obs_dim, scale=0.5)
    if not shape.if_discrete:
        actor.weights["action_std_log"].detach().copy_(_numbers(shape.action_dim))
    outputs, side = _numbers(*size, shape.action_dim), torch.zeros(*size, shape.action_dim + 3)
    noise = _numbers(*size, 1 if shape.if_discrete else shape.action_dim)
    actions = ActionKernel(kernels, shape, actor)(outputs, noise.abs() * 0.99, side)
    obs = torch.zeros(*size, shape.obs_dim)
    NormaliserKernel(kernels, shape, critic)(_numbers(*obs.flatten(0, 1).shape), obs)
    return [actions, side, obs]


def _after_ppo(kernels: Kernels, shape: Shape) -> list[Tensor]:
    actor, critic = specs_of(shape)
    size = max(spec.policies * spec.size for spec in (actor, critic))
    flat = torch.zeros(2, shape.slots, size)
    nets = Net(actor, flat[0]), Net(critic, flat[1])
    # Actors and critics have their common parts at the same places.
    both = cut(flat.view(2 * shape.slots * shape.sets_per_member, -1), nets[0].spec.parts())
    for net in reversed(nets):
        for part in net.spec.parts():
            own = part.group in ("first", "out", "out bias", "deviation", "chain")
            leaf = net.weights[part.name] if own else both[part.name]
            leaf.detach().copy_(_numbers(*leaf.shape, scale=0.25))
        if shape.image_shape is not None:
            for name in ("state_avg", "state_std"):
                net.normalisers[name] += 100.0 + _numbers(shape.obs_dim, scale=40.0)
    optimizer = _adam(flat)
    optimizer.lr = _RATES
    optimizer.weight_decay = [0.0, 1e-2]
    rollout = _rollout(shape)
    rows = _minibatches(shape)
    update = UpdateKernel(kernels, shape, nets, optimizer, rollout)
    every = torch.ones(shape.slots, dtype=torch.bool)
    stats, _ = update(rows, _both(_PPO_NUMBERS), every)
    obs = rollout.obs.flatten(1, 2)
    if shape.image_shape is None:
        obs = obs.float()
    results: list[Tensor] = []
    for net in nets:
        state = _numbers(*obs.shape[:2], net.spec.memory)
        live = rollout.flags[..., 0].flatten(1) if shape.loses_transitions else None
        memory = Memory(state, live=live) if shape.recurrent else None
        output, after = NetKernel(kernels, net)(obs, memory)
        results += [output] if after is None else [output, after]
    return [flat, optimizer.m, optimizer.v, *stats.values(), *results]


def _after_replays(kernels: Kernels, shape: Shape) -> list[Tensor]:
    """Return what is trained by gradient steps of SAC or D3QN, statistics, and outputs."""
    slots, actions, size = shape.slots, shape.action_dim, (shape.buffer, shape.state_dim)
    columns = 1 if shape.if_discrete else actions
    rings = {name: _numbers(slots, *size, scale=2.0) for name in ("obs", "next_obs")}
    rings["side"] = _numbers(slots, shape.buffer, columns + 2)
    if shape.if_discrete:
        rings["side"][..., 0] = (rings["side"][..., 0] * 512).long() % actions
    rings["side"][..., -1] = (rings["side"][..., -1] > -0.5).float()
    kinds = {"critic": "QNetTwinDuel" if shape.if_discrete else "CriticTwin"}
    kinds |= {"target": kinds["critic"]} | ({} if shape.if_discrete else {"actor": "ActorSAC"})
    nets, at, trained = {}, {}, {}
    for name, kind in kinds.items():
        spec = replace(NetSpec.of(kind, shape), hidden=(shape.net_width,) * 2)
        nets[name] = net = Net.zeros(spec, slots, torch.device("cpu"))
        net.flat.copy_(_numbers(*net.flat.shape, scale=0.25))
        layers = [f"{layer}.{part}" for layer in (*spec.trunk, *spec.heads) for part in _LINEAR]
        by_name = {part.name: part for part in spec.parts()}
        at[name] = places(spec, [by_name[part] for part in layers])
        adam = None if name == "target" else _adam(net.flat.unsqueeze(0))
        trained[name] = Trained(net.flat, at[name], adam)
    if not shape.if_discrete:
        alpha = _numbers(1, slots, 1)
        trained["alpha"] = Trained(alpha[0], None, _adam(alpha))
    optimizers = [one.optimizer for one in trained.values() if one.optimizer is not None]
    for optimizer in optimizers:
        optimizer.lr = _RATES
        optimizer.weight_decay = [0.0, 1e-2]
    normaliser = _numbers(slots, 1, size[1]), 1.5 + _numbers(slots, 1, size[1])
    run = ReplayKernel(kernels, shape, trained, rings, normaliser)
    order = torch.arange(shape.updates * shape.minibatch) * 37 % shape.buffer
    rows = torch.stack((order, order + shape.buffer)).view(slots, shape.updates, -1)
    noise = _numbers(shape.updates, 2, slots, shape.minibatch, actions, scale=2.0)
    rows = rows.transpose(0, 1).reshape(shape.updates, -1)
    every = torch.ones(slots, dtype=torch.bool)
    stats, _ = run(rows, noise, _both(_REPLAY_NUMBERS), every)
    name = "critic" if shape.if_discrete else "actor"
    outputs = NetKernel(kernels, nets[name], at[name]).outputs(rings["obs"])[0]
    moments = [part for optimizer in optimizers for part in (optimizer.m, optimizer.v)]
    flats = [one.flat for one in trained.values()]
    return [*flats, *moments, *stats.values(), outputs]


def _minibatches(shape: Shape) -> Tensor:
    """Return rows of a rollout for two gradient steps, (2, slots * minibatch)."""
    steps, envs = shape.bptt if shape.recurrent else 1, shape.num_envs
    sequence = (torch.arange(2 * shape.minibatch // steps) * 37) % (shape.samples // steps)
    first = sequence // envs * (steps * envs) + sequence % envs
    rows = first.view(2, 1, -1) + torch.arange(steps).view(1, -1, 1) * envs
    stored = (shape.horizon + 1) * envs
    of_members = rows.view(2, 1, -1) + torch.arange(shape.slots).view(1, -1, 1) * stored
    return of_members.view(2, -1)


def _rollout(shape: Shape) -> _Rollout:
    """Return transitions; their log-probabilities are near those of the actions."""
    size = shape.slots, shape.horizon + 1, shape.num_envs
    columns = distribution_of(shape).columns(shape)
    obs, side = _numbers(*size, shape.obs_dim, scale=2.0), _numbers(*size, columns + 3)
    side[..., -3] -= 2.0
    if shape.obs_dtype == BYTES:
        obs = ((obs * 512).long() % (3 if shape.items else 256)).to(torch.uint8)
    if shape.if_discrete:
        side[..., :columns] = (side[..., :columns] * 512).long() % 4
    flags = _numbers(*size, shape.loses_transitions + bool(shape.recurrent)) < 0.5
    # The first eight options are legal, among them all that were chosen; the last one may be.
    masks = (_numbers(*size, 2 * shape.masked) < 0.0).to(torch.uint8)
    masks[..., :1] = 255
    sequences = shape.samples // shape.bptt
    width = state_size(shape.recurrent, shape.net_width)
    return _Rollout(obs, side, flags, masks, _numbers(2, shape.slots, sequences, width))


def main() -> None:
    """Print the digest of this machine's kernels."""
    print(digest(Kernels(library(SOURCE))))


if __name__ == "__main__":
    main()
