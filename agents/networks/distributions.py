"""Action distributions: sampling, log-probability and entropy, under autograd.

A `Distribution` is made of the actors' outputs (G, rows, action_dim), like torch's distributions. A
rollout stores an action as `columns` floats ("stored action"), which is not always the form that
the environment takes. A new kind needs one class and its case in `distribution_of`.

Where choices may be illegal (`Shape.masked`), `legal` is a function with the meaning of
`VecEnv.action_mask`: given the choices made so far, (G * rows, k) int64, it returns which options
of the next choice are legal, (G * rows, options) bool.

Nothing here mixes rows, nor therefore members.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, reduce

import torch
from torch import Tensor

from sweepd.agents.networks.portable import exp, log_of_sum
from sweepd.agents.networks.products import plus_product
from sweepd.agents.networks.shape import Shape
from sweepd.envs.core.streams import Streams
from sweepd.envs.core.vec_env import Legal

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
# Logit of an illegal option: its probability is exactly 0, and so are products of it with finite
# numbers. (With infinity they would be NaN.) Other logits are clamped to ± _BOUND for sampling.
_ILLEGAL, _BOUND = -1e30, 1e29
# The least and greatest uniform numbers of samples, so that noise is finite and, in float32, a
# uniform number stays below 1.
LEAST, GREATEST = 2.0**-32, 1.0 - 2.0**-24


class Distribution(ABC):
    """One distribution over actions per row, (G, rows) of them.

    Args:
        shape: the program's shape.
        outputs: (G, rows, action_dim), of the actors.
        weights: theirs by name (`sweepd.agents.networks.net.Net.weights`), for parameters besides
            the outputs.
        masks: (G, rows, action_dim) bool, the options that were legal when the actions passed to
            `log_prob` were chosen; None: all.
    """

    def __init__(
        self,
        shape: Shape,
        outputs: Tensor,
        weights: Mapping[str, Tensor],
        masks: Tensor | None = None,
    ) -> None:
        self.shape, self.outputs, self.weights, self.masks = shape, outputs, weights, masks

    @staticmethod
    @abstractmethod
    def columns(shape: Shape) -> int:
        """Return the number of floats of a stored action."""

    @staticmethod
    @abstractmethod
    def noise(shape: Shape, streams: Streams, steps: int, rows: int) -> Tensor:
        """Draw what `sample` needs, (steps, G, rows, k), from each member's own stream."""

    @staticmethod
    def noise_of(uniforms: Tensor) -> Tensor:
        """Convert uniform numbers (…, columns) float64 in [0, 1) to what `sample` needs."""
        return uniforms.clamp(max=GREATEST).float()

    @abstractmethod
    def sample(self, noise: Tensor, out: Tensor, legal: Legal | None = None) -> None:
        """Write one action per row into `out` (G, rows, columns), using noise (G, rows, k)."""

    @staticmethod
    @abstractmethod
    def to_env(shape: Shape, stored: Tensor) -> Tensor:
        """Convert stored actions (G, rows, columns) to the environment's form, (G * rows, …).

        The result is legal even where a member's outputs are not finite.
        """

    @abstractmethod
    def mode(self, legal: Legal | None = None) -> Tensor:
        """Return the deterministic actions in the environment's form."""

    @abstractmethod
    def log_prob(self, stored: Tensor) -> Tensor:
        """Return (G, rows), the log-probabilities of stored actions."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return the entropy in nats: (G, rows), or (G, 1) where it is equal in all rows.

        Of several choices, it is the sum over them, each conditional on the earlier choices in the
        actions last passed to `log_prob`.
        """


class Gaussian(Distribution):
    """Independent Gaussians before tanh, as in ElegantRL's `ActorPPO`.

    Outputs are the means μ; log σ is a parameter, the same for all rows. The stored action is the
    sample x = μ + σ ε before tanh. Its log-probability counts, not that of tanh(x).
    """

    @staticmethod
    def columns(shape: Shape) -> int:
        return shape.action_dim

    @staticmethod
    def noise(shape: Shape, streams: Streams, steps: int, rows: int) -> Tensor:
        noise = streams.normal(steps, rows * shape.action_dim)
        return noise.view(steps, streams.members, rows, -1)

    @staticmethod
    def noise_of(uniforms: Tensor) -> Tensor:
        return normal_of(uniforms).float()

    @property
    def log_std(self) -> Tensor:
        """(G, 1, action_dim), log σ."""
        return self.weights["action_std_log"]

    def sample(self, noise: Tensor, out: Tensor, legal: Legal | None = None) -> None:  # noqa: ARG002
        torch.addcmul(self.outputs, exp(self.log_std), noise, out=out)

    @staticmethod
    def to_env(shape: Shape, stored: Tensor) -> Tensor:  # noqa: ARG004
        # A diverged member's NaN must not reach the environment.
        return stored.tanh().nan_to_num_(nan=0.0).view(-1, stored.shape[-1])

    def mode(self, legal: Legal | None = None) -> Tensor:  # noqa: ARG002
        return self.to_env(self.shape, self.outputs)

    def log_prob(self, stored: Tensor) -> Tensor:
        # log p(x) = Σ_j [ -u_j²/2 - log σ_j - log(2π)/2 ],  u = (x - μ) / σ
        u = (stored - self.outputs) * exp(-self.log_std)
        scale = self.log_std.sum(-1) + self.log_std.shape[-1] * HALF_LOG_2PI
        return u.square().sum(-1) * -0.5 - scale

    def entropy(self) -> Tensor:
        # H = Σ_j [ log σ_j + (1 + log 2π) / 2 ]
        return self.log_std.sum(-1) + self.log_std.shape[-1] * (0.5 + HALF_LOG_2PI)


class Categorical(Distribution):
    """One of action_dim options, as in ElegantRL's `ActorDiscretePPO`.

    Outputs are logits z; the probabilities are p = softmax(z). The stored action is the option's
    index.
    """

    @staticmethod
    def columns(shape: Shape) -> int:  # noqa: ARG004
        return 1

    @staticmethod
    def noise(shape: Shape, streams: Streams, steps: int, rows: int) -> Tensor:  # noqa: ARG004
        return streams.uniform(steps, rows).unsqueeze(-1)

    def sample(self, noise: Tensor, out: Tensor, legal: Legal | None = None) -> None:  # noqa: ARG002
        out.copy_(drawn(exp(self.outputs - self.outputs.amax(-1, keepdim=True)), noise))

    @staticmethod
    def to_env(shape: Shape, stored: Tensor) -> Tensor:  # noqa: ARG004
        return stored.reshape(-1).to(torch.int64)

    def mode(self, legal: Legal | None = None) -> Tensor:  # noqa: ARG002
        return self.outputs.nan_to_num(nan=0.0).argmax(-1).view(-1)

    @cached_property
    def _log_probs(self) -> Tensor:
        return log_softmax(self.outputs)

    def log_prob(self, stored: Tensor) -> Tensor:
        return self._log_probs.gather(-1, stored.to(torch.int64)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self._log_probs.exp() * self._log_probs).sum(-1)


class Choices(Distribution):
    """Several choices in sequence, each a categorical distribution over its part of the outputs.

    Illegal options have probability 0. In an autoregressive policy, each earlier choice adds a row
    of `chain.k.weight` to the logits of a later one. The stored action holds the options' indices.
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
            # `sample` writes into this view; `_one_by_one` passes it on to the later choices.
            place = out[..., index : index + 1]
            Categorical(self.shape, logits, self.weights).sample(
                noise[..., index : index + 1], place
            )
            return place

        self._one_by_one(draw, legal)

    @staticmethod
    def to_env(shape: Shape, stored: Tensor) -> Tensor:
        actions = stored.reshape(-1, stored.shape[-1]).to(torch.int64)
        return actions if shape.action_dims else actions[:, 0]

    def mode(self, legal: Legal | None = None) -> Tensor:
        def best(logits: Tensor, _: int) -> Tensor:
            return logits.nan_to_num(nan=0.0).argmax(-1, keepdim=True)

        return self.to_env(self.shape, torch.cat(self._one_by_one(best, legal), -1))

    def log_prob(self, stored: Tensor) -> Tensor:
        shape = self.shape
        indices = stored.unsqueeze(2).unbind(-1)
        earlier = self._earlier(indices) if shape.autoregressive else None
        masks: Sequence[Tensor | None] = [None] * len(shape.choices)
        if self.masks is not None:
            masks = _cut(self.masks, shape.choices)
        self._choices = []
        for index, (logits, mask) in enumerate(zip(self._segments(), masks, strict=True)):
            own = logits if earlier is None else self._chained(logits, index, earlier)
            own = own if mask is None else torch.where(mask, own, _ILLEGAL)
            self._choices.append(Categorical(shape, own, self.weights))
        parts = zip(self._choices, indices, strict=True)
        return _total(choice.log_prob(index) for choice, index in parts)

    def entropy(self) -> Tensor:
        return _total(self.entropies())

    def entropies(self) -> list[Tensor]:
        """Return the terms of `entropy`, (G, rows) for each choice."""
        return [choice.entropy() for choice in self._choices]

    def _one_by_one(
        self, choose: Callable[[Tensor, int], Tensor], legal: Legal | None
    ) -> list[Tensor]:
        """Return (G, rows, 1) of each choice, `choose(logits, index)`, in sequence."""
        slots, rows = self.outputs.shape[:2]
        made: list[Tensor] = []
        for index, segment in enumerate(self._segments()):
            logits = segment
            if self.shape.autoregressive:
                logits = self._chained(logits, index, self._earlier(made))
            if self.shape.masked:
                if legal is None:
                    raise ValueError(
                        "an actor of an environment with illegal actions needs `legal`"
                    )
                none = torch.empty(slots, rows, 0, device=logits.device)  # before the first choice
                chosen = torch.cat((none, *made), -1).to(torch.int64).view(slots * rows, index)
                mask = legal(chosen).view(logits.shape)
                logits = masked_logits(logits.nan_to_num(nan=0.0), mask)
            made.append(choose(logits, index))
        return made

    def _segments(self) -> tuple[Tensor, ...]:
        return _cut(self.outputs, self.shape.choices)

    def _earlier(self, made: Sequence[Tensor]) -> Tensor:
        """Return one-hot encodings of earlier choices, side by side.

        Args:
            made: (G, rows, 1) for each choice.

        Returns:
            (G, rows, sum of the sizes of all choices but the last); 0 for choices not yet made.
        """
        sizes = self.shape.choices[:-1]
        ones = self.outputs.new_zeros(*self.outputs.shape[:2], sum(sizes))
        for choice, places in zip(made, _cut(ones, sizes), strict=False):
            places.scatter_(-1, choice.to(torch.int64), 1.0)
        return ones

    def _chained(self, logits: Tensor, index: int, earlier: Tensor) -> Tensor:
        """Return the logits of a choice given the earlier ones: z + onehot(earlier) · chain."""
        if not index:
            return logits
        chain = self.weights[f"chain.{index}.weight"]
        return plus_product(logits, earlier[..., : chain.shape[1]], chain)


def drawn(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw an option per row by inverse transform sampling, (…, 1) int64.

    Args:
        weights: (…, options), at least 0. Where all are 0, the result is the number of options.
        uniform: (…, 1), up to `GREATEST`.
    """
    # The first option at which the cumulative weight exceeds `uniform` times the total. Never an
    # option of weight 0, and never past the last one, since the product stays below the total.
    below = weights.cumsum(-1)
    return (below <= uniform * below[..., -1:]).sum(-1, keepdim=True)


def normal_of(uniforms: Tensor) -> Tensor:
    """Convert uniform numbers in [0, 1) to normal ones. float64, for the distribution's tails."""
    normal: Tensor = torch.special.ndtri(uniforms.clamp(LEAST, GREATEST))
    return normal


def masked_logits(logits: Tensor, mask: Tensor) -> Tensor:
    """Return logits whose illegal options have probability 0; `logits` (no NaN) is overwritten."""
    # Clamped, so that every legal option keeps a weight above that of illegal ones.
    return torch.where(mask, logits.clamp_(-_BOUND, _BOUND), _ILLEGAL)


def log_softmax(logits: Tensor) -> Tensor:
    """Return the log-softmax over the last dimension: z - max z - log Σ exp(z - max z).

    torch's own adds eight or more columns in an order that depends on the processor's vector width
    (measured with torch 2.13, AVX2 against AVX-512).
    """
    # The result does not depend on the greatest logit, nor does its derivative.
    shifted = logits - logits.detach().amax(-1, keepdim=True)
    return shifted - log_of_sum(exp(shifted).sum(-1, keepdim=True))


def _total(parts: Iterable[Tensor]) -> Tensor:
    """Return the sum, added in order.

    torch's sum over a stack of five or more adds in an order that depends on the column, and so on
    the member's slot (measured with torch 2.13 on CPUs).
    """
    return reduce(torch.add, parts)


def _cut(columns: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Split (…, sum of sizes) into views (…, size)."""
    return torch.split(columns, list(sizes), -1)


def distribution_of(shape: Shape) -> type[Distribution]:
    """Return the distribution of a program's actions."""
    if shape.action_dims or shape.masked:
        return Choices
    return Categorical if shape.if_discrete else Gaussian
