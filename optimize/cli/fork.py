"""The action of `sweepd fork`: continue a trial after a rung with other hyperparameters."""

from __future__ import annotations

from pathlib import Path

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.logs import LogConsole
from sweepd.optimize.cli.hooks import Hooks
from sweepd.optimize.cli.launch import choose_device
from sweepd.optimize.cli.train import train_existing
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.tracking.tracker import check_trackers
from sweepd.optimize.worker.fork import ForkRequest, open_fork


def fork_trial(
    request: ForkRequest,
    where: str | None,
    runs_dir: Path | None,
    gpu: str | None,
    track: tuple[str, ...],
    hooks: Hooks,
) -> None:
    """Create or continue a fork.

    Args:
        request: what the fork is to be.
        where: `--storage`.
        runs_dir: `--runs-dir`.
        gpu: `--gpu`.
        track: `--track`.
        hooks: functions of other packages.
    """
    if gpu == "all":
        raise InputError("--gpu all is for train; a fork uses one GPU")
    check_trackers(track)
    console = LogConsole()
    storage = open_storage(storage_url(where, runs_dir), create=False)
    device = choose_device(gpu)
    name = open_fork(storage, request, runs_dir, device, console.print_line, hooks.load_bundle)
    settings = {"gpu": gpu, "storage": where, "runs_dir": runs_dir}
    if train_existing(name, 1, settings, "fork", track, hooks, console):
        console.print_line(f"to ask for promotion: sweepd promote --study-name {name}")
