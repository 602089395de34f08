"""Search an algorithm of your own: a subclass of one of ElegantRL's agents with its own network.

The same from the command line:
PYTHONPATH=examples sweepd train --env own_game:TARGET --algo elegantrl:ppo:own_agent:SmoothAgent
"""

from dataclasses import replace

from elegantrl.agents import AgentPPO
from elegantrl.agents.net import ActorPPO
from study_in_python import SMALL, search
from torch import nn


class SmoothActor(ActorPPO):
    """An actor with tanh between its layers; `net_dims` is not used."""

    def __init__(self, net_dims, state_dim, action_dim):
        super().__init__(net_dims, state_dim, action_dim)
        self.net = nn.Sequential(nn.Linear(state_dim, 32), nn.Tanh(), nn.Linear(32, action_dim))


class SmoothAgent(AgentPPO):
    """ElegantRL's PPO with that actor."""

    act_class = SmoothActor


def main() -> None:
    """Run two short trials on the game of `own_game.py`."""
    request = replace(
        SMALL,
        environment="own_game:TARGET",
        algorithm="elegantrl:ppo:own_agent:SmoothAgent",
        budget=1024,
        rungs=1,
    )
    handle = search("smooth-target", request, trials=2)
    print("values:", [round(trial.value, 1) for trial in handle.trials()])


if __name__ == "__main__":
    main()
