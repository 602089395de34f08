"""A PPO in LeanRL's style, for comparisons: `PlainPPO`, compiled by torch.

Written from knowledge of LeanRL (PyTorch Labs, 2024), not from its source. The rollout's policy is
one compiled program, and a gradient step is another one: rows of the minibatch, forward and
backward passes, clipping and Adam. All weights are one vector, of which the networks' are views, so
that a call has few arguments and Adam is one loop. It trains one member at a time.

Its settings are the fastest that were found on CPUs: Inductor's C++ wrapper, and no guards once a
rollout has been compiled. max-autotune-no-cudagraphs and freezing were not faster.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from scripts.bench.speed.plain_ppo import PlainPPO, draw, judge, loss
from sweepd.envs.native.build import BuildError, compiler

DECAYS = (0.9, 0.999)  # of Adam
OPTIONS: dict[str, Any] = {"cpp_wrapper": True}


class CompiledPPO(PlainPPO):
    """See `PlainPPO`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        try:
            compiler()
        except BuildError as error:
            sys.exit(f"torch.compile: {error}; or leave leanrl out of --peers.")
        self.weights = nn.utils.parameters_to_vector(self.agent.parameters()).detach()
        self.mean, self.square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.steps = torch.zeros(())
        self._shapes = {name: one.shape for name, one in self.agent.named_parameters()}
        torch.compiler.reset()  # the number of programs that a process may compile is limited
        self._compiled_act = _compiled(self._act)
        self._compiled_update = _compiled(self._update)
        self._ready = False

    def rollout(self) -> int:
        """See `PlainPPO.rollout`."""
        with torch.compiler.set_stance(skip_guard_eval_unsafe=self._ready):
            samples = super().rollout()
        self._ready = True
        return samples

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """See `PlainPPO.act`."""
        found: tuple[Tensor, ...] = self._compiled_act(self.weights, obs, noise)
        return found

    @torch.no_grad()
    def update(self, rows: Tensor, *data: Tensor) -> None:
        """See `PlainPPO.update`."""
        self._compiled_update(self.weights, self.mean, self.square, self.steps, rows, *data)

    def _views(self, weights: Tensor) -> dict[str, Tensor]:
        parts = weights.split([shape.numel() for shape in self._shapes.values()])
        named = zip(self._shapes.items(), parts, strict=True)
        return {name: part.view(shape) for (name, shape), part in named}

    def _act(self, weights: Tensor, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        obs = (obs - self.avg) / self.std
        output, log_std, value = functional_call(self.agent, self._views(weights), obs)
        action = draw(output, log_std, noise)
        return obs, action, judge(output, log_std, action)[0], value

    def _update(
        self,
        weights: Tensor,
        mean: Tensor,
        square: Tensor,
        steps: Tensor,
        rows: Tensor,
        *data: Tensor,
    ) -> None:
        def loss_of(views: dict[str, Tensor], *batch: Tensor) -> Tensor:
            return loss(lambda obs: functional_call(self.agent, views, obs), batch, self.params)

        found = grad(loss_of)(self._views(weights), *(one[rows] for one in data))
        gradient = torch.cat([one.flatten() for one in found.values()])
        norm = gradient.square().sum().sqrt()
        gradient = gradient * (self.params.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        steps.add_(1.0)
        mean.lerp_(gradient, 1.0 - DECAYS[0])
        square.lerp_(gradient.square(), 1.0 - DECAYS[1])
        scale = (square / (1.0 - DECAYS[1] ** steps)).sqrt() + self.params.adam_eps
        weights.sub_(self.params.learning_rate * mean / (1.0 - DECAYS[0] ** steps) / scale)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(
        function, fullgraph=True, dynamic=False, options=OPTIONS
    )
    return made
