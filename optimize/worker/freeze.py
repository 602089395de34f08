"""Create a study or join one: automatic settings are chosen once, stored and printed as flags."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler

from sweepd.agents.algorithms.identity import processor_kind
from sweepd.agents.algorithms.table import ALGORITHMS, get_algorithm
from sweepd.agents.native.choice import chosen
from sweepd.agents.networks.precision import set_precision
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.plugins import Plugin, changed, resolve
from sweepd.optimize.objectives.judged import (
    asked_also,
    asked_constraints,
    judged_by,
    without_pruner,
)
from sweepd.optimize.objectives.members.objective import choose_slots
from sweepd.optimize.objectives.populations import check_total, choose_population, population_space
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.run import Run
from sweepd.optimize.objectives.table import check_request, misplaced_settings, objective_of
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.enqueue import first_trials, refuse_other_first
from sweepd.optimize.study.fit import fit_budget, fit_num_envs, fit_space, most_envs, refuse_misfit
from sweepd.optimize.study.prior import (
    can_be_prior,
    make_prior,
    open_earlier,
    refuse_other_prior,
    refuse_seen_holdout,
)
from sweepd.optimize.study.record.configurations import PBT
from sweepd.optimize.study.record.database import study_exists
from sweepd.optimize.study.record.programs import is_command
from sweepd.optimize.study.record.rows import FINISHED
from sweepd.optimize.study.record.specs import StudySpec, code_version, torch_version
from sweepd.optimize.study.sampling.pruners import PRUNERS
from sweepd.optimize.study.sampling.samplers import AUTO, SAMPLERS
from sweepd.optimize.study.settings.setting import Setting, declared
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.parsing import NARROW, fixes_minibatch, load_space, space_source
from sweepd.optimize.study.space.search_space import SearchSpace
from sweepd.optimize.study.space.subject import Subject, subject_of
from sweepd.optimize.study.spec import field_of, refuse_other, refuse_schedules, with_field
from sweepd.optimize.study.study import StudyHandle, create_study, free_name

TRIALS_PER_BATCH = 4


def open_study(
    storage: StudyStorage,
    name: str,
    request: Request,
    device: torch.device,
    runs_dir: Path,
    flags: Mapping[str, Any],
    say: Callable[[str], None],
    bars: Bars | None = None,
    origin: Mapping[str, Any] | None = None,
) -> tuple[StudyHandle, Run[Any]]:
    """Join the study called `name`, or create it.

    Args:
        storage: database of the study.
        name: name of the study.
        request: its settings.
        device: where training will run.
        runs_dir: folder in which a new study's folder is created.
        flags: flags to record with a new study.
        say: receives lines for the user.
        bars: bars of a new study on a market; by default they are loaded.
        origin: of a new study, see `create_study`.

    Raises:
        InputError: the request is invalid, or the existing study has other settings or was thinned.
    """
    check_request(request)
    folder = runs_dir if "runs_dir" in request.given else None
    if not study_exists(storage, name):
        earlier = open_earlier(storage, request.prior or ())
        spec, bars, measured = decide(storage, request, device, say, bars)
        kind = objective_of(spec.environment)
        spec, piloted = kind.piloted_spec(spec, request, device, say)
        narrowed = narrowed_study(storage, request.search_space)
        if narrowed is not None:
            refuse_seen_holdout(narrowed, spec, f"--search-space {request.search_space}")
        prior = make_prior(earlier, spec, say)
        tried = first_trials(storage, request.try_first or (), spec)
        trainer: Run[Any] = kind.open(spec, bars, device, lambda _: None, request)
        recorded = {**flags, "measured": [*measured, *piloted]}
        if plugins := plugins_of(spec):
            recorded["plugins"] = {
                _key(own, text): _recorded(own, one) for own, text, one in plugins
            }
        sources = [one.study for one in tried] + ([] if narrowed is None else [narrowed])
        if create_study(
            storage,
            name,
            spec,
            runs_dir,
            recorded,
            origin=origin,
            prior=prior,
            sources=[one.as_source() for one in sources],
            first=[one.params for one in tried],
        ):
            for note in _notes(recorded):
                say(note)
            reproducing = reproducing_flags(spec, request)
            say(f"settings are now fixed; to reproduce this study: {reproducing}")
            return StudyHandle(storage, name, folder), trainer
        say(f"another worker has created study {name} in the meantime")
    handle = StudyHandle(storage, name, folder)
    if handle.thinned is not None:
        raise InputError(
            f"--study-name {name}: {handle.thinned.words(name)}, so it is not continued; for a new "
            f"study: --study-name {free_name(storage, name)}"
        )
    trainer = join_study(handle, request, device, say)
    finished = sum(handle.counts()[state] for state in FINISHED)
    total = "" if request.n_trials is None else f" of {request.n_trials:,}"
    say(f"joining study {name}: {finished:,}{total} trials are finished")
    return handle, trainer


def join_study(
    handle: StudyHandle, request: Request, device: torch.device, say: Callable[[str], None]
) -> Run[Any]:
    """Return the run of an existing study, which must agree with the request."""
    name, spec = handle.name, handle.spec
    # First, so that a name that is not in the data is reported as when a study is created.
    requested = requested_spec(handle.storage, spec, request)
    check_total(spec, request.n_trials)
    free = free_name(handle.storage, name)
    if "prior" in request.given:
        refuse_other_prior(name, handle.prior, request.prior or (), free)
    if "try_first" in request.given:
        refuse_other_first(name, handle.flags.get("try_first"), request.try_first or (), free)
    # Two comparisons, so that the message tells a flag that differs from another version of sweepd.
    refuse_other(name, spec, requested, free)
    present = dataclasses.replace(spec, code_version=code_version(), torch_version=torch_version())
    refuse_other(name, spec, present, free)
    for note in _notes(handle.flags):
        say(note)
    for line in changed_plugins(handle):
        say(f"note: {line}")
    kind = objective_of(spec.environment)
    kind.set_up(name, spec, request, device, say)

    def newer(bars: str) -> None:
        prior = f" --sampler race --prior {name}" if can_be_prior(handle) else ""
        say(
            f"{bars}; for a study of all bars, change the flags of this one: --study-name {free}{prior}"
        )

    folder = request.data_dir if "data_dir" in request.given else None
    # A folder stands for all of its tickers, as when a study is created.
    every = "tickers" not in request.given and (folder or handle.flags.get("tickers") is None)
    if every and (others := kind.other_assets(spec, folder)):
        say(f"{others}; for a study of all tickers: --study-name {free}")
    bars = kind.load_recorded_bars(spec, folder, newer)
    return kind.open(spec, bars, device, say, request)


def plugins_of(spec: StudySpec) -> list[tuple[str, str, Plugin]]:
    """Return kind, text and object of what other packages provide for a study."""
    named: dict[str, tuple[str, Collection[str], type[Any] | None]] = {
        "sampler": (spec.sampler, SAMPLERS, BaseSampler),
        "pruner": (spec.pruner, PRUNERS, BasePruner),
    }
    if not is_command(spec.environment):
        named["algorithm"] = spec.algorithm, ALGORITHMS, None
    found = [
        (kind, name, resolve(kind, name, own, base))
        for kind, (name, own, base) in named.items()
        if name not in own
    ]
    return [*found, *objective_of(spec.environment).plugins(spec)]


def changed_plugins(handle: StudyHandle) -> list[str]:
    """Return what other packages provide otherwise than when a study was created, as lines."""
    recorded = handle.flags.get("plugins", {})
    return [
        changed(kind, text, f"study {handle.name} was created")
        for kind, text, plugin in plugins_of(handle.spec)
        if _recorded(kind, plugin) != recorded.get(_key(kind, text))
    ]


def _key(kind: str, text: str) -> str:
    """Return what a plugin is recorded under; a study may have several wrappers."""
    return f"{kind} {text}" if kind == "wrapper" else kind


def _recorded(kind: str, plugin: Plugin) -> dict[str, str]:
    """Return what is recorded of a plugin: which one it is, and what it cannot promise."""
    found = plugin.identity()
    if kind == "sampler" and not plugin.takes("seed"):
        found["note"] = f"{plugin.name} takes no seed, so this study cannot be repeated"
    return found


def _notes(flags: Mapping[str, Any]) -> list[str]:
    """Return what the plugins of a study cannot promise, as lines."""
    return [f"note: {one['note']}" for one in flags.get("plugins", {}).values() if "note" in one]


def requested_spec(storage: StudyStorage, spec: StudySpec, request: Request) -> StudySpec:
    """Return the study's spec with the fields that the given settings fix."""
    given, kind = request.given, objective_of(spec.environment)
    asked = spec
    for name, one in _fixing(spec).items():
        if name in given and getattr(request, name) != one.automatic:
            own = _ASKED.get(name)
            value = kind.asked_value(spec, request, name) if own is None else own(request)
            asked = with_field(asked, one.fixes, value)
    if "budget" in given:  # raised as when the study was created
        least = spec.rungs * (request.n_envs or 1) * spec.horizon
        asked = dataclasses.replace(asked, budget=max(request.budget, least))
    if "search_space" in given:
        subject = subject_of(spec.environment, spec.algorithm)
        space = resolve_space(storage, request.search_space, subject, spec.timeframe)
        space = population_space(spec.search, request.search_space, space)
        fitted = fit_space(space, spec.transitions)[0].to_dict()
        asked = dataclasses.replace(asked, space=fitted)
        request = kind.completed(request, space)
    return dataclasses.replace(asked, **kind.requested_fields(spec, request))


def _fixing(spec: StudySpec) -> dict[str, Setting]:
    """Return the settings that determine a field of a study's spec, by name."""
    misplaced = misplaced_settings(objective_of(spec.environment))
    return {
        name: one
        for name, one in declared(StudySettings).items()
        if one.fixes and name not in misplaced
    }


# What repeated flags would be in a study's spec.
_ASKED = {"also": asked_also, "constraint": asked_constraints}


def _given_as(name: str, value: Any) -> Sequence[Any]:
    """Return the values of a setting's flag, one for each time that it is given."""
    if name in _ASKED:
        return list(value)
    return [",".join(value) if isinstance(value, tuple) else value]


def resolve_space(
    storage: StudyStorage, name: str, subject: Subject, timeframe: str | None
) -> SearchSpace:
    """Return a search space by the value of --search-space.

    Args:
        storage: database in which a study is looked up.
        name: a preset, a TOML file, or `narrow:STUDY[#TRIAL]`, the space around a trial (by
            default the best one) of another study.
        subject: environment and algorithm of the space.
        timeframe: length of the bars, for the entries of the space that depend on it.
    """
    handle = narrowed_study(storage, name)
    if handle is None:
        return load_space(name, subject, timeframe)
    number = name.partition("#")[2]
    trial = handle.best_trial()
    if number:
        trial = next((t for t in handle.trials() if str(t.number) == number and t.params), None)
    if trial is None:
        wanted = f"trial {number}" if number else "complete trial"
        raise InputError(
            f"--search-space {name}: study {handle.name!r} has no {wanted} to search around"
        )
    refuse_schedules(handle, f"--search-space {name}")
    curriculum = objective_of(handle.spec.environment).curriculum(handle.spec)
    return dataclasses.replace(handle.space.around(trial.params), curriculum=curriculum)


def narrowed_study(storage: StudyStorage, name: str) -> StudyHandle | None:
    """Return the study of `narrow:STUDY[#TRIAL]`; None for other search spaces."""
    if not name.startswith(NARROW):
        return None
    return StudyHandle(storage, name.removeprefix(NARROW).partition("#")[0])


def decide(
    storage: StudyStorage,
    request: Request,
    device: torch.device,
    say: Callable[[str], None],
    bars: Bars | None = None,
) -> tuple[StudySpec, Bars | None, list[str]]:
    """Make all automatic choices of a new study.

    torch keeps the spec's number of threads and precision.

    Returns:
        The spec, the bars of a market (None for a game), and what was measured, as lines.

    Raises:
        InputError: the settings are invalid or do not fit each other.
    """
    kind = objective_of(request.env)
    set_precision(request.precision, device)
    warning = kind.warning(request)
    if warning:
        say(f"warning: {warning}")
    space = resolve_space(storage, request.search_space, request.subject, request.timeframe)
    space = population_space(request.search, request.search_space, space)
    chosen_by_user = fixes_minibatch(request.search_space, space)
    source = space_source(request.search_space) if chosen_by_user else ""
    request = choose_search(kind.completed(request, space), space)
    request = fit_request(request, space, source, say)
    bars = bars or kind.load_bars(request)
    spec = draft_spec(request, space, bars, device)
    torch.set_num_threads(spec.threads)
    spec, measured = kind.measured_spec(spec, request, space, bars, device, say)
    kind.check_spec(spec)
    space, note = fit_space(space, spec.transitions)
    if note:
        say(note)
    return dataclasses.replace(spec, space=space.to_dict()), bars, measured


def choose_search(request: Request, space: SearchSpace) -> Request:
    """Return the request with a sampler in place of `auto`, and with the settings of a population.

    Flags that were not given get the values that the sampler was measured with.

    Raises:
        InputError: population-based training cannot do what is asked for.
    """
    if request.search == PBT:
        return choose_population(request, space)
    request = without_pruner(request)
    if request.sampler != AUTO:
        return request
    if request.also:
        return dataclasses.replace(request, sampler="tpe")  # of several values, too
    own = objective_of(request.env).automatic_search(request, space)
    chosen = (request.given | space.study.keys()) - {"sampler"}
    return dataclasses.replace(request, **{n: v for n, v in own.items() if n not in chosen})


def fit_request(
    request: Request, space: SearchSpace, minibatch_from: str, say: Callable[[str], None]
) -> Request:
    """Return the request with a number of environments and a budget that fit.

    Args:
        request: the request.
        space: its search space.
        minibatch_from: where the user chose the minibatches, for messages; "" if they are defaults,
            which are fitted later.
        say: receives a line for every number that was raised.

    Raises:
        InputError: numbers that the user gave do not fit each other.
    """
    if request.n_envs is not None:
        unit = objective_of(request.env).env_unit(request)
        n_envs, note = fit_num_envs(
            request.n_envs, unit, request.env, fixed="n_envs" in request.given
        )
        if note:
            say(note)
        request = dataclasses.replace(request, n_envs=n_envs)
    fixed = "budget" in request.given and bool({"n_envs", "horizon", "rungs"} & request.given)
    budget, note = fit_budget(
        request.budget, request.rungs, request.n_envs or 1, request.horizon, fixed=fixed
    )
    if note:
        say(note)
    if request.n_envs is not None and minibatch_from:
        refuse_misfit(space.minibatches, request.n_envs, request.horizon, minibatch_from)
    return dataclasses.replace(request, budget=budget)


def draft_spec(
    request: Request, space: SearchSpace, bars: Bars | None, device: torch.device
) -> StudySpec:
    """Return the spec of a new study before anything is measured.

    A measured num_envs has its upper limit.
    """
    kind = objective_of(request.env)
    members = kind.members(request)
    most = request.trials_per_batch or request.n_trials
    slots = request.slots or choose_slots(
        members, device, together=kind.train_together(request), trials=most
    )
    trials_per_batch = max(TRIALS_PER_BATCH, slots // members)
    if request.n_trials is not None:
        trials_per_batch = min(trials_per_batch, request.n_trials)
    common: dict[str, Any] = {
        "environment": request.env,
        "algorithm": request.algo,
        "env": dict(request.env_params),
        "budget": request.budget,
        "rungs": request.rungs,
        "num_envs": request.n_envs or most_envs(request.budget, request.horizon, space.minibatches),
        "horizon": request.horizon,
        "slots": slots,
        "trials_per_batch": request.trials_per_batch or trials_per_batch,
        "objective": request.objective,
        **judged_by(request),
        "search": request.search,
        "sampler": request.sampler,
        "pruner": request.pruner,
        "seed": request.seed,
        "space": space.to_dict(),
        "threads": request.threads or torch.get_num_threads(),
        "precision": request.precision,
        "processor": processor_kind(device),
        "kernels": chosen(
            kind.kernels(request.algo),
            request.precision,
            device,
            recurrent=space.recurrent,
            images=kind.reads_images(request.env_params),
        ),
    }
    return kind.make_spec(request, common, space.max_lookback, bars)


def reproducing_flags(spec: StudySpec, request: Request) -> str:
    """Return all flags that determine the study, as they are given on the command line."""
    flags = spec_flags(spec, request.search_space)
    flags += [("prior", name) for name in request.prior or ()]
    flags += [("try-first", name) for name in request.try_first or ()]
    return " ".join(
        f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}"
        for name, value in flags
    )


def spec_flags(spec: StudySpec, search_space: str) -> list[tuple[str, Any]]:
    """Return the names and values of all flags that determine a study.

    Args:
        spec: the study's spec.
        search_space: value of --search-space.
    """
    values = {name: field_of(spec, one.fixes) for name, one in _fixing(spec).items()} | {
        "search_space": search_space
    }
    if not spec.evolves:
        values.pop("search")
    if "play" in values and not get_algorithm(spec.algorithm).samples:
        values.pop("play")
    flags = [
        (name.replace("_", "-"), one)
        for name, value in values.items()
        if value not in (None, False, "")
        for one in _given_as(name, value)
    ]
    return [*flags, *objective_of(spec.environment).reproducing_flags(spec)]
