"""One training run outside a study: `sweepd run CONFIG`, or `run(config)` in Python."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sweepd.agents.native.choice import require_same
from sweepd.agents.networks.precision import set_precision
from sweepd.agents.networks.weights import StateDict
from sweepd.agents.policy.frozen import load_members
from sweepd.envs.crypto.data.bars import Bars, load_bars
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.crypto.features import default_recipe
from sweepd.envs.crypto.splits import CrossValidation
from sweepd.envs.native.build import TORCH
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.files import write_atomic
from sweepd.optimize.experiments.artifacts import draw_equity, write_trial
from sweepd.optimize.experiments.crypto import CryptoEvaluation, CryptoExperiment
from sweepd.optimize.experiments.request import Request
from sweepd.optimize.study.checkpoint import (
    Checkpoint,
    describe_rollouts,
    read_checkpoint,
    write_checkpoint,
)
from sweepd.optimize.study.fit import fit_shape, most_envs
from sweepd.optimize.study.record.stored import CryptoSpec
from sweepd.optimize.study.space.dimension import Dimension
from sweepd.optimize.study.space.search_space import SearchSpace, Settings
from sweepd.optimize.study.spec import check_folds
from sweepd.optimize.study.study import Plan
from sweepd.optimize.tracking.tracker import Tracking
from sweepd.optimize.worker.batch import Interrupted, Trainer, Training, describe_envs
from sweepd.optimize.worker.freeze import draft_spec, fit_request
from sweepd.optimize.worker.run_config import NOT_OF_A_STUDY, SUBJECT, check_config, read_config
from sweepd.optimize.worker.tracked import TrackedRun

MOST_ENVS = 64  # the largest automatic num_envs; a study would measure it
FILES = ("out", "start_from")  # of [train]


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Attributes:
        evaluation: scores, metrics and back-test paths after the last rung.
        rung_values: mean over folds at each rung.
        members: one actor per fold, as `sweepd.agents.policy.frozen` saves them.
        steps_per_second: environment steps per second of training.
        out: folder of the results, None if nothing was written.
    """

    evaluation: CryptoEvaluation
    rung_values: tuple[float, ...]
    members: list[StateDict]
    steps_per_second: float
    out: Path | None


def run(
    config: Mapping[str, Any] | Path,
    *,
    bars: Bars | None = None,
    device: str | torch.device = "cpu",
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda _: None,
    track: Sequence[str] = (),
    source: str = "",
) -> RunResult:
    """Train one member per fold with one set of parameters, and evaluate its test groups.

    Args:
        config: a TOML file, or its tables as a mapping, see `sweepd.optimize.worker.run_config`.
        bars: bars to use instead of [data].
        device: where training runs.
        stop: whether to stop; called after every rollout.
        say: receives lines for the user.
        track: names of trackers, see `sweepd.optimize.tracking`; [train] out is needed.
        source: name of the file that `config` was read from, for messages.

    Raises:
        InputError: the configuration is invalid.
        RunError: training diverged.
        Interrupted: `stop` returned True; a checkpoint has been written if `out` is set.
    """
    if isinstance(config, Path):
        config, source = read_config(config), str(config)
    tables = check_config(config, source)
    train, torch_device = tables["train"], torch.device(device)
    bars = bars or _load(tables["data"])
    spec, settings = _spec(tables, config.get("train", {}), bars, torch_device, say)
    train["recipe"], train["budget"] = (
        spec.recipe["name"],
        spec.budget,
    )  # it may have been raised, and is part of the identity
    torch.set_num_threads(spec.threads)
    set_precision(spec.precision, torch_device)
    experiment = CryptoExperiment(spec, bars, torch_device)
    note = {"config": _identity(tables), "data": spec.data.fingerprint, "kernels": spec.kernels}
    out = Path(train["out"]) if train["out"] else None

    def keep(trainings: Sequence[Training]) -> None:
        if out is not None:
            [training] = trainings
            state = Checkpoint(training.members, training.rung, training.seconds, note)
            write_checkpoint(out / "checkpoint.safetensors", state)

    trainer = Trainer(experiment, stop=stop, say=say, keep=keep)
    training = trainer.start(Plan(0, 0, {}, settings, spec.seed))
    if train["start_from"]:
        _start_from(Path(train["start_from"]), trainer, training, note, say)
    say(describe_envs(spec))
    folder = out or Path()
    if track and out is None:
        raise InputError("track needs a folder of results; set [train] out")
    with Tracking(track, folder, say) as tracking:
        tracked = TrackedRun(tracking, folder, spec, _numbers(tables), resumed=training.begun)
        try:
            evaluation, values = _train(trainer, training, keep, say, tracked.rung)
        except RunError as error:
            tracked.fail(str(error))
            raise
        members = trainer.actors(training)
        if out is not None:
            times = bars.time[experiment.splits.path_bars]
            write_trial(out, members, evaluation.paths, evaluation.metrics, times)
            draw_equity(out, f"{out.name}: out of sample, cross-validated")
            write_atomic(out / "config.json", json.dumps(tables, indent=1, default=str))
            write_atomic(out / "spec.json", spec.to_json())
        tracked.complete(evaluation, folder / "members.safetensors")
    return RunResult(evaluation, values, members, trainer.steps_per_second, out)


def _train(
    trainer: Trainer,
    training: Training,
    keep: Callable[[Sequence[Training]], None],
    say: Callable[[str], None],
    reached: Callable[[int, CryptoEvaluation], None],
) -> tuple[CryptoEvaluation, tuple[float, ...]]:
    """Train the remaining rungs; return the last evaluation and the value of each rung."""
    rungs = trainer.spec.rungs
    evaluation: CryptoEvaluation | None = None
    values: list[float] = []
    while training.rung < rungs:
        trainer.pace.begun()
        try:
            trainer.advance([training])
            evaluation = _evaluate(trainer, training)
        except Interrupted:
            # A checkpoint would hide the fault: nothing is left to train in its rung.
            if training.fault:
                raise RunError(f"the run {training.fault}") from None
            keep([training])
            raise
        training.rung += 1
        values.append(evaluation.value)
        reached(training.rung, evaluation)
        say(
            f"rung {training.rung} of {rungs}: mean over folds {evaluation.value:+.4f}, "
            f"{trainer.steps_per_second:,.0f} steps/s"
        )
        keep([training])
    # Without an evaluation, the checkpoint was of a finished run.
    return evaluation or _evaluate(trainer, training), tuple(values)


def _evaluate(trainer: Trainer, training: Training) -> CryptoEvaluation:
    """Evaluate the run. Raises RunError if it diverged."""
    evaluation = None if training.fault else trainer.evaluate([training])[0]
    if evaluation is None:
        raise RunError(f"the run {training.fault}")
    assert isinstance(evaluation, CryptoEvaluation)
    return evaluation


def _numbers(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the tables of parameters, without those that name data and files."""
    train = {key: value for key, value in tables["train"].items() if key not in FILES}
    return {**{t: own for t, own in tables.items() if t != "data"}, "train": train}


def _load(data: Mapping[str, Any]) -> Bars:
    if data["demo"]:
        return make_demo_market(timeframe=data["timeframe"])
    if not data["dir"]:
        raise InputError("[data] dir is missing: name a folder of bars, or set demo = true")
    return load_bars(Path(data["dir"]), data["timeframe"], data["tickers"])


def _spec(
    tables: Mapping[str, Mapping[str, Any]],
    given: Iterable[str],
    bars: Bars,
    device: torch.device,
    say: Callable[[str], None],
) -> tuple[CryptoSpec, Settings]:
    """Return the spec of a study whose only trial is this run, and the trial's settings.

    Args:
        tables: tables of the configuration, with their defaults.
        given: keys of the file's [train].
        bars: the bars.
        device: where training runs.
        say: receives lines for the user.

    Raises:
        InputError: numbers of the file do not fit each other.
    """
    train, cv = tables["train"], CrossValidation(**tables["cv"])
    warning = check_folds(cv, train["budget"])
    if warning:
        say(f"warning: {warning}")
    constants = {
        table: {name: Dimension(name, value=value) for name, value in tables[table].items()}
        for table in SUBJECT.tables
    }
    # A space of constants, so that a run and a study share the code that fits and drafts.
    space = SearchSpace("run", 1, constants, SUBJECT)
    request = Request(
        data_dir=Path(tables["data"]["dir"] or "."),
        recipe=train["recipe"] or default_recipe(bars.timeframe),
        cv=cv.scheme,
        groups=cv.groups,
        test_groups=cv.test_groups,
        embargo=cv.embargo_share,
        n_envs=train["num_envs"],
        trials_per_batch=1,
        sampler="none",
        pruner="none",
        given=frozenset("n_envs" if name == "num_envs" else name for name in given),
        **{name: value for name, value in train.items() if name not in NOT_OF_A_STUDY},
    )
    minibatch_from = "[shape]" if "minibatch" in tables["shape"] else ""
    request = fit_request(request, space, minibatch_from, say)
    if request.n_envs is None:
        most = most_envs(request.budget, request.horizon, space.minibatches)
        request = dataclasses.replace(request, n_envs=min(MOST_ENVS, most))
    # The trial's own settings hold all of [env].
    spec = dataclasses.replace(draft_spec(request, space, bars, device), env={})
    assert isinstance(spec, CryptoSpec)
    settings = space.resolve({})
    shape = fit_shape(settings.shape, spec.transitions)
    return spec, dataclasses.replace(settings, shape=shape)


def _identity(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a hash of everything in the configuration that determines numbers."""
    deciding = {
        table: {k: v for k, v in entries.items() if k not in ("out", "start_from", "dir")}
        for table, entries in tables.items()
    }
    return hashlib.sha256(json.dumps(deciding, sort_keys=True, default=str).encode()).hexdigest()


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
    path = _weights_in(source) if source.is_dir() else source
    if not path.exists():
        raise InputError(
            f"[train] start_from {path} does not exist; name a checkpoint, members.safetensors, or "
            "a folder of one"
        )
    if path.name.startswith("checkpoint"):
        checkpoint = read_checkpoint(path)
        # Earlier versions recorded no kernels, and had torch's only.
        kernels = checkpoint.note.get("kernels", TORCH)
        same_run = {**checkpoint.note, "kernels": note["kernels"]} == note
        if same_run and len(checkpoint.members) == len(training.members):
            require_same(kernels, note["kernels"], path)
            at = describe_rollouts(checkpoint.members)
            say(f"going on from {path}: rung {checkpoint.rung}, {at}")
            training.resume(checkpoint)
            return
        training.initial = trainer.actors_of(
            training.plan,
            [member.learner for member in checkpoint.members if member.learner is not None],
        )
    else:
        training.initial = load_members(path)
    say(f"the folds' networks start from the weights in {path}")


def _weights_in(folder: Path) -> Path:
    """Return the file of a run's, trial's or bundle's folder to start from."""
    for name in ("checkpoint.safetensors", "members.safetensors"):
        if (folder / name).exists():
            return folder / name
    # A trial in training: the number of rollouts in the name makes the newest the last one.
    checkpoints = sorted(folder.glob("checkpoint-*.safetensors"))
    if not checkpoints:
        raise InputError(
            f"[train] start_from {folder}: there is neither a checkpoint nor members.safetensors "
            "in it"
        )
    return checkpoints[-1]
