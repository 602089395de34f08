"""The commands of the search: train, run, status, dashboard, doctor."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from envs.errors import InputError, RunError

STUDY, DATA, TRAINING, MARKET, MACHINE = "Study", "Data and folds", "Training", "Market and money", "Machine"


def read_config_file(path: Path) -> dict[str, Any]:
    """A TOML file whose keys are the flags of a command, with - or _. Raises InputError where it cannot be read."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config {path}: cannot be read ({error.strerror}); name a TOML file of flags") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path}: not valid TOML ({error})") from None
    return {key.replace("-", "_"): value for key, value in entries.items()}


def _config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's entries the defaults of the flags: what stands on the command line wins."""
    if path is None or context.resilient_parsing:
        return path
    entries = read_config_file(path)
    known = {parameter.name for parameter in context.command.params if parameter.name not in ("config", "help")}
    for key, value in entries.items():
        if key not in known:
            raise InputError(f"--config {path}: {key!r} is not a flag of this command; choose of {', '.join(sorted(k for k in known if k))}")
        if isinstance(value, dict):
            raise InputError(f"--config {path}: [{key}] is a table; every key must be a flag with a value")
    lists = {key: ",".join(map(str, value)) if isinstance(value, list) else value for key, value in entries.items()}
    context.default_map = {**(context.default_map or {}), **lists}
    return path


def _split(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    tickers = tuple(part for part in text.replace(",", " ").split() if part)
    if not tickers:
        raise InputError("--tickers is empty; name them like BTC/USDT,ETH/USDT, or leave the flag out for all in the folder")
    return tickers


def _envs(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdigit() or int(text) < 1:
        raise InputError(f"--n-envs {text!r} is not right; give auto or a whole number of at least 1")
    return int(text)


def search_commands(app: typer.Typer, after_study: Any = None) -> None:
    """Add the commands to `app`.

    after_study: called as after_study(handle, console) by the worker that closes a study, unless --no-auto-deploy
    (see `optimize.worker.AfterStudy`).
    """

    @app.command()
    def train(
        context: typer.Context,
        config: Annotated[Path | None, typer.Option(
            help="A TOML file in which any of these flags may stand (n-trials = 40). The command line wins.", callback=_config, is_eager=True)] = None,
        demo: Annotated[bool, typer.Option(
            "--demo", help="Make a synthetic market in data/demo and run a small study on it: about five minutes on two cores.")] = False,
        smoke: Annotated[bool, typer.Option("--smoke", help="The same, as small as possible: everything once, in under a minute.")] = False,
        n_trials: Annotated[int, typer.Option(
            help="Finished trials (complete, pruned or failed) that the study shall have, over all workers.", rich_help_panel=STUDY)] = 40,
        study_name: Annotated[str | None, typer.Option(
            help="Started again with the same name, a study goes on. Default: crypto-TIMEFRAME.", rich_help_panel=STUDY)] = None,
        storage: Annotated[str | None, typer.Option(
            help="A SQLite file on a local disk, or postgresql://user@host/database. Default: sweepd.db in the runs directory.",
            rich_help_panel=STUDY)] = None,
        search_space: Annotated[str, typer.Option(
            help="wide, large or demo; narrow:STUDY[#TRIAL] for the neighbourhood of a trial; or a TOML file like those in optimize/spaces.",
            rich_help_panel=STUDY)] = "wide",
        sampler: Annotated[str, typer.Option(help="tpe or random.", rich_help_panel=STUDY)] = "tpe",
        pruner: Annotated[str, typer.Option(
            help="hyperband (the worse half ends at each rung, in brackets), median, or none.", rich_help_panel=STUDY)] = "hyperband",
        objective: Annotated[str, typer.Option(
            help="excess-sharpe (over equal weight), sharpe, sortino or information-ratio: mean over paths less a tenth of the deviation.",
            rich_help_panel=STUDY)] = "excess-sharpe",
        seed: Annotated[int, typer.Option(help="Of the sampler, and with a trial's number of every trial.", rich_help_panel=STUDY)] = 0,
        trials_per_batch: Annotated[int | None, typer.Option(
            help="Trials of one shape trained and judged together. Default: at least 4.", rich_help_panel=STUDY)] = None,
        auto_deploy: Annotated[bool, typer.Option(
            "--auto-deploy/--no-auto-deploy", help="Ask for the best trial's promotion to paper trading when the study is done.",
            rich_help_panel=STUDY)] = True,
        env: Annotated[str, typer.Option(help="The environment: crypto.", rich_help_panel=DATA)] = "crypto",
        data_dir: Annotated[Path | None, typer.Option(
            help="Folder of bars, one file per ticker, like BTC_USDT-1h.parquet (see sweepd data).", rich_help_panel=DATA)] = None,
        timeframe: Annotated[str, typer.Option(help="Length of a bar: 1m, 5m, 15m, 1h, 4h, 1d, …", rich_help_panel=DATA)] = "1h",
        tickers: Annotated[str | None, typer.Option(
            help="Which and in what order, like BTC/USDT,ETH/USDT. Default: all in the folder.", rich_help_panel=DATA)] = None,
        recipe: Annotated[str, typer.Option(help="Feature recipe.", rich_help_panel=DATA)] = "default",
        holdout: Annotated[float, typer.Option(
            help="Share of the newest bars that no trial sees; promotion is decided there.", rich_help_panel=DATA)] = 0.15,
        cv: Annotated[str, typer.Option(
            help="cpcv (combinatorial purged), kfold, walk-forward or single.", rich_help_panel=DATA)] = "cpcv",
        groups: Annotated[int, typer.Option(help="Contiguous groups that the bars are divided into.", rich_help_panel=DATA)] = 5,
        test_groups: Annotated[int, typer.Option(help="Groups tested per fold (cpcv only).", rich_help_panel=DATA)] = 2,
        embargo: Annotated[float, typer.Option(
            help="Share of the bars left out after a test group, on top of the purge; at least a day.", rich_help_panel=DATA)] = 0.01,
        budget: Annotated[int, typer.Option(help="Environment steps per fold of an unpruned trial.", rich_help_panel=TRAINING)] = 250_000,
        rungs: Annotated[int, typer.Option(
            help="Equal parts of the budget; after each, trials report, may be pruned, and are checkpointed.", rich_help_panel=TRAINING)] = 4,
        n_envs: Annotated[str, typer.Option(
            help="Parallel environments per member: a number, or auto, which measures what is fastest here.", rich_help_panel=TRAINING)] = "auto",
        horizon: Annotated[int, typer.Option(help="Steps of each environment per rollout.", rich_help_panel=TRAINING)] = 64,
        slots: Annotated[int | None, typer.Option(
            help="Members per batched program. Default: about 10 on a CPU, 64 on a GPU, full trials.", rich_help_panel=TRAINING)] = None,
        episode_bars: Annotated[int, typer.Option(help="Bars per training episode; 0: a week.", rich_help_panel=MARKET)] = 0,
        fee: Annotated[float, typer.Option(help="Share of every order's value.", rich_help_panel=MARKET)] = 0.0025,
        slippage: Annotated[float, typer.Option(help="Share of the price, against the trader.", rich_help_panel=MARKET)] = 0.0005,
        minimum_order: Annotated[float, typer.Option(help="Smallest order, in quote units.", rich_help_panel=MARKET)] = 10.0,
        initial_cash: Annotated[float, typer.Option(help="What every episode starts with, in quote units.", rich_help_panel=MARKET)] = 10_000.0,
        gpu: Annotated[str | None, typer.Option(
            help="A GPU's number, all (one worker each), or cpu. Default: GPU 0 where there is one.", rich_help_panel=MACHINE)] = None,
        threads: Annotated[int | None, typer.Option(
            help="torch's CPU threads; part of the study, since sums round by them. Default: torch's own choice.", rich_help_panel=MACHINE)] = None,
        runs_dir: Annotated[Path, typer.Option(help="Where studies keep their files.", rich_help_panel=MACHINE)] = Path("runs"),
        alongside: Annotated[bool, typer.Option(
            "--alongside", help="Run beside a worker of this study that is running on this machine, instead of taking over.",
            rich_help_panel=MACHINE)] = False,
    ) -> None:
        """Search: train trials on the study until it has --n-trials of them, then sum up and ask for promotion.

        Stop it with Ctrl-C or SIGTERM: the trials in hand are put back, and the same command goes on with them. Flags that decide what
        the study is are frozen when it is made; later runs take them from it.
        """
        _train({k: v for k, v in context.params.items() if k != "config"}, _given(context), after_study)

    @app.command()
    def run(
        config: Annotated[Path, typer.Argument(help="TOML with [data], [cv], [train], [shape], [ppo] and [env]; see docs.")],
        out: Annotated[Path | None, typer.Option(help="Folder for results and checkpoints. Default: as in the file, else runs/run-NAME.")] = None,
        start_from: Annotated[Path | None, typer.Option(
            help="A checkpoint of the same run, to go on exactly; or a trial's or bundle's folder, whose weights it starts from.")] = None,
        gpu: Annotated[str | None, typer.Option(help="A GPU's number, or cpu. Default: GPU 0 where there is one.")] = None,
    ) -> None:
        """Train once with one set of parameters, outside any study, and print what its test groups say."""
        _run(config, out, start_from, gpu)

    @app.command()
    def status(
        study_name: Annotated[str | None, typer.Option(help="Which study. Default: all.")] = None,
        storage: Annotated[str | None, typer.Option(help="As for train.")] = None,
        runs_dir: Annotated[Path, typer.Option(help="As for train.")] = Path("runs"),
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Say what studies there are, who works on them, and how far they are."""
        _status(study_name, storage, runs_dir, as_json)

    @app.command()
    def dashboard(
        study_name: Annotated[str | None, typer.Option(help="The study whose artifacts are shown. Default: the newest.")] = None,
        storage: Annotated[str | None, typer.Option(help="As for train.")] = None,
        runs_dir: Annotated[Path, typer.Option(help="As for train.")] = Path("runs"),
        port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 8080,
    ) -> None:
        """Serve optuna-dashboard on this machine only (it has no login), with the trials' equity curves."""
        _dashboard(study_name, storage, runs_dir, port)

    @app.command()
    def doctor(
        storage: Annotated[str | None, typer.Option(help="As for train.")] = None,
        runs_dir: Annotated[Path, typer.Option(help="As for train.")] = Path("runs"),
    ) -> None:
        """Look at torch, GPUs, memory, disk, database and versions: each line ok, or what to do. Exit code 1 where something is to do."""
        from optimize.doctor import examine
        from optimize.storage import storage_url

        console = Console()
        bad = 0
        for finding in examine(storage_url(storage, runs_dir), runs_dir):
            mark = "[green]ok[/]  " if finding.ok else "[bold red]fix[/] "
            console.print(f"{mark}{finding.subject}: ", end="")
            console.print(finding.found if finding.ok else f"{finding.found} -> {finding.advice}", markup=False, highlight=False, soft_wrap=True)
            bad += not finding.ok
        raise typer.Exit(1 if bad else 0)


def _given(context: typer.Context) -> frozenset[str]:
    """Names of the parameters that were set on the command line or in the config file."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, source in sources.items() if source is not None and source.name != "DEFAULT")


def _train(flags: dict[str, Any], given: frozenset[str], after_study: Any) -> None:
    from envs.crypto.splits import CrossValidation
    from optimize.freeze import Request, check_request, open_study
    from optimize.launch import DEMO, DEMO_BARS, SMOKE, SMOKE_BARS, choose_device, make_demo_data
    from optimize.storage import open_storage, storage_url
    from optimize.worker import WorkerOptions, work

    console = Console()
    demo, smoke = flags["demo"], flags["smoke"]
    if demo and smoke:
        raise InputError("--demo and --smoke were both given; --smoke is the smaller of the two, give one")
    preset = SMOKE if smoke else DEMO if demo else {}
    flags = {**flags, **{name: value for name, value in preset.items() if name not in given}}
    given = given | frozenset(preset)
    if flags["n_trials"] < 1:
        raise InputError(f"--n-trials {flags['n_trials']} must be at least 1")
    device = choose_device(flags["gpu"])
    renamed = {"environment": "env", "cv": ("cv", "groups", "test_groups", "embargo")}
    set_by_user = set(given)
    for field, names in renamed.items():
        if given & ({names} if isinstance(names, str) else set(names)):
            set_by_user.add(field)
        elif field in set_by_user:
            set_by_user.discard(field)
    set_by_user.discard("env")
    name = flags["study_name"] or f"crypto-{flags['timeframe']}"
    if not name.strip() or "/" in name or name.startswith("."):
        raise InputError(f"--study-name {name!r} is not right; use letters, digits, - and _, for it names a folder too")
    request = Request(
        data_dir=flags["data_dir"] or Path("."), timeframe=flags["timeframe"], tickers=_split(flags["tickers"]), environment=flags["env"],
        recipe=flags["recipe"], cv=CrossValidation(flags["cv"], flags["groups"], flags["test_groups"], flags["embargo"]), holdout=flags["holdout"],
        budget=flags["budget"], rungs=flags["rungs"], horizon=flags["horizon"], n_envs=_envs(flags["n_envs"]), slots=flags["slots"],
        trials_per_batch=flags["trials_per_batch"], search_space=flags["search_space"], sampler=flags["sampler"], pruner=flags["pruner"],
        objective=flags["objective"], seed=flags["seed"], threads=flags["threads"],
        env={key: flags[key] for key in ("fee", "slippage", "minimum_order", "initial_cash", "episode_bars")}, given=frozenset(set_by_user))
    check_request(request)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    if demo or smoke:
        console.print("SYNTHETIC MARKET: a demonstration on made-up bars with a planted, learnable structure; no evidence about any real market.",
                      style="bold yellow")
        make_demo_data(request.data_dir, request.timeframe, SMOKE_BARS if smoke else DEMO_BARS, say)
    url = storage_url(flags["storage"], flags["runs_dir"])
    opened = open_storage(url)
    if flags["data_dir"] is None and not _known(opened, name):
        raise InputError("--data-dir is missing: name a folder of bars (sweepd data download makes one), or use --demo")
    recorded = {key: str(value) if isinstance(value, Path) else value for key, value in flags.items()}
    handle, experiment = open_study(opened, name, request, device, flags["runs_dir"], recorded, say)
    _describe(handle, experiment, console)
    options = WorkerOptions(total=flags["n_trials"], alongside=flags["alongside"])
    if flags["gpu"] == "all":
        import torch

        if torch.cuda.device_count() > 1:
            _all_gpus(handle, torch.cuda.device_count(), say)
            return
    work(handle, experiment, options, console, after_study if flags["auto_deploy"] else None)


def _known(storage: Any, name: str) -> bool:
    from optimize.study import study_exists

    return study_exists(storage, name)


def _all_gpus(handle: Any, count: int, say: Any) -> None:
    """This process stands for the study's worker on this machine; the work is done by one child per GPU."""
    from optimize.launch import run_on_all
    from optimize.recovery import leave, register_worker

    name = register_worker(handle.storage, handle.study_id, alongside=False, say=say)
    try:
        run_on_all(count, sys.argv[1:])
    finally:
        leave(handle.storage, name)


def _describe(handle: Any, experiment: Any, console: Console) -> None:
    spec, splits = handle.spec, experiment.splits
    data = spec.data
    lines = (
        f"study {handle.name} in {handle.run_dir}",
        f"  data: {', '.join(data.tickers)}; {data.bars:,} bars of {data.timeframe}, {data.first} to {data.last}"
        + ("; SYNTHETIC" if data.synthetic else ""),
        f"  folds: {spec.cv['scheme']}, {len(splits.folds)} folds, {len(splits.paths)} paths, purge {splits.purge} bars, "
        f"hold-out {splits.holdout[1] - splits.holdout[0]:,} bars",
        f"  budget: {spec.budget:,} steps per fold in {spec.rungs} rungs; {spec.num_envs} envs x {spec.horizon} steps = {spec.transitions:,} a rollout, "
        f"{spec.rollouts} rollouts",
        f"  batch: {spec.trials_per_batch} trials, {spec.slots} members per program, on {experiment.device} with {spec.threads} threads",
    )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _run(config: Path, out: Path | None, start_from: Path | None, gpu: str | None) -> None:
    from optimize.launch import choose_device
    from optimize.run import read_config, run
    from optimize.trial_batch import Interrupted
    from optimize.worker import StopRequest

    console = Console()
    tables = read_config(config)
    train = dict(tables.get("train", {}))
    train["out"] = str(out or train.get("out") or f"runs/run-{config.stem}")
    if start_from is not None:
        train["start_from"] = str(start_from)
    if gpu == "all":
        raise InputError("--gpu all is for train; a run uses one GPU")

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    stop = StopRequest(say)
    try:
        with stop.installed():
            result = run({**tables, "train": train}, device=choose_device(gpu), stop=stop, say=say)
    except Interrupted:
        say(f"stopped as asked; go on with --start-from {train['out']}")
        return
    say(f"objective {result.value:+.4f}; fold scores {', '.join(f'{s:+.2f}' for s in result.fold_scores)}; {result.steps_per_second:,.0f} steps/s")
    for path, metrics in enumerate(result.metrics):
        say(f"  path {path}: Sharpe {metrics.sharpe:+.2f} (equal weight {metrics.equal_weight_sharpe:+.2f}), return {metrics.total_return:+.1%} "
            f"({metrics.equal_weight_return:+.1%}), drawdown {metrics.max_drawdown:.1%}, {metrics.trades:,} trades")
    for reason in result.reasons:
        say(f"  {reason}")
    say(f"results in {result.out}")


def _status(study_name: str | None, where: str | None, runs_dir: Path, as_json: bool) -> None:
    from optimize.storage import hide_password, open_storage, storage_url
    from optimize.study import StudyHandle
    from optimize.summary import print_status, status

    url = storage_url(where, runs_dir)
    storage = open_storage(url, create=False, immediate=False)
    names = [study_name] if study_name else [s.study_name for s in storage.get_all_studies() if "sweepd:spec" in s.user_attrs]
    handles = [StudyHandle(storage, name) for name in names]
    if as_json:
        typer.echo(json.dumps([status(handle) for handle in handles], indent=1))
        return
    console = Console()
    for handle in handles:
        print_status(handle, console)
    if not handles:
        console.print(f"no study in {hide_password(url)}", highlight=False)


def _dashboard(study_name: str | None, where: str | None, runs_dir: Path, port: int) -> None:
    from optimize.artifacts import artifact_store
    from optimize.storage import hide_password, open_storage, storage_url
    from optimize.study import StudyHandle

    try:
        import optuna_dashboard
    except ImportError:
        raise InputError("sweepd dashboard needs optuna-dashboard: pip install 'sweepd[dashboard]'") from None
    url = storage_url(where, runs_dir)
    storage = open_storage(url, create=False, immediate=False)
    studies = [s for s in storage.get_all_studies() if "sweepd:spec" in s.user_attrs]
    if not studies and study_name is None:
        raise InputError(f"there is no study in {hide_password(url)}; start one with sweepd train")
    handle = StudyHandle(storage, study_name or max(studies, key=lambda s: s._study_id).study_name)
    typer.echo(f"optuna-dashboard on http://127.0.0.1:{port} (study {handle.name}; Ctrl-C ends it)")
    try:
        optuna_dashboard.run_server(storage, host="127.0.0.1", port=port, artifact_store=artifact_store(handle.run_dir))
    except OSError as error:
        raise RunError(f"--port {port} on 127.0.0.1 cannot be used ({error.strerror}); choose another") from None
