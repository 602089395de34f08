"""The life of a worker process: register, train, measure, summarize, close the study, leave.

The selection of a complete study is measured on fresh seeds by a training run, as by `sweepd run
--trial`, which is a study with one trial. Several workers that complete a study join the same run:
one trains its trial, the others wait, and take the trial over if that worker dies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from rich.console import Console

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import counted
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.run import Run
from sweepd.optimize.objectives.table import objective_of
from sweepd.optimize.study.database.gone import StudyGone
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.fresh import fresh_seeds
from sweepd.optimize.study.record.keys import EVALUATE_KEY, TOTAL_KEY
from sweepd.optimize.study.recovery.heartbeat import Heartbeat
from sweepd.optimize.study.recovery.registration import claim_closing, leave, register_worker
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.callbacks import Tell, silent
from sweepd.optimize.worker.freeze import join_study
from sweepd.optimize.worker.stopping import Life, StopRequest, restart
from sweepd.optimize.worker.summary import print_summary
from sweepd.optimize.worker.telemetry import Telemetry
from sweepd.optimize.worker.trial_run import RunRequest, open_run
from sweepd.optimize.worker.worker import OnNewBest, Outcome, Worker, WorkerOptions

AfterStudy = Callable[[StudyHandle, Console], None]
CLOSING_SECONDS = 3600.0  # the longest promotion without a sign of life


def work(
    handle: StudyHandle,
    trainer: Run[Any],
    options: WorkerOptions,
    console: Console,
    after_study: AfterStudy | None = None,
    on_new_best: OnNewBest | None = None,
    tell: Tell = silent,
) -> bool:
    """Work on a study until it is complete, and print a summary.

    Args:
        handle: the study.
        trainer: trains its trials.
        options: see `WorkerOptions`.
        console: for output.
        after_study: called by exactly one worker when the study is complete.
        on_new_best: called between batches when the study has a new best trial.
        tell: calls the callbacks of `sweepd.optimize.worker.callbacks`.

    Returns:
        False if the worker was stopped before the study was complete.

    Raises:
        StudyGone: the study or its database was deleted.
    """
    try:
        return _work(handle, trainer, options, console, after_study, on_new_best, tell)
    except Exception as error:
        # A deleted study shows in many ways: a missing row, a missing table, a refused reference.
        gone = handle.gone()
        if gone is None:
            raise
        handle.storage.tidy()
        files = f"; its files in {handle.run_dir} are kept" if handle.run_dir.exists() else ""
        raise StudyGone(f"{gone}: this worker stops{files}") from error


def _work(
    handle: StudyHandle,
    trainer: Run[Any],
    options: WorkerOptions,
    console: Console,
    after_study: AfterStudy | None,
    on_new_best: OnNewBest | None,
    tell: Tell,
) -> bool:
    telemetry = Telemetry(console, handle.name, trainer.device)
    telemetry.total = options.total
    telemetry.steps_per_trial = trainer.trial_steps
    stop, life = StopRequest(telemetry.say), Life.present()
    telemetry.recycled = life.recycled
    handle.storage.set_study_user_attr(handle.study_id, TOTAL_KEY, options.total)
    recorded = handle.storage.attributes(handle.study_id).get(EVALUATE_KEY, 0)
    if options.evaluate_every != recorded:
        handle.storage.set_study_user_attr(handle.study_id, EVALUATE_KEY, options.evaluate_every)
    with stop.installed():
        name = register_worker(
            handle.storage,
            handle.study_id,
            alongside=options.alongside,
            say=telemetry.say,
            name=life.worker,  # a restarted process keeps its name
        )
        try:
            worker = Worker(handle, trainer, options, telemetry, name, stop, on_new_best, tell)
            outcome = _run(worker, life)
            if outcome is Outcome.DONE and not measure_fresh_seeds(worker, console):
                outcome = Outcome.STOPPED
        except BaseException:
            leave(handle.storage, name)
            raise
    try:
        if outcome is not Outcome.DONE:
            worker.activity.supervisor.stopping("stopped by a signal")
            console.print(
                f"stopped by a signal; {_describe_counts(handle)}. Run the same command to "
                "continue.",
                highlight=False,
                soft_wrap=True,
            )
            return False
        print_summary(handle, console, telemetry, worker.batches, worker.phases)
        worker.activity.supervisor.expect_silence(CLOSING_SECONDS)
        closes = after_study is not None or trainer.has_report
        if closes and claim_closing(handle.storage, handle.study_id, name):
            # Without heartbeats, a worker in another container would claim the closing as well.
            heartbeat = Heartbeat(handle.storage, name, options.beat_seconds)
            heartbeat.info = worker.heartbeat.info
            with heartbeat:
                if trainer.has_report:
                    found = trainer.close_study()
                    console.print(found, highlight=False, markup=False, soft_wrap=True)
                if after_study is not None:
                    after_study(handle, console)
        return True
    finally:
        leave(handle.storage, name)


def _run(worker: Worker, life: Life) -> Outcome:
    """Run the loop; if memory exceeded its limit, replace this process and never return."""
    say = worker.telemetry.say
    say(worker.trainer.placement(), "worker.started")
    if life.recycled:
        say(
            f"process restarted to free memory; restarts so far: {life.recycled}",
            "worker.restarted",
        )
    outcome = worker.run()
    if outcome is Outcome.RECYCLE and not worker.stop():
        worker.activity.supervisor.starting_again("restarting to free memory")
        worker.handle.storage.engine.dispose()
        restart(Life(life.recycled + 1, worker.name))
    return outcome


def _describe_counts(handle: StudyHandle) -> str:
    counts = handle.counts()
    return (
        f"{counts['WAITING']} trials waiting, {counts['RUNNING']} running elsewhere, "
        f"{counts['COMPLETE']} complete, {counts['PRUNED']} pruned, {counts['FAIL']} failed"
    )


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
    settings = Request(env=run.spec.environment, n_trials=planned.total, **worker.trainer.machine)
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
