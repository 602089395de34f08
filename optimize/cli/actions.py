"""What the commands of the search do, once their flags are read."""

from __future__ import annotations

import faulthandler
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import typer
from optuna.exceptions import StorageInternalError
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from sqlalchemy.exc import SQLAlchemyError

from agents.algorithms.table import get_algorithm
from envs.crypto.demo_market import DEMO_BARS
from envs.crypto.metrics import DEFAULT_OBJECTIVE
from envs.crypto.splits import CrossValidation
from envs.games.registry import get_game
from envs.support.database_url import hide_password
from envs.support.errors import InputError, RunError
from envs.support.logs import LogConsole
from envs.support.study_record import SPEC_KEY, TOTAL_KEY
from envs.support.terminal import Terminal
from optimize.cli.doctor import examine
from optimize.cli.launch import (
    DEMO,
    SMOKE,
    SMOKE_BARS,
    choose_device,
    make_demo_data,
    own_arguments,
    run_on_all,
)
from optimize.cli.status import show, study_status
from optimize.experiments.experiment import Experiment
from optimize.experiments.outlook import CountLooks, sentence, study_outlook
from optimize.study.patience import is_away, reason_of
from optimize.study.pause import pause_study, resume_study
from optimize.study.registration import GRACE_SECONDS, Worker, leave, list_workers, register_worker
from optimize.study.request import MOST_TRIALS, RETURN, Request, check_count, check_request
from optimize.study.search_space import SearchSpace
from optimize.study.storage import open_storage, storage_url
from optimize.study.study import StudyHandle, study_exists
from optimize.worker.batch import Interrupted
from optimize.worker.freeze import decide, make_experiment, open_study
from optimize.worker.measure import typical_shape
from optimize.worker.profiling import profile as profile_batch
from optimize.worker.run import read_config
from optimize.worker.run import run as run_once
from optimize.worker.stopping import StopRequest, default_limit
from optimize.worker.worker import AfterStudy, OnNewBest, WorkerOptions, work

BANNER = (
    "SYNTHETIC MARKET: a demonstration on made-up bars with a planted, learnable structure; "
    "no evidence about any real market."
)

WATCH_SECONDS = 2.0


def _sayer(console: Console) -> Callable[[str], None]:
    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    return say


def train(
    flags: dict[str, Any],
    given: frozenset[str],
    after_study: AfterStudy | None,
    on_new_best: OnNewBest | None = None,
    count_looks: CountLooks | None = None,
) -> None:
    """Join or make the study and work on it.

    flags: all of `train`. given: names of those that the command line, --config or the environment set.
    """
    console = LogConsole(flags["log_file"], flags["log_format"])
    # For crashes outside training; while a worker trains, `deaths.CrashFile` keeps the stacks.
    faulthandler.enable(2)
    try:
        for own in _studies(flags):
            if not _train(own, given, after_study, on_new_best, count_looks, console):
                return
    except (InputError, RunError) as error:
        console.failed(error, expected=True)
        raise
    except Exception as error:
        console.failed(error, expected=False)
        raise


def _train(
    flags: dict[str, Any],
    given: frozenset[str],
    after_study: AfterStudy | None,
    on_new_best: OnNewBest | None,
    count_looks: CountLooks | None,
    console: LogConsole,
) -> bool:
    """Whether the study was worked on to its end."""
    say = _sayer(console)
    flags, made_up = _with_preset(flags, given)
    check_count("--n-trials", flags["n_trials"], MOST_TRIALS)
    if flags["max_memory"] is not None and not math.isfinite(flags["max_memory"]):
        raise InputError(f"--max-memory {flags['max_memory']} must be a number of GiB; 0: no limit")
    name = flags["study_name"] or _study_name(flags)
    if not re.fullmatch(r"[\w][\w.+-]{0,99}", name):
        raise InputError(
            f"--study-name {name!r} is not right; use letters, digits, - and _ (it names a folder, too), at most 100"
        )
    device = choose_device(flags["gpu"])
    recorded = _recorded(flags, name)
    # A name that was not given was made from --env and --algo.
    kept = ("env", "algo", "n_trials") if flags["study_name"] is not None else ("n_trials",)
    flags = flags | {
        flag: recorded[flag] for flag in kept if flag in recorded and flag not in given
    }
    request = _request(flags, given)
    check_request(request)
    if made_up:
        console.print(BANNER, style="bold yellow")
        make_demo_data(
            request.data_dir, request.timeframe, SMOKE_BARS if flags["smoke"] else DEMO_BARS, say
        )
    storage = open_storage(storage_url(flags["storage"], flags["runs_dir"]))
    if request.market and flags["data_dir"] is None and not study_exists(storage, name):
        raise InputError(
            "--data-dir is missing: name a folder of bars (sweepd data download makes one), or use --demo"
        )
    # Without --storage: a reader of the database may not know the password in its URL.
    to_record = {
        k: str(v) if isinstance(v, Path) else v for k, v in flags.items() if k != "storage"
    }
    handle, experiment = open_study(
        storage, name, request, device, flags["runs_dir"], to_record, say
    )
    _describe(handle, experiment, say)
    looks = None if count_looks is None else count_looks(handle)
    say(f"  gate: {sentence(study_outlook(handle, flags['n_trials']), looks)}")
    if flags["gpu"] == "all" and torch.cuda.device_count() > 1:
        count = torch.cuda.device_count()
        each = default_limit(count) / 2**30 if flags["max_memory"] is None else flags["max_memory"]
        own = [
            own_arguments(i, flags["log_file"], flags["metrics_port"], each) for i in range(count)
        ]
        _all_gpus(handle, own, say)
        return True
    limit = default_limit() if flags["max_memory"] is None else round(flags["max_memory"] * 2**30)
    options = WorkerOptions(flags["n_trials"], flags["alongside"], flags["metrics_port"], limit)
    deploy = (after_study, on_new_best) if flags["auto_deploy"] else (None, None)
    return work(handle, experiment, options, console, *deploy)


def _recorded(flags: dict[str, Any], name: str) -> dict[str, Any]:
    """--env, --algo and --n-trials of an existing study: its name alone suffices to join it, and it keeps its number of
    trials.

    Empty where there is none, and where the database cannot be used: that is said when it is opened for training.
    """
    try:
        handle = StudyHandle(
            open_storage(storage_url(flags["storage"], flags["runs_dir"]), read_only=True), name
        )
    except (InputError, RunError):
        return {}
    total = handle.study.user_attrs.get(TOTAL_KEY, flags["n_trials"])
    return {"env": handle.spec.environment, "algo": handle.spec.algorithm, "n_trials": total}


def _studies(flags: dict[str, Any]) -> list[dict[str, Any]]:
    """The flags of every study that is asked for: one, or with --scenario all one per scenario, behind each other."""
    if flags["scenario"] != "all" or flags["env"] == "crypto":
        return [flags]
    scenarios = get_game(flags["env"]).scenarios
    if not scenarios:
        raise InputError(f"--scenario all: {flags['env']} has no scenarios; leave it out")
    named = flags["study_name"]
    return [
        {**flags, "scenario": name, "study_name": f"{named}-{name}" if named else None}
        for name in scenarios
    ]


def profile(flags: dict[str, Any], given: frozenset[str]) -> None:
    """Print where the time of a batch would go, and what to change. No study is made."""
    say = _sayer(Terminal())
    flags, made_up = _with_preset(flags, given)
    device, request = choose_device(flags["gpu"]), _request(flags, given)
    check_request(request)
    if made_up:
        make_demo_data(
            request.data_dir, request.timeframe, SMOKE_BARS if flags["smoke"] else DEMO_BARS, say
        )
    elif request.market and flags["data_dir"] is None:
        raise InputError(
            "--data-dir is missing: name a folder of bars (sweepd data download makes one), or use --demo"
        )
    with tempfile.TemporaryDirectory() as folder:  # a database is read for narrow:STUDY alone
        narrow = request.search_space.startswith("narrow:")
        url = (
            storage_url(flags["storage"], flags["runs_dir"])
            if narrow
            else storage_url(None, Path(folder))
        )
        spec, bars, _ = decide(open_storage(url, create=not narrow), request, device, say)
    experiment = make_experiment(spec, bars, device)
    shape = ", ".join(
        f"{name} {value}" for name, value in typical_shape(SearchSpace.of_study(spec)).items()
    )
    say(
        f"profiling {spec.trials_per_batch} trials of {experiment.members} {experiment.member}s ({shape}) on {device}"
    )
    for line in profile_batch(experiment).lines():
        say(line)


def _with_preset(flags: dict[str, Any], given: frozenset[str]) -> tuple[dict[str, Any], bool]:
    """The flags with what --demo or --smoke stand for, and whether one of them was given."""
    if flags["demo"] and flags["smoke"]:
        raise InputError(
            "--demo and --smoke were both given; --smoke is the smaller of the two, give one"
        )
    if not (flags["demo"] or flags["smoke"]):
        return flags, False
    preset = SMOKE if flags["smoke"] else DEMO
    return {**flags, **{name: value for name, value in preset.items() if name not in given}}, True


def _request(flags: dict[str, Any], given: frozenset[str]) -> Request:
    same = (
        "timeframe",
        "recipe",
        "holdout",
        "budget",
        "rungs",
        "slots",
        "trials_per_batch",
        "sampler",
        "pruner",
        "seed",
        "threads",
        "precision",
        "seeds",
        "episodes",
        "look_steps",
    )
    market = flags["env"] == "crypto"
    algorithm = get_algorithm(flags["algo"])
    if not algorithm.trains:  # one rollout that takes no time
        flags = {
            **flags,
            "budget": 1,
            "rungs": 1,
            "threads": 1 if flags["threads"] is None else flags["threads"],
        }
    return Request(
        data_dir=flags["data_dir"] or Path("."),
        tickers=_tickers(flags["tickers"]),
        environment=flags["env"],
        algorithm=flags["algo"],
        search_space=flags["search_space"] or ("wide" if market else "game"),
        objective=flags["objective"] or (DEFAULT_OBJECTIVE if market else RETURN),
        horizon=algorithm.horizon if flags["horizon"] is None else flags["horizon"],
        cv=CrossValidation(flags["cv"], flags["groups"], flags["test_groups"], flags["embargo"]),
        n_envs=_envs(flags["n_envs"])
        if "n_envs" in given or flags["n_envs"] != "auto"
        else algorithm.num_envs,
        env=_market_settings(flags) if market else _game_settings(flags),
        given=given,
        **{name: flags[name] for name in same},
    )


def _study_name(flags: dict[str, Any]) -> str:
    """The default name of a study."""
    if flags["env"] == "crypto":
        return f"crypto-{flags['timeframe']}"
    parts = [flags["env"], *([flags["scenario"]] if flags["scenario"] else [])]
    parts += [flags["algo"]] if flags["algo"] != "ppo" else []
    return re.sub(r"[^\w.+-]", "-", "-".join(parts))


def _market_settings(flags: dict[str, Any]) -> dict[str, Any]:
    return {
        key: flags[key]
        for key in ("fee", "slippage", "minimum_order", "initial_cash", "episode_bars")
    }


_WORDS = {
    "true": True,
    "false": False,
    "none": None,
}  # as Python writes them: the text "False" would count as true


def _game_settings(flags: dict[str, Any]) -> dict[str, Any]:
    """From --scenario and --env-param NAME=VALUE."""
    settings: dict[str, Any] = {"scenario": flags["scenario"]} if flags["scenario"] else {}
    for text in flags["env_param"] or []:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"--env-param {text!r} is not right; give NAME=VALUE, like length=0.7")
        try:
            settings[name.strip()] = json.loads(value)
        except json.JSONDecodeError:
            settings[name.strip()] = _WORDS.get(value.lower(), value)
    return settings


def _tickers(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    tickers = tuple(part for part in text.replace(",", " ").split() if part)
    if not tickers:
        raise InputError(
            "--tickers is empty; name them like BTC/USDT,ETH/USDT, or leave the flag out for all there are"
        )
    return tickers


def _envs(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InputError(
            f"--n-envs {text!r} is not right; give auto or a whole number of at least 1"
        )
    return int(text)


def _all_gpus(handle: StudyHandle, own: list[list[str]], say: Callable[[str], None]) -> None:
    """This process stands for the study's worker on this machine; the work is done by one child per GPU."""
    name = register_worker(handle.storage, handle.study_id, alongside=False, say=say)
    try:
        run_on_all(sys.argv[1:], own)
    finally:
        leave(handle.storage, name)


def _describe(handle: StudyHandle, experiment: Experiment, say: Callable[[str], None]) -> None:
    spec = handle.spec
    say(f"study {handle.name} in {handle.run_dir}")
    for line in experiment.describe():
        say(f"  {line}")
    say(
        f"  budget: {spec.budget:,} steps per {experiment.member} in {spec.rungs} rungs; "
        f"{spec.num_envs} envs x {spec.horizon} steps = {spec.transitions:,} a rollout, {spec.rollouts} rollouts"
    )
    say(
        f"  batch: {spec.trials_per_batch} trials, {spec.slots} members per program, "
        f"on {experiment.device} with {spec.threads} threads"
    )


def run(config: Path, out: Path | None, start_from: Path | None, gpu: str | None) -> None:
    """One training run outside any study."""
    say = _sayer(Terminal())
    tables = read_config(config)
    settings = dict(tables.get("train", {}))
    settings["out"] = str(out or settings.get("out") or f"runs/run-{config.stem}")
    if start_from is not None:
        settings["start_from"] = str(start_from)
    if gpu == "all":
        raise InputError("--gpu all is for train; a run uses one GPU")
    stop = StopRequest(say)
    try:
        with stop.installed():
            result = run_once(
                {**tables, "train": settings}, device=choose_device(gpu), stop=stop, say=say
            )
    except Interrupted:
        say(f"stopped as asked; go on with --start-from {settings['out']}")
        return
    scores = ", ".join(f"{score:+.2f}" for score in result.fold_scores)
    say(
        f"objective {result.value:+.4f}; fold scores {scores}; {result.steps_per_second:,.0f} steps/s"
    )
    for path, metrics in enumerate(result.metrics):
        say(
            f"  path {path}: Sharpe {metrics.sharpe:+.2f} (equal weight {metrics.equal_weight_sharpe:+.2f}), "
            f"return {metrics.total_return:+.1%} ({metrics.equal_weight_return:+.1%}), "
            f"drawdown {metrics.max_drawdown:.1%}, {metrics.trades:,} trades"
        )
    for reason in result.reasons:
        say(f"  {reason}")
    say(f"results in {result.out}")


def show_status(
    study_name: str | None,
    where: str | None,
    runs_dir: Path | None,
    as_json: bool,
    watch: bool,
    count_looks: CountLooks | None = None,
) -> bool:
    """Print the state of one study, or of all in the database; False where one of them is not well.

    watch: again and again, until Ctrl-C. count_looks: looks so far at a study's hold-out.
    """
    url = storage_url(where, runs_dir)
    storage = open_storage(url, read_only=True)

    handles: dict[str, StudyHandle] = {}  # kept, since they remember finished trials

    def look() -> list[dict[str, Any]]:
        try:
            ours = [
                study.study_name
                for study in storage.get_all_studies()
                if SPEC_KEY in study.user_attrs
            ]
            names = [study_name] if study_name else ours
            handles.update(
                {
                    name: StudyHandle(storage, name, runs_dir)
                    for name in names
                    if name not in handles
                }
            )
            return [study_status(handles[name], count_looks) for name in names]
        except (SQLAlchemyError, StorageInternalError) as error:
            if not is_away(error):
                raise
            raise RunError(
                f"--storage {hide_password(url)} cannot be read now ({reason_of(error)})"
            ) from None

    # Output that is no terminal has no width: a wide one keeps tables whole.
    console = Terminal() if sys.stdout.isatty() else Terminal(width=160)
    if watch:
        return _watch(look, console, as_json)
    found = look()
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        console.print(*(show(study) for study in found), highlight=False, end="")
        if not found:
            console.print(f"no study in {hide_password(url)}", highlight=False, soft_wrap=True)
    return _all_well(found)


def _all_well(found: list[dict[str, Any]]) -> bool:
    return all(study["healthy"] for study in found)


def _watch(look: Callable[[], list[dict[str, Any]]], console: Console, as_json: bool) -> bool:
    """Live on a terminal; elsewhere, and as JSON (one line each), printed again every time."""
    found: list[dict[str, Any]] = []
    try:
        if as_json or not console.is_terminal:
            while True:
                found = look()
                if as_json:
                    typer.echo(json.dumps(found))
                else:
                    console.print(
                        f"{datetime.now():%Y-%m-%d %H:%M:%S}",
                        *map(show, found),
                        highlight=False,
                        end="",
                    )
                time.sleep(WATCH_SECONDS)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                now = f"{datetime.now():%H:%M:%S}, every {WATCH_SECONDS:.0f} s; Ctrl-C ends it"
                found = look()
                live.update(Group(*map(show, found), Text(now, style="dim")), refresh=True)
                time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return _all_well(found)


def pause(name: str, where: str | None, runs_dir: Path, wait: float) -> None:
    """Record that the study is paused, and wait until its workers have let go, at most `wait` seconds."""
    handle = StudyHandle(open_storage(storage_url(where, runs_dir), create=False), name)
    say = _sayer(Terminal())
    before = pause_study(handle.storage, handle.study_id)
    say(f"study {name} is paused" + (f" since {before.since}, by {before.by}" if before else ""))
    until = time.monotonic() + wait
    while (
        busy := [w for w in _working(handle) if w.state != "paused"]
    ) and time.monotonic() < until:
        time.sleep(0.2)
    for worker in _working(handle):
        say(
            f"  worker {worker.host}:{worker.pid}: "
            + ("still at it" if worker in busy else "waits, without memory")
        )
    if busy:
        say("  it stops at the end of its rollout; sweepd status says when")
    say(f"go on with: sweepd resume {name}")


def _working(handle: StudyHandle) -> list[Worker]:
    """Workers that seem to live."""
    return [
        w
        for w in list_workers(handle.storage, handle.study_id)
        if w.alive or (w.alive is None and w.beat_age < GRACE_SECONDS)
    ]


def resume(name: str, where: str | None, runs_dir: Path) -> None:
    """Record that the study is paused no longer."""
    handle = StudyHandle(open_storage(storage_url(where, runs_dir), create=False), name)
    say = _sayer(Terminal())
    if not resume_study(handle.storage, handle.study_id):
        say(f"study {name} was not paused")
        return
    waiting = len(_working(handle))
    say(
        f"study {name} is resumed"
        + ("" if waiting else "; no worker is there to go on: start one with sweepd train")
    )


def diagnose(where: str | None, runs_dir: Path) -> int:
    """Print what `sweepd doctor` finds; returns how many things are to do."""
    console = Terminal()
    bad = 0
    for finding in examine(storage_url(where, runs_dir), runs_dir):
        console.print(
            "ok  " if finding.ok else "fix ", style="green" if finding.ok else "bold red", end=""
        )
        text = f"{finding.subject}: {finding.found}" + (
            "" if finding.ok else f" -> {finding.advice}"
        )
        console.print(text, highlight=False, soft_wrap=True)
        bad += not finding.ok
    return bad
