"""The frozen policy: the canonical way to act, and the file that holds its members.

Hold-out scoring, back-test, verification and paper trading all call `FrozenPolicy.act`: on the CPU,
in float64, one observation at a time.

Continuous actions are the mean over members of tanh(actor), each member with its own normaliser,
rounded to 1e-6 so that they do not depend on the last bits of a product. For each discrete choice,
each member gives every option a weight (they sum to 1); the action is the first legal option with
the highest mean weight, rounded likewise. The weights are the policy's probabilities. For value
networks, whose units may differ between members, they are the softmax of the values after
subtracting their mean and dividing by their standard deviation.

The tensors of a member: `sweepd.agents.policy.members`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from sweepd.agents.networks.seats import is_second
from torch import Tensor

from sweepd.agents.algorithms.sac import LOG_STD
from sweepd.agents.networks.activation import ELU, RELU, SILU, TANH, activate_
from sweepd.agents.networks.items import Lookup
from sweepd.agents.policy.members import (
    ACTION_DIMS,
    CELL,
    EMBEDDING,
    IMAGE_SHAPE,
    Member,
    check_members,
    clip_in,
    convolutions_of,
    items_of,
    kind_of,
    layers_of,
    recurrent_size,
    seat_column_of,
    seats_of,
    sizes_of,
)
from sweepd.envs.core.items import Items
from sweepd.envs.core.vec_env import Legal
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.files import write_atomic

__all__ = ["DECIMALS", "FrozenPolicy", "Member", "check_members", "load_members", "save_members"]

DECIMALS = 6
_LEAST_UNIFORM = 1e-12  # of uniform numbers and of their distance from 1
# The activations of `act`, which is numpy throughout; "" is none.
_ACTIVATED: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    RELU: lambda z: np.maximum(z, 0.0),
    TANH: np.tanh,
    SILU: lambda z: z / (1.0 + np.exp(-np.maximum(z, -700.0))),  # e^710 is no float64
    ELU: lambda z: np.where(z > 0, z, np.expm1(np.minimum(z, 0.0))),
    "": lambda z: z,
}
Rows = TypeVar("Rows", Tensor, NDArray[np.float32])
_KEY = re.compile(r"m(\d{3})\.(.+)")


class FrozenPolicy:
    """An ensemble of actors with fixed weights. Equal members act alike on any machine, to 1e-6.

    Attributes:
        state_dim: columns of an observation.
        action_dim: numbers of an action, or options of all choices together.
        discrete: whether actions are choices.
        sizes: the number of options of each choice; () for continuous actions.
        members: the actors' tensors.
        size: number of members.
        recurrent: whether a member has a recurrent state. Then `act` and `act_batch` take each call
            as the rows' next step (with one state per number of rows), and `done` must be called
            when episodes end.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        """Set up the policy; members may differ in width, depth and kind.

        Raises:
            InputError: a member is not an actor, or they do not fit together.
        """
        self.state_dim, self.action_dim = check_members(members)
        self.discrete, self.sizes = kind_of(members[0]).discrete, sizes_of(members[0])
        self.members = tuple(members)
        self.size = len(members)
        self._avg, self._std = (
            [_float64(member[name]) for member in members] for name in ("state_avg", "state_std")
        )
        self._clips = [clip_in(member) for member in members]
        self._layers = [
            [
                (_float64(member[f"{name}.weight"]), _float64(member[f"{name}.bias"]), activation)
                for name, activation in layers_of(member)
            ]
            for member in members
        ]
        self._batched = [_batched(member) for member in members]
        self.recurrent = any(recurrent_size(member) for member in members)

    def act(self, obs: NDArray[np.float32], legal: Legal | None = None) -> NDArray[np.float64]:
        """Return the deterministic action for one observation.

        Args:
            obs: (state_dim,).
            legal: as in `act_batch`, for one row.

        Returns:
            (action_dim,) float64 in [-1, 1] in steps of 1e-6; of discrete actions the index of each
                choice, (choices,).

        Raises:
            RunError: the observation has another shape, or a value that is not finite.
        """
        row = np.asarray(obs, dtype=np.float32)
        if row.shape != (self.state_dim,):
            raise RunError(
                f"The policy reads observations of shape ({self.state_dim},), and was given "
                f"{row.shape}; Policy.action takes observations as the environment returns them."
            )
        if not np.isfinite(row).all():
            column = int(np.flatnonzero(~np.isfinite(row))[0])
            raise RunError(
                f"The observation's column {column} is {row[column]}, which is not finite."
            )
        # Below: the plain MLP of continuous actions in numpy, one row at a time. These are the
        # canonical numbers of markets.
        if self.discrete or self.recurrent or self._batched[0].encodes:
            return self.act_batch(row[None], legal=legal).reshape(-1).astype(np.float64)
        state = row.astype(np.float64)
        total = np.zeros(self.action_dim)
        parts = zip(self._avg, self._std, self._clips, self._layers, strict=True)
        for avg, std, clip, layers in parts:
            hidden = np.clip((state - avg) / std, -clip, clip)
            for weight, bias, activation in layers:
                hidden = _ACTIVATED[activation](weight @ hidden + bias)
            total += np.tanh(hidden[: self.action_dim])
        # + 0.0 turns -0.0 into 0.0.
        mean: NDArray[np.float64] = np.round(total / self.size, DECIMALS) + 0.0
        return mean

    @torch.no_grad()
    def act_batch(self, states: Rows, legal: Legal | None = None) -> Rows:
        """Return the deterministic actions for a batch of observations.

        It computes in float64 as `act` does, but the last bits depend on the number of rows: an
        action may differ by 1e-6, and a choice where two options are equally good to 1e-6. Values
        that are not finite give meaningless actions.

        Args:
            states: (rows, state_dim), an array or a tensor on any device.
            legal: for choices that may be illegal, from the choices made so far, (rows, k) int64,
                to (rows, options of choice k) bool, such as `VecEnv.action_mask`.

        Returns:
            (rows, action_dim) float64; (rows,) int64 for one choice; (rows, choices) int64 for
                several. An array for an array, a tensor for a tensor.
        """
        outputs = self._outputs(torch.as_tensor(states))
        if self.discrete:
            actions = self._choose(outputs, legal)
        else:
            every = [output[:, : self.action_dim].tanh().nan_to_num(nan=0.0) for output in outputs]
            # + 0.0 turns -0.0 into 0.0.
            actions = torch.round(torch.stack(every).sum(0) / self.size, decimals=DECIMALS) + 0.0
        return actions.cpu().numpy() if isinstance(states, np.ndarray) else actions

    @property
    def uniforms(self) -> int:
        """Uniform random numbers per row that `sample_batch` needs."""
        return len(self.sizes) if self.discrete else self.action_dim

    @property
    def has_distribution(self) -> bool:
        """Whether actions can be sampled: values only rank them."""
        return all(member.gives != "values" for member in self._batched)

    def check_sampled(self) -> None:
        """Raise InputError if the policy has no distribution."""
        if not self.has_distribution:
            raise InputError(
                "a network of values has no distribution of actions: it plays deterministically"
            )

    @torch.no_grad()
    def sample_batch(self, states: Tensor, uniforms: Tensor, legal: Legal | None = None) -> Tensor:
        """Return actions drawn from the policy, as it explores in training.

        Choices are drawn from the members' mean probabilities, by inverse transform sampling.
        Numbers are tanh(mean + deviation * noise) with normal noise, the mean over members.

        Args:
            states: (rows, state_dim).
            uniforms: (rows, `uniforms`) float64 in [0, 1).
            legal: as in `act_batch`.

        Returns:
            As `act_batch`.

        Raises:
            InputError: a member gives values.
        """
        self.check_sampled()
        outputs = self._outputs(states)
        if self.discrete:
            return self._choose(outputs, legal, uniforms)
        noise = torch.special.ndtri(uniforms.clamp(_LEAST_UNIFORM, 1.0 - _LEAST_UNIFORM))
        every = [
            member.sampled(output, noise).tanh().nan_to_num(nan=0.0)
            for member, output in zip(self._batched, outputs, strict=True)
        ]
        return torch.round(torch.stack(every).sum(0) / self.size, decimals=DECIMALS) + 0.0

    @torch.no_grad()
    def probabilities(self, states: Tensor, legal: Tensor) -> Tensor:
        """Return the probabilities with which `sample_batch` draws the options of one choice.

        Args:
            states: (rows, state_dim).
            legal: (rows, options) bool.

        Returns:
            (rows, options) float64.

        Raises:
            InputError: the policy is not one of a single choice, is recurrent, or gives values.
        """
        self.check_sampled()
        if len(self.sizes) != 1 or self.recurrent:
            raise InputError("only policies of one choice without memory have such probabilities")
        outputs = self._outputs(states)
        chosen = torch.zeros(len(states), 0, dtype=torch.int64, device=states.device)
        weights = _of_legal(self._weights(outputs, 0, chosen, legal), legal)
        return weights / weights.sum(-1, keepdim=True)

    def reset(self) -> None:
        """Start an episode in every row: clear the recurrent states."""
        for member in self._batched:
            member.cell_states.clear()

    def done(self, ended: Tensor | NDArray[np.bool_]) -> None:
        """Start an episode in some rows; no effect on members that are not recurrent.

        Args:
            ended: (rows,) bool, rows whose next state is the first of an episode.
        """
        over = torch.as_tensor(ended)
        for member in self._batched:
            if len(over) in member.cell_states:
                memory = member.cell_states[len(over)]
                memory.masked_fill_(over.to(memory.device).unsqueeze(1), 0.0)

    def _outputs(self, states: Tensor) -> list[Tensor]:
        """Return every member's outputs for (rows, state_dim)."""
        if states.dim() != 2 or states.shape[1] != self.state_dim:
            raise RunError(
                f"The policy reads states of shape (rows, {self.state_dim}), and got "
                f"{tuple(states.shape)}."
            )
        return [member.outputs(states) for member in self._batched]

    def _choose(
        self, outputs: Sequence[Tensor], legal: Legal | None, uniforms: Tensor | None = None
    ) -> Tensor:
        """Make the choices in sequence: (rows,) int64, or (rows, choices) for several.

        With uniforms, (rows, choices), they are drawn; without, the most probable options are
        taken.
        """
        chosen = torch.zeros(outputs[0].shape[0], 0, dtype=torch.int64, device=outputs[0].device)
        for choice in range(len(self.sizes)):
            mask = None if legal is None else legal(chosen)
            mean = self._weights(outputs, choice, chosen, mask)
            if uniforms is None:
                # A legal option whose weight rounds to 0 beats illegal ones.
                mean = mean if mask is None else torch.where(mask, mean, -1.0)
                option = mean.argmax(-1, keepdim=True)
            else:
                option = _drawn(mean, uniforms[:, choice : choice + 1], mask)
            chosen = torch.cat((chosen, option), -1)
        return chosen[:, 0] if len(self.sizes) == 1 and not self._batched[0].several else chosen

    def _weights(
        self, outputs: Sequence[Tensor], choice: int, chosen: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Return (rows, options), the members' mean weights of a choice given the earlier ones."""
        weights = [
            member.weights(output, choice, chosen, mask)
            for member, output in zip(self._batched, outputs, strict=True)
        ]
        # Rounded, so that options that differ by rounding errors count as equal; argmax then takes
        # the first of them.
        return torch.round(torch.stack(weights).mean(0), decimals=DECIMALS)


class _Batched:
    """One member on batches of states, in float64, on the states' device."""

    def __init__(self, member: Member) -> None:
        self.gives, self.sizes = kind_of(member).gives, sizes_of(member)
        self.several = ACTION_DIMS in member
        self.image = tuple(member[IMAGE_SHAPE].tolist()) if IMAGE_SHAPE in member else ()
        self._convolutions, self._plan = convolutions_of(member), layers_of(member)
        self._items, self._clip = items_of(member), clip_in(member)
        self.encodes = bool(self.image) or self._items is not None
        self._recurrent_size = recurrent_size(member)
        self.cell_states: dict[int, Tensor] = {}
        # float64: rounding errors stay far below the 1e-6 to which actions are rounded.
        own = {name: tensor.detach().cpu().double() for name, tensor in member.items()}
        self._tensors = {torch.device("cpu"): own}

    def on(self, device: torch.device) -> dict[str, Tensor]:
        """Return the member's tensors on a device."""
        if device not in self._tensors:
            own = self._tensors[torch.device("cpu")]
            self._tensors[device] = {name: tensor.to(device) for name, tensor in own.items()}
        return self._tensors[device]

    def outputs(self, states: Tensor) -> Tensor:
        """Return the last layer's outputs, (rows, outputs)."""
        own = self.on(states.device)
        hidden = (states.double() - own["state_avg"]) / own["state_std"]
        hidden = hidden.clamp_(-self._clip, self._clip) if self._clip < math.inf else hidden
        if self.image:
            hidden = hidden.view(-1, *self.image)
            for name, stride in self._convolutions:
                hidden = torch.conv2d(
                    hidden, own[f"{name}.weight"], own[f"{name}.bias"], stride
                ).relu_()
            hidden = hidden.flatten(1)
        if self._items is not None:
            hidden = self._encoded(self._items, hidden, own)
        for name, activation in self._plan:
            if self._recurrent_size and name == self._plan[-1][0]:
                hidden = self._step_cell(hidden, [own[part] for part in CELL])
            hidden = torch.addmm(own[f"{name}.bias"], hidden, own[f"{name}.weight"].mT)
            activate_(activation, hidden)
        return hidden

    def _encoded(self, items: Items, states: Tensor, own: dict[str, Tensor]) -> Tensor:
        """Return the inputs of the first layer for normalised states (rows, state_dim) of items."""
        bias = own["items.bias"].view(1, -1)
        # Without facts and features there is no weight.
        weight = own["items.weight"].mT if "items.weight" in own else bias[:0]
        leaves = [part.unsqueeze(0) for part in (own[EMBEDDING], weight, bias)]
        lookup = Lookup(items, states.dtype, states.device)
        return lookup.inputs(states.unsqueeze(0), leaves)[0]

    def sampled(self, output: Tensor, noise: Tensor) -> Tensor:
        """Return (rows, numbers) before tanh, with normal noise (rows, numbers)."""
        if self.gives == "means":
            return output + self.on(output.device)["action_std_log"].exp() * noise
        mean, log_std = output.chunk(2, -1)
        return mean + log_std.clamp(*LOG_STD).exp() * noise

    def _step_cell(self, hidden: Tensor, cell: list[Tensor]) -> Tensor:
        """Advance the recurrent state of these rows by one step; hidden is (rows, width)."""
        rows, width = hidden.shape
        memory = self.cell_states.get(rows)
        if memory is None:
            memory = hidden.new_zeros(rows, self._recurrent_size)
        if self._recurrent_size == width:
            after = torch.gru_cell(hidden, memory, *cell)
        else:
            after = torch.cat(torch.lstm_cell(hidden, memory.chunk(2, 1), *cell), 1)
        self.cell_states[rows] = after
        return after[:, :width]

    def weights(self, output: Tensor, choice: int, chosen: Tensor, mask: Tensor | None) -> Tensor:
        """Return (rows, options), weights of a choice given the earlier ones (rows, choice)."""
        logits = torch.split(output, list(self.sizes), -1)[choice]
        chain = self.on(output.device).get(f"chain.{choice}.weight")
        if chain is not None:
            # The chain's columns hold the options of the earlier choices one after the other.
            starts = torch.tensor(
                [sum(self.sizes[:index]) for index in range(choice)], device=output.device
            )
            logits = logits + chain.mT[chosen + starts].sum(1)
        logits = logits.nan_to_num(nan=0.0)
        # Values have the units of returns, which differ between members (reward_scale): standardise
        # them, so that every member has equal weight in the mean.
        if self.gives == "values":
            deviation = logits.std(-1, keepdim=True, correction=0)
            logits = (logits - logits.mean(-1, keepdim=True)) / torch.where(
                deviation > 0, deviation, 1.0
            )
        return torch.softmax(logits if mask is None else logits.masked_fill(~mask, -torch.inf), -1)


class _PerSeat(_Batched):
    """A member with a policy for each seat, of which a column of the states says who acts."""

    def __init__(self, member: Member, column: int) -> None:
        first, second = seats_of(member)
        super().__init__(first)
        self._column, self._second = column, _Batched(second)

    def outputs(self, states: Tensor) -> Tensor:
        """See `_Batched.outputs`."""
        second = is_second(states, self._column)
        return torch.where(second, self._second.outputs(states), super().outputs(states))


def _batched(member: Member) -> _Batched:
    column = seat_column_of(member)
    return _Batched(member) if column is None else _PerSeat(member, column)


def _drawn(weights: Tensor, uniform: Tensor, mask: Tensor | None) -> Tensor:
    """Draw an option per row, (rows, 1), from weights (rows, options) and uniforms (rows, 1)."""
    if mask is not None:
        weights = _of_legal(weights, mask)
    bounds = weights.cumsum(-1)
    # The first option whose bound exceeds the number. Below the last bound, as rounding of the
    # product must not select an option without weight.
    at = uniform.clamp(max=1.0 - _LEAST_UNIFORM) * bounds[:, -1:]
    # Clamped for rows without a legal option, such as those of games that have ended.
    return (at >= bounds).sum(-1, keepdim=True).clamp_max(bounds.shape[1] - 1)


def _of_legal(weights: Tensor, mask: Tensor) -> Tensor:
    """Return weights that are 0 for illegal options and not for all legal ones."""
    # All legal weights may have been rounded to 0.
    weights = weights.masked_fill(~mask, 0.0)
    return torch.where(weights.sum(-1, keepdim=True) > 0.0, weights, mask.double())


def _float64(tensor: Tensor) -> NDArray[np.float64]:
    return np.ascontiguousarray(tensor.detach().cpu().numpy(), dtype=np.float64)


def save_members(path: Path, members: Sequence[Member]) -> None:
    """Write members to a safetensors file, atomically. Equal members give equal bytes.

    Raises:
        InputError: a member is not an actor, or there are too many.
    """
    check_members(members, str(path))
    if len(members) > 999:
        raise InputError(f"{path}: {len(members)} members are too many; at most 999 fit.")
    named = {
        f"m{index:03d}.{name}": tensor.detach().cpu().contiguous().clone()
        for index, member in enumerate(members)
        for name, tensor in sorted(member.items())
    }
    # Sorted names and contiguous tensors: bundles are hashed by their bytes.
    write_atomic(path, save_tensors(named))


def load_members(path: Path) -> list[dict[str, Tensor]]:
    """Read and check the members of a file, in order.

    Raises:
        InputError: naming the file, and the member and tensor that are wrong.
    """
    try:
        named = load_tensors(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror or error}.") from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a safetensors file, or is damaged: {error}.") from error
    members: dict[int, dict[str, Tensor]] = {}
    for key, tensor in named.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise InputError(
                f"{path}: {key!r} is not a member's tensor; names look like 'm000.net.0.weight'."
            )
        members.setdefault(int(match[1]), {})[match[2]] = tensor
    # A gap means that a part of the file is missing.
    if sorted(members) != list(range(len(members))):
        raise InputError(
            f"{path}: members are numbered {sorted(members)}; they must be numbered from 0 "
            "without gaps."
        )
    ordered = [members[index] for index in range(len(members))]
    check_members(ordered, str(path))
    return ordered
