"""From a trial between two rungs to a study that continues it, with other hyperparameters.

The fork is an ordinary study of one trial, so it is resumed, watched and promoted as one. Its trial
begins with the other one's state: networks, optimizer, normalisers, replay buffer, environments,
opponents, phases and random numbers. Where nothing is changed, it ends with the same bits.

Such a study records as its origin what a training run does, and under `fork`:

    rung      after which it continues the trial
    changes   hyperparameters that it changed, by name
    seed      of the trial
    sha256    of the file with the state
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from optuna.trial import FrozenTrial

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic
from sweepd.optimize.objectives.games.curriculum import LoadBundle
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.objectives.members.weights import FORKED
from sweepd.optimize.objectives.populations import ALGORITHMS
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.run import Run
from sweepd.optimize.objectives.table import objective_of
from sweepd.optimize.study.checkpoint import Checkpoint, checkpoint_bytes
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.record.configurations import TRIALS
from sweepd.optimize.study.record.database import study_exists
from sweepd.optimize.study.record.forks import fork_name, fork_words
from sweepd.optimize.study.record.keys import rung_key
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.sampling.evolution import params_after
from sweepd.optimize.study.space.search_space import SearchSpace
from sweepd.optimize.study.study import StudyHandle, create_study
from sweepd.optimize.worker.freeze import join_study
from sweepd.optimize.worker.retrain import retrained_state, stored_state


@dataclass(frozen=True)
class ForkRequest:
    """What a fork is to be.

    Attributes:
        reference: STUDY#TRIAL@RUNG.
        changes: hyperparameters to change, by name.
        name: name of its study; None: STUDY-forkTRIAL-RUNG.
    """

    reference: str
    changes: Mapping[str, Any]
    name: str | None = None


def open_fork(
    storage: StudyStorage,
    request: ForkRequest,
    runs_dir: Path | None,
    device: torch.device,
    say: Callable[[str], None],
    load_bundle: LoadBundle | None = None,
) -> str:
    """Create the study of a fork with the state that it begins with, unless it exists.

    Args:
        storage: database with the trial's study, open for writing.
        request: what the fork is to be.
        runs_dir: folder of the studies' folders, if the user named one.
        device: where training will run.
        say: receives lines for the user.
        load_bundle: see `Request`.

    Returns:
        The name of the study.

    Raises:
        InputError: the trial did not reach the rung, its state cannot be continued here, a
            hyperparameter cannot be changed, or the study exists as something else.
    """
    source, trial, rung = _find(storage, request.reference, runs_dir)
    plan = source.recorded_plan(trial)
    space = _space(source, params_after(rung, plan.params, plan.changes), request)
    name = request.name or fork_name(source.name, trial.number, rung)
    asked: dict[str, Any] = {
        "study": source.name,
        "trial": trial.number,
        "fork": {"rung": rung, "changes": dict(request.changes)},
    }
    existing = StudyHandle(storage, name, runs_dir) if study_exists(storage, name) else None
    if existing is not None:
        _check_existing(existing, asked)
        if (existing.run_dir / FORKED).exists():
            return name
    join = Request(
        env=source.spec.environment, n_trials=source.spec.trials_per_batch, load_bundle=load_bundle
    )
    run = join_study(source, join, device, say)
    assert isinstance(run, Trainer)  # `_find` refuses programs
    state = stored_state(source, trial, rung) or retrained_state(source, run, trial, rung, say)
    content = _changed(run, source, trial, space, state)
    fork = asked["fork"] | {"seed": plan.seed, "sha256": hashlib.sha256(content).hexdigest()}
    if existing is not None and existing.fork != fork:
        raise InputError(
            f"{request.reference}: the state that study {name!r} began with is lost, and training to "
            "it again gave other bits, as on another kind of processor; choose another --study-name"
        )
    if existing is None:
        folder = source.run_dir.parent if runs_dir is None else runs_dir
        origin = asked | {"finished": source.as_source()["finished"], "weights": None, "fork": fork}
        flags = {**source.flags, "study_name": name, "n_trials": 1, "search": TRIALS}
        create_study(storage, name, _spec(source.spec, space), folder, flags, origin)
        say(f"fork {name}: {fork_words(asked | fork)}")
    handle = StudyHandle(storage, name, runs_dir)
    handle.run_dir.mkdir(parents=True, exist_ok=True)
    write_atomic(handle.run_dir / FORKED, content)
    return name


def _find(
    storage: StudyStorage, reference: str, runs_dir: Path | None
) -> tuple[StudyHandle, FrozenTrial, int]:
    """Return study, trial and rung of STUDY#TRIAL@RUNG, whose training can be continued."""
    parts = re.fullmatch(r"(.+)#(\d+)@(\d+)", reference)
    if parts is None:
        raise InputError(f"{reference!r} is not a trial after a rung; write STUDY#TRIAL@RUNG")
    name, number, rung = parts[1], int(parts[2]), int(parts[3])
    source = StudyHandle(storage, name, runs_dir)
    spec, objective = source.spec, objective_of(source.spec.environment)
    if not spec.has_networks:
        raise InputError(
            f"{reference}: study {name!r} is of a program, and sweepd does not have the state of its "
            "training"
        )
    if spec.algorithm not in ALGORITHMS:
        raise InputError(
            f"{reference}: sweepd continues trainings of {', '.join(ALGORITHMS[:-1])} and "
            f"{ALGORITHMS[-1]}, and study {name!r} has --algo {spec.algorithm}"
        )
    curriculum = objective.curriculum(spec)
    if curriculum is not None and curriculum.has_league:
        raise InputError(
            f"{reference}: it was trained against the league of its study, which a fork does not "
            "have"
        )
    trial = next((one for one in source.trials() if one.number == number), None)
    if trial is None:
        raise InputError(f"{reference}: study {name!r} has no trial {number}")
    begun = source.first_rung
    # Of another program's trials, no scores are recorded.
    rungs = (one for one in trial.intermediate_values if rung_key(one) in trial.user_attrs)
    reached = max(rungs, default=begun)
    if not begun < rung <= reached:
        raise InputError(
            f"{reference}: trial {number} has no rung {rung}: "
            + (
                f"it has reached rungs {begun + 1} to {reached}"
                if reached > begun
                else "it has none"
            )
        )
    if rung == spec.rungs:
        raise InputError(
            f"{reference}: rung {rung} is the last one, after which nothing is left to train"
        )
    return source, trial, rung


def _space(source: StudyHandle, params: Mapping[str, Any], request: ForkRequest) -> SearchSpace:
    """Return a space of the trial's numbers after the rung, with the changes.

    Raises:
        InputError: a name is not that of a hyperparameter that may change during a training, or a
            value is out of range.
    """
    space = source.space
    subject, table = space.subject, space.subject.learner_table
    values: dict[str, dict[str, Any]] = {
        one: {name: own.resolve(params) for name, own in space.tables[one].items()}
        for one in subject.tables
    }
    for name, value in request.changes.items():
        _check_name(source, name, request.reference)
        # Both are the discount, and the last one given counts.
        for same in {"gamma", "one_minus_gamma"} if name.endswith("gamma") else ():
            values[table].pop(same, None)
        values[table][name] = value
    made = SearchSpace.of_constants(f"fork:{request.reference}", values, subject)
    try:
        subject.learner.params(**made.resolve({}).learner)
    except (InputError, TypeError, ValueError) as error:
        raise InputError(f"{request.reference}: {error}") from None
    return made


def _check_name(source: StudyHandle, name: str, reference: str) -> None:
    subject = source.space.subject
    kept = subject.learner.params.of_the_run
    if name in subject.names("shape"):
        why = "determines the shape of networks or batches"
    elif name in kept:
        why = "acts at the start of a training, or is the unit of what is stored"
    elif name in subject.names("env"):
        why = "is a parameter of the environment"
    elif name in subject.names(subject.learner_table):
        return
    else:
        known = [one for one in subject.names(subject.learner_table) if one not in kept]
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise InputError(f"{reference}: {name!r} is not a hyperparameter; {hint}")
    raise InputError(f"{reference}: {name} {why}, so it cannot change during a training")


def _spec(spec: StudySpec, space: SearchSpace) -> StudySpec:
    """Return the spec of a fork: that of the study, so that evaluations and bits are the same."""
    return dataclasses.replace(
        spec, space=space.to_dict(), search=TRIALS, sampler="random", pruner="none"
    )


def _changed(
    run: Run[Any], source: StudyHandle, trial: FrozenTrial, space: SearchSpace, state: Checkpoint
) -> bytes:
    """Return the content of the file with the state, whose members have the changed numbers."""
    [training] = run.begin([source.recorded_plan(trial)])
    run.resume(training, state)
    run.inherit(training, state, space.resolve({}))
    made = run.checkpoint(training)
    run.release()
    # Without what depends on when and where the state was trained, so that its bytes do not.
    return checkpoint_bytes(dataclasses.replace(made, seconds=0.0, note={}, curves={}))


def _check_existing(handle: StudyHandle, asked: Mapping[str, Any]) -> None:
    origin = handle.origin or {}
    fork = handle.fork or {}
    recorded = {
        "study": origin.get("study"),
        "trial": origin.get("trial"),
        "fork": {name: fork.get(name) for name in ("rung", "changes")},
    }
    if recorded != asked:
        raise InputError(f"study {handle.name!r} is not this fork; choose another --study-name")
