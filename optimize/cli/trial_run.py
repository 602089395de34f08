"""The action of `sweepd run --trial`: train again with the exact parameters of a trial."""

from __future__ import annotations

from pathlib import Path

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.flags import read_flags
from sweepd.envs.support.logs import LogConsole
from sweepd.optimize.cli.hooks import Hooks
from sweepd.optimize.cli.launch import choose_device
from sweepd.optimize.cli.train import open_requested
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.tracking.tracker import check_trackers
from sweepd.optimize.worker.lifecycle import work
from sweepd.optimize.worker.run_report import report_table, run_report, write_run_report
from sweepd.optimize.worker.trial_run import RunRequest, open_run
from sweepd.optimize.worker.worker import WorkerOptions


def run_trial(
    request: RunRequest,
    where: str | None,
    runs_dir: Path | None,
    gpu: str | None,
    jobs: int | None,
    track: tuple[str, ...],
    hooks: Hooks,
) -> None:
    """Create or continue a training run, and report its learning curve.

    Args:
        request: what the run is to be.
        where: `--storage`.
        runs_dir: `--runs-dir`.
        gpu: `--gpu`.
        jobs: `--jobs`.
        track: `--track`.
        hooks: functions of other packages.
    """
    if gpu == "all":
        raise InputError("--gpu all is for train; a run uses one GPU")
    check_trackers(track)
    console = LogConsole()
    storage = open_storage(storage_url(where, runs_dir), create=False)
    planned = open_run(storage, request, runs_dir, choose_device(gpu), console.print_line)
    settings = {"study_name": planned.name, "n_trials": planned.total, "gpu": gpu}
    places = {"storage": where, "runs_dir": runs_dir}
    own = {} if jobs is None else {"jobs": jobs}
    flags, given = read_flags(StudySettings, {**settings, **places, **own}, "run --trial")
    study = open_requested(flags, given, hooks, console)
    if not work(study.handle, study.trainer, WorkerOptions(planned.total, track=track), console):
        return
    found = run_report(study.handle, planned.source, planned.trial)
    console.print(report_table(found))
    write_run_report(study.handle, found)
    console.print_line(f"report: {study.handle.run_dir / 'learning_curves.png'}")
    config = study.handle.run_dir / "train.toml"
    if config.exists():
        console.print_line(f"the run as a config file: {config}")
    console.print_line(f"to ask for promotion: sweepd promote --study-name {planned.name}")
