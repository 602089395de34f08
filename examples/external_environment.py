"""Step an ordinary Gymnasium environment of your own as a vectorized one.

Search it with: PYTHONPATH=examples sweepd train --env external_environment:Walk --algo ppo
"""

import gymnasium
import numpy as np
import torch

from sweepd.parts import ExternalVecEnv


class Walk(gymnasium.Env):
    """Walk right to the end of a corridor of `length` cells."""

    def __init__(self, length: int = 8) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.length, self.cell, self.age = length, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.cell, self.age = 0, 0
        return self._observe(), {}

    def step(self, action):
        self.cell = max(0, self.cell + (1 if action else -1))
        self.age += 1
        done = self.cell >= self.length
        return self._observe(), float(done), done, self.age >= 50, {}

    def _observe(self):
        return np.array([self.cell / self.length], np.float32)


def main() -> None:
    """Step 2 members x 4 copies at random; the second member's corridors are shorter."""
    env = ExternalVecEnv(Walk, [{"length": 8}, {"length": 4}], envs_per_member=4)
    obs = env.reset([0, 1])
    print("observations:", tuple(obs.shape), obs.dtype)
    solved = torch.zeros(env.num_envs)
    for _ in range(100):
        step = env.step(torch.randint(0, env.action_dim, (env.num_envs,)))
        solved += step.reward
    print("corridors finished in 100 steps:", solved.view(2, 4).sum(1).tolist())
    env.close()


if __name__ == "__main__":
    main()
