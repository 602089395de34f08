"""Search an algorithm of your own: a subclass of one of ElegantRL's agents, here with a network of its own.

The same from the command line:
PYTHONPATH=examples sweepd train --env own_game:TARGET --algo elegantrl:ppo:own_agent:SmoothAgent
"""

from elegantrl.agents import AgentPPO
from elegantrl.agents.net import ActorPPO
from study_in_python import search
from torch import nn

from optimize.experiments.request import Request


class SmoothActor(ActorPPO):
    """An actor with tanh between its layers."""

    def __init__(self, net_dims, state_dim, action_dim):
        super().__init__(net_dims, state_dim, action_dim)
        self.net = nn.Sequential(nn.Linear(state_dim, 32), nn.Tanh(), nn.Linear(32, action_dim))


class SmoothAgent(AgentPPO):
    """ElegantRL's PPO with that actor."""

    act_class = SmoothActor


def main() -> None:
    """Two short trials on the game of `own_game.py`."""
    request = Request(
        environment="own_game:TARGET",
        algorithm="elegantrl:ppo:own_agent:SmoothAgent",
        search_space="game",
        objective="return",
        seeds=2,
        episodes=4,
        budget=512,
        rungs=1,
        n_envs=8,
        horizon=64,
        slots=4,
        threads=1,
    )
    handle = search("smooth-target", request, trials=2)
    print("values:", [round(trial.value, 1) for trial in handle.trials()])


if __name__ == "__main__":
    main()
