"""The action of `sweepd run CONFIG`: a study whose one trial has the file's parameters."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from sweepd.envs.crypto.data.demo_market import DEMO_BARS
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.logs import LogConsole
from sweepd.optimize.cli.demo import make_demo_data
from sweepd.optimize.cli.hooks import Hooks
from sweepd.optimize.cli.run_config import read_config
from sweepd.optimize.cli.train import open_requested
from sweepd.optimize.objectives.members.weights import weights_file
from sweepd.optimize.study.record.database import open_to_read, storage_url, study_exists
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.tracking.tracker import check_trackers
from sweepd.optimize.worker.lifecycle import work
from sweepd.optimize.worker.worker import WorkerOptions


def run(
    path: Path,
    out: Path | None,
    name: str | None,
    start_from: Path | None,
    gpu: str | None,
    track: tuple[str, ...],
    hooks: Hooks,
) -> None:
    """Train the trial of a file, or continue it, and print its results.

    Args:
        path: the TOML file.
        out: folder of the database and the results; None: the file's, else `runs/run-NAME`.
        name: of its study; None: `run-NAME`.
        start_from: a file of weights, or a folder with one; None: the file's, if any.
        gpu: `--gpu`.
        track: `--track`.
        hooks: functions of other packages.

    Raises:
        InputError: the file is invalid, or the folder has a run with other settings.
        RunError: the training diverged.
    """
    if gpu == "all":
        raise InputError("--gpu all is for train; a run uses one GPU")
    check_trackers(track)
    config = read_config(path)
    name = name or config.name
    out, start = config.folder(out), start_from or config.start_from
    console = LogConsole()
    if config.demo:
        make_demo_data(
            out / "data", config.tables["data"]["timeframe"], DEMO_BARS, console.print_line
        )
    space = out / "space.toml"
    settings = config.settings(name, out, space, gpu, track)
    exists = _exists(out, name)
    write_atomic(space, config.space.constants_to_toml())
    study = open_requested(
        settings, config.given(whole=exists), hooks, console, None if exists else _origin(start)
    )
    if exists:
        _check_start(study.handle, start)
    if not work(study.handle, study.trainer, WorkerOptions(1, track=track), console):
        return
    [trial] = study.handle.trials()
    if trial.state != TrialState.COMPLETE:
        reason = TrialRecord.from_attributes(trial.user_attrs).reason
        raise RunError(f"the run failed: {reason}")
    console.print_line(f"results in {study.handle.trial_dir(trial.number)}")


def _exists(out: Path, name: str) -> bool:
    with suppress(
        InputError
    ):  # there is no database yet, or none that can be used, as training says
        return study_exists(open_to_read(storage_url(None, out)), name)
    return False


def _origin(start: Path | None) -> dict[str, Any] | None:
    """Return what a study records of the weights that it starts from."""
    if start is None:
        return None
    path = _weights_in(start) if start.is_dir() else start
    if not path.exists():
        raise InputError(
            f"--start-from {path} does not exist; name a checkpoint, members.safetensors, or a "
            "folder of one"
        )
    return {"study": None, "trial": None, "finished": 0, "weights": weights_file(path)}


def _check_start(handle: StudyHandle, start: Path | None) -> None:
    """Raise InputError if an existing run started from other weights than those asked for now."""
    if start is None:
        return
    recorded = None if handle.origin is None else Path(handle.origin["weights"]["path"])
    if recorded is None or start.resolve() not in (recorded, recorded.parent):
        began = "new networks" if recorded is None else str(recorded)
        raise InputError(
            f"--start-from {start}: this run began with {began} and is continued without that "
            "flag; give another --out for a run of its own"
        )


def _weights_in(folder: Path) -> Path:
    """Return the file of weights in the folder of a trial or bundle."""
    if (folder / "members.safetensors").exists():
        return folder / "members.safetensors"
    # A trial in training: the number of rollouts in the name makes the newest the last one.
    checkpoints = sorted(folder.glob("checkpoint-*.safetensors"))
    if not checkpoints:
        raise InputError(
            f"--start-from {folder}: there is neither a checkpoint nor members.safetensors in it"
        )
    return checkpoints[-1]
