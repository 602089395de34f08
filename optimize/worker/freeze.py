"""From flags to a frozen study: automatic choices are made once, measured and printed; joining is checked."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from agents.algorithms.identity import processor_kind
from agents.networks.precision import set_precision
from envs.core.sizing import cpu_count
from envs.crypto.bars import Bars, load_bars
from envs.crypto.features import get_recipe
from envs.crypto.splits import make_splits
from envs.crypto.study_data import load_study_bars
from envs.games.registry import get_game
from envs.support.errors import InputError
from envs.support.study_record import (
    CryptoSpec,
    DataSpec,
    GameSpec,
    StudySpec,
    code_version,
    torch_version,
)
from optimize.experiments.crypto import CryptoExperiment
from optimize.experiments.experiment import Experiment
from optimize.experiments.games import GameExperiment
from optimize.study.fit import (
    fewest_envs,
    fit_budget,
    fit_num_envs,
    fit_space,
    most_envs,
    multiple,
    refuse_misfit,
)
from optimize.study.request import Request, check_request
from optimize.study.search_space import SearchSpace, Subject, load_space
from optimize.study.spec import check_folds, refuse_other
from optimize.study.storage import StudyStorage
from optimize.study.study import StudyHandle, best_trial, create_study, study_exists
from optimize.worker.measure import Bench, measure_num_envs, measure_threads

CPU_SLOTS, GPU_SLOTS = 10, 64
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
) -> tuple[StudyHandle, Experiment]:
    """Join the study called `name`, or make it. Raises InputError where it is something else than was asked for."""
    check_request(request)
    made: Experiment | None = None
    if not study_exists(storage, name):
        made = _create(storage, name, request, device, runs_dir, flags, say, bars)
        if made is None:
            say(f"study {name} was made by another worker meanwhile; joining it")
    handle = StudyHandle(storage, name, runs_dir if "runs_dir" in request.given else None)
    if made is not None:
        return handle, made
    spec = handle.spec
    _refuse_flags(storage, name, spec, request)
    refuse_other(
        name,
        spec,
        dataclasses.replace(spec, code_version=code_version(), torch_version=torch_version()),
    )
    torch.set_num_threads(request.threads or min(spec.threads, cpu_count()))
    set_precision(spec.precision, device)
    here = processor_kind(device)
    if spec.processor != here:
        kind = (
            spec.processor or "a processor and arithmetic mode that earlier versions did not record"
        )
        say(
            f"note: study {name} was made on {kind}, and this is {here}: a trial's numbers agree between them to "
            "rounding, not to the bit"
        )
    if isinstance(spec, CryptoSpec):
        bars = load_study_bars(spec.data, request.data_dir if "data_dir" in request.given else None)
    return handle, make_experiment(spec, bars, device, say)


def make_experiment(
    spec: StudySpec,
    bars: Bars | None,
    device: torch.device,
    say: Callable[[str], None] = lambda _: None,
) -> Experiment:
    """bars: those of a study on a market. say: receives a line about every step that takes long."""
    if isinstance(spec, CryptoSpec):
        assert bars is not None
        return CryptoExperiment(spec, bars, device)
    assert isinstance(spec, GameSpec)
    return GameExperiment(spec, device, say)


def _refuse_flags(storage: StudyStorage, name: str, spec: StudySpec, request: Request) -> None:
    """Raise InputError if a flag that was given differs from the frozen study."""
    given, asked = request.given, dict[str, Any]()
    plain = {
        "budget",
        "rungs",
        "horizon",
        "slots",
        "trials_per_batch",
        "sampler",
        "pruner",
        "objective",
    }
    plain |= {"holdout"} if isinstance(spec, CryptoSpec) else {"seeds", "episodes", "look_steps"}
    if not request.look_steps:  # 0, automatic: joins a study with any number
        plain -= {"look_steps"}
    for field in (plain | {"seed", "precision"}) & given:
        asked[field] = getattr(request, field)
    if "algo" in given:
        asked["algorithm"] = request.algorithm
    if "budget" in given:  # as it was fitted when the study was made
        asked["budget"] = max(request.budget, spec.rungs * (request.n_envs or 1) * spec.horizon)
    if "env" in given:
        asked["environment"] = request.environment
    if "n_envs" in given and request.n_envs is not None:
        asked["num_envs"] = request.n_envs
    if "search_space" in given:
        timeframe = spec.data.timeframe if isinstance(spec, CryptoSpec) else None
        subject = Subject(spec.environment, spec.algorithm)
        space, _ = fit_space(
            resolve_space(storage, request.search_space, subject, timeframe), spec.transitions
        )
        asked["space"] = space.to_dict()
    if not isinstance(spec, CryptoSpec):
        asked["env"] = spec.env | request.env
        refuse_other(name, spec, dataclasses.replace(spec, **asked))
        return
    folds = {
        "scheme": "cv",
        "groups": "groups",
        "test_groups": "test_groups",
        "embargo_share": "embargo",
    }
    asked["cv"] = spec.cv | {
        field: getattr(request.cv, field) for field, flag in folds.items() if flag in given
    }
    asked["env"] = spec.env | {
        setting: value for setting, value in request.env.items() if setting in given
    }
    if "recipe" in given:
        asked["recipe"] = {**spec.recipe, "name": request.recipe}
    data = spec.data
    if "timeframe" in given:
        data = dataclasses.replace(data, timeframe=request.timeframe)
    if "tickers" in given and request.tickers is not None:
        data = dataclasses.replace(
            data, tickers=tuple(_like(ticker, data.tickers) for ticker in request.tickers)
        )
    refuse_other(name, spec, dataclasses.replace(spec, data=data, **asked))


def _like(ticker: str, known: tuple[str, ...]) -> str:
    """The study's own name for a ticker given as BTC or BTC_USDT."""
    for name in known:
        if ticker.upper().replace("_", "/") in (name, name.partition("/")[0]):
            return name
    return ticker


def resolve_space(
    storage: StudyStorage, name: str, subject: Subject, timeframe: str | None
) -> SearchSpace:
    """A preset, a file, or `narrow:STUDY[#TRIAL]`, which is the space around a trial (the best one) of a study in this
    database.
    """
    if not name.startswith("narrow:"):
        return load_space(name, subject, timeframe)
    study_name, _, number = name.removeprefix("narrow:").partition("#")
    handle = StudyHandle(storage, study_name)
    trial = best_trial(handle)
    if number:
        trial = next((t for t in handle.trials() if str(t.number) == number and t.params), None)
    if trial is None:
        raise InputError(
            f"--search-space {name}: study {study_name!r} has no {'trial ' + number if number else 'complete trial'} "
            "to search around"
        )
    return handle.space.around(trial.params)


def _create(
    storage: StudyStorage,
    name: str,
    request: Request,
    device: torch.device,
    runs_dir: Path,
    flags: Mapping[str, Any],
    say: Callable[[str], None],
    bars: Bars | None,
) -> Experiment | None:
    """Make the automatic choices and write the study. Returns None if another worker made it meanwhile."""
    spec, bars, measured = decide(storage, request, device, say, bars)
    experiment = make_experiment(spec, bars, device)
    made = create_study(storage, name, spec, runs_dir, {**flags, "measured": measured})
    if not made:
        return None
    say(
        f"study {name} is frozen; these flags would make it again: {reproducing_flags(spec, request)}"
    )
    return experiment


def decide(
    storage: StudyStorage,
    request: Request,
    device: torch.device,
    say: Callable[[str], None],
    bars: Bars | None = None,
) -> tuple[StudySpec, Bars | None, list[str]]:
    """The spec of the study that a request makes, everything automatic chosen; a market's bars; what was measured.

    Leaves torch set to the spec's threads and precision. Raises InputError.
    """
    set_precision(request.precision, device)
    warning = check_folds(request.cv, request.budget) if request.market else None
    if warning:
        say(f"warning: {warning}")
    request = _fitted(storage, request, say)
    if request.market:
        bars = bars or load_bars(request.data_dir, request.timeframe, request.tickers)
    spec = draft_spec(storage, request, bars, device)
    torch.set_num_threads(spec.threads)
    measured: list[str] = []
    if isinstance(spec, GameSpec):
        spec = dataclasses.replace(spec, look_steps=GameExperiment(spec, device, say).look.steps)
    if request.n_envs is None or (request.threads is None and device.type == "cpu"):
        bench = Bench(make_experiment(spec, bars, device))
        if request.threads is None and device.type == "cpu":
            few = multiple(
                fewest_envs(spec.budget, spec.horizon, SearchSpace.of_study(spec).minibatches),
                bench.experiment.unit,
            )
            threads, lines = measure_threads(bench, request.n_envs or few, say)
            spec, measured = dataclasses.replace(spec, threads=threads), lines
        if request.n_envs is None:
            num_envs, lines = measure_num_envs(bench, say)
            spec, measured = dataclasses.replace(spec, num_envs=num_envs), measured + lines
    space, note = fit_space(SearchSpace.of_study(spec), spec.transitions)
    if note:
        say(note)
    return dataclasses.replace(spec, space=space.to_dict()), bars, measured


def _fitted(storage: StudyStorage, request: Request, say: Callable[[str], None]) -> Request:
    """The request with a budget of at least one rollout per rung. Raises InputError if given numbers do not fit."""
    if not request.market and request.n_envs is not None:
        game, fixed = get_game(request.environment), "n_envs" in request.given
        n_envs, note = fit_num_envs(
            request.n_envs, game.unit(game.params(**request.env)), request.environment, fixed=fixed
        )
        if note:
            say(note)
        request = dataclasses.replace(request, n_envs=n_envs)
    chosen = "budget" in request.given and bool({"n_envs", "horizon", "rungs"} & request.given)
    budget, note = fit_budget(
        request.budget, request.rungs, request.n_envs or 1, request.horizon, fixed=chosen
    )
    if note:
        say(note)
    if request.n_envs is not None and request.search_space.endswith(".toml"):
        sizes = resolve_space(
            storage, request.search_space, request.subject, request.timeframe
        ).minibatches
        refuse_misfit(
            sizes, request.n_envs, request.horizon, f"--search-space {request.search_space}"
        )
    return dataclasses.replace(request, budget=budget)


def draft_spec(
    storage: StudyStorage, request: Request, bars: Bars | None, device: torch.device
) -> StudySpec:
    """The spec with everything chosen but a measured num_envs (then at its upper bound)."""
    space = resolve_space(storage, request.search_space, request.subject, request.timeframe)
    members = request.cv.folds if request.market else request.seeds
    together = not request.market and players(request) > 1
    slots = request.slots or choose_slots(members, device, together=together)
    common: dict[str, Any] = {
        "environment": request.environment,
        "algorithm": request.algorithm,
        "env": dict(request.env),
        "budget": request.budget,
        "rungs": request.rungs,
        "num_envs": request.n_envs or most_envs(request.budget, request.horizon, space.minibatches),
        "horizon": request.horizon,
        "slots": slots,
        "trials_per_batch": request.trials_per_batch or max(TRIALS_PER_BATCH, slots // members),
        "objective": request.objective,
        "sampler": request.sampler,
        "pruner": request.pruner,
        "seed": request.seed,
        "space": space.to_dict(),
        "threads": request.threads or torch.get_num_threads(),
        "precision": request.precision,
        "processor": processor_kind(device),
    }
    if bars is None:
        return GameSpec(
            **common,
            seeds=request.seeds,
            episodes=request.episodes,
            centred=True,
            look_steps=request.look_steps,
        )
    recipe = get_recipe(request.recipe)
    first_bar = recipe.memory - 1 + space.max_lookback - 1
    make_splits(  # refuses what cannot be split
        len(bars),
        request.timeframe,
        request.cv,
        first_bar=first_bar,
        holdout=request.holdout,
        lookback=space.max_lookback,
        memory=recipe.memory,
    )
    return CryptoSpec(
        **common,
        data=DataSpec(
            dir=str(request.data_dir.resolve()),
            tickers=bars.tickers,
            timeframe=bars.timeframe,
            fingerprint=bars.fingerprint,
            first=_iso(bars, 0),
            last=_iso(bars, len(bars) - 1),
            bars=len(bars),
            synthetic=bars.synthetic,
        ),
        recipe={"name": recipe.name, "version": recipe.version, "memory": recipe.memory},
        cv=dataclasses.asdict(request.cv),
        holdout=request.holdout,
        first_bar=first_bar,
        max_lookback=space.max_lookback,
    )


def players(request: Request) -> int:
    """Seats of a game whose seats are dealt out among a trial's members."""
    game = get_game(request.environment)
    return 1 if game.external else game.seats(game.params(**request.env))


def choose_slots(members: int, device: torch.device, *, together: bool = False) -> int:
    """Slots per program: near what saturates the device, and a multiple of a trial's members, so that programs are
    full; always a multiple where the members of a trial must be `together`.
    """
    near = GPU_SLOTS if device.type == "cuda" else CPU_SLOTS
    return members * max(1, round(near / members)) if together or members <= 2 * near else near


def _iso(bars: Bars, bar: int) -> str:
    return bars.time_of(bar).strftime("%Y-%m-%dT%H:%M:%SZ")


def reproducing_flags(spec: StudySpec, request: Request) -> str:
    """Everything that decides the study, as flags."""
    flags: dict[str, Any] = {
        "n-envs": spec.num_envs,
        "horizon": spec.horizon,
        "slots": spec.slots,
        "trials-per-batch": spec.trials_per_batch,
        "threads": spec.threads,
        "precision": spec.precision,
        "budget": spec.budget,
        "rungs": spec.rungs,
        "seed": spec.seed,
        "search-space": request.search_space,
        "sampler": spec.sampler,
        "pruner": spec.pruner,
        "objective": spec.objective,
    }
    settings: list[str] = []
    if isinstance(spec, CryptoSpec):
        flags |= {
            "data-dir": spec.data.dir,
            "timeframe": spec.data.timeframe,
            "tickers": ",".join(spec.data.tickers),
        }
        flags |= {"recipe": spec.recipe["name"], "holdout": spec.holdout, "cv": spec.cv["scheme"]}
        flags |= {"groups": spec.cv["groups"], "test-groups": spec.cv["test_groups"]}
        flags |= {"embargo": spec.cv["embargo_share"]} | {
            name.replace("_", "-"): spec.env[name] for name in spec.env
        }
    if isinstance(spec, GameSpec):
        flags |= {
            "env": spec.environment,
            "algo": spec.algorithm,
            "seeds": spec.seeds,
            "episodes": spec.episodes,
        }
        flags["look-steps"] = spec.look_steps
        settings = [
            f"{name}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in spec.env.items()
        ]
    pairs = [*flags.items(), *(("env-param", setting) for setting in settings)]
    return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in pairs)
