"""The action of `sweepd train`: create or join a study, and work on it."""

from __future__ import annotations

import dataclasses
import faulthandler
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.flags import read_flags
from sweepd.envs.support.logs import LogConsole
from sweepd.optimize.cli.demo import BANNER, apply_preset, demo_bars, make_demo_data
from sweepd.optimize.cli.hooks import Hooks
from sweepd.optimize.cli.launch import choose_device, own_arguments, run_on_all
from sweepd.optimize.cli.study_request import (
    DATA_DIR_MISSING,
    flags_per_study,
    make_request,
    study_name,
)
from sweepd.optimize.objectives.outlook import gate_outlook, sentence
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.run import Run
from sweepd.optimize.objectives.table import check_request, objective_of
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import open_to_read, storage_url, study_exists
from sweepd.optimize.study.record.keys import EVALUATE_KEY, TOTAL_KEY
from sweepd.optimize.study.record.programs import is_command
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.recovery.registration import leave, register_worker
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.tracking.tracker import check_trackers
from sweepd.optimize.worker.freeze import open_study
from sweepd.optimize.worker.lifecycle import work
from sweepd.optimize.worker.stopping import default_limit
from sweepd.optimize.worker.worker import WorkerOptions

GIB = 2**30


def train(flags: StudySettings, given: frozenset[str], hooks: Hooks) -> None:
    """Create or join each requested study and work on it until it is complete or a signal arrives.

    Args:
        flags: all flags of `train`.
        given: names of the flags that were set explicitly.
        hooks: functions of other packages.
    """
    console = LogConsole(flags.log_file, flags.log_format)
    # For crashes outside training; while a worker trains, `deaths.CrashFile` keeps the stacks.
    faulthandler.enable(2)
    try:
        for own in flags_per_study(flags):
            if not _train_study(own, given, hooks, console):
                return
    except (InputError, RunError) as error:
        console.failed(error, expected=True)
        raise
    except Exception as error:
        console.failed(error, expected=False)
        raise


def _train_study(
    flags: StudySettings, given: frozenset[str], hooks: Hooks, console: LogConsole
) -> bool:
    """Work on one study; return False if it was stopped before it was complete."""
    study = open_requested(flags, given, hooks, console)
    flags, handle = study.flags, study.handle
    looks = None if hooks.count_looks is None else hooks.count_looks(handle)
    console.print_line(f"  gate: {sentence(gate_outlook(handle, flags.n_trials), looks)}")
    # With a single GPU, this process is the worker.
    if flags.gpu == "all" and torch.cuda.device_count() > 1:
        _work_on_all_gpus(handle, flags, console.print_line)
        return True
    limit = default_limit() if flags.max_memory is None else round(flags.max_memory * GIB)
    options = WorkerOptions(
        flags.n_trials,
        flags.alongside,
        flags.metrics_port,
        max_memory=limit,
        fresh_seeds=flags.fresh_seeds,
        evaluate_every=flags.evaluate_every,
        track=tuple(flags.track or ()),
    )
    promotion = (hooks.after_study, hooks.on_new_best) if flags.auto_deploy else (None, None)
    return work(handle, study.trainer, options, console, *promotion)


@dataclass(frozen=True)
class RequestedStudy:
    """An open study on which this process can work.

    Attributes:
        flags: the flags, with what presets and the existing study set.
        handle: the study.
        trainer: trains its trials.
    """

    flags: StudySettings
    handle: StudyHandle
    trainer: Run[Any]


def open_requested(
    flags: StudySettings,
    given: frozenset[str],
    hooks: Hooks,
    console: LogConsole,
    origin: Mapping[str, Any] | None = None,
) -> RequestedStudy:
    """Create or join the study of these flags, and describe it.

    Args:
        flags: all flags of `train`, of one study (see `flags_per_study`).
        given: names of the flags that were set explicitly.
        hooks: functions of other packages.
        console: for output.
        origin: of a new study, see `create_study`.

    Raises:
        InputError: a flag is wrong, or the existing study has other settings.
    """
    say = console.print_line
    flags = apply_preset(flags, given)
    check_trackers(flags.track or ())
    if flags.max_memory is not None and not math.isfinite(flags.max_memory):
        raise InputError(
            f"--max-memory {flags.max_memory} must be a number of GiB, or 0 for no limit"
        )
    name = study_name(flags)
    # First, because environment and algorithm decide which other flags are valid.
    flags = _with_recorded(flags, given, name)
    device = choose_device("cpu" if is_command(flags.env) else flags.gpu)
    request = make_request(flags, given, hooks.load_bundle)
    check_request(request)
    _check_fresh_seeds(flags, request)
    if objective_of(flags.env).needs_data and (flags.demo or flags.smoke):
        console.print(BANNER, style="bold yellow")
        make_demo_data(request.data_dir, request.timeframe, demo_bars(flags), say)
    handle, trainer = _open_study(flags, name, request, device, hooks, say, origin)
    _describe(handle, trainer, say)
    return RequestedStudy(flags, handle, trainer)


def train_existing(
    name: str,
    total: int,
    settings: Mapping[str, Any],
    command: str,
    track: tuple[str, ...],
    hooks: Hooks,
    console: LogConsole,
) -> StudyHandle | None:
    """Join a study that a command has created, and train its trials.

    Args:
        name: of the study.
        total: of its trials.
        settings: flags of the command that `train` has, too.
        command: its name, for messages.
        track: `--track`.
        hooks: functions of other packages.
        console: for output.

    Returns:
        The study; None if a signal stopped the training.
    """
    own = {"study_name": name, "n_trials": total, **settings}
    study = open_requested(*read_flags(StudySettings, own, command), hooks, console)
    if not work(study.handle, study.trainer, WorkerOptions(total, track=track), console):
        return None
    return study.handle


def _check_fresh_seeds(flags: StudySettings, request: Request) -> None:
    asked = flags.fresh_seeds and "fresh_seeds" in request.given
    if asked and not objective_of(request.env).one_player(request.env_params, request.algo):
        raise InputError(
            f"--fresh-seeds {flags.fresh_seeds} is for games of one player that are trained, and "
            f"this is --env {request.env} with --algo {request.algo}; leave it out"
        )


def _with_recorded(flags: StudySettings, given: frozenset[str], name: str) -> StudySettings:
    """Use the environment, algorithm and number of trials of an existing study where not given.

    A database that cannot be opened is reported later, when it is opened for training.
    """
    try:
        storage = open_to_read(storage_url(flags.storage, flags.runs_dir))
        handle = StudyReader(storage, name)
    except (InputError, RunError):
        return flags
    kept = storage.attributes(handle.study_id)
    recorded = {
        "n_trials": kept.get(TOTAL_KEY, flags.n_trials),
        "evaluate_every": kept.get(EVALUATE_KEY, flags.evaluate_every),
    }
    if flags.study_name is not None:  # the default name is derived from --env and --algo
        recorded |= {"env": handle.spec.environment, "algo": handle.spec.algorithm}
    return dataclasses.replace(
        flags, **{flag: value for flag, value in recorded.items() if flag not in given}
    )


def _open_study(
    flags: StudySettings,
    name: str,
    request: Request,
    device: torch.device,
    hooks: Hooks,
    say: Callable[[str], None],
    origin: Mapping[str, Any] | None,
) -> tuple[StudyHandle, Run[Any]]:
    storage = open_storage(storage_url(flags.storage, flags.runs_dir))
    if not study_exists(storage, name):
        if objective_of(request.env).needs_data and flags.data_dir is None:
            raise InputError(DATA_DIR_MISSING)
        if not request.search_space:
            found = objective_of(request.env).find_space(say)
            request = dataclasses.replace(request, search_space=found)
        # Otherwise a wrong registry would be noticed when the settings are already fixed.
        if hooks.check_registry is not None:
            hooks.check_registry()
    # Without --storage: its URL may contain a password that readers of the database must not see.
    recorded = {
        flag: str(value) if isinstance(value, Path) else value
        for flag, value in vars(flags).items()
        if flag != "storage"
    }
    # Those that a command for a similar study repeats; a preset's values stand for the preset.
    usual = {**vars(StudySettings()), "demo": flags.demo, "smoke": flags.smoke}
    recorded["given"] = sorted(
        name for name, value in vars(flags).items() if name in recorded and value != usual[name]
    )
    return open_study(storage, name, request, device, flags.runs_dir, recorded, say, origin=origin)


def _describe(handle: StudyHandle, trainer: Run[Any], say: Callable[[str], None]) -> None:
    say(f"study {handle.name} in {handle.run_dir}")
    for line in trainer.describe():
        say(f"  {line}")


def _work_on_all_gpus(
    handle: StudyHandle, flags: StudySettings, say: Callable[[str], None]
) -> None:
    """Register this process as the study's worker, and run one child process per GPU."""
    count = torch.cuda.device_count()
    limit = default_limit(count) / GIB if flags.max_memory is None else flags.max_memory
    own = [own_arguments(gpu, flags.log_file, flags.metrics_port, limit) for gpu in range(count)]
    name = register_worker(handle.storage, handle.study_id, alongside=False, say=say)
    try:
        run_on_all(sys.argv[1:], own)
    finally:
        leave(handle.storage, name)
