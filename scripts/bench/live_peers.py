"""Searches of other projects, each in a process of its own, started by `search_live.py`.

    zoo       rl-baselines3-zoo's PPO space, with its TPE, median pruner and numbers of evaluations,
              in as many processes as there are cores
    asha, pbt Ray Tune's schedulers with the trainer and the ranges of `zoo`, one core a trial

All train Stable-Baselines3's PPO. `search` writes a line of JSON per result: seconds since the
start, the value by which the search selects, and the schedule of parameters. `score` trains a
schedule on fresh seeds and prints the scores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from live_tasks import TASKS, games_env, market, market_window, score_of
from sb3_env import SB3Env
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from torch import Tensor

from envs.crypto.env import CryptoEnv
from envs.crypto.market import observation_normaliser
from envs.crypto.params import EnvParams

# Parts of a run with parameters of their own: the share of the budget where each ends.
Schedule = list[tuple[float, dict[str, Any]]]
EPISODES = 5  # per evaluation, the zoo's default
STARTUP_TRIALS = 10  # the zoo's default
PARTS = 10  # evaluations of a run with Ray Tune
POPULATION = 8
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

    def add(self, value: float, schedule: Schedule) -> None:
        """Append a result. One write per line, so that processes may share the file."""
        line = {"seconds": time.time() - self.began, "value": value, "schedule": schedule}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def zoo_worker(args: argparse.Namespace, began: float, database: str, worker: int) -> None:
    """Run trials of a study until the time is up."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from rl_zoo3.hyperparams_opt import sample_ppo_params

    torch.set_num_threads(1)
    history = History(args.out, began)
    looks = max(1, args.steps // 100_000)  # as the zoo
    study = optuna.create_study(
        study_name="zoo",
        storage=JournalStorage(JournalFileBackend(database)),
        sampler=optuna.samplers.TPESampler(
            n_startup_trials=STARTUP_TRIALS, seed=1_000 * args.seed + worker, multivariate=True
        ),
        pruner=optuna.pruners.MedianPruner(
            n_startup_trials=STARTUP_TRIALS, n_warmup_steps=looks // 3
        ),
        direction="maximize",
        load_if_exists=True,
    )

    def objective(trial: optuna.Trial) -> float:
        sample_ppo_params(trial, 1, TASKS[args.task].envs, {})
        trainer, value = Trainer(args.task, args.steps, args.seed + trial.number), 0.0
        for look in range(1, looks + 1):
            trainer.continue_to(look / looks, trial.params)
            value = trainer.value()
            trial.report(value, look)
            if look < looks and trial.should_prune():
                raise optuna.TrialPruned
        history.add(value, [(1.0, trial.params)])
        return value

    # A run that diverges is a failed trial, as in the zoo.
    study.optimize(objective, timeout=args.seconds, catch=(AssertionError, ValueError))


def search_zoo(args: argparse.Namespace, began: float) -> None:
    """Run one worker per core."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        database = str(Path(folder) / "journal")
        workers = [
            context.Process(target=zoo_worker, args=(args, began, database, worker))
            for worker in range(args.workers)
        ]
        for process in workers:
            process.start()
        for process in workers:
            process.join(max(0.0, began + args.seconds - time.time()))
        failed = [process.exitcode for process in workers if process.exitcode]
        for process in workers:
            process.terminate()
            process.join()
    if failed:
        sys.exit("a worker of the zoo's search failed: its message is above")


def ray_trial(
    config: dict[str, Any], task: str, steps: int, seed: int, out: str, began: float
) -> None:
    """Train one trial of Ray Tune, from its checkpoint if it has one."""
    from ray import tune

    torch.set_num_threads(1)
    trainer, done, schedule = Trainer(task, steps, seed), 0, []
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            schedule = json.loads((Path(folder) / "schedule.json").read_text())
            done = len(schedule)
            trainer.continue_to(0.0, schedule[-1][1])
            trainer.model.set_parameters(str(Path(folder) / "model.zip"))
            trainer.model.num_timesteps = round(done / PARTS * steps)
    for part in range(done + 1, PARTS + 1):
        trainer.continue_to(part / PARTS, config)
        schedule.append((part / PARTS, config))
        value = trainer.value()
        if part == PARTS:
            History(Path(out), began).add(value, schedule)
        with tempfile.TemporaryDirectory() as folder:
            trainer.model.save(Path(folder) / "model.zip")
            (Path(folder) / "schedule.json").write_text(json.dumps(schedule))
            tune.report({"value": value}, checkpoint=tune.Checkpoint.from_directory(folder))


def search_ray(args: argparse.Namespace, began: float, scheduler: str) -> None:
    """Run trials until the time is up; with PBT, one population after the other."""
    import random

    import numpy as np
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

    # The zoo's ranges. Those that do not change the network or the rollouts may be perturbed.
    changing = {
        "one_minus_gamma": tune.loguniform(1e-4, 0.03),
        "one_minus_gae_lambda": tune.loguniform(1e-4, 0.1),
        "learning_rate": tune.loguniform(1e-5, 2e-3),
        "ent_coef": tune.loguniform(1e-8, 0.1),
        "max_grad_norm": tune.uniform(0.3, 2.0),
    }
    fixed = {
        "batch_size_pow": tune.randint(2, 11),
        "n_steps_pow": tune.randint(5, 13),
        "clip_range": tune.choice([0.1, 0.2, 0.3, 0.4]),
        "n_epochs": tune.choice([1, 5, 10, 20]),
        "net_arch": tune.choice(sorted(NETWORKS)),
        "activation_fn": tune.choice(["tanh", "relu"]),
    }
    given = {"task": args.task, "steps": args.steps, "seed": args.seed, "out": str(args.out)}
    trainable = tune.with_resources(partial(ray_trial, **given, began=began), {"cpu": 1})
    ray.init(num_cpus=args.workers, include_dashboard=False, log_to_driver=False)
    population = 0
    while (left := began + args.seconds - time.time()) > 1.0:
        random.seed(1_000 * args.seed + population)
        np.random.seed(1_000 * args.seed + population)
        chosen = (
            ASHAScheduler(max_t=PARTS)
            if scheduler == "asha"
            else PopulationBasedTraining(
                time_attr="training_iteration",
                perturbation_interval=1,
                hyperparam_mutations=changing,
            )
        )
        with tempfile.TemporaryDirectory() as folder:
            found = tune.Tuner(
                trainable,
                param_space={**changing, **fixed},
                tune_config=tune.TuneConfig(
                    metric="value",
                    mode="max",
                    scheduler=chosen,
                    num_samples=-1 if scheduler == "asha" else POPULATION,
                    time_budget_s=left,
                    reuse_actors=False,
                ),
                run_config=tune.RunConfig(storage_path=folder, verbose=0),
            ).fit()
        if found.num_errors:
            print(f"{found.num_errors} trials failed: {found.errors[0]}", file=sys.stderr)
        population += 1
    ray.shutdown()


SEARCHES: dict[str, Callable[[argparse.Namespace, float], None]] = {
    "zoo": search_zoo,
    "asha": partial(search_ray, scheduler="asha"),
    "pbt": partial(search_ray, scheduler="pbt"),
}


def scores(args: argparse.Namespace) -> list[float]:
    """Train a schedule once per fresh seed. A run that diverges has the score NaN."""
    found, schedule = [], json.loads(args.schedule)
    for seed in args.fresh:
        trainer = Trainer(args.task, args.steps, seed)
        try:
            for share, params in schedule:
                trainer.continue_to(share, params)
            found.append(trainer.score(args.games, 0))
        except (AssertionError, ValueError):
            found.append(float("nan"))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["search", "score"])
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--search", choices=SEARCHES, default="zoo")
    parser.add_argument("--steps", type=int, required=True, help="of one full run")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the search")
    parser.add_argument("--seed", type=int, default=0, help="of the search")
    parser.add_argument("--workers", type=int, default=2, help="processes of the search")
    parser.add_argument("--out", type=Path, help="JSON lines of the search")
    parser.add_argument("--schedule", default="[]", help="to score, as JSON")
    parser.add_argument("--fresh", type=int, nargs="+", default=[0], help="seeds to score with")
    parser.add_argument("--games", type=int, default=100, help="episodes to score with")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.part == "search":
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        SEARCHES[args.search](args, time.time())
        if not args.out.exists():
            sys.exit(f"{args.search} finished no run in {args.seconds:g} s")
    else:
        print(json.dumps(scores(args)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
