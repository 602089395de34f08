"""An Optuna search of Stable-Baselines3's PPO as a user would write it, for `search_vs_sb3.py`.

TPE and the median pruner, with the defaults of both; a trial reports the mean return of some
episodes after each part of its steps. Observations and rewards are normalised by `VecNormalize`.
Several processes may share the study. The models of complete trials are saved.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import optuna
import torch
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import MaxTrialsCallback
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization

NAME = "search"


def train(trial: optuna.Trial, args: argparse.Namespace) -> float:
    """Train and save a model; returns the mean return of its last evaluation."""
    gamma = 1.0 - trial.suggest_float("one_minus_gamma", 2e-3, 0.02, log=True)
    envs = VecNormalize(make_vec_env(args.env, args.envs, seed=trial.number), gamma=gamma)
    tests = VecNormalize(
        make_vec_env(args.env, args.episodes, seed=10_000 + trial.number),
        training=False,
        norm_reward=False,
    )
    width = trial.suggest_categorical("net_width", [64, 128])
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=args.horizon,
        gamma=gamma,
        batch_size=trial.suggest_categorical("minibatch", [64, 256]),
        n_epochs=trial.suggest_categorical("epochs", [4, 8]),
        learning_rate=trial.suggest_float("learning_rate", 2e-4, 2e-3, log=True),
        gae_lambda=trial.suggest_float("gae_lambda", 0.9, 1.0),
        clip_range=trial.suggest_float("clip", 0.1, 0.3),
        ent_coef=trial.suggest_float("entropy_coef", 1e-4, 0.03, log=True),
        vf_coef=trial.suggest_float("value_coef", 0.25, 1.0),
        policy_kwargs={"net_arch": [width, width]},
        seed=trial.number,
        device="cpu",
    )
    value = 0.0
    for rung in range(1, args.rungs + 1):
        model.learn(args.steps // args.rungs, reset_num_timesteps=False)
        sync_envs_normalization(envs, tests)
        returns, _ = evaluate_policy(model, tests, args.episodes, return_episode_rewards=True)
        value = sum(returns) / len(returns)
        trial.report(value, rung)
        if rung < args.rungs and trial.should_prune():
            raise optuna.TrialPruned
    model.save(args.folder / f"{trial.number}.zip")
    envs.save(str(args.folder / f"{trial.number}.pkl"))
    return value


def search(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", required=True, help="id of Gymnasium")
    for name in ("envs", "horizon", "steps", "rungs", "episodes", "trials", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="of the journal and models")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    study = optuna.create_study(
        study_name=NAME,
        storage=JournalStorage(JournalFileBackend(str(args.folder / "journal"))),
        sampler=optuna.samplers.TPESampler(seed=args.seed),
        pruner=optuna.pruners.MedianPruner(),
        direction="maximize",
        load_if_exists=True,
    )
    total = MaxTrialsCallback(args.trials, states=None)
    study.optimize(lambda trial: train(trial, args), callbacks=[total])


if __name__ == "__main__":
    search()
