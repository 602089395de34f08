"""From a trial to a training run: a study whose trials all have one trial's parameters.

The run is an ordinary study, so it is resumed, watched and promoted as one. Its search space
consists of constants, the exact numbers of the trial's record. Its seeds are new.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from optuna.trial import FrozenTrial

from sweepd.agents.algorithms.identity import processor_kind
from sweepd.agents.native.choice import chosen
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic
from sweepd.optimize.objectives.table import objective_of
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.population import trial_schedule
from sweepd.optimize.study.record.configurations import TRIALS, unfinished
from sweepd.optimize.study.record.database import study_exists
from sweepd.optimize.study.record.fresh import run_name
from sweepd.optimize.study.record.keys import ORIGIN_KEY
from sweepd.optimize.study.record.specs import StudySpec, code_version, torch_version
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.sampling.evolution import Stretch
from sweepd.optimize.study.settings.setting import declared
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.search_space import SearchSpace
from sweepd.optimize.study.spec import refuse_other
from sweepd.optimize.study.study import StudyHandle, create_study, free_name
from sweepd.optimize.worker.freeze import spec_flags

MOST_RUNGS = 40  # evaluations of a long run
WEIGHTS_FOR = ("ppo",)  # algorithms whose networks can start from others


@dataclass(frozen=True)
class RunRequest:
    """What a run is to be.

    Attributes:
        reference: STUDY#TRIAL, or STUDY for its best trial.
        budget: environment steps per member, or a multiple such as "10x" of the study's; None: as
            in the study.
        seeds: number of seeds: members of one trial in a game, trials on a market.
        name: name of the run's study; None: STUDY-runTRIAL.
        from_weights: whether networks start from the trial's weights.
    """

    reference: str
    budget: str | None = None
    seeds: int = 5
    name: str | None = None
    from_weights: bool = False


@dataclass(frozen=True)
class PlannedRun:
    """A run's study. total: its number of trials. source: the study of its trial."""

    name: str
    total: int
    source: StudyHandle
    trial: int


def open_run(
    storage: StudyStorage,
    request: RunRequest,
    runs_dir: Path | None,
    device: torch.device,
    say: Callable[[str], None],
) -> PlannedRun:
    """Create the study of a run, unless it exists.

    Args:
        storage: database with the trial's study, open for writing.
        request: what the run is to be.
        runs_dir: folder of the studies' folders, if the user named one.
        device: where training will run.
        say: receives lines for the user.

    Raises:
        InputError: there is no such complete trial (on games also an unfinished one that has been
            evaluated), it cannot be repeated here, or the run exists with other settings.
    """
    source, trial = _find(storage, request.reference, runs_dir)
    declared(StudySettings)["seeds"].check("--seeds", request.seeds)
    spec = _run_spec(source, trial, request, device)
    planned = PlannedRun(
        request.name or run_name(source.name, trial.number),
        1 if spec.repeats else request.seeds,
        source,
        trial.number,
    )
    origin = _origin(source, trial, request)
    if study_exists(storage, planned.name):
        _check_existing(storage, planned.name, spec, origin)
        return planned
    folder = source.run_dir.parent if runs_dir is None else runs_dir
    create_study(storage, planned.name, spec, folder, _flags(source, planned, spec), origin)
    handle = StudyHandle(storage, planned.name, runs_dir)
    if not source.spec.evolves:  # no flag sets a schedule
        _write_config(handle, planned)
    what = "the schedule of its weights" if source.spec.evolves else "its exact parameters"
    say(f"run {planned.name}: trial {trial.number} of {source.name}, with {what}")
    return planned


def _find(
    storage: StudyStorage, reference: str, runs_dir: Path | None
) -> tuple[StudyHandle, FrozenTrial]:
    name, _, number = reference.partition("#")
    source = StudyHandle(storage, name, runs_dir)
    if source.changes_with and source.origin is not None:
        raise InputError(
            f"--trial {reference}: the hyperparameters of study {name!r} ({source.changes_with}) "
            "changed during its training, so that its parameters alone do not repeat it; name the "
            f"trial that it came from, {source.origin['study']}#{source.origin['trial']}"
        )
    if not number:
        best = source.best_trial()
    else:
        usable = source.judged()
        # On markets, the gate would have to count the other unfinished trials too.
        if source.spec.repeats and not source.spec.evolves:
            usable += unfinished(source.trials())
        best = next((trial for trial in usable if str(trial.number) == number), None)
    if best is None:
        wanted = f"trial {number}" if number else "trial"
        raise InputError(f"--trial {reference}: study {name!r} has no complete {wanted}")
    return source, best


def _run_spec(
    source: StudyHandle, trial: FrozenTrial, request: RunRequest, device: torch.device
) -> StudySpec:
    """Return the spec of the run: that of the study, with constants, a budget and new seeds."""
    spec, objective = source.spec, objective_of(source.spec.environment)
    if not objective.trains(spec.algorithm):
        raise InputError(f"--trial {request.reference}: {spec.algorithm} is not trained")
    if request.from_weights and spec.algorithm not in WEIGHTS_FOR:
        raise InputError(
            f"--from-weights: {spec.algorithm} cannot start from the weights of a trial; "
            f"{', '.join(WEIGHTS_FOR)} can"
        )
    curriculum = objective.curriculum(spec)
    if curriculum is not None and "league" in curriculum.opponents:
        raise InputError(
            f"--trial {request.reference}: it was trained against the league of its study, which a "
            "run does not have"
        )
    if spec.evolves:
        _check_schedule(source, request)
    budget = _budget(request.budget, spec)
    factor = budget / spec.budget
    rungs = max(spec.rungs, min(MOST_RUNGS, round(spec.rungs * factor)))
    if budget < rungs * spec.transitions:
        raise InputError(
            f"--budget {request.budget}: {budget:,} steps are less than {rungs} rungs of "
            f"{spec.transitions:,} steps; give at least {rungs * spec.transitions:,}"
        )
    space, algorithm = _constants(source, trial), objective.kernels(spec.algorithm)
    changes: dict[str, Any] = {
        "budget": budget,
        "rungs": rungs,
        "space": space.to_dict(),
        "search": TRIALS,
        "sampler": "random",
        "pruner": "none",
        # Seeds that the selection of the trial has not seen.
        "seed": derive_seed(spec.seed, "run", trial.number) % 2**31,
        "trials_per_batch": min(spec.trials_per_batch, request.seeds),
        "processor": processor_kind(device),
        "kernels": chosen(
            algorithm,
            spec.precision,
            device,
            recurrent=space.recurrent,
            images=objective.reads_images(spec.env),
        ),
        "code_version": code_version(),
        "torch_version": torch_version(),
    }
    changes |= objective.run_changes(spec, request.seeds, device)
    made = dataclasses.replace(spec, **changes)
    objective.check_spec(made)
    return made


def _budget(text: str | None, spec: StudySpec) -> int:
    if text is None:
        return spec.budget
    try:
        budget = round(float(text[:-1]) * spec.budget) if text.endswith("x") else int(text)
    except (ValueError, OverflowError):
        raise InputError(
            f"--budget {text!r} is neither a number of steps nor a multiple such as 10x"
        ) from None
    declared(StudySettings)["budget"].check("--budget", budget)
    return budget


def _check_schedule(source: StudyHandle, request: RunRequest) -> None:
    """Raise InputError for what a run that repeats a schedule cannot do."""
    reference = f"--trial {request.reference}"
    if request.from_weights:
        raise InputError(
            f"--from-weights: {reference} has a schedule of hyperparameters (--search pbt), which "
            "begins with new networks"
        )
    if _budget(request.budget, source.spec) != source.spec.budget:
        raise InputError(
            f"--budget {request.budget}: {reference} has a schedule of hyperparameters (--search "
            f"pbt) for the {source.spec.budget:,} steps of its study; leave --budget out"
        )


def _stretches(source: StudyHandle, trial: FrozenTrial) -> list[Stretch]:
    """Return the trial's schedule; of a trial without one, a single stretch."""
    if source.spec.evolves:
        return trial_schedule(source, trial.number)
    return [Stretch(0, trial.number, trial.params)]


def _constants(source: StudyHandle, trial: FrozenTrial) -> SearchSpace:
    """Return the space with the trial's numbers; raise InputError if they mean others today.

    Of a schedule, they are the numbers at its beginning.
    """
    stretches = _stretches(source, trial)
    first, last = (_with_values(source, trial, s.params) for s in (stretches[0], stretches[-1]))
    record = TrialRecord.from_attributes(trial.user_attrs)
    settings = last.resolve({})
    present = objective_of(source.spec.environment).recorded_params(source.spec, settings)
    for recorded, now in zip((record.learner_params, record.shape), present, strict=True):
        for name, value in (recorded or {}).items():
            if name in now and json.loads(json.dumps(now[name])) != value:
                raise InputError(
                    f"--trial {source.name}#{trial.number}: {name} was {value} in the trial, and "
                    f"this version of sweepd would use {now[name]}"
                )
    return first


def _with_values(source: StudyHandle, trial: FrozenTrial, params: Mapping[str, Any]) -> SearchSpace:
    space = source.space
    values = {
        table: {name: own.resolve(params) for name, own in space.tables[table].items()}
        for table in space.subject.tables
    }
    return SearchSpace.of_constants(f"trial:{source.name}#{trial.number}", values, space.subject)


def _schedule(source: StudyHandle, trial: FrozenTrial) -> list[dict[str, Any]]:
    """Return the values of the algorithm's hyperparameters by rung, see `worker.evolution`."""
    table = source.space.tables[source.space.subject.learner_table]
    return [
        {
            "rung": stretch.rung,
            "trial": stretch.trial,
            "params": {name: own.resolve(stretch.params) for name, own in table.items()},
        }
        for stretch in _stretches(source, trial)
    ]


def _origin(source: StudyHandle, trial: FrozenTrial, request: RunRequest) -> dict[str, Any]:
    """Return what is recorded about the trial. finished: trials that it was chosen from."""
    record = TrialRecord.from_attributes(trial.user_attrs)
    weights = None
    if request.from_weights:
        source.require_files(trial.number)
        if record.members is None or not (source.run_dir / record.members.path).exists():
            raise InputError(f"--from-weights: the files of trial {trial.number} are not here")
        path = (source.run_dir / record.members.path).resolve()
        weights = {"path": str(path), "sha256": record.members.sha256}
    return {
        "study": source.name,
        "trial": trial.number,
        "finished": source.as_source()["finished"],
        "weights": weights,
        **({"schedule": _schedule(source, trial)} if source.spec.evolves else {}),
    }


def _check_existing(
    storage: StudyStorage, name: str, spec: StudySpec, origin: dict[str, Any]
) -> None:
    handle = StudyHandle(storage, name)
    recorded = storage.attributes(handle.study_id).get(ORIGIN_KEY)
    same = ("study", "trial", "weights")
    if recorded is None or any(recorded[key] != origin[key] for key in same):
        raise InputError(f"study {name!r} is not this run; choose another --study-name")
    # Versions and processors are compared when the study is joined.
    here = ("code_version", "torch_version", "processor", "kernels")
    kept = {field: getattr(handle.spec, field) for field in here}
    refuse_other(name, handle.spec, dataclasses.replace(spec, **kept), free_name(storage, name))


def _flags(source: StudyHandle, planned: PlannedRun, spec: StudySpec) -> dict[str, Any]:
    own: dict[str, Any] = {
        "study_name": planned.name,
        "n_trials": planned.total,
        "budget": spec.budget,
    }
    own |= {"rungs": spec.rungs, "seed": spec.seed, "search": spec.search}
    return {**source.flags, **own}


def _write_config(handle: StudyHandle, planned: PlannedRun) -> None:
    """Write `train.toml` and `space.toml`: the run as `sweepd train --config` takes it."""
    space = handle.run_dir / "space.toml"
    write_atomic(space, handle.space.constants_to_toml())
    flags: dict[str, Any] = {}
    for name, value in spec_flags(handle.spec, str(space)):
        if name in ("env-param", "also", "constraint"):
            flags.setdefault(name, []).append(value)
        else:
            flags[name] = value
    flags["n-trials"] = planned.total
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in flags.items())
    write_atomic(handle.run_dir / "train.toml", text)
