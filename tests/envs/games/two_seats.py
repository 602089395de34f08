"""Two small games of two seats with scripted players, as tensors and as plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sweepd.envs.games.opponents import ScriptedPlayer
from sweepd.envs.games.tensor_game import TensorGame


class Rules(Protocol):
    """The rules of one game at a time."""

    def start(self, uniforms: Sequence[float]) -> Any: ...
    def move(
        self, state: Any, controls: Sequence[Any], uniforms: Sequence[float]
    ) -> tuple[Any, tuple[float, float], bool]: ...
    def see(self, state: Any, seat: int) -> list[float]: ...


class Player(Protocol):
    """A scripted player in one game; its memory is a list."""

    def start(self, uniforms: Sequence[float]) -> list[float]: ...
    def act(
        self, obs: Sequence[float], memory: list[float], uniforms: Sequence[float]
    ) -> tuple[Any, list[float]]: ...


# Rock-paper-scissors: five rounds, of which each pays the winner 1 and costs the loser 1.


class RockPaperScissors(TensorGame):
    """Both see the choices of the last round, one's own first; 3 means that there was none."""

    seats = 2
    state_dim, action_dim, if_discrete, max_step = 2, 3, True, 5

    def start(self, uniforms: Tensor) -> dict[str, Tensor]:
        return {"last": torch.full((len(uniforms), 2), 3, device=uniforms.device)}

    def move(
        self,
        state: dict[str, Tensor],  # noqa: ARG002
        action: Tensor,
        uniforms: Tensor,  # noqa: ARG002
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        first, second = action.unbind(1)
        ahead = torch.tensor([0.0, 1.0, -1.0], device=action.device)[(first - second) % 3]
        never = torch.zeros_like(first, dtype=torch.bool)
        return {"last": action}, torch.stack((ahead, -ahead), 1), never

    def see(self, state: dict[str, Tensor]) -> Tensor:
        last = state["last"]
        return torch.stack((last, last.flip(1)), 1)


class Repeater:
    """Beats the other's last choice; begins with rock."""

    uniforms = memory = 0

    def start(self, uniforms: Tensor) -> Tensor:
        return uniforms[:, :0]

    def act(self, obs: Tensor, memory: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        theirs = obs[:, 1].long()
        return torch.where(theirs == 3, 0, (theirs + 1) % 3), memory


class Drawer:
    """Repeats a choice that it draws at the start, or now and then another."""

    uniforms, memory = 2, 1

    def start(self, uniforms: Tensor) -> Tensor:
        return (3 * uniforms[:, :1]).floor()

    def act(self, obs: Tensor, memory: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        memory = torch.where(uniforms[:, :1] < 0.3, (3 * uniforms[:, 1:]).floor(), memory)
        return memory[:, 0].long(), memory


class PlainRockPaperScissors:
    def start(self, uniforms: Sequence[float]) -> Any:  # noqa: ARG002
        return (3, 3)

    def move(
        self, state: Any, controls: Sequence[Any], uniforms: Sequence[float]
    ) -> tuple[Any, tuple[float, float], bool]:
        del state, uniforms
        first, second = controls
        beaten = {0: 2, 1: 0, 2: 1}
        ahead = 0.0 if first == second else 1.0 if beaten[first] == second else -1.0
        return (first, second), (ahead, -ahead), False

    def see(self, state: Any, seat: int) -> list[float]:
        return [float(state[seat]), float(state[1 - seat])]


class PlainRepeater:
    def start(self, uniforms: Sequence[float]) -> list[float]:  # noqa: ARG002
        return []

    def act(
        self, obs: Sequence[float], memory: list[float], uniforms: Sequence[float]
    ) -> tuple[Any, list[float]]:
        del uniforms
        return (0 if obs[1] == 3 else (int(obs[1]) + 1) % 3), memory


class PlainDrawer:
    def start(self, uniforms: Sequence[float]) -> list[float]:
        return [float(int(3 * uniforms[0]))]

    def act(
        self, obs: Sequence[float], memory: list[float], uniforms: Sequence[float]
    ) -> tuple[Any, list[float]]:
        del obs
        if uniforms[0] < 0.3:
            memory = [float(int(3 * uniforms[1]))]
        return int(memory[0]), memory


# Pursuit on a line: the first seat hunts the second, which is slower and is pushed by wind. Actions
# are coded: left, stay, right.

STEPS = (-1.0, 0.0, 1.0)


@dataclass(frozen=True)
class Wind:
    gust: float = 0.3


class Pursuit(TensorGame):
    seats = 2
    state_dim, action_dim, if_discrete, max_step = 3, 3, True, 12
    uniforms_per_start, uniforms_per_move = 2, 1

    def start(self, uniforms: Tensor) -> dict[str, Tensor]:
        return {"at": torch.stack((uniforms[:, 0] - 2.0, 2.0 * uniforms[:, 1]), 1)}

    def decode(self, action: Tensor) -> Tensor:
        return torch.tensor(STEPS, dtype=torch.float64, device=self.device)[action]

    def move(
        self, state: dict[str, Tensor], action: Tensor, uniforms: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        wind = self.numbers["gust"] * (uniforms[:, 0] - 0.5)
        pushed = torch.stack((0.4 * action[:, 0], 0.3 * action[:, 1] + wind), 1)
        at = state["at"] + pushed
        apart = (at[:, 0] - at[:, 1]).abs()
        caught = apart < 0.25
        reward = torch.stack((caught.double() - 0.1 * apart, 0.1 - caught.double()), 1)
        return {"at": at}, reward, caught

    def see(self, state: dict[str, Tensor]) -> Tensor:
        at = state["at"]
        seat = torch.tensor([0.0, 1.0], dtype=at.dtype, device=at.device).expand_as(at)
        return torch.stack((at, at.flip(1), seat), 2)


class Hunter:
    """Goes towards the other."""

    uniforms = memory = 0

    def start(self, uniforms: Tensor) -> Tensor:
        return uniforms[:, :0]

    def act(self, obs: Tensor, memory: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        return torch.sign(obs[:, 1] - obs[:, 0]), memory


class Wanderer:
    """Swings, with a random speed and a random phase; its controls are no actions."""

    uniforms, memory = 1, 2

    def start(self, uniforms: Tensor) -> Tensor:
        return torch.cat((uniforms, torch.zeros_like(uniforms)), 1)

    def act(self, obs: Tensor, memory: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        memory = memory + torch.cat((uniforms, torch.ones_like(uniforms)), 1)
        return torch.sin(memory[:, 0]) * (memory[:, 1] / 20.0).clamp(max=1.0), memory


class PlainPursuit:
    def __init__(self, gust: float) -> None:
        self.gust = gust

    def start(self, uniforms: Sequence[float]) -> Any:
        return uniforms[0] - 2.0, 2.0 * uniforms[1]

    def move(
        self, state: Any, controls: Sequence[Any], uniforms: Sequence[float]
    ) -> tuple[Any, tuple[float, float], bool]:
        first = state[0] + 0.4 * controls[0]
        second = state[1] + 0.3 * controls[1] + self.gust * (uniforms[0] - 0.5)
        apart = abs(first - second)
        caught = apart < 0.25
        return (first, second), (caught - 0.1 * apart, 0.1 - caught), caught

    def see(self, state: Any, seat: int) -> list[float]:
        return [state[seat], state[1 - seat], float(seat)]


class PlainHunter:
    def start(self, uniforms: Sequence[float]) -> list[float]:  # noqa: ARG002
        return []

    def act(
        self, obs: Sequence[float], memory: list[float], uniforms: Sequence[float]
    ) -> tuple[Any, list[float]]:
        del uniforms
        return float((obs[1] > obs[0]) - (obs[1] < obs[0])), memory


class PlainWanderer:
    def start(self, uniforms: Sequence[float]) -> list[float]:
        return [uniforms[0], 0.0]

    def act(
        self, obs: Sequence[float], memory: list[float], uniforms: Sequence[float]
    ) -> tuple[Any, list[float]]:
        del obs
        memory = [memory[0] + uniforms[0], memory[1] + 1.0]
        return float(torch.sin(torch.tensor(memory[0]))) * min(memory[1] / 20.0, 1.0), memory


RPS_PLAYERS: dict[str, ScriptedPlayer] = {"repeater": Repeater(), "drawer": Drawer()}
PURSUIT_PLAYERS: dict[str, ScriptedPlayer] = {"hunter": Hunter(), "wanderer": Wanderer()}
