"""The training runs of other projects' searches: Stable-Baselines3's PPO on a task.

`live_peers.py` and `live_ray.py` share this module.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from torch import Tensor

from scripts.bench.sb3_env import SB3Env
from scripts.bench.search.live_tasks import TASKS, games_env, market, market_window, score_of
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import observation_normaliser
from sweepd.envs.crypto.params import EnvParams

# Parts of a run with parameters of their own: the share of the budget where each ends.
Schedule = list[tuple[float, dict[str, Any]]]
EPISODES = 5  # per evaluation, the zoo's default
NETWORKS = {"tiny": [64], "small": [64, 64], "medium": [256, 256]}


def ppo_arguments(params: dict[str, Any]) -> dict[str, Any]:
    """Translate the names of the zoo's space into arguments of SB3's PPO."""
    given = dict(params)
    network = NETWORKS[given.pop("net_arch")]
    activation = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[given.pop("activation_fn")]
    return {
        "n_steps": 2 ** given.pop("n_steps_pow"),
        "batch_size": 2 ** given.pop("batch_size_pow"),
        "gamma": 1.0 - given.pop("one_minus_gamma"),
        "gae_lambda": 1.0 - given.pop("one_minus_gae_lambda"),
        "policy_kwargs": {"net_arch": {"pi": network, "vf": network}, "activation_fn": activation},
        **given,
    }


class Trainer:
    """One run of SB3's PPO on a task."""

    def __init__(self, name: str, steps: int, seed: int) -> None:
        self.name, self.steps, self.seed = name, steps, seed
        self.task = TASKS[name]
        self.env, self.view = self._make_env()
        self.model: PPO | None = None
        self.params: dict[str, Any] = {}

    def _make_env(self) -> tuple[Any, Callable[[Tensor], Any]]:
        """Return the environments, and what the policy sees of an observation."""
        task = self.task
        if task.gym:
            return make_vec_env(task.gym, task.envs, seed=self.seed), lambda obs: obs.numpy()
        if self.name == "planted":
            windows = [market_window("training")]
            rows = CryptoEnv(market(), [EnvParams()], [windows], task.envs)
            scale = observation_normaliser(market(), windows, 1, 1)
        else:
            rows, _ = games_env(self.name, max(1, task.envs // 4))
            scale = torch.zeros(rows.state_dim), torch.ones(rows.state_dim)
        rows.reset([self.seed])
        env = SB3Env(rows, *scale)
        return env, env._array

    def continue_to(self, share: float, params: dict[str, Any]) -> None:
        """Train to a share of the budget. Changed parameters keep the weights."""
        if self.model is None or params != self.params:
            before, self.params = self.model, params
            arguments = ppo_arguments(params)
            self.model = PPO("MlpPolicy", self.env, seed=self.seed, device="cpu", **arguments)
            if before is not None:
                self.model.set_parameters(before.get_parameters())
                self.model.num_timesteps = before.num_timesteps
        while (missing := round(share * self.steps) - self.model.num_timesteps) > 0:
            self.model.learn(missing, reset_num_timesteps=False)

    def follow(self, schedule: Schedule) -> None:
        """Train a whole run, with the last parameters of a schedule from its end on."""
        for share, params in [*schedule, (1.0, schedule[-1][1])]:
            self.continue_to(share, params)

    def save(self, folder: Path) -> None:
        """Write weights, optimizer and the number of steps."""
        assert self.model is not None
        self.model.save(folder / "model.zip")
        (folder / "steps").write_text(str(self.model.num_timesteps))

    def load(self, folder: Path, params: dict[str, Any]) -> None:
        """Continue from a folder that `save` wrote, with the parameters of that time."""
        self.continue_to(0.0, params)
        assert self.model is not None
        self.model.set_parameters(str(folder / "model.zip"))
        self.model.num_timesteps = int((folder / "steps").read_text())

    def act(self, obs: Tensor) -> Tensor:
        """Return deterministic actions; of a Gymnasium task scaled to [-1, 1]."""
        assert self.model is not None
        actions, _ = self.model.predict(self.view(obs), deterministic=True)
        if self.task.gym and hasattr(self.env.action_space, "high"):
            actions = actions / self.env.action_space.high
        return torch.from_numpy(actions)

    def score(self, games: int, seed: int, part: str = "holdout") -> float:
        """Return the policy's score."""
        return score_of(self.name, self.act, games, seed, part=part)

    def value(self) -> float:
        """Return what the search selects by."""
        return self.score(EPISODES, 10_000 + self.seed, "validation")


class History:
    """Results of a search, one line of JSON each."""

    def __init__(self, path: Path, began: float) -> None:
        self.path, self.began = path, began

    def add(self, value: float, schedule: Schedule, trial: int | str) -> None:
        """Append a trial's latest result. One write per line: processes share the file."""
        seconds = time.time() - self.began
        line = {"seconds": seconds, "trial": trial, "value": value, "schedule": schedule}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
