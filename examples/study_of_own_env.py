"""Search hyperparameters for a Gymnasium environment that this script defines.

Other workers join the study by name: PYTHONPATH=examples sweepd train --study-name walk --alongside
"""

import gymnasium
import numpy as np

import sweepd


class Walk(gymnasium.Env):
    """Walk right to the end of a corridor of `length` cells, as fast as possible."""

    def __init__(self, length: int = 8) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.length, self.cell = length, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.cell = 0
        return self._observe(), {}

    def step(self, action):
        self.cell = max(0, self.cell + (1 if action else -1))
        return self._observe(), -0.1, self.cell >= self.length, False, {}

    def _observe(self):
        return np.array([self.cell / self.length], np.float32)


# A small budget, so that a study takes seconds.
SMALL = {"budget": 4096, "rungs": 2, "seeds": 1, "episodes": 8, "n_envs": 16, "fresh_seeds": 0}


def main() -> None:
    """Search, and let the best policy act."""
    study = sweepd.create_study(
        "walk",
        env=Walk,
        env_kwargs={"length": 5, "max_episode_steps": 50},
        search_space={"learning_rate": sweepd.log_float(1e-4, 1e-2), "epochs": [4, 8]},
        n_trials=4,
        gpu="cpu",
        **SMALL,
    )
    study.run()
    policy, env = sweepd.load_policy(study), Walk(length=5)
    observation, _ = env.reset()
    print("the best policy's first action:", policy.action(observation))


# Worker processes import this file for `Walk`; what the script does must not run there.
if __name__ == "__main__":
    main()
