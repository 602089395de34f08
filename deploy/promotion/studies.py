"""Finished studies as promotion reads them from the database, on markets and games alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.artifacts import FileSystemArtifactStore, upload_artifact
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import create_engine, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from sweepd.deploy.registry.bundle_files import MEMBERS_FILE, sha256
from sweepd.envs.crypto.scoring.selection import mean_evaluations
from sweepd.envs.support.database_url import database_url
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.passwords import hide_password
from sweepd.optimize.study.record.configurations import Configuration
from sweepd.optimize.study.record.folder import study_folder
from sweepd.optimize.study.record.fresh import FreshSeeds, read_fresh, run_name
from sweepd.optimize.study.record.stored import (
    SPEC_KEY,
    UID_KEY,
    StudySpec,
    TrialRecord,
    chosen_from,
    is_ours,
)


@dataclass(frozen=True)
class FoundStudy:
    """A study made by sweepd.

    Attributes:
        name: name of the study.
        storage: URL of its database.
        uid: its random id.
        run_dir: folder of its files.
        spec: what it was created with.
        trials: COMPLETE trials of sweepd's workers, those of the best configuration first, and of
            its trials the best first; of equal trials the earliest first.
        finished: number of finished trials in any state.
        runs_dir: folder that --runs-dir must name to find `run_dir`; None where the database
            suffices.
        chosen_from: number of finished trials of other studies that its parameters depend on:
            those among which a training run's trial was chosen, and those of a prior.
        evaluations: of a finished trial, on average.
    """

    name: str
    storage: str
    uid: str
    run_dir: Path
    spec: StudySpec
    trials: tuple[FrozenTrial, ...]
    finished: int
    runs_dir: Path | None
    chosen_from: int = 0
    evaluations: float = 1.0

    @property
    def environment(self) -> str:
        """What it trains on: "crypto", or the name of a game."""
        return self.spec.environment

    def asked(self, trial: int | None) -> list[FrozenTrial]:
        """The complete trials, best first.

        Args:
            trial: return this trial only.

        Raises:
            InputError: that trial is not COMPLETE.
        """
        found = [item for item in self.trials if trial is None or item.number == trial]
        if trial is not None and not found:
            raise InputError(f"--trial {trial} is not a COMPLETE trial of study {self.name!r}")
        return found

    @property
    def why_none_complete(self) -> str:
        """Why there is no complete trial."""
        if not self.finished:
            return "no trial of the study has finished yet"
        return (
            f"none of the study's {self.finished} finished trials is COMPLETE: all were pruned or "
            "failed"
        )


def storage_url(storage: str | None) -> str:
    """The database URL for `--storage`, by default `runs/sweepd.db`; see `database_url`."""
    return database_url(str(Path("runs") / "sweepd.db") if storage is None else storage)


def find_study(name: str | None, storage: str, runs_dir: Path | None = None) -> FoundStudy:
    """Read a study.

    Args:
        name: the study; None is the only study of the storage.
        storage: an SQLAlchemy URL.
        runs_dir: the folder that holds the study's folder, if the user named one (see
            `study_folder`).

    Raises:
        InputError: there is no such storage or study, sweepd did not create it, or the folder with
            the weights of its complete trials is missing.
    """
    name, attributes, trials = _load_study(name, storage)
    if SPEC_KEY not in attributes:
        raise InputError(f"study {name!r} was not made by sweepd train: it has no description")
    try:
        spec = StudySpec.from_json(attributes[SPEC_KEY])
    except InputError as error:
        raise InputError(f"--study-name {name}: {error}") from error
    complete = [
        trial
        for trial in trials
        if trial.state == TrialState.COMPLETE
        and math.isfinite(objective_of(trial))
        and is_ours(trial.user_attrs)
    ]
    folder = study_folder(storage, attributes, runs_dir)
    if complete and not folder.is_dir():
        raise InputError(
            f"study {name!r} has no files: {folder} does not exist; name the folder that holds "
            f"{folder.name}: --runs-dir"
        )
    return FoundStudy(
        name=name,
        storage=storage,
        uid=str(attributes.get(UID_KEY, "")),
        run_dir=folder,
        spec=spec,
        trials=tuple(t for one in spec.selection.configurations(complete) for t in one.trials),
        finished=sum(trial.state.is_finished() for trial in trials),
        chosen_from=chosen_from(attributes),
        evaluations=mean_evaluations(
            [len(trial.intermediate_values) for trial in trials if trial.state.is_finished()]
        ),
        # Printed commands repeat --runs-dir only where the database does not lead to the folder.
        runs_dir=None if folder == study_folder(storage, attributes) else folder.parent,
    )


def fresh_seeds(study: FoundStudy, selected: Configuration) -> FreshSeeds | None:
    """Return the value of a configuration on fresh seeds; None if no training run measured it."""
    for trial in selected.trials:
        try:
            name, attributes, trials = _load_study(
                run_name(study.name, trial.number), study.storage
            )
        except InputError:  # there is no such run
            continue
        found = read_fresh(name, attributes, trials, study.name, study.spec.budget)
        if found is not None:
            return found
    return None


def objective_of(trial: FrozenTrial) -> float:
    """The trial's objective value, NaN if it has none; those of `FoundStudy.trials` are finite."""
    return math.nan if trial.value is None else float(trial.value)


def _load_study(
    name: str | None, storage: str
) -> tuple[str, Mapping[str, Any], Sequence[FrozenTrial]]:
    """Name, attributes and trials of a study in the database; raises like `find_study`."""
    shown = hide_password(storage)
    url = _existing_database(storage)
    engine: dict[str, Any] = (
        {"connect_args": {"timeout": 60.0}} if url.get_backend_name() == "sqlite" else {}
    )
    try:
        # RDBStorage creates missing tables, but the database of another program must stay as it is.
        if not inspect(create_engine(url)).has_table("studies"):
            raise InputError(f"--storage {shown} is not a database of studies")
        database = optuna.storages.RDBStorage(storage, engine_kwargs=engine)
        names = sorted(optuna.get_all_study_names(database))
        if name is None and len(names) == 1:
            name = names[0]
        if name is None or name not in names:
            asked = f"--study-name {name!r} is not in" if name else "name a study of"
            raise InputError(f"{asked} {shown}; there are: {', '.join(names[:8]) or 'none'}")
        study = optuna.load_study(study_name=name, storage=database)
        return name, study.user_attrs, study.get_trials(deepcopy=False)
    except (
        SQLAlchemyError,
        optuna.exceptions.StorageInternalError,
        RuntimeError,
        ImportError,
    ) as error:
        raise InputError(
            f"--storage {shown} cannot be used ({str(error).splitlines()[0]})"
        ) from error


def _existing_database(storage: str) -> URL:
    """The parsed URL; InputError if it is none, or names an SQLite file that does not exist."""
    shown = hide_password(storage)
    try:
        url = make_url(storage)
    except (ArgumentError, ValueError) as error:  # ValueError: the port is not a number
        raise InputError(
            f"--storage {shown} is not a database URL like sqlite:///runs/sweepd.db"
        ) from error
    if url.get_backend_name() == "sqlite" and (not url.database or not Path(url.database).exists()):
        raise InputError(
            f"--storage {shown} does not exist; name the database of a study, or start one with "
            "sweepd train"
        )
    return url


def scored_weights(record: TrialRecord, run_dir: Path) -> bytes:
    """Return the content of a trial's weights file, checked to be what was scored.

    Args:
        record: record of the trial.
        run_dir: folder of the study.

    Raises:
        InputError: the file was not recorded, cannot be read, or has changed.
    """
    if record.members is None:
        raise InputError(f"the trial did not record its {MEMBERS_FILE}")
    path = run_dir / record.members.path
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"its weights {path} cannot be read: {error.strerror or error}") from error
    if sha256(content) != record.members.sha256:
        raise InputError(
            f"its weights {path} are not the bytes that were scored (their sha256 has changed)"
        )
    return content


def unrecorded(record: TrialRecord, names: Sequence[str]) -> list[str]:
    """A sentence for each of these fields that the trial did not record."""
    return [
        f"the trial did not record its {name}" for name in names if getattr(record, name) is None
    ]


def attach(study: FoundStudy, paths: Sequence[Path]) -> None:
    """Attach the files to the study as artifacts, which optuna-dashboard shows."""
    folder = study.run_dir / "artifacts"
    folder.mkdir(parents=True, exist_ok=True)
    store = FileSystemArtifactStore(str(folder))
    loaded = optuna.load_study(study_name=study.name, storage=study.storage)
    for path in paths:
        upload_artifact(artifact_store=store, file_path=str(path), study_or_trial=loaded)
