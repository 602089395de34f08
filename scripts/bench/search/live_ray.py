"""Ray Tune's searches of `live_peers.py`: ASHA, and population-based training.

A trial is a class `Trainable` and actors are reused, as Ray's documentation recommends for
population-based training: a new process per trial, or per exploited one, would import torch again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

from scripts.bench.search.live_trainer import NETWORKS, History, Schedule, Trainer

PARTS = 10  # evaluations of a run
POPULATION = 4  # as in the guide of Ray's documentation; two of them train at a time on 2 cores

# The zoo's ranges. Those that do not change the network or the rollouts may be perturbed.
CHANGING = {
    "one_minus_gamma": tune.loguniform(1e-4, 0.03),
    "one_minus_gae_lambda": tune.loguniform(1e-4, 0.1),
    "learning_rate": tune.loguniform(1e-5, 2e-3),
    "ent_coef": tune.loguniform(1e-8, 0.1),
    "max_grad_norm": tune.uniform(0.3, 2.0),
}
FIXED = {
    "batch_size_pow": tune.randint(2, 11),
    "n_steps_pow": tune.randint(5, 13),
    "clip_range": tune.choice([0.1, 0.2, 0.3, 0.4]),
    "n_epochs": tune.choice([1, 5, 10, 20]),
    "net_arch": tune.choice(sorted(NETWORKS)),
    "activation_fn": tune.choice(["tanh", "relu"]),
}


class RayTrial(tune.Trainable):  # type: ignore[misc, unused-ignore]
    """One trial. An iteration is one part of the run."""

    def setup(self, config: dict[str, Any], **given: Any) -> None:
        """Start a run. given: see `search_ray`."""
        torch.set_num_threads(1)
        self.given = given
        self.history = History(Path(given["out"]), given["began"])
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Start another run in the same process."""
        self.params = dict(new_config)
        self.schedule: Schedule = []
        self.trainer = Trainer(self.given["task"], self.given["steps"], self.given["seed"])
        return True

    def step(self) -> dict[str, Any]:
        """Train one part, and evaluate."""
        share = (len(self.schedule) + 1) / PARTS
        self.trainer.continue_to(share, self.params)
        self.schedule.append((share, self.params))
        value = self.trainer.value()
        self.history.add(value, self.schedule, self.trial_id)
        return {"value": value, "done": len(self.schedule) == PARTS}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write weights, optimizer and schedule."""
        self.trainer.save(Path(checkpoint_dir))
        (Path(checkpoint_dir) / "schedule.json").write_text(json.dumps(self.schedule))

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Continue from a checkpoint, of this trial or of the one that it copies."""
        folder = Path(checkpoint)
        self.schedule = json.loads((folder / "schedule.json").read_text())
        self.trainer.load(folder, self.schedule[-1][1])


def search_ray(args: argparse.Namespace, scheduler: str) -> None:
    """Run trials until the time is up; with PBT, one population after the other."""
    names = ("task", "steps", "seed", "began")
    given = {name: getattr(args, name) for name in names} | {"out": str(args.out)}
    trainable = tune.with_resources(tune.with_parameters(RayTrial, **given), {"cpu": 1})
    ray.init(num_cpus=args.workers, include_dashboard=False, log_to_driver=False)
    population = 0
    while (left := args.began + args.seconds - time.time()) > 1.0:
        random.seed(1_000 * args.seed + population)
        np.random.seed(1_000 * args.seed + population)
        chosen = (
            ASHAScheduler(max_t=PARTS)
            if scheduler == "asha"
            else PopulationBasedTraining(
                time_attr="training_iteration",
                perturbation_interval=1,
                hyperparam_mutations=CHANGING,
            )
        )
        with tempfile.TemporaryDirectory() as folder:
            found = tune.Tuner(
                trainable,
                param_space={**CHANGING, **FIXED},
                tune_config=tune.TuneConfig(
                    metric="value",
                    mode="max",
                    scheduler=chosen,
                    num_samples=-1 if scheduler == "asha" else POPULATION,
                    time_budget_s=left,
                    reuse_actors=True,
                ),
                run_config=tune.RunConfig(storage_path=folder, verbose=0),
            ).fit()
        if found.num_errors:
            print(f"{found.num_errors} trials failed: {found.errors[0]}", file=sys.stderr)
        population += 1
    ray.shutdown()
