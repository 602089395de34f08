"""From flags to a frozen study: automatic choices are made once, measured and printed; joining is checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agents.precision import set_precision
from envs.crypto.bars import Bars, load_bars
from envs.crypto.features import get_recipe
from envs.crypto.metrics import OBJECTIVES
from envs.crypto.params import EnvParams
from envs.crypto.splits import CrossValidation, make_splits
from envs.errors import InputError
from optimize.experiment import Experiment, load_study_bars
from optimize.fit import fewest_envs, fit_budget, fit_space, most_envs, refuse_misfit
from optimize.measure import Bench, measure_num_envs, measure_threads
from optimize.pruning import PRUNERS, SAMPLERS
from optimize.search_space import SearchSpace, load_space
from optimize.spec import DataSpec, StudySpec, check_folds, code_version, refuse_other, torch_version
from optimize.storage import StudyStorage
from optimize.study import StudyHandle, create_study, study_exists
from optimize.summary import best_trial

CPU_SLOTS, GPU_SLOTS = 10, 64
TRIALS_PER_BATCH = 4


@dataclass(frozen=True)
class Request:
    """What a study shall be, as flags say it. None: automatic where the study is made, as frozen where it is joined.

    given: names of the flags that a person set; only those are compared with a study that exists already.
    n_envs: None for auto.
    """

    data_dir: Path
    timeframe: str = "1h"
    tickers: tuple[str, ...] | None = None
    environment: str = "crypto"
    recipe: str = "default"
    cv: CrossValidation = dataclasses.field(default_factory=CrossValidation)
    holdout: float = 0.15
    budget: int = 250_000
    rungs: int = 4
    horizon: int = 64
    n_envs: int | None = None
    slots: int | None = None
    trials_per_batch: int | None = None
    search_space: str = "wide"
    sampler: str = "tpe"
    pruner: str = "hyperband"
    objective: str = "excess-sharpe"
    seed: int = 0
    threads: int | None = None
    precision: str = "fp32"
    env: dict[str, Any] = dataclasses.field(default_factory=dict)
    given: frozenset[str] = frozenset()


def check_request(request: Request) -> None:
    """Raise InputError for the first flag that cannot be right, before anything is read or written."""
    choices = {
        "env": (request.environment, ("crypto",)),
        "objective": (request.objective, tuple(OBJECTIVES)),
        "sampler": (request.sampler, SAMPLERS),
        "pruner": (request.pruner, PRUNERS),
    }
    for flag, (value, allowed) in choices.items():
        if value not in allowed:
            raise InputError(
                f"--{flag} {value!r} is not known; choose {'one of ' if len(allowed) > 1 else ''}{', '.join(allowed)}"
            )
    least = {
        "budget": request.budget,
        "rungs": request.rungs,
        "horizon": request.horizon,
        "n-envs": request.n_envs,
        "slots": request.slots,
        "trials-per-batch": request.trials_per_batch,
        "threads": request.threads,
    }
    for flag, number in least.items():
        if number is not None and number < 1:
            raise InputError(f"--{flag} {number} must be at least 1")
    if not 0 <= request.holdout < 0.9:
        raise InputError(f"--holdout {request.holdout} must be a share from 0 to below 0.9")
    if request.seed < 0:
        raise InputError(f"--seed {request.seed} must be at least 0")
    EnvParams(**request.env)
    get_recipe(request.recipe)
    check_folds(request.cv, request.budget)


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
    if not study_exists(storage, name):
        made = _create(storage, name, request, device, runs_dir, flags, say, bars)
        if made is not None:
            return made
        say(f"study {name} was made by another worker meanwhile; joining it")
    handle = StudyHandle(storage, name)
    spec = handle.spec
    _refuse_flags(storage, name, spec, request)
    refuse_other(name, spec, dataclasses.replace(spec, code_version=code_version(), torch_version=torch_version()))
    torch.set_num_threads(spec.threads)
    set_precision(spec.precision, device)
    bars = load_study_bars(spec, request.data_dir if "data_dir" in request.given else None)
    return handle, Experiment(spec, bars, device)


def _refuse_flags(storage: StudyStorage, name: str, spec: StudySpec, request: Request) -> None:
    """Compare what a person set with the study as it was frozen."""
    given, asked = request.given, dict[str, Any]()
    plain = {"holdout", "budget", "rungs", "horizon", "slots", "trials_per_batch", "sampler", "pruner", "objective"}
    for field in (plain | {"seed", "threads", "precision"}) & given:
        asked[field] = getattr(request, field)
    if "budget" in given:  # as it was fitted when the study was made
        asked["budget"] = max(request.budget, spec.rungs * (request.n_envs or 1) * spec.horizon)
    if "env" in given:
        asked["environment"] = request.environment
    if "n_envs" in given and request.n_envs is not None:
        asked["num_envs"] = request.n_envs
    folds = {"scheme": "cv", "groups": "groups", "test_groups": "test_groups", "embargo_share": "embargo"}
    asked["cv"] = spec.cv | {field: getattr(request.cv, field) for field, flag in folds.items() if flag in given}
    asked["env"] = spec.env | {setting: value for setting, value in request.env.items() if setting in given}
    if "recipe" in given:
        asked["recipe"] = {**spec.recipe, "name": request.recipe}
    if "search_space" in given:
        space, _ = fit_space(resolve_space(storage, request.search_space, spec.data.timeframe), spec.transitions)
        asked["space"] = space.to_dict()
    data = spec.data
    if "timeframe" in given:
        data = dataclasses.replace(data, timeframe=request.timeframe)
    if "tickers" in given and request.tickers is not None:
        data = dataclasses.replace(data, tickers=tuple(_like(ticker, data.tickers) for ticker in request.tickers))
    refuse_other(name, spec, dataclasses.replace(spec, data=data, **asked))


def _like(ticker: str, known: tuple[str, ...]) -> str:
    """The study's own name for a ticker given as BTC or BTC_USDT."""
    for name in known:
        if ticker.upper().replace("_", "/") in (name, name.partition("/")[0]):
            return name
    return ticker


def resolve_space(storage: StudyStorage, name: str, timeframe: str) -> SearchSpace:
    """A preset, a file, or `narrow:STUDY[#TRIAL]`, which is the space around a trial (the best one) of a study in this
    database.
    """
    if not name.startswith("narrow:"):
        return load_space(name, timeframe)
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
) -> tuple[StudyHandle, Experiment] | None:
    """Choose what is automatic, freeze, write. None where another worker was faster."""
    spec, bars, measured = decide(storage, request, device, say, bars)
    experiment = Experiment(spec, bars, device)
    made = create_study(storage, name, spec, runs_dir, {**flags, "measured": measured})
    if not made:
        return None
    say(f"study {name} is frozen; these flags would make it again: {reproducing_flags(spec, request)}")
    return StudyHandle(storage, name), experiment


def decide(
    storage: StudyStorage, request: Request, device: torch.device, say: Callable[[str], None], bars: Bars | None = None
) -> tuple[StudySpec, Bars, list[str]]:
    """The spec of the study that a request makes, everything automatic chosen; its bars; and what was measured.

    Leaves torch set to the spec's threads and precision. Raises InputError.
    """
    set_precision(request.precision, device)
    warning = check_folds(request.cv, request.budget)
    if warning:
        say(f"warning: {warning}")
    request = _fitted(storage, request, say)
    bars = bars or load_bars(request.data_dir, request.timeframe, request.tickers)
    spec = draft_spec(storage, request, bars, device)
    torch.set_num_threads(spec.threads)
    measured: list[str] = []
    if request.n_envs is None or (request.threads is None and device.type == "cpu"):
        bench = Bench(spec, bars, device)
        if request.threads is None and device.type == "cpu":
            few = fewest_envs(spec.budget, spec.horizon, spec.search_space.minibatches)
            threads, lines = measure_threads(bench, request.n_envs or few, say)
            spec, measured = dataclasses.replace(spec, threads=threads), lines
        if request.n_envs is None:
            num_envs, lines = measure_num_envs(bench, say)
            spec, measured = dataclasses.replace(spec, num_envs=num_envs), measured + lines
    space, note = fit_space(spec.search_space, spec.transitions)
    if note:
        say(note)
    return dataclasses.replace(spec, space=space.to_dict()), bars, measured


def _fitted(storage: StudyStorage, request: Request, say: Callable[[str], None]) -> Request:
    """With a budget that holds a rollout per rung. Raises InputError where numbers that a person chose do not fit."""
    chosen = "budget" in request.given and bool({"n_envs", "horizon", "rungs"} & request.given)
    budget, note = fit_budget(request.budget, request.rungs, request.n_envs or 1, request.horizon, fixed=chosen)
    if note:
        say(note)
    if request.n_envs is not None and request.search_space.endswith(".toml"):
        sizes = resolve_space(storage, request.search_space, request.timeframe).minibatches
        refuse_misfit(sizes, request.n_envs, request.horizon, f"--search-space {request.search_space}")
    return dataclasses.replace(request, budget=budget)


def draft_spec(storage: StudyStorage, request: Request, bars: Bars, device: torch.device) -> StudySpec:
    """The spec with everything chosen but a measured num_envs (then at its upper bound)."""
    space = resolve_space(storage, request.search_space, request.timeframe)
    recipe = get_recipe(request.recipe)
    max_lookback = space.max_lookback
    first_bar = recipe.memory - 1 + max_lookback - 1
    splits = make_splits(
        len(bars),
        request.timeframe,
        request.cv,
        first_bar=first_bar,
        holdout=request.holdout,
        lookback=max_lookback,
        memory=recipe.memory,
    )
    slots = request.slots or choose_slots(len(splits.folds), device)
    together = request.trials_per_batch or max(TRIALS_PER_BATCH, slots // len(splits.folds))
    return StudySpec(
        environment=request.environment,
        algorithm="ppo",
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
        max_lookback=max_lookback,
        env=dict(request.env),
        budget=request.budget,
        rungs=request.rungs,
        num_envs=request.n_envs or most_envs(request.budget, request.horizon, space.minibatches),
        horizon=request.horizon,
        slots=slots,
        trials_per_batch=together,
        objective=request.objective,
        sampler=request.sampler,
        pruner=request.pruner,
        seed=request.seed,
        space=space.to_dict(),
        threads=request.threads or torch.get_num_threads(),
        precision=request.precision,
    )


def choose_slots(folds: int, device: torch.device) -> int:
    """Members per program: near what saturates the device, and a multiple of a trial's folds, so that programs are
    full.
    """
    near = GPU_SLOTS if device.type == "cuda" else CPU_SLOTS
    return folds * max(1, round(near / folds)) if folds <= 2 * near else near


def _iso(bars: Bars, bar: int) -> str:
    return bars.time_of(bar).strftime("%Y-%m-%dT%H:%M:%SZ")


def reproducing_flags(spec: StudySpec, request: Request) -> str:
    """The automatic choices as flags."""
    flags = {
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
        "tickers": ",".join(spec.data.tickers),
    }
    return " ".join(f"--{name} {value}" for name, value in flags.items())
