"""Runs of Stable-Baselines3 for `learning_vs_sb3.py`, one seed at a time."""

from __future__ import annotations

import copy
import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from scripts.bench.harness import machine
from scripts.bench.quality.sb3_rows import Row
from scripts.bench.sb3_env import SB3Env
from sweepd.deploy.export.sb3_terms import CLASSES
from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.games.registry import get_game

FIRST_EPISODE = 1_000_000  # seeds of evaluations, far from those of training


def train(row: Row, seed: int, looks: int, episodes: int) -> dict[str, Any]:
    """Train one seed and judge it.

    Args:
        row: what is trained.
        seed: of the run. It plays episodes of its own.
        looks: evaluations: at equal parts of the steps with one episode, at the end with all.
        episodes: of the evaluation at the end.

    Returns:
        steps; scores, the mean return of an episode at the end by kind of play; curve, a list of
        steps and mean return; processor seconds of the training; machine.
    """
    torch.set_num_threads(1)
    envs, seats = _make(row, row.peer.envs, seed)
    one, _ = _make(row, 1, seed)
    all_, _ = _make(row, episodes, seed)
    if row.peer.normalize:
        envs = VecNormalize(envs, gamma=row.peer.args.get("gamma", 0.99))
    kind = getattr(stable_baselines3, CLASSES[row.algorithm])
    model = kind("MlpPolicy", envs, seed=seed, device="cpu", **_arguments(row))
    # On-policy, the last rollout that does not fit is left out; a run has at least one.
    rollout = envs.num_envs * getattr(model, "n_steps", 1)
    steps = max(1, row.steps * seats // rollout) * rollout
    curve: list[tuple[int, float]] = []
    looking = 0.0

    def score(tests: VecEnv, *, sampled: bool = False) -> float:
        def act(obs: np.ndarray) -> np.ndarray:
            seen = envs.normalize_obs(obs) if isinstance(envs, VecNormalize) else obs
            return np.asarray(model.predict(seen, deterministic=not sampled)[0])

        tests.seed(FIRST_EPISODE + 1_000 * seed)
        return _play(tests, act, seats)

    class Look(BaseCallback):
        """Evaluates at regular intervals within one run, so that schedules span the whole run."""

        def _on_rollout_start(self) -> None:  # after the updates of the one before
            nonlocal looking
            if steps * (len(curve) + 1) / looks <= self.num_timesteps < steps:
                began = time.process_time()
                curve.append((self.num_timesteps // seats, score(one)))
                looking += time.process_time() - began

        def _on_step(self) -> bool:
            return True

    began = time.process_time()
    model.learn(steps, callback=Look())
    seconds = time.process_time() - began - looking
    scores = {"deterministic": score(all_)}
    if row.sampled:
        scores["sampled"] = score(all_, sampled=True)
    done = model.num_timesteps // seats
    curve.append((done, scores["deterministic"]))
    return {
        "steps": done,
        "scores": scores,
        "curve": curve,
        "seconds": seconds,
        "machine": machine(),
    }


def _make(row: Row, games: int, seed: int) -> tuple[VecEnv, int]:
    """Return environments, and the rows of a game, which are adjacent: its agents."""
    if row.environment.startswith("gym:"):
        return make_vec_env(row.environment.removeprefix("gym:"), games, seed=seed), 1
    if not row.environment.startswith("pettingzoo:"):
        return make_vec_env(_find(row.environment), games, seed=seed), 1
    game = get_game(row.environment)
    env = game.make([game.params()], games, together=1, device="cpu")
    return _Agents(env, seed), game.seats(game.params())


class _Agents(SB3Env):
    """An environment of several agents, each of which is a row: one policy for all."""

    def __init__(self, env: GameEnv, seed: int) -> None:
        self._start = seed
        super().__init__(env, torch.zeros(env.state_dim), torch.ones(env.state_dim))

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        self._start = self._start if seed is None else seed
        return super().seed(seed)

    def reset(self) -> np.ndarray:
        self.env.reset([self._start])
        return super().reset()


def _find(name: str) -> Any:
    """Return MODULE:NAME."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _arguments(row: Row) -> dict[str, Any]:
    """Return the arguments of the peer's class."""
    args = copy.deepcopy(dict(row.peer.args))  # Stable-Baselines3 modifies them
    for name, value in args.items():
        if isinstance(value, str) and value.startswith("lin_"):
            args[name] = _linear(float(value.removeprefix("lin_")))
    activation = args.get("policy_kwargs", {}).get("activation_fn")
    if activation is not None:
        args["policy_kwargs"]["activation_fn"] = getattr(torch.nn, activation)
    return args


def _linear(first: float) -> Callable[[float], float]:
    return lambda left: left * first


def _play(envs: VecEnv, act: Callable[[np.ndarray], np.ndarray], seats: int) -> float:
    """Return the mean return of the first episode of every game.

    Args:
        envs: the games.
        act: returns actions for observations.
        seats: rows of a game. Its return is the sum over them.
    """
    obs: Any = envs.reset()
    total, alive = np.zeros(envs.num_envs), np.ones(envs.num_envs, dtype=bool)
    while alive.any():
        obs, reward, done, _ = envs.step(act(obs))
        total += np.where(alive, reward, 0.0)
        alive &= ~done
    return float(total.reshape(-1, seats).sum(1).mean())
