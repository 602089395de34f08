"""PPO of Stable-Baselines3, whose hyperparameters `sweepd train --env command:…` searches.

sweepd train --search-space examples/programs/sb3_cartpole.toml --n-trials 30 \
    --env 'command:python examples/programs/sb3_cartpole.py'
"""

import os

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

import sweepd


class Report(BaseCallback):
    """Reports the mean return of the latest episodes after every rollout."""

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        sweepd.report(self.num_timesteps, float(np.mean(returns)) if returns else 0.0)


def main():
    envs = make_vec_env("CartPole-v1", 8, seed=int(os.environ.get("SWEEPD_SEED", 0)))
    model = PPO("MlpPolicy", envs, n_steps=64, batch_size=128, device="cpu", **sweepd.params())
    model.learn(int(os.environ.get("SWEEPD_BUDGET", 50_000)), callback=Report())
    model.save(sweepd.out_dir() / "model.zip")


if __name__ == "__main__":
    main()
