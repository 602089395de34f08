"""The action of `sweepd run --trial`: train again with the exact parameters of a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.logs import LogConsole
from sweepd.optimize.cli.hooks import Hooks
from sweepd.optimize.cli.launch import choose_device
from sweepd.optimize.cli.train import train_existing
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.tracking.tracker import check_trackers
from sweepd.optimize.worker.run_report import report_table, run_report, write_run_report
from sweepd.optimize.worker.trial_run import RunRequest, open_run


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
    settings: dict[str, Any] = {"gpu": gpu, "storage": where, "runs_dir": runs_dir}
    settings |= {} if jobs is None else {"jobs": jobs}
    name, total = planned.name, planned.total
    handle = train_existing(name, total, settings, "run --trial", track, hooks, console)
    if handle is None:
        return
    found = run_report(handle, planned.source, planned.trial)
    console.print(report_table(found))
    write_run_report(handle, found)
    console.print_line(f"report: {handle.run_dir / 'learning_curves.png'}")
    config = handle.run_dir / "train.toml"
    if config.exists():
        console.print_line(f"the run as a config file: {config}")
    console.print_line(f"to ask for promotion: sweepd promote --study-name {name}")
