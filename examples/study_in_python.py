"""Run a study from Python instead of `sweepd train`: 4 trials of PPO on CartPole.

Run it again to join the same study: once it has all its trials, it returns at once.
"""

from pathlib import Path

import torch
from rich.console import Console

from optimize.experiments.request import Request
from optimize.study.database.opening import open_storage, storage_url
from optimize.study.study import StudyHandle, best_trial
from optimize.worker.freeze import open_study
from optimize.worker.lifecycle import work
from optimize.worker.worker import WorkerOptions

# A small budget, so that a study takes seconds.
SMALL = Request(
    environment="cartpole",
    algorithm="ppo",
    search_space="game",
    objective="return",
    budget=4096,  # environment steps per member
    rungs=2,  # evaluations at which a trial may be pruned
    seeds=2,  # members per trial
    episodes=8,  # per member and evaluation
    n_envs=16,
    slots=8,
    threads=1,
)


def search(name: str, request: Request, trials: int, runs_dir: Path = Path("runs")) -> StudyHandle:
    """Create or join the study, train until it has `trials` finished trials, and return it."""
    storage = open_storage(storage_url(None, runs_dir))
    handle, experiment = open_study(
        storage, name, request, torch.device("cpu"), runs_dir, flags={}, say=print
    )
    work(handle, experiment, WorkerOptions(total=trials), Console())
    return handle


def main() -> None:
    """Search CartPole and print the best trial."""
    handle = search("python-cartpole", SMALL, trials=4)
    best = best_trial(handle)
    assert best is not None
    print(f"best trial: {best.number}, mean return {best.value:.1f}, {best.params}")


if __name__ == "__main__":
    main()
