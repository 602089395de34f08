"""One training run outside a study: `sweepd run CONFIG`, or `run(config)` in Python."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agents.algorithms.ppo import PPOParams
from agents.networks.precision import set_precision
from agents.policy.frozen import load_members
from envs.crypto.data.bars import Bars, load_bars
from envs.crypto.data.demo_market import make_demo_market
from envs.crypto.params import EnvParams
from envs.crypto.scoring.metrics import DEFAULT_OBJECTIVE, OBJECTIVES, Metrics, PathTrades
from envs.crypto.splits import CrossValidation
from envs.support.errors import InputError, RunError
from envs.support.files import write_atomic
from envs.support.study_record import CRYPTO, CryptoSpec, objective_name
from optimize.experiments.artifacts import draw_equity, write_trial
from optimize.experiments.crypto import CryptoEvaluation, CryptoExperiment
from optimize.experiments.market_kind import MarketKind
from optimize.experiments.request import Request, check_count, most_threads
from optimize.study.checkpoint import (
    Checkpoint,
    describe_rollouts,
    read_checkpoint,
    write_checkpoint,
)
from optimize.study.fit import fit_budget, fit_minibatch, most_envs, refuse_misfit
from optimize.study.search_space import Settings, Subject
from optimize.study.spec import check_folds
from optimize.study.study import Plan
from optimize.worker.batch import Interrupted, Trainer, Training
from optimize.worker.freeze import choose_slots

TABLES = ("data", "cv", "shape", "ppo", "env", "train")
TRAIN_DEFAULTS: dict[str, Any] = {
    "budget": 250_000,
    "rungs": 4,
    "horizon": 64,
    "num_envs": None,
    "slots": None,
    "holdout": 0.15,
    "objective": DEFAULT_OBJECTIVE,
    "seed": 0,
    "threads": None,
    "precision": "fp32",
    "recipe": "default",
    "out": None,
    "start_from": None,
}
DATA_DEFAULTS: dict[str, Any] = {"dir": None, "timeframe": "1h", "tickers": None, "demo": False}


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Attributes:
        value: objective over the back-test paths.
        fold_scores: objective on each fold's own test groups.
        rung_values: mean over folds at each rung.
        reasons: why `value` differs from what the scores alone would give.
        metrics: metrics of each path.
        paths: the paths, (φ, T) arrays.
        members: one actor per fold, as `agents.policy.frozen` saves them.
        steps_per_second: environment steps per second.
        out: folder of the results, None if nothing was written.
    """

    value: float
    fold_scores: tuple[float, ...]
    rung_values: tuple[float, ...]
    reasons: tuple[str, ...]
    metrics: list[Metrics]
    paths: PathTrades
    members: list[dict[str, Tensor]]
    steps_per_second: float
    out: Path | None


def read_config(path: Path) -> dict[str, Any]:
    """Read the TOML file of a run. Raises InputError if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); name a TOML file with [data], [train], "
            "[shape], [ppo], [env]"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML ({error})") from None


def run(
    config: Mapping[str, Any] | Path,
    *,
    bars: Bars | None = None,
    device: str | torch.device = "cpu",
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda _: None,
) -> RunResult:
    """Train one member per fold with one set of parameters, and evaluate its test groups.

    Args:
        config: a TOML file, or its tables as a mapping (see below).
        bars: bars to use instead of [data].
        device: where training runs.
        stop: whether to stop; called after every rollout.
        say: receives lines for the user.

    The tables are:

        [data]  dir, timeframe, tickers; or demo = true
        [cv]    scheme, groups, test_groups, embargo_share
        [train] budget (steps per fold), rungs, horizon, num_envs, slots, holdout, objective, seed,
                threads, precision, recipe, out (folder of results and checkpoints), start_from
                (folder or file: the checkpoint of a run or study, to continue exactly; or
                members.safetensors of a trial or bundle, as initial weights of the actors)
        [shape] net_width, net_depth, minibatch, epochs
        [ppo]   fields of `PPOParams`
        [env]   fields of `EnvParams`

    Raises:
        InputError: the configuration is invalid.
        RunError: training diverged.
        Interrupted: `stop` returned True; a checkpoint has been written if `out` is set.
    """
    config = read_config(config) if isinstance(config, Path) else config
    tables = _checked(config)
    torch_device = torch.device(device)
    bars = bars or _load(tables["data"])
    train = tables["train"]
    warning = check_folds(CrossValidation(**tables["cv"]), train["budget"])
    if warning:
        say(f"warning: {warning}")
    _fit(tables, set(config.get("train", {})), say)
    spec = _spec(tables, bars, torch_device)
    torch.set_num_threads(spec.threads)
    set_precision(spec.precision, torch_device)
    experiment = CryptoExperiment(spec, bars, torch_device)
    settings = Settings(
        {**Subject().learner.shape, **tables["shape"]}, tables["ppo"], tables["env"]
    )
    settings.shape["minibatch"] = fit_minibatch(settings.shape["minibatch"], spec.transitions)
    note = {"config": _identity(tables), "data": spec.data.fingerprint}
    plan = Plan(0, 0, {}, settings, spec.seed)
    steps = 0

    def progress(count: int) -> None:
        nonlocal steps
        steps += count

    out = Path(train["out"]) if train["out"] else None
    trainer = Trainer(
        experiment,
        stop=stop,
        progress=progress,
        say=say,
        keep=lambda trainings: _keep(out, trainings[0], note),
    )
    training = trainer.start(plan)
    if train["start_from"]:
        _start_from(Path(train["start_from"]), trainer, training, note, say)
    values: list[float] = []
    began = time.monotonic()
    evaluation: CryptoEvaluation | None = None

    def evaluate() -> CryptoEvaluation | None:
        judged = None if training.fault else trainer.evaluate([training])[0]
        assert judged is None or isinstance(judged, CryptoEvaluation)
        return judged

    say(
        f"Using Vectorized Environments: {spec.num_envs * spec.slots} parallel envs "
        f"({spec.num_envs} per member x {spec.slots} members)"
    )
    while training.rung < spec.rungs:
        trainer.pace.begun()
        try:
            trainer.advance([training], lambda t: t.rung + 1)
            evaluation = evaluate()
        except Interrupted:
            if training.fault:  # a checkpoint would hide it: nothing is left to train in the rung
                raise RunError(f"the run {training.fault}") from None
            _keep(out, training, note)
            raise
        if evaluation is None:
            raise RunError(f"the run {training.fault}")
        training.rung += 1
        values.append(evaluation.value)
        say(
            f"rung {training.rung} of {spec.rungs}: mean over folds {evaluation.value:+.4f}, "
            f"{steps / (time.monotonic() - began):,.0f} steps/s"
        )
        _keep(out, training, note)
    if evaluation is None:  # the checkpoint was of a finished run
        evaluation = evaluate()
        if evaluation is None:
            raise RunError(f"the run {training.fault}")
    members = trainer.actors(training)
    if out is not None:
        times = bars.time[experiment.splits.path_bars]
        write_trial(out, members, evaluation.paths, evaluation.metrics, times)
        draw_equity(out, f"{out.name}: out of sample, cross-validated")
        write_atomic(out / "config.json", json.dumps(tables, indent=1, default=str))
        write_atomic(out / "spec.json", spec.to_json())
    return RunResult(
        evaluation.final,
        evaluation.scores,
        tuple(values),
        evaluation.reasons,
        evaluation.metrics,
        evaluation.paths,
        members,
        trainer.steps / max(trainer.seconds, 1e-9),
        out,
    )


def _checked(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return all tables with their defaults. Raises InputError for unknown keys."""
    allowed = {
        "data": set(DATA_DEFAULTS),
        "train": set(TRAIN_DEFAULTS),
        "shape": set(Subject().learner.shape),
        "cv": {f.name for f in dataclasses.fields(CrossValidation)},
        "ppo": {f.name for f in dataclasses.fields(PPOParams)},
        "env": {f.name for f in dataclasses.fields(EnvParams)},
    }
    for table, entries in config.items():
        if table not in allowed:
            raise InputError(
                f"[{table}] is not a table of a run; there are "
                f"{', '.join(f'[{t}]' for t in TABLES)}"
            )
        if not isinstance(entries, Mapping):
            raise InputError(f"{table} should be a table: [{table}]")
        for key in entries:
            if key not in allowed[table]:
                raise InputError(
                    f"[{table}] {key} is not known; choose of {', '.join(sorted(allowed[table]))}"
                )
    tables = {table: dict(config.get(table, {})) for table in TABLES}
    tables["data"] = {**DATA_DEFAULTS, **tables["data"]}
    tables["train"] = {**TRAIN_DEFAULTS, **tables["train"]}
    for key in ("budget", "rungs", "horizon", "num_envs", "slots", "threads"):
        value = tables["train"][key]
        if value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or value < 1
        ):
            raise InputError(f"[train] {key} = {value!r} must be a whole number of at least 1")
    if objective_name(str(tables["train"]["objective"])) not in OBJECTIVES:
        raise InputError(
            f"[train] objective = {tables['train']['objective']!r} is not known; choose one of "
            f"{', '.join(OBJECTIVES)}"
        )
    if tables["train"]["threads"] is not None:
        check_count("[train] threads =", tables["train"]["threads"], most_threads())
    for key, value in tables["shape"].items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"[shape] {key} = {value!r} must be a whole number of at least 1")
    try:
        PPOParams(**tables["ppo"])
        CrossValidation(**tables["cv"])
        EnvParams(**tables["env"])
    except TypeError as error:
        raise InputError(f"a value in the configuration has the wrong type ({error})") from None
    return tables


def _fit(tables: dict[str, dict[str, Any]], given: set[str], say: Callable[[str], None]) -> None:
    """Raise the budget to one rollout per rung if it is smaller.

    Args:
        tables: tables of the configuration; changed in place.
        given: keys of the file's [train].
        say: receives a line if the budget was raised.

    Raises:
        InputError: numbers of the file do not fit each other.
    """
    train = tables["train"]
    chosen = "budget" in given and bool({"num_envs", "horizon", "rungs"} & given)
    envs = train["num_envs"] or 1
    train["budget"], note = fit_budget(
        train["budget"], train["rungs"], envs, train["horizon"], fixed=chosen
    )
    if note:
        say(note)
    if train["num_envs"] and "minibatch" in tables["shape"]:
        refuse_misfit(
            [tables["shape"]["minibatch"]], train["num_envs"], train["horizon"], "[shape]"
        )


def _load(data: Mapping[str, Any]) -> Bars:
    if data["demo"]:
        return make_demo_market(timeframe=data["timeframe"])
    if not data["dir"]:
        raise InputError("[data] dir is missing: name a folder of bars, or set demo = true")
    return load_bars(Path(data["dir"]), data["timeframe"], data["tickers"])


def _spec(tables: Mapping[str, Mapping[str, Any]], bars: Bars, device: torch.device) -> CryptoSpec:
    """Return the spec of a study whose only trial is this run."""
    train, data = tables["train"], tables["data"]
    minibatch = tables["shape"].get("minibatch", Subject().learner.shape["minibatch"])
    request = Request(
        data_dir=Path(data["dir"] or "."),
        recipe=train["recipe"],
        cv=CrossValidation(**tables["cv"]),
        holdout=train["holdout"],
    )
    common = {
        "environment": CRYPTO,
        "algorithm": "ppo",
        "env": {},
        "num_envs": train["num_envs"]
        or min(64, most_envs(train["budget"], train["horizon"], [minibatch])),
        "slots": train["slots"] or choose_slots(request.cv.folds, device),
        "trials_per_batch": 1,
        "sampler": "none",
        "pruner": "none",
        "space": {
            "name": "run",
            "version": 1,
            "shape": {},
            "ppo": {},
            "env": {name: {"value": value} for name, value in tables["env"].items()},
        },
        "threads": train["threads"] or torch.get_num_threads(),
        **{
            name: train[name]
            for name in ("budget", "rungs", "horizon", "objective", "seed", "precision")
        },
    }
    lookback = EnvParams(**tables["env"]).lookback
    return MarketKind(CRYPTO).make_spec(request, common, lookback, bars)


def _identity(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a hash of everything in the configuration that determines numbers."""
    deciding = {
        table: {k: v for k, v in entries.items() if k not in ("out", "start_from", "dir")}
        for table, entries in tables.items()
    }
    return hashlib.sha256(json.dumps(deciding, sort_keys=True, default=str).encode()).hexdigest()


def _keep(out: Path | None, training: Training, note: dict[str, Any]) -> None:
    if out is not None:
        write_checkpoint(
            out / "checkpoint.safetensors",
            Checkpoint(training.members, training.rung, training.seconds, note),
        )


def _start_from(
    source: Path,
    trainer: Trainer,
    training: Training,
    note: dict[str, Any],
    say: Callable[[str], None],
) -> None:
    """Continue from a checkpoint of the same run, or use other weights as initial weights.

    Other weights are those of another run's checkpoint, of a trial or of a bundle.
    """
    path = source
    if source.is_dir():
        found = [
            p
            for name in ("checkpoint.safetensors", "members.safetensors")
            if (p := source / name).exists()
        ]
        found = found or sorted(
            source.glob("checkpoint-*.safetensors"), reverse=True
        )  # the newest first
        if not found:
            raise InputError(
                f"[train] start_from {source}: there is neither a checkpoint nor "
                "members.safetensors in it"
            )
        path = found[0]
    if not path.exists():
        raise InputError(
            f"[train] start_from {path} does not exist; name a checkpoint, members.safetensors, or "
            "a folder of one"
        )
    if path.name.startswith("checkpoint"):
        checkpoint = read_checkpoint(path)
        if checkpoint.note == note and len(checkpoint.members) == len(training.members):
            say(
                f"going on from {path}: rung {checkpoint.rung}, "
                f"{describe_rollouts(checkpoint.members)}"
            )
            training.members, training.rung, training.seconds = (
                checkpoint.members,
                checkpoint.rung,
                checkpoint.seconds,
            )
            return
        training.initial = trainer.actors_of(
            training.plan,
            [member.learner for member in checkpoint.members if member.learner is not None],
        )
    else:
        training.initial = load_members(path)
    say(f"the folds' networks start from the weights in {path}")
