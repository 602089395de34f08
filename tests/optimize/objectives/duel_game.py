"""A small game of two seats: in every step a player may reach out for a point, or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sweepd.envs.games.tensor_game import TensorGame
from sweepd.envs.support.errors import InputError


@dataclass(frozen=True)
class DuelParams:
    """length: steps of an episode. weight: of a point in the reward. wide: a third observation."""

    length: int = 4
    weight: float = 1.0
    wide: bool = False

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InputError(f"duel length {self.length} is not at least 1")


class Fixed:
    """A player that gets its point with this probability."""

    uniforms, memory = 1, 0

    def __init__(self, share: float) -> None:
        self.share = share

    def start(self, uniforms: Tensor) -> Tensor:
        return uniforms[:, :0]

    def act(self, obs: Tensor, memory: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        del obs
        return (uniforms[:, 0] < self.share).long(), memory


class Duel(TensorGame):
    """The player with more points at the end wins."""

    seats, action_dim, if_discrete, max_step = 2, 2, True, 1000

    def prepare(self, params: Sequence[Any]) -> None:
        self.wide = params[0].wide
        self.state_dim = 2 + self.wide

    def configure_member(self, member: int, params: Any) -> None:
        if params.wide != self.wide:
            raise InputError("all members' duels must have the same wide")
        super().configure_member(member, params)

    def start(self, uniforms: Tensor) -> dict[str, Tensor]:
        return {"points": torch.zeros_like(uniforms).repeat(1, 2), "left": self.numbers["length"]}

    def move(
        self, state: dict[str, Tensor], action: Tensor, uniforms: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        del uniforms
        gained = action.double()
        moved = {"points": state["points"] + gained, "left": state["left"] - 1}
        reward = self.numbers["weight"].unsqueeze(1) * (gained - gained.flip(1))
        return moved, reward, moved["left"] <= 0

    def see(self, state: dict[str, Tensor]) -> Tensor:
        ahead = state["points"] - state["points"].flip(1)
        left = state["left"].unsqueeze(1).expand(-1, 2)
        return torch.stack([ahead, left] + [ahead] * self.wide, -1)


PLAYERS = {"idle": Fixed(0.0), "coin": Fixed(0.5), "eager": Fixed(1.0)}
DUEL = Duel.game(DuelParams, scripted=lambda _: PLAYERS)
