"""What an actor's outputs stand for: the distribution that a rollout samples its actions from, and whose
log-probability and entropy a gradient step differentiates, by hand.

Each kind is a class like torch's distributions: made of the outputs (G, rows, action_dim) of all members, and asked for
samples, log-probabilities and gradients. An action is kept in a rollout as `columns` floats ("kept actions"), which is
not always how the environment takes it. Adding a kind means one class and its place in `distribution_of`.

Where some choices may be illegal (`Shape.masked`), `legal` tells which: given the choices made so far, (G * rows, k)
int64, the options of the next one that are legal, (G * rows, options) bool, as `VecEnv.action_mask` does.

Nothing here mixes rows, and so neither members.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor

from agents.networks.shape import Shape
from agents.networks.weights import Leaves
from envs.core.streams import Streams

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
# An illegal option's logit: beside any other, its probability is exactly 0, and its products with finite numbers, too.
# (With infinity they would be NaN.) Logits to sample from are kept within the other bound.
_ILLEGAL, _BOUND = -1e30, 1e29

Legal = Callable[[Tensor], Tensor]


class Distribution(ABC):
    """One distribution over actions per row, (G, rows) of them, in float32.

    outputs: (G, rows, action_dim), of the actors; weights: theirs, for parameters that a kind has beside the outputs;
    masks: (G, rows, action_dim) bool, what was legal when the actions that `log_prob` is asked for were chosen.
    """

    def __init__(
        self, shape: Shape, outputs: Tensor, weights: Leaves, masks: Tensor | None = None
    ) -> None:
        self.shape, self.outputs, self.weights, self.masks = shape, outputs, weights, masks

    @staticmethod
    @abstractmethod
    def columns(shape: Shape) -> int:
        """Floats that a kept action takes."""

    @staticmethod
    @abstractmethod
    def noise(shape: Shape, streams: Streams, steps: int, rows: int) -> Tensor:
        """(steps, G, rows, k): what `sample` needs for that many steps, from each member's own stream."""

    @abstractmethod
    def sample(self, noise: Tensor, out: Tensor, legal: Legal | None = None) -> None:
        """Write one action per row into out (G, rows, columns), as it is kept. noise: (G, rows, k)."""

    @staticmethod
    @abstractmethod
    def to_env(shape: Shape, kept: Tensor) -> Tensor:
        """Kept actions (G, rows, columns) as the environment takes them, (G * rows, …), legal even where a member's
        outputs are not finite.
        """

    @abstractmethod
    def mode(self, legal: Legal | None = None) -> Tensor:
        """The deterministic actions, as the environment takes them."""

    @abstractmethod
    def log_prob(self, kept: Tensor) -> Tensor:
        """(G, rows): the log-probabilities of kept actions."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """(G, rows), or (G, 1) where it is the same for all rows; in nats. Of several choices, the sum over them, each
        given those before it in the actions that `log_prob` was asked for last.
        """

    @abstractmethod
    def backward(self, d_log_prob: Tensor, d_entropy: Tensor, into: Leaves) -> Tensor:
        """The gradient for the outputs, (G, rows, action_dim), of a loss whose derivatives are d_log_prob (G, rows) for
        the log-probabilities that `log_prob` gave last, and d_entropy (G, 1 or rows) for the entropy of each row.
        Writes those for the kind's own parameters into `into`.
        """


class Gaussian(Distribution):
    """Independent Gaussians before tanh, as ElegantRL's `ActorPPO` has them: outputs are the means, log_std is the same
    for all rows. Kept is the action before tanh, and it is that one whose log-probability counts.
    """

    def __init__(
        self, shape: Shape, outputs: Tensor, weights: Leaves, masks: Tensor | None = None
    ) -> None:
        super().__init__(shape, outputs, weights, masks)
        self.log_std = weights.log_std

    @staticmethod
    def columns(shape: Shape) -> int:
        return shape.action_dim

    @staticmethod
    def noise(shape: Shape, streams: Streams, steps: int, rows: int) -> Tensor:
        return streams.normal(steps, rows, shape.action_dim).view(steps, streams.members, rows, -1)

    def sample(self, noise: Tensor, out: Tensor, legal: Legal | None = None) -> None:  # noqa: ARG002
        torch.addcmul(self.outputs, self.log_std.exp(), noise, out=out)

    @staticmethod
    def to_env(shape: Shape, kept: Tensor) -> Tensor:  # noqa: ARG004
        return kept.tanh().nan_to_num_(nan=0.0).view(-1, kept.shape[-1])

    def mode(self, legal: Legal | None = None) -> Tensor:  # noqa: ARG002
        return self.to_env(self.shape, self.outputs)

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
        torch.bmm(d_log_prob.unsqueeze(1), self._u2, out=into.log_std)
        entropies = (
            d_entropy * d_log_prob.shape[1]
            if d_entropy.shape[1] == 1
            else d_entropy.sum(-1, keepdim=True)
        )
        into.log_std.add_((entropies - d_log_prob.sum(-1, keepdim=True)).unsqueeze(-1))
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

    def sample(self, noise: Tensor, out: Tensor, legal: Legal | None = None) -> None:  # noqa: ARG002
        # The first action at which the summed weights exceed the share `noise` < 1 of their total: never one of weight
        # zero, and never past the last, since the product stays below the total in float32.
        below = torch.exp(self.outputs - self.outputs.amax(-1, keepdim=True)).cumsum(-1)
        torch.sum(below <= noise * below[..., -1:], dim=-1, keepdim=True, out=out)

    @staticmethod
    def to_env(shape: Shape, kept: Tensor) -> Tensor:  # noqa: ARG004
        return kept.reshape(-1).to(torch.int64)

    def mode(self, legal: Legal | None = None) -> Tensor:  # noqa: ARG002
        return self.outputs.nan_to_num(nan=0.0).argmax(-1).view(-1)

    def log_prob(self, kept: Tensor) -> Tensor:
        self._action = kept.to(torch.int64)
        self._log_probs = log_softmax(self.outputs)
        return self._log_probs.gather(-1, self._action).squeeze(-1)

    def entropy(self) -> Tensor:
        log_probs = log_softmax(self.outputs)
        return log_probs.exp().mul_(log_probs).sum(-1).neg_()

    def backward(self, d_log_prob: Tensor, d_entropy: Tensor, into: Leaves) -> Tensor:  # noqa: ARG002
        # With probabilities p and entropy H, the log-probability's derivative is 1 - p for the action taken and -p for
        # the others; the entropy's is -p * (log p + H).
        probs = self._log_probs.exp()
        entropy = torch.mul(probs, self._log_probs).sum(-1, keepdim=True).neg_()
        pull = torch.addcmul(
            d_log_prob.unsqueeze(-1), self._log_probs + entropy, d_entropy.unsqueeze(-1)
        )
        d_outputs = probs.mul_(pull).neg_()
        return d_outputs.scatter_add_(-1, self._action, d_log_prob.unsqueeze(-1))


class Choices(Distribution):
    """One choice after the other, each a categorical distribution over its own segment of the outputs, among the
    options that are legal; where the policy is autoregressive, earlier choices add a row of `Leaves.chain` each to the
    logits of a later one. Kept are the indices.
    """

    @staticmethod
    def columns(shape: Shape) -> int:
        return len(shape.choices)

    @staticmethod
    def noise(shape: Shape, streams: Streams, steps: int, rows: int) -> Tensor:
        choices = len(shape.choices)
        return streams.uniform(steps, rows * choices).view(steps, streams.members, rows, choices)

    def sample(self, noise: Tensor, out: Tensor, legal: Legal | None = None) -> None:
        def draw(logits: Tensor, index: int) -> Tensor:
            place = out[..., index : index + 1]
            Categorical(self.shape, logits, self.weights).sample(
                noise[..., index : index + 1], place
            )
            return place

        self._one_by_one(draw, legal)

    @staticmethod
    def to_env(shape: Shape, kept: Tensor) -> Tensor:
        actions = kept.reshape(-1, kept.shape[-1]).to(torch.int64)
        return actions if shape.action_dims else actions[:, 0]

    def mode(self, legal: Legal | None = None) -> Tensor:
        def best(logits: Tensor, _: int) -> Tensor:
            return logits.nan_to_num(nan=0.0).argmax(-1, keepdim=True)

        return self.to_env(self.shape, torch.cat(self._one_by_one(best, legal), -1))

    def log_prob(self, kept: Tensor) -> Tensor:
        shape = self.shape
        indices = kept.unsqueeze(2).unbind(-1)
        earlier = self._earlier(indices) if shape.autoregressive else None
        masks = (
            [None] * len(shape.choices) if self.masks is None else _cut(self.masks, shape.choices)
        )
        self._given = earlier
        self._choices = []
        for index, (logits, mask) in enumerate(zip(self._segments(), masks, strict=True)):
            own = logits if earlier is None else self._chained(logits, index, earlier)
            own = own if mask is None else torch.where(mask, own, _ILLEGAL)
            self._choices.append(Categorical(shape, own, self.weights))
        parts = zip(self._choices, indices, strict=True)
        return _total(choice.log_prob(index) for choice, index in parts)

    def entropy(self) -> Tensor:
        return _total(choice.entropy() for choice in self._choices)

    def backward(self, d_log_prob: Tensor, d_entropy: Tensor, into: Leaves) -> Tensor:
        d_logits = [choice.backward(d_log_prob, d_entropy, into) for choice in self._choices]
        if self._given is not None:
            for d_chain, d_later in zip(into.chain, d_logits[1:], strict=True):
                torch.bmm(self._given[..., : d_chain.shape[1]].mT, d_later, out=d_chain)
        return torch.cat(d_logits, -1)

    def _one_by_one(
        self, choose: Callable[[Tensor, int], Tensor], legal: Legal | None
    ) -> list[Tensor]:
        """(G, rows, 1) of each choice: what `choose` makes of its logits and index."""
        slots, rows = self.outputs.shape[:2]
        made: list[Tensor] = []
        for index, segment in enumerate(self._segments()):
            logits = segment
            if self.shape.autoregressive:
                logits = self._chained(logits, index, self._earlier(made))
            if self.shape.masked:
                if legal is None:
                    raise ValueError(
                        "where choices may be illegal, acting needs to be told which are"
                    )
                none = torch.empty(slots, rows, 0, device=logits.device)
                chosen = torch.cat((none, *made), -1).to(torch.int64).view(slots * rows, index)
                mask = legal(chosen).view(logits.shape)
                logits = torch.where(
                    mask, logits.nan_to_num(nan=0.0).clamp_(-_BOUND, _BOUND), _ILLEGAL
                )
            made.append(choose(logits, index))
        return made

    def _segments(self) -> tuple[Tensor, ...]:
        return _cut(self.outputs, self.shape.choices)

    def _earlier(self, made: Sequence[Tensor]) -> Tensor:
        """(G, rows, sizes of all choices but the last): ones where choices, (G, rows, 1) each, were made."""
        sizes = self.shape.choices[:-1]
        ones = self.outputs.new_zeros(*self.outputs.shape[:2], sum(sizes))
        for choice, places in zip(made, _cut(ones, sizes), strict=False):
            places.scatter_(-1, choice.to(torch.int64), 1.0)
        return ones

    def _chained(self, logits: Tensor, index: int, earlier: Tensor) -> Tensor:
        if not index:
            return logits
        chain = self.weights.chain[index - 1]
        return torch.baddbmm(logits, earlier[..., : chain.shape[1]], chain)


def log_softmax(logits: Tensor) -> Tensor:
    """Logarithms of the softmax over the last dimension. torch's own adds eight and more columns in an order that
    depends on the processor's vector width (measured, 2.13: AVX2 against AVX-512).
    """
    shifted = logits - logits.amax(-1, keepdim=True)
    return shifted.sub_(shifted.exp().sum(-1, keepdim=True).log_())


def _total(parts: Iterable[Tensor]) -> Tensor:
    """Added in their order. (A sum over a stack of five or more adds in an order that depends on the column, and so on
    the member's slot: measured, torch 2.13 on CPUs.)
    """
    return reduce(torch.add, parts)


def _cut(columns: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """(…, sum of sizes) into views (…, size)."""
    return torch.split(columns, list(sizes), -1)


def distribution_of(shape: Shape) -> type[Distribution]:
    """The kind that a program of this shape acts with."""
    if shape.action_dims or shape.masked:
        return Choices
    return Categorical if shape.discrete else Gaussian
