"""User-defined agents; the first is that of docs/how_to/plugins.md."""

from __future__ import annotations

from typing import Any

from elegantrl.agents import AgentPPO, AgentTD3
from elegantrl.agents.net import ActorPPO
from torch import nn


class SmoothActor(ActorPPO):  # type: ignore[misc]  # ElegantRL is untyped
    """An actor with tanh between its layers."""

    def __init__(self, net_dims: list[int], state_dim: int, action_dim: int) -> None:
        super().__init__(net_dims, state_dim, action_dim)
        self.net = nn.Sequential(nn.Linear(state_dim, 32), nn.Tanh(), nn.Linear(32, action_dim))


class SmoothAgent(AgentPPO):  # type: ignore[misc]
    """An agent with its own network class."""

    act_class = SmoothActor


class HiddenSmoothAgent(AgentPPO):  # type: ignore[misc]
    """An agent with its own network, which no class attribute names."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.act_class = SmoothActor
        super().__init__(*args, **settings)


class PatientAgent(AgentTD3):  # type: ignore[misc]
    """An agent with its own update and ElegantRL's network."""

    def update_objectives(self, buffer: Any, update_t: int) -> Any:
        """Half as often."""
        return super().update_objectives(buffer, update_t) if update_t % 2 else (0.0, 0.0)
