"""The commands about studies that exist: `status`, `watch`, `pause`, `resume` and `enqueue`."""

from __future__ import annotations

from typing import Annotated

import typer

from sweepd.envs.support.loading import loading
from sweepd.envs.support.study_options import RunsDir, Storage
from sweepd.optimize.cli.options import StudyName, Why


def status(
    context: typer.Context,
    study_name: Annotated[
        str | None, typer.Option(help="Name of the study. Default: all studies.")
    ] = None,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON; docs/reference/status.md describes the keys."),
    ] = False,
) -> None:
    """Show studies, their progress and their workers.

    The exit code serves health checks: 0 if every study is done, paused or in progress; 1 if a
    study has trials left but no live worker, or a live worker's last heartbeat is more than two
    minutes old; 2 for wrong input.
    """
    with loading():
        from sweepd.optimize.cli.status import show_status
    if not show_status(study_name, storage, runs_dir, as_json=as_json, hooks=context.obj):
        raise typer.Exit(1)


def watch(
    context: typer.Context,
    study: Annotated[
        str | None, typer.Argument(help="Name of the study. Default: the newest one.")
    ] = None,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON; docs/how_to/watch_a_study.md describes the keys."),
    ] = False,
) -> None:
    """Watch a study in the terminal: its curves, progress, ETA, workers and best trial.

    The view is updated every 2 seconds until Ctrl-C. Output that is not a terminal is printed once.
    It reads the database only, so it works wherever the database can be opened, and costs the
    workers nothing.
    """
    with loading():
        from sweepd.optimize.cli.watch import watch_study
    watch_study(study, storage, runs_dir, once=once, as_json=as_json, hooks=context.obj)


def pause(
    study: StudyName,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait until all workers have paused.")
    ] = 60.0,
    reason: Why = "",
) -> None:
    """Pause a study: its workers checkpoint and requeue their trials, free GPU memory, and wait."""
    with loading():
        from sweepd.optimize.cli.pause import pause
    pause(study, storage, runs_dir, wait, reason)


def resume(
    study: StudyName, storage: Storage = None, runs_dir: RunsDir = None, reason: Why = ""
) -> None:
    """Resume a paused study: its workers continue exactly from the checkpoints."""
    with loading():
        from sweepd.optimize.cli.pause import resume
    resume(study, storage, runs_dir, reason)


def enqueue(
    study: StudyName,
    params: Annotated[
        list[str] | None,
        typer.Argument(help="NAME=VALUE, parameters of the trial; the sampler draws the others."),
    ] = None,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    from_study: Annotated[
        str | None,
        typer.Option(help="Study of the same database whose best trials are tried again."),
    ] = None,
    best: Annotated[
        int, typer.Option(min=1, help="Number of best trials that --from-study takes.")
    ] = 3,
    reason: Why = "",
) -> None:
    """Add a trial with parameters of yours to a study; workers train it before new ones.

    With --from-study, the best trials of another study are added instead (a warm start). They count
    towards --n-trials. Names and ranges are those of the study's search space.
    """
    with loading():
        from sweepd.optimize.cli.studies import enqueue_trial
    enqueue_trial(study, params or [], storage, runs_dir, from_study, best, reason)
