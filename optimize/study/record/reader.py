"""A study, read from its database."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from sweepd.envs.crypto.scoring.selection import TrialReturns
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.configurations import Configuration, leading
from sweepd.optimize.study.record.database import StudyDatabase, require_study
from sweepd.optimize.study.record.folder import study_folder
from sweepd.optimize.study.record.keys import (
    FLAGS_KEY,
    ORIGIN_KEY,
    PRIOR_KEY,
    SPEC_KEY,
    UID_KEY,
    chosen_from,
    is_ours,
)
from sweepd.optimize.study.record.rows import TrialRow, TrialRows, frozen
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.record.thinned import Thinned


class StudyReader:
    """A study in its database: what it is, and its trials at the time of each call.

    Args:
        storage: its database.
        name: its name.
        runs_dir: folder that contains the study's folder, if the user named one (see
            `study_folder`).

    Attributes:
        study_id: its row id.
        uid: its random id.
        spec: what it was created with.
        run_dir: folder of its files.
        runs_dir: folder that --runs-dir must name to find `run_dir`; None where the database
            suffices.
        flags: flags of the command that created it.
        origin: of a training run: the trial that it repeats; of a fork: the trial that it continues;
            None otherwise.
        prior: what it learns from earlier studies; None without.
        chosen_from: number of finished trials of other studies that its parameters depend on.
        thinned: which trials have no files any more; None if all have them.
        rows: its trials, reduced to what plots and tables need.
        returns: of complete trials, cached here by `sweepd.optimize.objectives.outlook`.

    Raises:
        InputError: there is no study of that name, sweepd did not create it, or another version
            did.
    """

    def __init__(self, storage: StudyDatabase, name: str, runs_dir: Path | None = None) -> None:
        self.storage, self.name = storage, name
        self.study_id = require_study(storage, name)
        attributes = storage.attributes(self.study_id)
        if SPEC_KEY not in attributes:
            raise InputError(
                f"--study-name {name!r} is an Optuna study that was not made by sweepd; choose "
                "another name"
            )
        try:
            self.spec = StudySpec.from_json(attributes[SPEC_KEY])
            recorded = study_folder(storage.url, attributes)
            self.run_dir = study_folder(storage.url, attributes, runs_dir)
        except InputError as error:
            raise InputError(f"--study-name {name}: {error}") from error
        self.runs_dir = None if self.run_dir == recorded else self.run_dir.parent
        self.uid = str(attributes[UID_KEY])
        self.flags: dict[str, Any] = attributes.get(FLAGS_KEY, {})
        self.origin: dict[str, Any] | None = attributes.get(ORIGIN_KEY)
        self.prior: dict[str, Any] | None = attributes.get(PRIOR_KEY)
        self.chosen_from = chosen_from(attributes)
        self.thinned = Thinned.of(attributes)
        self.returns = TrialReturns()
        self.rows = TrialRows(storage, self.study_id)
        self._configurations: tuple[list[TrialRow], list[Configuration]] | None = None

    @property
    def fork(self) -> dict[str, Any] | None:
        """What a fork continues, see `sweepd.optimize.worker.fork`; None of other studies."""
        return (self.origin or {}).get("fork")

    @property
    def first_rung(self) -> int:
        """The rung after which its trials begin: 0, and of a fork that of the trial."""
        return 0 if self.fork is None else int(self.fork["rung"])

    @property
    def changes_with(self) -> str:
        """What changes hyperparameters during the training of its trials; "" if nothing does."""
        if self.fork is not None:
            return "sweepd fork"
        schedule = self.spec.evolves or (self.origin or {}).get("schedule")
        return "--search pbt" if schedule else ""

    @functools.cached_property
    def study(self) -> optuna.Study:
        """The study in Optuna, which keeps finished trials in memory."""
        return optuna.load_study(study_name=self.name, storage=self.storage.optuna())

    def trials(self) -> list[FrozenTrial]:
        """Return all trials from the database, ordered by number. Do not modify them."""
        return self.study.get_trials(deepcopy=False)

    def counts(self) -> dict[str, int]:
        """Return the number of trials by state."""
        return count_states(trial.state.name for trial in self.trials())

    def judged(self) -> list[FrozenTrial]:
        """Return the complete trials, without those that another program finished."""
        return judged_trials(self.trials())

    def configurations(self) -> list[Configuration]:
        """Return the configurations that meet the constraints, the best first.

        Trials that another program finished are not considered. The others have what `rows` has of
        them: without times, and of the attributes the blocks of episodes alone.
        """
        rows = self.rows.read()
        # One assignment, so that threads need no lock; at worst, two compute the same.
        kept = self._configurations
        if kept is None or kept[0] is not rows:
            judged = (frozen(row) for row in rows if row.judged)
            kept = self._configurations = rows, self.spec.selection.configurations(judged)
        return kept[1]

    def best(self) -> Configuration | None:
        """Return the configuration that the study selects; None if no trial can be selected.

        Without a race, it consists of the trial with the highest value, the earliest in a tie; with
        several values, of the trial that the study's rule chooses (`Selection.choose`).
        """
        return next(iter(self.configurations()), None)

    def frontier(self) -> list[Configuration]:
        """Return the configurations on the frontier of several values, the chosen one first.

        With one value, they are the best one, and those that are as good.
        """
        return self.spec.selection.frontier(self.configurations())

    def best_trial(self) -> FrozenTrial | None:
        """Return the best trial of `best`; None if no trial is complete."""
        best = self.best()
        return None if best is None else best.best_trial

    def leading(self) -> FrozenTrial | None:
        """Return the leading unfinished trial; None once a trial is complete."""
        return leading(map(frozen, self.rows.read())) if self.best() is None else None

    def require_files(self, number: int) -> None:
        """Raise InputError if the files of a trial were removed by `sweepd studies thin`."""
        if self.thinned is not None and number in self.thinned.trials:
            raise InputError(
                f"{self.thinned.words(self.name)}: the files of trial {number} are gone; sweepd run "
                f"--trial {self.name}#{number} trains with its parameters"
            )

    def trial_dir(self, number: int) -> Path:
        """Return the folder of a trial's files."""
        return self.run_dir / f"trial-{number:05d}"


def judged_trials(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Return the complete ones of a study's trials that sweepd finished; see `is_ours`."""
    return [
        trial
        for trial in trials
        if trial.state == TrialState.COMPLETE
        and trial.values
        and all(map(math.isfinite, trial.values))
        and is_ours(trial.user_attrs)
    ]


def count_states(names: Iterable[str]) -> dict[str, int]:
    """Return how often each state of trials is among the names; every state has an entry."""
    counts = dict.fromkeys((state.name for state in TrialState), 0)
    for name in names:
        counts[name] += 1
    return counts
