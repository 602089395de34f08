"""What a study left in its database and on disk, for comparing and for waiting."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from sweepd.optimize.cli.reproduce import retrain
from sweepd.optimize.objectives.pace import CheckpointPace
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.database.storage import NOTHING, TrialWrite
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.retrained import Retrained
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.study import StudyHandle, create_study

KEPT = (
    "sweepd:fold_scores",
    "sweepd:seed_scores",
    "sweepd:path_scores",
    "sweepd:metrics",
    "sweepd:env_params",
    "sweepd:ppo_params",
    "sweepd:shape",
    "sweepd:seed",
)


def open_handle(folder: Path, url: str | None = None) -> StudyHandle:
    """The study in the folder's SQLite file; or at this URL, with its files in the folder."""
    runs = folder / "runs"
    # A database server does not tell where the files are, and the tests run in another folder.
    return StudyHandle(
        open_storage(storage_url(url, runs), create=False), "s", runs if url else None
    )


def make_handle(folder: Path, spec: StudySpec) -> StudyHandle:
    """A new study without trials, in the folder's SQLite file."""
    storage = open_storage(storage_url(None, folder / "runs"))
    assert create_study(storage, "s", spec, folder / "runs", {})
    return StudyHandle(storage, "s")


def finish(
    handle: StudyHandle, trial_id: int, *values: float, attributes: Mapping[str, Any] = NOTHING
) -> None:
    """Finish a held trial as COMPLETE with its values and attributes."""
    write = TrialWrite(trial_id, attributes, end=TrialState.COMPLETE, values=values)
    assert not handle.end_all([write])


def numbers(folder: Path, url: str | None = None) -> dict[int, Any]:
    """Everything about every trial that must not depend on how often its worker was interrupted."""
    handle = open_handle(folder, url)
    found = {}
    for trial in handle.trials():
        row: dict[str, Any] = {
            "state": trial.state,
            "values": trial.values,
            "params": trial.params,
            "rungs": trial.intermediate_values,
        }
        row |= {key: trial.user_attrs.get(key) for key in KEPT}
        weights = handle.trial_dir(trial.number) / "members.safetensors"
        row["members"] = weights.read_bytes() if weights.exists() else None
        found[trial.number] = row
    return found


def trained_again(handle: StudyHandle, number: int, folder: Path) -> Retrained:
    """Train a trial as `sweepd reproduce` does, in a folder of its own."""
    places: dict[str, Any] = {
        "storage": str(handle.storage.url),
        "runs_dir": handle.run_dir.parent,
        "data_dir": None,
    }
    found = retrain(handle.name, handle.uid, number, folder, **places, gpu="cpu", threads=1)
    assert found is not None
    return found


def wait_for(condition: Callable[[], object], seconds: float = 90.0) -> None:
    """Return once `condition()` holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.05)


def count(folder: Path, query: str) -> int:
    """A number from the study's database, read without opening it as a study: a worker is at it. 0
    where there is no table yet.
    """
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{folder}/runs/sweepd.db?mode=ro", uri=True)
        ) as connection:
            return int(connection.execute(query).fetchone()[0])
    except sqlite3.Error:
        return 0


def training_begun(folder: Path) -> bool:
    """A trial is being trained: its worker has said so with a heartbeat."""
    return (
        count(
            folder,
            "SELECT count(*) FROM sweepd_workers WHERE state = 'training' AND info LIKE '%trials%'",
        )
        > 0
    )


@contextlib.contextmanager
def killed_at_checkpoint(pattern: str, *, every_rollout: bool = False) -> Iterator[None]:
    """Kill processes started within, as soon as a checkpoint whose path matches is written.

    The pattern begins at the working directory of the process. A test that waits for the file, and
    kills the process then, is too late where training is fast. Checkpoints come at the end of each
    rung, and when the clock says so: never within a rung that ends early. With `every_rollout`, one
    is due after each rollout.
    """
    spent = CheckpointPace.spent

    def then_kill(self: CheckpointPace, seconds: float) -> None:
        spent(self, seconds)
        if any(Path().glob(pattern)):
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointPace, "spent", then_kill)
        if every_rollout:
            patch.setattr(CheckpointPace, "due", lambda _: True)
        yield


def hold(patch: pytest.MonkeyPatch, owner: type, step: str, folder: Path) -> None:
    """Make processes wait before they call this method.

    They create the file `step`.reached, and continue once `step`.go exists.
    """
    real: Callable[..., object] = getattr(owner, step)

    def held(*arguments: object) -> object:
        (folder / f"{step}.reached").touch()
        wait_for((folder / f"{step}.go").exists)
        return real(*arguments)

    patch.setattr(owner, step, held)
