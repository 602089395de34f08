"""A study in Python: open it, run it, read its trials, enqueue parameters."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import pandas as pd

from sweepd.envs.external.objects import environment_name, parameter_texts, wrapper_texts
from sweepd.envs.support.database_url import STORAGE_VARIABLE
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.flags import read_flags
from sweepd.envs.support.logs import LogConsole
from sweepd.envs.support.naming import object_name, refuse_while_imported
from sweepd.optimize.cli.hooks import Hooks
from sweepd.optimize.cli.progress import study_progress
from sweepd.optimize.cli.study_request import flags_per_study
from sweepd.optimize.cli.train import RequestedStudy, open_requested
from sweepd.optimize.objectives.command.function import arguments_needed
from sweepd.optimize.objectives.trial_files import trial_files
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.enqueue import enqueue
from sweepd.optimize.study.frame import studies_frame, trials_frame
from sweepd.optimize.study.record.database import StudyDatabase, open_to_read, storage_url
from sweepd.optimize.study.record.programs import PYTHON
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.settings.setting import declared
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.objects import space_text
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.callbacks import teller
from sweepd.optimize.worker.lifecycle import work
from sweepd.optimize.worker.worker import WorkerOptions

# Flags of `sweepd train` that need a process of their own, and what to do instead.
FOR_COMMANDS = {
    "auto_deploy": "call sweepd.promote(study) when the study has run",
    "max_memory": "only `sweepd train` restarts its process to free memory",
}


class Callback:
    """What `Study.run` calls while it trains; subclass it, and override what you need.

    The methods are called in the process of `Study.run`, between two steps of its work, for what
    this worker does; training waits for them. An exception in one is printed with its place, and
    the study goes on.
    """

    def on_trial_begin(self, study: Study, trial: int, params: Mapping[str, Any]) -> None:
        """A trial begins, or goes on after an interruption.

        Args:
            study: the study.
            trial: number of the trial.
            params: its parameters by name.
        """

    def on_rung(self, study: Study, trial: int, rung: int, value: float) -> None:
        """A trial was evaluated at a rung, the last one included; it is not judged yet.

        Args:
            study: the study.
            trial: number of the trial.
            rung: 1 to the study's number of rungs.
            value: its objective there.
        """

    def on_trial_complete(self, study: Study, trial: int, value: float) -> None:
        """A trial is complete, and its files are written.

        Args:
            study: the study.
            trial: number of the trial.
            value: its objective.
        """

    def on_new_best(self, study: Study, trial: int, value: float) -> None:
        """Another trial is the best one, also if another worker has trained it.

        Args:
            study: the study.
            trial: number of the trial.
            value: objective of the study's best configuration.
        """

    def on_study_complete(self, study: Study) -> None:
        """The study has all its trials, and its selection was measured; last call of `Study.run`."""


class Study:
    """An open study: look at it, enqueue parameters, and run it if `create_study` opened it.

    `create_study` and `load_study` make these objects. Every property reads the database, so one
    object follows a study that workers elsewhere are running.

    Attributes:
        name: name of the study.
    """

    def __init__(
        self,
        handle: StudyReader,
        runs_dir: Path | None,
        requested: RequestedStudy | None = None,
        console: LogConsole | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.name = handle.name
        self._handle, self._runs_dir = handle, runs_dir
        self._requested, self._console = requested, console or LogConsole()
        self._callbacks = tuple(callbacks)

    def __repr__(self) -> str:
        counts = self._handle.counts()
        done = ", ".join(f"{number} {state.lower()}" for state, number in counts.items() if number)
        return f"<sweepd.Study {self.name!r}: {self._handle.spec.about}; {done or 'no trials'}>"

    @property
    def storage(self) -> str:
        """URL of the database, as `optuna.load_study` takes it; it may contain a password."""
        return self._handle.storage.url

    @property
    def run_dir(self) -> Path:
        """Folder of the study's files, absolute."""
        return self._handle.run_dir

    @property
    def runs_dir(self) -> Path | None:
        """Folder that contains `run_dir` where the caller named it; None: the recorded one."""
        return self._runs_dir

    @property
    def optuna(self) -> optuna.Study:
        """The same study in Optuna, for its plots and importances. Do not add trials to it."""
        return self._handle.study

    @property
    def best_trial(self) -> int | None:
        """Number of the complete trial with the highest objective; None without one.

        In a race (docs/explanation/search.md), of the best trial of the selected configuration. With several
        values (docs/how_to/values.md), of the trial that the study's rule chooses. A trial that does not
        meet the constraints is never selected.
        """
        best = self._handle.best_trial()
        return None if best is None else best.number

    @property
    def best_trials(self) -> list[int]:
        """Numbers of the trials on the frontier of several values, the selected one first.

        In a study with one value, of its best trial, and of those that are as good.
        """
        return [one.best_trial.number for one in self._handle.frontier()]

    def status(self) -> dict[str, Any]:
        """Return what `sweepd status --json` prints of the study, with its history.

        `docs/reference/status.md` describes the keys; `trials` counts by state, `workers` lists the live
        workers with their speed, `eta_seconds` is the time left in seconds.
        """
        return study_progress(self._handle)

    def trials(self) -> pd.DataFrame:
        """Return one row per trial, with the index `number`.

        Returns:
            The columns `state` (text), `value` (float64, NaN unless complete), `ours` (bool: False
            for a trial that another program finished), `started` and `ended` (local time),
            `seconds`, `steps_per_second`, `seed`, `reason`, `feasible` (of studies with
            constraints); then `values_NAME` (of studies with several values), `params_NAME`,
            `metrics_NAME` and `scores_I`, one per fold or seed. Columns without any value are left
            out.
        """
        return trials_frame(self._handle)

    def trial_dir(self, number: int) -> Path:
        """Return the folder of a trial's files: weights, curves, episodes or paths."""
        return self._handle.trial_dir(number)

    def trial_files(self, number: int) -> list[Path]:
        """Return the tables and pictures of a complete trial; draw the pictures if they are missing.

        `docs/reference/files.md` lists them. They are in `trial_dir`. In a game of several players,
        the trial's league is played for them, which takes some seconds.

        Raises:
            InputError: there is no complete trial of this number, or its files are not here.
        """
        return trial_files(self._handle, number)

    def enqueue(self, params: Mapping[str, Any]) -> int:
        """Add a trial with these parameters, which workers train before they draw new ones.

        It counts towards the study's number of trials.

        Args:
            params: values of some or all parameters of the search space, by name; the sampler
                draws the others.

        Returns:
            The number of the trial.

        Raises:
            InputError: a name is not in the search space, or a value is outside its range.
        """
        # A study that was opened for reading is only now opened for writing.
        handle = (
            StudyHandle(open_storage(self.storage, create=False), self.name)
            if self._requested is None
            else self._requested.handle
        )
        return enqueue(handle.storage, handle.study_id, handle.space, params)

    def run(self, n_trials: int | None = None) -> bool:
        """Train trials in this process until the study has `n_trials` finished ones.

        It is the worker that `sweepd train` is, without promotion: others may work on the study at
        the same time, and a worker of it on this machine is replaced unless `alongside=True` was
        given. Ctrl-C (in a notebook: interrupt) requeues the trials at the end of the rollout; a
        second one ends the process. Progress is printed.

        Args:
            n_trials: total number of complete, pruned and failed trials; None: as when the study
                was opened.

        Returns:
            Whether the study is complete; False if it was interrupted.

        Raises:
            InputError: `load_study` opened the study, for reading.
            RunError: called outside the main thread, which receives the signals.
        """
        if self._requested is None:
            raise InputError(
                f"load_study opens {self.name!r} for reading; "
                f"sweepd.create_study({self.name!r}) joins it, and can run it"
            )
        if threading.current_thread() is not threading.main_thread():
            raise RunError("Study.run must be called in the main thread, which receives Ctrl-C")
        flags = self._requested.flags
        total = flags.n_trials if n_trials is None else n_trials
        declared(StudySettings)["n_trials"].check("n_trials =", total)
        track = tuple(flags.track or ())
        options = WorkerOptions(
            total,
            flags.alongside,
            flags.metrics_port,
            fresh_seeds=flags.fresh_seeds,
            evaluate_every=flags.evaluate_every,
            track=track,
        )
        tell = teller(self._callbacks, self, self._console.print_line)
        handle, trainer = self._requested.handle, self._requested.trainer
        complete = work(handle, trainer, options, self._console, tell=tell)
        if complete:
            tell("on_study_complete")
        return complete


def create_study(name: str | None, settings: Mapping[str, Any], hooks: Hooks) -> Study:
    """Create or join a study; `sweepd.create_study` documents it.

    Args:
        name: `--study-name`.
        settings: other flags of `sweepd train`, by name with _.
        hooks: functions of other packages.
    """
    source = "create_study"
    for flag, instead in FOR_COMMANDS.items():
        if flag in settings:
            raise InputError(f"{source}: {flag} is a flag of `sweepd train`; {instead}")
    refuse_while_imported("sweepd.create_study")
    settings = dict(settings)
    callbacks = tuple(settings.pop("callbacks", None) or ())
    _check_callbacks(callbacks)
    named = _as_flags(settings if name is None else {**settings, "study_name": name})
    flags, given = read_flags(StudySettings, named, source)
    if flags.gpu == "all":
        raise InputError(
            f"{source}: gpu='all' starts a process per GPU, as `sweepd train` does; give one index"
        )
    if len(flags_per_study(flags)) > 1:
        raise InputError(f"{source}: scenario='all' is several studies; create one per scenario")
    console = LogConsole(flags.log_file, flags.log_format)
    requested = open_requested(flags, given, hooks, console)
    runs_dir = flags.runs_dir if "runs_dir" in given else None
    return Study(requested.handle, runs_dir, requested, console, callbacks)


def _check_callbacks(callbacks: Sequence[Any]) -> None:
    """Raise InputError if one of `callbacks` is no `Callback`."""
    for index, one in enumerate(callbacks):
        if not isinstance(one, Callback):
            raise InputError(
                f"callbacks[{index}] = {one!r} is no object of a subclass of sweepd.Callback, with "
                "methods such as on_trial_complete(self, study, trial, value)"
            )


def _as_flags(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings with names and texts in place of Python objects, as flags have them."""
    space = settings.get("search_space")
    if isinstance(space, Mapping) or callable(space):
        settings["search_space"] = space_text(space)
    objective = settings.get("objective")
    if callable(objective):
        name, trains = object_name("objective", objective), arguments_needed(objective) == 1
        if trains and settings.get("env") is not None:
            raise InputError(
                f"objective = {name} is a training function, which makes its own environment; leave "
                "env out, or pass a function of the returns, lengths and infos of episodes"
            )
        own = {"env": f"{PYTHON}:{name}", "objective": None}
        settings |= own if trains else {"objective": name}
    kwargs = settings.pop("env_kwargs", None) or {}
    if not isinstance(kwargs, Mapping):
        raise InputError(f"env_kwargs = {kwargs!r} is not a dict of arguments by name")
    if settings.get("env") is not None:
        settings["env"], kwargs = environment_name(settings["env"], kwargs)
    if isinstance(settings.get("wrappers"), list | tuple):
        settings["wrappers"] = wrapper_texts(settings["wrappers"])
    if kwargs:
        settings["env_param"] = [*(settings.get("env_param") or ()), *parameter_texts(kwargs)]
    return settings


def load_study(name: str, storage: str | None = None, runs_dir: str | Path | None = None) -> Study:
    """Open an existing study for reading, for example one that a worker is running.

    Args:
        name: name of the study.
        storage: its database, as `--storage`: a SQLite file or a URL. Default: the environment
            variable SWEEPD_STORAGE, else `sweepd.db` in `runs_dir`.
        runs_dir: folder of the studies' files. Default: as recorded, or `runs`.

    Raises:
        InputError: there is no such database or study, or sweepd did not make it.
    """
    folder = None if runs_dir is None else Path(runs_dir)
    return Study(StudyReader(_open_to_read(storage, folder), name, folder), folder)


def list_studies(storage: str | None = None, runs_dir: str | Path | None = None) -> pd.DataFrame:
    """Return one row per study of a database, the newest first.

    Args:
        storage: the database, as for `load_study`.
        runs_dir: folder of the studies' files, as for `load_study`.

    Returns:
        The index `study` and the columns environment, algorithm, objective (text), trials, running,
        finished (numbers of trials), total, best_trial, best_value (float64, NaN if there is none),
        created (UTC).

    Raises:
        InputError: there is no such database.
    """
    return studies_frame(_open_to_read(storage, None if runs_dir is None else Path(runs_dir)))


def _open_to_read(storage: str | None, runs_dir: Path | None) -> StudyDatabase:
    where = storage or os.environ.get(STORAGE_VARIABLE)
    return open_to_read(storage_url(where, runs_dir))
