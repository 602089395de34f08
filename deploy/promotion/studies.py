"""Finished studies as promotion reads them from the database, of every kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.artifacts import FileSystemArtifactStore, upload_artifact
from optuna.trial import FrozenTrial

from sweepd.deploy.registry.bundle_files import MEMBERS_FILE, sha256
from sweepd.envs.crypto.scoring.selection import mean_evaluations
from sweepd.envs.support.database_url import remove_password
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import counted
from sweepd.envs.support.passwords import hide_password
from sweepd.optimize.study.record.configurations import first_value, violations
from sweepd.optimize.study.record.database import UNUSABLE, open_to_read, storage_url, unusable
from sweepd.optimize.study.record.reader import StudyReader, judged_trials
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.record.values import broken_words, rule_words


def find_study(name: str | None, storage: str, runs_dir: Path | None = None) -> StudyReader:
    """Open a study.

    Args:
        name: the study; None is the only study of the storage.
        storage: an SQLAlchemy URL.
        runs_dir: the folder that holds the study's folder, if the user named one (see
            `study_folder`).

    Raises:
        InputError: there is no such storage or study, or sweepd did not create it.
    """
    database = open_to_read(storage)
    try:
        if name is None:
            names = sorted(database.study_ids())
            if len(names) != 1:
                raise InputError(
                    f"name a study of {hide_password(storage)}; there are: "
                    f"{', '.join(names[:8]) or 'none'}"
                )
            [name] = names
        study = StudyReader(database, name, runs_dir)
    except UNUSABLE as error:
        raise unusable(storage, error) from error
    return study


class GateStudy(StudyReader):
    """A study as the gate judges it: all decisions are about its trials at one moment.

    Args:
        study: the study, see `find_study`.

    Attributes:
        complete: COMPLETE trials of sweepd's workers that meet the study's constraints, those of the
            best configuration first, and of its trials the best first; of equal trials the earliest
            first. With several values, the trial that the study's rule selects is the first.
        all_complete: the same, and after them the COMPLETE trials that break a constraint.
        frontier_size: number of trials on the frontier of several values; 0 with one value.
        finished: number of finished trials in any state.
        evaluations: of a finished trial, on average.

    Raises:
        InputError: the folder with the weights of its complete trials is missing.
    """

    def __init__(self, study: StudyReader) -> None:
        try:
            super().__init__(study.storage, study.name, study.runs_dir)
            finished = [trial for trial in self.trials() if trial.state.is_finished()]
        except UNUSABLE as error:
            raise unusable(study.storage.url, error) from error
        judged, selection = judged_trials(finished), self.spec.selection
        configurations = selection.configurations(judged)
        self.complete = tuple(trial for one in configurations for trial in one.trials)
        chosen = {trial.number for trial in self.complete}
        self.all_complete = self.complete + tuple(own for own in judged if own.number not in chosen)
        self.frontier_size = len(selection.frontier(configurations)) if self.spec.several else 0
        self.finished = len(finished)
        self.evaluations = mean_evaluations([len(trial.intermediate_values) for trial in finished])
        if self.complete and not self.run_dir.is_dir():
            raise InputError(
                f"study {self.name!r} has no files: {self.run_dir} does not exist; name the folder "
                f"that holds {self.run_dir.name}: --runs-dir"
            )

    def asked(self, trial: int | None) -> list[FrozenTrial]:
        """The complete trials that may be promoted, best first; with several values the selected one.

        Args:
            trial: return this trial only.

        Raises:
            InputError: that trial is not COMPLETE, breaks a constraint of the study, or has no files
                any more.
        """
        if trial is None:
            gone = () if self.thinned is None else self.thinned.trials
            found = [one for one in self.complete if one.number not in gone]
            return found[:1] if self.spec.several else found
        found = [item for item in self.all_complete if item.number == trial]
        if not found:
            raise InputError(f"--trial {trial} is not a COMPLETE trial of study {self.name!r}")
        self.require_files(trial)
        if found[0] not in self.complete:
            raise InputError(
                f"--trial {trial}: {self._refusal(found[0])}; name a trial that meets the "
                f"constraints of study {self.name!r}"
            )
        return found

    def complete_trial(self, number: int) -> FrozenTrial:
        """Return the COMPLETE trial of this number.

        Raises:
            InputError: there is none, or its files were removed.
        """
        for trial in self.all_complete:
            if trial.number == number:
                self.require_files(number)
                return trial
        raise InputError(f"trial {number} is not a COMPLETE trial of study {self.name!r}")

    @staticmethod
    def _refusal(trial: FrozenTrial) -> str:
        """Why a trial is not among those that may be selected."""
        broken = broken_words(violations(trial))
        if broken:
            return f"it does not meet {broken}"
        return "another trial of its configuration does not meet the constraints"

    def choice(self, trials: Sequence[int]) -> dict[str, Any] | None:
        """How a candidate was chosen, as plain data; None in a study with one value.

        Args:
            trials: numbers of its trials, best first.

        Returns:
            `trials`, `by` ("rule" or "user"), `rule` (in words), `selected` (number of the trial
            that the rule selects), `frontier` (number of trials on it), `complete` (number of
            complete trials, from which the frontier is) and `sentence`.
        """
        if not self.spec.several:
            return None
        first = [trial.number for trial in self.complete[: len(trials)]]
        rule = rule_words(self.spec.choose, self.spec.values, self.spec.limits)
        found = {
            "trials": list(trials),
            "by": "rule" if list(trials) == first else "user",
            "rule": rule,
            "selected": self.complete[0].number,
            "frontier": self.frontier_size,
            "complete": len(self.all_complete),
        }
        among = (
            f"{counted(self.frontier_size, 'trial')} on the frontier of "
            f"{counted(len(self.all_complete), 'complete trial')}"
        )
        own = "trial" if len(trials) == 1 else "trials"
        named = f"{own} {', '.join(map(str, trials))}"
        if found["by"] == "rule":
            text = f"{named}: chosen by the study's rule from {among}: {rule}"
        else:
            text = (
                f"{named}: chosen by the user; the study's rule selects trial {first[0]} from "
                f"{among}. Every evaluation of another choice is counted"
            )
        return found | {"sentence": text}

    @property
    def why_none_complete(self) -> str:
        """Why there is no complete trial."""
        if not self.finished:
            return "no trial of the study has finished yet"
        if self.all_complete:
            limits = " and ".join(self.spec.constraints)
            return f"none of the study's {len(self.all_complete)} complete trials meets {limits}"
        return (
            f"none of the study's {self.finished} finished trials is COMPLETE: all were pruned or "
            "failed"
        )


def objective_of(trial: FrozenTrial) -> float:
    """The trial's objective value, NaN if it has none; those of `GateStudy.complete` are finite."""
    value = first_value(trial)
    return math.nan if value is None else value


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


def where_flags(study: StudyReader) -> list[str]:
    """The flags that name the database and the folder of a study, without defaults.

    The password of a database URL is left out: PGPASSWORD or ~/.pgpass supplies it.
    """
    words = []
    if study.storage.url != storage_url(None):
        words += ["--storage", remove_password(study.storage.url)]
    if study.runs_dir is not None:
        words += ["--runs-dir", str(study.runs_dir)]
    return words


def attach(study: StudyReader, paths: Sequence[Path]) -> None:
    """Attach the files to the study as artifacts, which optuna-dashboard shows."""
    folder = study.run_dir / "artifacts"
    folder.mkdir(parents=True, exist_ok=True)
    store = FileSystemArtifactStore(str(folder))
    loaded = optuna.load_study(study_name=study.name, storage=study.storage.url)
    for path in paths:
        upload_artifact(artifact_store=store, file_path=str(path), study_or_trial=loaded)
