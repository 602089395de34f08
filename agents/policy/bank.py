"""Actors of one description that play against every member, in one stacked forward pass.

Every member has K places for actors, all of which compute all games of the member; each game then
takes the outputs of one place. So no tensor shape depends on who plays whom, and a game's numbers
do not depend on the other games or members.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sweepd.agents.networks.distributions import GREATEST, drawn, normal_of
from sweepd.agents.networks.net import Net
from sweepd.agents.networks.part import aligned
from sweepd.agents.networks.recurrence import Memory
from sweepd.agents.networks.spec import VALUES, NetSpec
from sweepd.agents.policy.heads import gaussian, logits_of


class Bank:
    """K places for actors of one description, for each of G members; empty places hold zeros.

    Attributes:
        spec: of all actors.
        flat: (G, K, P), weights and normalisers. A row is an actor.
    """

    def __init__(self, spec: NetSpec, members: int, places: int, device: torch.device) -> None:
        self.spec = spec
        # The normalisers follow the weights of the (first) policy.
        own = spec.size + aligned(sum(spec.normalisers.values()))
        self.flat = torch.zeros(members, places, spec.policies * own, device=device)
        rows, start, normalisers = self.flat.flatten(0, 1), spec.size, {}
        for name, size in spec.normalisers.items():
            normalisers[name] = rows[:, None, start : start + size]
            start += size
        # An empty place divides by 1, so that its outputs are finite.
        normalisers["state_std"].fill_(1.0)
        self._net = Net(spec, rows, normalisers)
        # (G, 1), the first network of each member.
        self._first = places * torch.arange(members, device=device).unsqueeze(1)

    def put(self, place: int, weights: Mapping[str, Tensor]) -> None:
        """Write an actor of every member into a place.

        Args:
            place: from 0.
            weights: an actor's tensors, each with (G,) or nothing before its own dimensions.
        """
        for name, part in self._net.named().items():
            part[place :: self.flat.shape[1]].copy_(weights[name])

    @torch.no_grad()
    def outputs(self, obs: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Run all actors on all games.

        Args:
            obs: (G, games, state_dim).
            memory: (G, games, size), the recurrent states; None without them.

        Returns:
            (G, K, games, outputs) and the next recurrent states (G, K, games, size).
        """
        size, places = self.flat.shape[:2], self.flat.shape[1]
        x = self._net.normalised(obs.repeat_interleave(places, 0))
        held = None if memory is None else Memory(memory.repeat_interleave(places, 0))
        outputs, after = self._net.forward(x, held)
        by_place = outputs.view(*size, *outputs.shape[1:])
        return by_place, None if after is None else after.view(*size, *after.shape[1:])

    def output(
        self, obs: Tensor, place: Tensor, memory: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return (G, games, outputs) of one actor per game, and its next recurrent states.

        Args:
            obs: (G, games, state_dim).
            place: (G, games) int64, whose outputs.
            memory: as in `outputs`.
        """
        outputs, after = self.outputs(obs, memory)
        return _at(outputs, place), None if after is None else _at(after, place)

    def logits(self, output: Tensor, place: Tensor, chosen: Tensor) -> Tensor:
        """Return (G, games, options), the logits (or values) of a choice.

        Args:
            output: as `output` returns it.
            place: likewise.
            chosen: (G, games, choice) int64, the earlier choices.
        """
        return logits_of(self.spec, self._net.weights, output, self._first + place, chosen)

    def act(
        self, obs: Tensor, place: Tensor, noise: Tensor, samples: Tensor, memory: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the actions of one actor per game, of numbers or one choice without masks.

        Args:
            obs: (G, games, state_dim).
            place: (G, games) int64, whose action.
            noise: (G, games, k) float64 uniform in [0, 1).
            samples: (G, games) bool, whether the action is a sample instead of the mode. Value
                networks always take the best action.
            memory: as in `outputs`.

        Returns:
            (G, games, action_dim) in [-1, 1], or (G, games) int64; and the actors' next
            recurrent states (G, games, size).
        """
        output, after = self.output(obs, place, memory)
        if not self.spec.discrete:
            return self._numbers(output, place, noise, samples), after
        if self.spec.gives == VALUES:
            return output.nan_to_num(nan=0.0).argmax(-1), after
        return draw_option(output.nan_to_num(nan=0.0), noise[..., :1], samples), after

    def _numbers(self, output: Tensor, place: Tensor, noise: Tensor, samples: Tensor) -> Tensor:
        mean, log_std = gaussian(self.spec, self._net.weights, output, self._first + place)
        normal = normal_of(noise[..., : mean.shape[-1]])
        normal = torch.where(samples.unsqueeze(-1), normal, 0.0)
        # A diverged member's NaN must not reach the game.
        action = mean + log_std.exp() * normal.to(mean.dtype)
        return action.tanh().nan_to_num_(nan=0.0)


def draw_option(logits: Tensor, uniform: Tensor, samples: Tensor) -> Tensor:
    """Return options, (...) int64, drawn from logits or the best ones.

    Args:
        logits: (..., options), finite.
        uniform: (..., 1) float64 uniform in [0, 1).
        samples: (...) bool, where they are drawn.
    """
    weights = torch.exp(logits - logits.amax(-1, keepdim=True))
    option = drawn(weights, uniform.clamp(max=GREATEST).to(weights.dtype)).squeeze(-1)
    return torch.where(samples, option, logits.argmax(-1))


def _at(every: Tensor, place: Tensor) -> Tensor:
    """Return (G, games, n): one place's row per game, from (G, K, games, n)."""
    index = place[:, None, :, None].expand(-1, 1, -1, every.shape[-1])
    return every.gather(1, index).squeeze(1)
