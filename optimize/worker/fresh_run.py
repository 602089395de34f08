"""Training the selection of a complete study on fresh seeds, as `sweepd run --trial` does.

The training run is a study with one trial. Several workers that complete a study join the same run:
one trains its trial, the others wait, and take the trial over if that worker dies.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from rich.console import Console

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import counted
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.run import Run
from sweepd.optimize.objectives.table import objective_of
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.fresh import fresh_seeds
from sweepd.optimize.study.recovery.heartbeat import Heartbeat
from sweepd.optimize.study.recovery.registration import leave, register_worker
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.freeze import join_study
from sweepd.optimize.worker.telemetry import Telemetry
from sweepd.optimize.worker.trial_run import RunRequest, open_run
from sweepd.optimize.worker.worker import Outcome, Worker

MEASURING = "measuring"  # state of a worker


def measure_fresh_seeds(worker: Worker, console: Console) -> bool:
    """Train the selected configuration of a complete study on fresh seeds, unless it was before.

    A study that is not on a game of one player, or is itself a training run, is left as it is.

    Args:
        worker: a worker of the study that has finished.
        console: for output.

    Returns:
        False if a signal stopped the training; the next worker of the study continues it.
    """
    handle, seeds = worker.handle, worker.options.fresh_seeds
    best = handle.best()
    if not seeds or best is None or handle.origin is not None:
        return True
    if not objective_of(handle.spec.environment).one_player(
        handle.spec.env, handle.spec.algorithm
    ) or fresh_seeds(handle, best):
        return True
    try:
        run, trainer = _open(worker, best.best_trial.number)
    except InputError as error:  # for example, another run has the name
        worker.telemetry.say(
            f"the selection is not measured on {counted(seeds, 'fresh seed')}: {error}"
        )
        return True
    heartbeat = Heartbeat(handle.storage, worker.name, worker.options.beat_seconds)
    heartbeat.state = MEASURING
    heartbeat.info = {**worker.heartbeat.info, "trials": []}
    with heartbeat:
        return _train(worker, run, trainer, console)


def _open(worker: Worker, trial: int) -> tuple[StudyHandle, Run[Any]]:
    """Create or join the training run of a trial."""
    handle, seeds, say = worker.handle, worker.options.fresh_seeds, worker.telemetry.say
    device, runs_dir = worker.trainer.device, handle.run_dir.parent
    # With a storage of its own, so that the heartbeats of `worker` are not those of the run's trial.
    storage = open_storage(handle.storage.url, create=False)
    request = RunRequest(f"{handle.name}#{trial}", seeds=seeds)
    planned = open_run(storage, request, runs_dir, device, say)
    run = StudyHandle(storage, planned.name, runs_dir)
    settings = Request(
        env=run.spec.environment, threads=torch.get_num_threads(), n_trials=planned.total
    )
    trainer = join_study(run, settings, device, say)
    say(
        f"measuring the selection of {handle.name}, trial {trial}, on {counted(seeds, 'fresh seed')} "
        f"(study {run.name})"
    )
    return run, trainer


def _train(worker: Worker, run: StudyHandle, trainer: Run[Any], console: Console) -> bool:
    telemetry = Telemetry(console, run.name, trainer.device)
    telemetry.total = 1
    telemetry.steps_per_trial = trainer.trial_steps
    # Without a limit: the process must not restart in the middle of closing a study.
    options = dataclasses.replace(worker.options, total=1, max_memory=0)
    name = register_worker(run.storage, run.study_id, alongside=True, say=telemetry.say)
    try:
        inner = Worker(run, trainer, options, telemetry, name, worker.stop)
        return inner.run() is Outcome.DONE
    finally:
        leave(run.storage, name)
