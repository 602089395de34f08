"""Search an algorithm of your own: a subclass of one of ElegantRL's agents with its own network.

The same from the command line:
PYTHONPATH=examples sweepd train --env own_game:TARGET --algo own_agent:SmoothAgent
"""

from elegantrl.agents import AgentPPO
from elegantrl.agents.net import ActorPPO
from study_in_python import SMALL
from torch import nn

import sweepd


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
    settings = SMALL | {
        "env": "own_game:TARGET",
        "algo": "own_agent:SmoothAgent",
        "budget": 1024,
        "rungs": 1,
    }
    study = sweepd.create_study("smooth-target", n_trials=2, **settings)
    study.run()
    print("values:", study.trials()["value"].round(1).to_list())


if __name__ == "__main__":
    main()
