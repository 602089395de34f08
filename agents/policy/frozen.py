"""The frozen policy: the canonical way to act.

Hold-out scoring, back-test, verification and paper trading all call `FrozenPolicy.act`: on the CPU,
in float64, one observation at a time.

Continuous actions are the mean over members of tanh(actor), each member with its own normaliser,
rounded to 1e-6 so that they do not depend on the last bits of a product. For each discrete choice,
each member gives every option a weight (they sum to 1); the action is the first legal option with
the highest mean weight, rounded likewise. The weights are the policy's probabilities. For value
networks, whose units may differ between members, they are the softmax of the values after
subtracting their mean and dividing by their standard deviation.

Members of one description are one `Net`, of a batched product per layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweepd.agents.networks.distributions import GREATEST, drawn, normal_of
from sweepd.agents.networks.net import Net
from sweepd.agents.networks.recurrence import Memory
from sweepd.agents.networks.spec import VALUES, NetSpec
from sweepd.agents.policy.heads import gaussian, logits_of
from sweepd.agents.policy.members import Member, check_members
from sweepd.envs.core.vec_env import Legal
from sweepd.envs.support.errors import InputError, RunError

DECIMALS = 6
Rows = TypeVar("Rows", Tensor, NDArray[np.float32])


class FrozenPolicy:
    """An ensemble of actors with fixed weights. Equal members act alike on any machine, to 1e-6.

    Attributes:
        state_dim: columns of an observation.
        action_dim: numbers of an action, or options of all choices together.
        discrete: whether actions are choices.
        sizes: the number of options of each choice; () for continuous actions.
        members: the actors.
        size: number of members.
        recurrent: whether a member has a recurrent state. Then `act` and `act_batch` take each call
            as the rows' next step (with one state per number of rows), and `done` must be called
            when episodes end. `live` says in which rows the call is no step.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        """Set up the policy; members may differ in width, depth and kind.

        Raises:
            InputError: a member is not valid, or they do not fit together.
        """
        check_members(members)
        self.members, self.size = tuple(members), len(members)
        first = self.members[0].spec
        self.state_dim, self.action_dim = first.columns, first.actions
        self.discrete, self.sizes = first.discrete, first.sizes
        self._single = not first.choices
        self.recurrent = any(member.spec.memory for member in members)
        alike: dict[NetSpec, list[Mapping[str, Tensor]]] = {}
        for spec, tensors in members:
            alike.setdefault(spec, []).append(tensors)
        self._alike = [_Alike(spec, own) for spec, own in alike.items()]

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
        row = np.array(obs, dtype=np.float32)  # a copy: torch warns of arrays that are read-only
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
        return self.act_batch(row[None], legal=legal).reshape(-1).astype(np.float64)

    @torch.no_grad()
    def act_batch(
        self, states: Rows, legal: Legal | None = None, live: Tensor | None = None
    ) -> Rows:
        """Return the deterministic actions for a batch of observations.

        It computes in float64 as `act` does, but the last bits depend on the number of rows: an
        action may differ by 1e-6, and a choice where two options are equally good to 1e-6. Values
        that are not finite give meaningless actions.

        Args:
            states: (rows, state_dim), an array or a tensor on any device.
            legal: for choices that may be illegal, from the choices made so far, (rows, k) int64,
                to (rows, options of choice k) bool, such as `VecEnv.action_mask`.
            live: (rows,) bool, rows whose action counts: in others, recurrent states stay as they
                are; None: all.

        Returns:
            (rows, action_dim) float64; (rows,) int64 for one choice; (rows, choices) int64 for
                several. An array for an array, a tensor for a tensor.
        """
        outputs = self._outputs(torch.as_tensor(states), live)
        if self.discrete:
            actions = self._choose(outputs, legal)
        else:
            actions = self._mean([output[..., : self.action_dim] for output in outputs])
        return actions.cpu().numpy() if isinstance(states, np.ndarray) else actions

    @property
    def uniforms(self) -> int:
        """Uniform random numbers per row that `sample_batch` needs."""
        return len(self.sizes) if self.discrete else self.action_dim

    @property
    def has_distribution(self) -> bool:
        """Whether actions can be sampled: values only rank them."""
        return all(own.spec.gives != VALUES for own in self._alike)

    def check_sampled(self) -> None:
        """Raise InputError if the policy has no distribution."""
        if not self.has_distribution:
            raise InputError(
                "a network of values has no distribution of actions: it plays deterministically"
            )

    @torch.no_grad()
    def sample_batch(
        self,
        states: Tensor,
        uniforms: Tensor,
        legal: Legal | None = None,
        live: Tensor | None = None,
    ) -> Tensor:
        """Return actions drawn from the policy, as it explores in training.

        Choices are drawn from the members' mean probabilities, by inverse transform sampling.
        Numbers are tanh(mean + deviation * noise) with normal noise, the mean over members.

        Args:
            states: (rows, state_dim).
            uniforms: (rows, `uniforms`) float64 in [0, 1).
            legal: as in `act_batch`.
            live: likewise.

        Returns:
            As `act_batch`.

        Raises:
            InputError: a member gives values.
        """
        self.check_sampled()
        outputs = self._outputs(states, live)
        if self.discrete:
            return self._choose(outputs, legal, uniforms)
        noise = normal_of(uniforms)
        pairs = zip(self._alike, outputs, strict=True)
        return self._mean([own.sampled(output, noise) for own, output in pairs])

    @torch.no_grad()
    def probabilities(self, states: Tensor, legal: Tensor, live: Tensor | None = None) -> Tensor:
        """Return the probabilities with which `sample_batch` draws the options of one choice.

        Args:
            states: (rows, state_dim).
            legal: (rows, options) bool.
            live: as in `act_batch`.

        Returns:
            (rows, options) float64.

        Raises:
            InputError: the policy is not one of a single choice, or gives values.
        """
        self.check_sampled()
        if len(self.sizes) != 1:
            raise InputError("only policies of one choice have such probabilities")
        outputs = self._outputs(states, live)
        chosen = torch.zeros(len(states), 0, dtype=torch.int64, device=states.device)
        weights = _of_legal(self._weights(outputs, chosen, legal), legal)
        return weights / weights.sum(-1, keepdim=True)

    def reset(self) -> None:
        """Start an episode in every row: clear the recurrent states."""
        for own in self._alike:
            own.states.clear()

    def done(self, ended: Tensor | NDArray[np.bool_]) -> None:
        """Start an episode in some rows; no effect on members that are not recurrent.

        Args:
            ended: (rows,) bool, rows whose next state is the first of an episode.
        """
        over = torch.as_tensor(ended)
        for own in self._alike:
            if len(over) in own.states:
                state = own.states[len(over)]
                state.masked_fill_(over.to(state.device).unsqueeze(1), 0.0)

    def _outputs(self, states: Tensor, live: Tensor | None = None) -> list[Tensor]:
        """Return the outputs for (rows, state_dim), (members, rows, outputs) of members alike."""
        if states.dim() != 2 or states.shape[1] != self.state_dim:
            raise RunError(
                f"The policy reads states of shape (rows, {self.state_dim}), and got "
                f"{tuple(states.shape)}."
            )
        return [own.outputs(states, live) for own in self._alike]

    def _mean(self, every: Sequence[Tensor]) -> Tensor:
        """Return actions (rows, numbers) from the numbers before tanh, (members, rows, numbers)."""
        bounded = torch.cat(list(every)).tanh().nan_to_num(nan=0.0)
        # + 0.0 turns -0.0 into 0.0.
        return torch.round(bounded.sum(0) / self.size, decimals=DECIMALS) + 0.0

    def _choose(
        self, outputs: Sequence[Tensor], legal: Legal | None, uniforms: Tensor | None = None
    ) -> Tensor:
        """Make the choices in sequence: (rows,) int64, or (rows, choices) for several.

        With uniforms, (rows, choices), they are drawn; without, the most probable options are
        taken.
        """
        rows, device = outputs[0].shape[1], outputs[0].device
        chosen = torch.zeros(rows, 0, dtype=torch.int64, device=device)
        for choice in range(len(self.sizes)):
            mask = None if legal is None else legal(chosen)
            mean = self._weights(outputs, chosen, mask)
            if uniforms is None:
                # A legal option whose weight rounds to 0 beats illegal ones.
                mean = mean if mask is None else torch.where(mask, mean, -1.0)
                option = mean.argmax(-1, keepdim=True)
            else:
                mean = mean if mask is None else _of_legal(mean, mask)
                option = drawn(mean, uniforms[:, choice : choice + 1].clamp(max=GREATEST))
                # Rows without a legal option are those of games that have ended.
                option = option.clamp_max(mean.shape[1] - 1)
            chosen = torch.cat((chosen, option), -1)
        return chosen[:, 0] if self._single else chosen

    def _weights(self, outputs: Sequence[Tensor], chosen: Tensor, mask: Tensor | None) -> Tensor:
        """Return (rows, options), the members' mean weights of a choice given the earlier ones."""
        pairs = zip(self._alike, outputs, strict=True)
        weights = torch.cat([own.weights(output, chosen, mask) for own, output in pairs])
        # Rounded, so that options that differ by rounding errors count as equal; argmax then takes
        # the first of them.
        return torch.round(weights.mean(0), decimals=DECIMALS)


class _Alike:
    """N members of one description on batches of states, in float64, on the states' device.

    Attributes:
        spec: the description.
        states: recurrent states (N, rows, size), by the number of rows.
    """

    def __init__(self, spec: NetSpec, members: Sequence[Mapping[str, Tensor]]) -> None:
        self.spec = spec
        # float64: rounding errors stay far below the 1e-6 to which actions are rounded.
        size = spec.policies * spec.size
        net = Net(spec, torch.zeros(len(members), size, dtype=torch.float64))
        for slot, tensors in enumerate(members):
            net.put(slot, tensors)
        self._nets = {torch.device("cpu"): net}
        self.states: dict[int, Tensor] = {}

    def _on(self, device: torch.device) -> Net:
        """Return the networks on a device."""
        if device not in self._nets:
            own = self._nets[torch.device("cpu")]
            normalisers = {name: part.to(device) for name, part in own.normalisers.items()}
            self._nets[device] = Net(self.spec, own.flat.to(device), normalisers)
        return self._nets[device]

    @staticmethod
    def _each(output: Tensor) -> Tensor:
        """Return (N, 1), which network's outputs a row of (N, rows, outputs) has."""
        return torch.arange(output.shape[0], device=output.device).unsqueeze(1)

    def outputs(self, states: Tensor, live: Tensor | None) -> Tensor:
        """Return the outputs (N, rows, outputs) for states (rows, columns); live: (rows,)."""
        # Not `len`, which would fix the number of rows in an exported program.
        net, rows, memory = self._on(states.device), states.shape[0], None
        x = net.normalised(states.unsqueeze(0))
        if self.spec.memory:
            empty = x.new_zeros(len(x), rows, self.spec.memory)
            steps = None if live is None else live.expand(len(x), 1, rows)
            memory = Memory(self.states.get(rows, empty), live=steps)
        output, after = net.forward(x, memory)
        if after is not None:
            self.states[rows] = after
        return output

    def sampled(self, output: Tensor, noise: Tensor) -> Tensor:
        """Return (N, rows, numbers) before tanh, with normal noise (rows, numbers)."""
        mean, log_std = gaussian(
            self.spec, self._on(output.device).weights, output, self._each(output)
        )
        return mean + log_std.exp() * noise

    def weights(self, output: Tensor, chosen: Tensor, mask: Tensor | None) -> Tensor:
        """Return (N, rows, options), weights of a choice given the earlier ones (rows, choice)."""
        weights = self._on(output.device).weights
        logits = logits_of(self.spec, weights, output, self._each(output), chosen).nan_to_num(
            nan=0.0
        )
        # Values have the units of returns, which differ between members (reward_scale): standardise
        # them, so that every member has equal weight in the mean.
        if self.spec.gives == VALUES:
            deviation = logits.std(-1, keepdim=True, correction=0)
            logits = (logits - logits.mean(-1, keepdim=True)) / torch.where(
                deviation > 0, deviation, 1.0
            )
        return torch.softmax(logits if mask is None else logits.masked_fill(~mask, -torch.inf), -1)


def _of_legal(weights: Tensor, mask: Tensor) -> Tensor:
    """Return weights that are 0 for illegal options and not for all legal ones."""
    # All legal weights may have been rounded to 0.
    weights = weights.masked_fill(~mask, 0.0)
    return torch.where(weights.sum(-1, keepdim=True) > 0.0, weights, mask.double())
