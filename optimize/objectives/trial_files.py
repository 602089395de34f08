"""What people look at in a trial's folder: its tables, and pictures, which are drawn when asked for.

A worker draws none: most are never looked at, and one takes longer than everything else that a small
trial writes.
"""

from __future__ import annotations

import json
import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import BinaryIO

import torch
from optuna.artifacts import FileSystemArtifactStore
from optuna.trial import TrialState

from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.artifacts import ARTIFACTS, PREFIX
from sweepd.optimize.objectives.table import objective_of
from sweepd.optimize.study.record.database import open_to_read
from sweepd.optimize.study.record.reader import StudyReader


def trial_files(study: StudyReader, number: int) -> list[Path]:
    """Return the tables and pictures of a complete trial, and draw the pictures that are missing.

    The members of a game with several seats play their league for it, which takes some seconds.

    Raises:
        InputError: there is no complete trial of this number, or its files are not here.
        OSError: a file cannot be written.
        RunError: the players of a league cannot be compared.
    """
    trial = next((one for one in study.trials() if one.number == number), None)
    if trial is None or trial.state != TrialState.COMPLETE:
        raise InputError(f"study {study.name!r} has no complete trial {number}")
    study.require_files(number)
    folder = study.trial_dir(number)
    artifacts = [text for key, text in trial.system_attrs.items() if key.startswith(PREFIX)]
    paths = [folder / _name(text) for text in artifacts if text != "null"]  # as if deleted
    if not all(path.exists() for path in paths):
        title = f"{study.name}, trial {number}"
        try:
            objective_of(study.spec.environment).draw(study.spec, folder, title)
        except FileNotFoundError as error:
            raise InputError(
                f"files of trial {number} are not in {folder}: another machine may have trained it"
            ) from error
    return [path for path in paths if path.exists()]  # others may have uploaded some


class StudyArtifacts(FileSystemArtifactStore):
    """The artifacts of a study for optuna-dashboard: its own, and files of its trials' folders.

    Pictures are drawn in a process of their own, one trial at a time: a game's code, and a crash of
    it, do not reach the dashboard.
    """

    def __init__(self, study: StudyReader) -> None:
        folder = study.run_dir / ARTIFACTS
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(str(folder))
        self._study, self._lock = study, threading.Lock()

    def open_reader(self, artifact_id: str) -> BinaryIO:
        """Open an artifact. Raises ArtifactNotFound."""
        for trial in self._study.trials():
            if text := trial.system_attrs.get(PREFIX + artifact_id):
                path = self._study.trial_dir(trial.number) / _name(text)
                gone = () if self._study.thinned is None else self._study.thinned.trials
                drawable = trial.state == TrialState.COMPLETE and trial.number not in gone
                if not path.exists() and drawable:
                    with self._lock:
                        self._draw(trial.number, path)
                if path.exists():
                    return path.open("rb")
        # Of the study, or uploaded by another program.
        return super().open_reader(artifact_id)

    def _draw(self, number: int, path: Path) -> None:
        if path.exists():  # another request has drawn it
            return
        study, spawning = self._study, multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawning) as process:
            process.submit(_draw, study.storage.url, study.name, study.runs_dir, number).result()


def _draw(url: str, name: str, runs_dir: Path | None, number: int) -> None:
    torch.set_num_threads(1)
    trial_files(StudyReader(open_to_read(url), name, runs_dir), number)


def _name(artifact: str) -> str:
    """Return the file name in the record of an artifact; without folders, as others may write it."""
    return Path(json.loads(artifact)["filename"]).name
