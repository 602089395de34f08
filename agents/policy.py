"""The frozen policy: the one canonical way to act, and the file its members live in.

Hold-out scoring, back-test, verification and paper trading all call `FrozenPolicy.act`: on the CPU, in float64, one
observation at a time. The action is the mean over the members of tanh(actor), each through its own normaliser, rounded
to 1e-6, so that it doesn't hang on the last bits of a product. Where actions are discrete, it is the first choice whose
mean probability over the members, rounded likewise, is the highest.

A member is the `state_dict` of ElegantRL's `ActorPPO`: `net.0.weight` (out, in), `net.0.bias`, `net.2.weight`, …,
`action_std_log` (1, action_dim), `state_avg` and `state_std` (state_dim,), all float32. That of `ActorDiscretePPO` is
without `action_std_log`, and that is how the two are told apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from envs.errors import InputError, RunError
from envs.files import write_atomic

DECIMALS = 6
_KEY = re.compile(r"m(\d{3})\.(.+)")

Member = Mapping[str, Tensor]


def _layers(member: Member) -> list[str]:
    """The names of a member's layers from input to output ("net.0", "net.2", …)."""
    return [f"net.{index}" for index in range(0, 2 * sum(name.endswith(".weight") for name in member), 2)]


def _discrete(member: Member) -> bool:
    return "action_std_log" not in member


def _fault(member: Member) -> str | None:
    """What keeps a dict of tensors from being an actor, as the end of a sentence; None where nothing does."""
    layers = _layers(member)
    wanted = {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    wanted |= {"state_avg", "state_std"} | (set() if _discrete(member) else {"action_std_log"})
    if len(layers) < 1 or set(member) != wanted:
        missing, extra = sorted(wanted - set(member)), sorted(set(member) - wanted)
        return f"lacks {missing} and has {extra} too many" if layers else "has no layer"
    for name, tensor in member.items():
        if tensor.dtype != torch.float32:
            return f"has {name} as {tensor.dtype}, not float32"
        if not bool(torch.isfinite(tensor).all()):
            return f"has values in {name} that are not finite"
    rows = member["state_avg"].numel()
    shapes: dict[str, tuple[int, ...]] = {"state_avg": (rows,), "state_std": (rows,)}
    for layer in layers:
        weight = member[f"{layer}.weight"]
        columns = weight.shape[0] if weight.dim() == 2 else 0
        shapes |= {f"{layer}.weight": (columns, rows), f"{layer}.bias": (columns,)}
        rows = columns
    if not _discrete(member):
        shapes["action_std_log"] = (1, rows)
    for name, shape in shapes.items():
        if tuple(member[name].shape) != shape or 0 in shape:
            return f"has {name} of shape {tuple(member[name].shape)}, where {shape} fits the rest"
    if not bool((member["state_std"] > 0).all()):
        return "has values in state_std that are not above zero"
    return None


def check_members(members: Sequence[Member], source: str = "the policy") -> tuple[int, int]:
    """(state_dim, action_dim) of members that fit together. Raises InputError naming `source`, the member and what is
    wrong.
    """
    if not members:
        raise InputError(f"{source} has no members.")
    dims: tuple[int, int] | None = None
    for index, member in enumerate(members):
        fault = _fault(member)
        if fault is not None:
            raise InputError(f"{source}: member {index} {fault}.")
        if _discrete(member) != _discrete(members[0]):
            raise InputError(f"{source}: some members choose among actions, and some give numbers.")
        own = (member["state_avg"].numel(), member[f"{_layers(member)[-1]}.bias"].numel())
        if dims is not None and own != dims:
            first = f"member 0 maps {dims[0]} to {dims[1]}"
            raise InputError(f"{source}: member {index} maps {own[0]} inputs to {own[1]} actions, but {first}.")
        dims = own
    assert dims is not None
    return dims


class FrozenPolicy:
    """An ensemble of actors that no longer learn. Equal members give the same actions wherever it runs, to 1e-6."""

    def __init__(self, members: Sequence[Member]) -> None:
        """Raises InputError where the members are no actors, or don't fit together. They may differ in width and
        depth.
        """
        self.state_dim, self.action_dim = check_members(members)
        self.discrete = _discrete(members[0])
        self.size = len(members)
        self._avg, self._std = ([_float64(member[name]) for member in members] for name in ("state_avg", "state_std"))
        self._layers = [
            [(_float64(member[f"{layer}.weight"]), _float64(member[f"{layer}.bias"])) for layer in _layers(member)]
            for member in members
        ]

    @classmethod
    def load(cls, path: Path) -> FrozenPolicy:
        """A policy from a file of `save_members`. Raises InputError as `load_members` does."""
        return cls(load_members(path))

    def act(self, obs: NDArray[np.float32]) -> NDArray[np.float64]:
        """The deterministic action, (action_dim,) float64 in [-1, 1] in steps of 1e-6, for one (state_dim,)
        observation; (1,), the index of one of action_dim choices, where actions are discrete.

        Raises RunError where the observation has another shape or a value that is not finite.
        """
        row = np.asarray(obs, dtype=np.float32)
        if row.shape != (self.state_dim,):
            raise RunError(f"The policy reads observations of shape ({self.state_dim},), and was given {row.shape}.")
        if not np.isfinite(row).all():
            column = int(np.flatnonzero(~np.isfinite(row))[0])
            raise RunError(f"The observation's column {column} is {row[column]}, which is not finite.")
        state = row.astype(np.float64)
        total = np.zeros(self.action_dim)
        for avg, std, layers in zip(self._avg, self._std, self._layers, strict=True):
            hidden = (state - avg) / std
            for weight, bias in layers[:-1]:
                hidden = np.maximum(weight @ hidden + bias, 0.0)
            weight, bias = layers[-1]
            output = weight @ hidden + bias
            total += _softmax(output) if self.discrete else np.tanh(output)
        mean: NDArray[np.float64] = np.round(total / self.size, DECIMALS) + 0.0  # + 0.0: a negative zero is a zero
        return np.array([mean.argmax()], dtype=np.float64) if self.discrete else mean


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(logits - logits.max())
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def _float64(tensor: Tensor) -> NDArray[np.float64]:
    return np.ascontiguousarray(tensor.detach().cpu().numpy(), dtype=np.float64)


def save_members(path: Path, members: Sequence[Member]) -> None:
    """Write members to a safetensors file, whole or not at all. Equal members give equal bytes. Raises InputError for
    what is no actor.
    """
    check_members(members, str(path))
    if len(members) > 999:
        raise InputError(f"{path}: {len(members)} members are too many; at most 999 fit.")
    named = {
        f"m{index:03d}.{name}": tensor.detach().cpu().contiguous().clone()
        for index, member in enumerate(members)
        for name, tensor in sorted(member.items())
    }
    write_atomic(path, save_tensors(named))


def load_members(path: Path) -> list[dict[str, Tensor]]:
    """The members of a file, in order, every tensor's name, type, shape and values checked.

    Raises InputError naming the file, and the member and tensor where there is one at fault.
    """
    try:
        named = load_tensors(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror or error}.") from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no safetensors file, or is damaged: {error}.") from error
    members: dict[int, dict[str, Tensor]] = {}
    for key, tensor in named.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise InputError(f"{path}: {key!r} is no member's tensor; names look like 'm000.net.0.weight'.")
        members.setdefault(int(match[1]), {})[match[2]] = tensor
    if sorted(members) != list(range(len(members))):
        raise InputError(
            f"{path}: members are numbered {sorted(members)}, where they should count from 0 without a gap."
        )
    ordered = [members[index] for index in range(len(members))]
    check_members(ordered, str(path))
    return ordered
