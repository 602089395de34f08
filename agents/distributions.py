"""What an actor's outputs stand for: the distribution that a rollout samples its actions from, and whose
log-probability and entropy a gradient step differentiates, by hand.

Each kind is a class like torch's distributions: made of the outputs (G, rows, action_dim) of all members, and asked for
samples, log-probabilities and gradients. An action is kept in a rollout as `columns` floats ("kept actions"), which is
not always how the environment takes it. Adding a kind means one class and its place in `distribution_of`.

Nothing here mixes rows, and so neither members.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from agents.networks import Leaves, Shape
from envs.streams import Streams

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Distribution(ABC):
    """One distribution over actions per row, (G, rows) of them, in float32.

    outputs: (G, rows, action_dim), of the actors; weights: theirs, for parameters that a kind has beside the outputs.
    """

    def __init__(self, shape: Shape, outputs: Tensor, weights: Leaves) -> None:
        self.shape, self.outputs, self.weights = shape, outputs, weights

    @staticmethod
    @abstractmethod
    def columns(shape: Shape) -> int:
        """Floats that a kept action takes."""

    @staticmethod
    @abstractmethod
    def noise(shape: Shape, streams: Streams, steps: int, rows: int) -> Tensor:
        """(steps, G, rows, k): what `sample` needs for that many steps, from each member's own stream."""

    @abstractmethod
    def sample(self, noise: Tensor, out: Tensor) -> None:
        """Write one action per row into out (G, rows, columns), as it is kept. noise: (G, rows, k)."""

    @staticmethod
    @abstractmethod
    def to_env(kept: Tensor) -> Tensor:
        """Kept actions (G, rows, columns) as the environment takes them, (G * rows, …), legal even where a member's
        outputs are not finite.
        """

    @abstractmethod
    def mode(self) -> Tensor:
        """The deterministic actions, as the environment takes them."""

    @abstractmethod
    def log_prob(self, kept: Tensor) -> Tensor:
        """(G, rows): the log-probabilities of kept actions."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """(G, rows), or (G, 1) where it is the same for all rows; in nats."""

    @abstractmethod
    def backward(self, d_log_prob: Tensor, d_entropy: Tensor, into: Leaves) -> Tensor:
        """The gradient for the outputs, (G, rows, action_dim), of a loss whose derivatives are d_log_prob (G, rows) for
        the log-probabilities that `log_prob` gave last, and d_entropy (G, 1) for the entropy of each row. Writes those
        for the kind's own parameters into `into`.
        """


class Gaussian(Distribution):
    """Independent Gaussians before tanh, as ElegantRL's `ActorPPO` has them: outputs are the means, log_std is the same
    for all rows. Kept is the action before tanh, and it is that one whose log-probability counts.
    """

    def __init__(self, shape: Shape, outputs: Tensor, weights: Leaves) -> None:
        super().__init__(shape, outputs, weights)
        self.log_std = weights.log_std

    @staticmethod
    def columns(shape: Shape) -> int:
        return shape.action_dim

    @staticmethod
    def noise(shape: Shape, streams: Streams, steps: int, rows: int) -> Tensor:
        return streams.normal(steps, rows, shape.action_dim).view(steps, streams.members, rows, -1)

    def sample(self, noise: Tensor, out: Tensor) -> None:
        torch.addcmul(self.outputs, self.log_std.exp(), noise, out=out)

    @staticmethod
    def to_env(kept: Tensor) -> Tensor:
        return kept.tanh().nan_to_num_(nan=0.0).view(-1, kept.shape[-1])

    def mode(self) -> Tensor:
        return self.to_env(self.outputs)

    def log_prob(self, kept: Tensor) -> Tensor:
        self._inverse_std = torch.exp(-self.log_std)
        self._u = torch.sub(kept, self.outputs).mul_(self._inverse_std)
        self._u2 = self._u.square()
        scale = self.log_std.sum(-1) + self.log_std.shape[-1] * HALF_LOG_2PI
        return self._u2.sum(-1).mul_(-0.5).sub_(scale)

    def entropy(self) -> Tensor:
        return self.log_std.sum(-1) + self.log_std.shape[-1] * (0.5 + HALF_LOG_2PI)

    def backward(self, d_log_prob: Tensor, d_entropy: Tensor, into: Leaves) -> Tensor:
        # With u = (action - mean) / std, the log-probability's derivative is u / std for the mean and u * u - 1 for
        # log std; the entropy's for log std is 1, in every row.
        rows = d_log_prob.shape[1]
        torch.bmm(d_log_prob.unsqueeze(1), self._u2, out=into.log_std)
        into.log_std.add_((d_entropy * rows - d_log_prob.sum(-1, keepdim=True)).unsqueeze(-1))
        return self._u.mul_(self._inverse_std).mul_(d_log_prob.unsqueeze(-1))


class Categorical(Distribution):
    """One of action_dim actions, as ElegantRL's `ActorDiscretePPO` has it: outputs are logits. Kept is the action's
    index.
    """

    @staticmethod
    def columns(shape: Shape) -> int:  # noqa: ARG004
        return 1

    @staticmethod
    def noise(shape: Shape, streams: Streams, steps: int, rows: int) -> Tensor:  # noqa: ARG004
        return streams.uniform(steps, rows).view(steps, streams.members, rows, 1)

    def sample(self, noise: Tensor, out: Tensor) -> None:
        # The first action at which the summed weights exceed the share `noise` < 1 of their total: never one of weight
        # zero, and never past the last, since the product stays below the total in float32.
        below = torch.exp(self.outputs - self.outputs.amax(-1, keepdim=True)).cumsum(-1)
        torch.sum(below <= noise * below[..., -1:], dim=-1, keepdim=True, out=out)

    @staticmethod
    def to_env(kept: Tensor) -> Tensor:
        return kept.reshape(-1).to(torch.int64)

    def mode(self) -> Tensor:
        return self.outputs.nan_to_num(nan=0.0).argmax(-1).view(-1)

    def log_prob(self, kept: Tensor) -> Tensor:
        self._action = kept.to(torch.int64)
        self._log_probs = torch.log_softmax(self.outputs, dim=-1)
        return self._log_probs.gather(-1, self._action).squeeze(-1)

    def entropy(self) -> Tensor:
        log_probs = torch.log_softmax(self.outputs, dim=-1)
        return log_probs.exp().mul_(log_probs).sum(-1).neg_()

    def backward(self, d_log_prob: Tensor, d_entropy: Tensor, into: Leaves) -> Tensor:  # noqa: ARG002
        # With probabilities p and entropy H, the log-probability's derivative is 1 - p for the action taken and -p for
        # the others; the entropy's is -p * (log p + H).
        probs = self._log_probs.exp()
        entropy = torch.mul(probs, self._log_probs).sum(-1, keepdim=True).neg_()
        pull = torch.addcmul(d_log_prob.unsqueeze(-1), self._log_probs + entropy, d_entropy.unsqueeze(-1))
        d_outputs = probs.mul_(pull).neg_()
        return d_outputs.scatter_add_(-1, self._action, d_log_prob.unsqueeze(-1))


class Choices(Distribution):
    """Several choices that make up one action, each a categorical distribution over its own segment of the outputs.
    Kept are the indices.
    """

    def __init__(self, shape: Shape, outputs: Tensor, weights: Leaves) -> None:
        super().__init__(shape, outputs, weights)
        self._choices = [Categorical(shape, logits, weights) for logits in torch.split(outputs, shape.choices, -1)]

    @staticmethod
    def columns(shape: Shape) -> int:
        return len(shape.choices)

    @staticmethod
    def noise(shape: Shape, streams: Streams, steps: int, rows: int) -> Tensor:
        choices = len(shape.choices)
        return streams.uniform(steps, rows * choices).view(steps, streams.members, rows, choices)

    def sample(self, noise: Tensor, out: Tensor) -> None:
        for index, choice in enumerate(self._choices):
            choice.sample(noise[..., index : index + 1], out[..., index : index + 1])

    @staticmethod
    def to_env(kept: Tensor) -> Tensor:
        return kept.reshape(-1, kept.shape[-1]).to(torch.int64)

    def mode(self) -> Tensor:
        return torch.stack([choice.mode() for choice in self._choices], -1)

    def log_prob(self, kept: Tensor) -> Tensor:
        parts = zip(self._choices, kept.unsqueeze(2).unbind(-1), strict=True)
        return torch.stack([choice.log_prob(index) for choice, index in parts]).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([choice.entropy() for choice in self._choices]).sum(0)

    def backward(self, d_log_prob: Tensor, d_entropy: Tensor, into: Leaves) -> Tensor:
        return torch.cat([choice.backward(d_log_prob, d_entropy, into) for choice in self._choices], -1)


def distribution_of(shape: Shape) -> type[Distribution]:
    """The kind that a program of this shape acts with."""
    if shape.action_dims:
        return Choices
    return Categorical if shape.discrete else Gaussian
