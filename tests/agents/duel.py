"""A small game of two seats for tests of opponents: who is nearer to a moving target."""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.envs.games.tensor_game import NoParams, State, TensorGame

DUEL_PARAMS = NoParams()


class Duel(TensorGame):
    """Each player moves a point on a line; a seat sees its own, the other's and the target."""

    state_dim = 3
    action_dim = 1
    if_discrete = False
    seats = 2
    max_step = 9
    uniforms_per_start = 3

    def start(self, uniforms: Tensor) -> State:
        where = 2.0 * uniforms - 1.0
        return {"at": where[:, :2], "target": where[:, 2]}

    def decode(self, action: Tensor) -> Tensor:
        return action[..., 0]

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        del uniforms
        at = (state["at"] + 0.2 * action).clamp(-1.0, 1.0)
        away = (at - state["target"].unsqueeze(1)).abs()
        target = torch.sin(3.0 * state["target"] + 0.5)
        reward = away.flip(1) - away
        return {"at": at, "target": target}, reward, (away < 0.02).any(1)

    def see(self, state: State) -> Tensor:
        at = state["at"]
        target = state["target"].unsqueeze(1).expand(-1, 2)
        return torch.stack((at, at.flip(1), target), 2)


class ChoiceDuel(Duel):
    """The same with three actions: left, stay, right."""

    action_dim = 3
    if_discrete = True

    def decode(self, action: Tensor) -> Tensor:
        return action.double() - 1.0


class Chaser:
    """A scripted player that runs to the target, with a random hesitation."""

    uniforms = 2
    memory = 1

    def start(self, uniforms: Tensor) -> Tensor:
        return uniforms[:, :1]

    def act(self, obs: Tensor, memory: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        towards = (obs[:, 2] - obs[:, 0]).clamp(-1.0, 1.0).double()
        return towards * (uniforms[:, 1] < memory[:, 0] + 0.3), memory
