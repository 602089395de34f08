"""The commands of the search: train, run, status, pause, resume, doctor, service."""

from __future__ import annotations

import difflib
import functools
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from envs.support.database_url import STORAGE_VARIABLE, warn_of_password
from envs.support.errors import InputError
from optimize.cli.service_commands import service_app

if TYPE_CHECKING:
    from optimize.experiments.outlook import CountLooks
    from optimize.worker.worker import AfterStudy, OnNewBest

STUDY, GAME, DATA, TRAINING = (
    "Study",
    "Environment and algorithm",
    "Market: data and folds",
    "Training",
)
MARKET, MACHINE = "Market: money", "Machine"
Storage = Annotated[
    str | None,
    typer.Option(envvar=STORAGE_VARIABLE, callback=warn_of_password, help="As for train."),
]


def read_config_file(path: Path) -> dict[str, Any]:
    """A TOML file whose keys are the flags of a command, with - or _. Raises InputError where it cannot be read."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"--config {path}: cannot be read ({error.strerror}); name a TOML file of flags"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path}: not valid TOML ({error})") from None
    return {key.replace("-", "_"): value for key, value in entries.items()}


def _config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's entries the defaults of the flags: what stands on the command line wins."""
    if path is None or context.resilient_parsing:
        return path
    entries = read_config_file(path)
    known = {
        parameter.name
        for parameter in context.command.params
        if parameter.name not in ("config", "help")
    }
    for key, value in entries.items():
        if key not in known:
            near = difflib.get_close_matches(key, [name for name in known if name], 1)
            raise InputError(
                f"--config {path}: {key!r} is not a flag of this command; "
                + (f"did you mean {near[0]}?" if near else "its --help lists them")
            )
        if isinstance(value, dict):
            raise InputError(
                f"--config {path}: [{key}] is a table; every key must be a flag with a value"
            )
    several = {
        parameter.name
        for parameter in context.command.params
        if getattr(parameter, "multiple", False)
    }
    lists = {
        key: ",".join(map(str, value)) if isinstance(value, list) and key not in several else value
        for key, value in entries.items()
    }
    context.default_map = {**(context.default_map or {}), **lists}
    return path


def search_commands(
    app: typer.Typer,
    after_study: AfterStudy | None = None,
    on_new_best: OnNewBest | None = None,
    count_looks: CountLooks | None = None,
) -> None:
    """Add the commands to `app`.

    after_study: called as after_study(handle, console) by the worker that closes a study, unless --no-auto-deploy
    (see `optimize.worker.worker.AfterStudy`).
    on_new_best: called between batches when the study has a new best trial; it returns at once and never raises.
    count_looks: how often a study's hold-out bars were looked at so far (see `optimize.experiments.outlook.CountLooks`).
    """

    @app.command()
    def train(
        context: typer.Context,
        config: Annotated[
            Path | None,
            typer.Option(
                help="A TOML file in which any of these flags may stand (n-trials = 40). The command line wins.",
                callback=_config,
                is_eager=True,
            ),
        ] = None,
        demo: Annotated[
            bool,
            typer.Option(
                "--demo",
                help=(
                    "Make a synthetic market in data/demo and run a small study on it: about five minutes on two cores."
                ),
            ),
        ] = False,
        smoke: Annotated[
            bool,
            typer.Option(
                "--smoke",
                help="The same, as small as possible: everything once, in under a minute.",
            ),
        ] = False,
        n_trials: Annotated[
            int,
            typer.Option(
                help=(
                    "Finished trials (complete, pruned or failed) that the study shall have. An existing study"
                    " keeps its number."
                ),
                rich_help_panel=STUDY,
            ),
        ] = 40,
        study_name: Annotated[
            str | None,
            typer.Option(
                help=(
                    "Started again with the same name, a study goes on. Default: crypto-TIMEFRAME, or the game's name."
                ),
                rich_help_panel=STUDY,
            ),
        ] = None,
        storage: Annotated[
            str | None,
            typer.Option(
                envvar=STORAGE_VARIABLE,
                callback=warn_of_password,
                help=(
                    "A SQLite file on a local disk, or postgresql://user@host/database (its password in PGPASSWORD or "
                    "~/.pgpass). Default: sweepd.db in the runs directory."
                ),
                rich_help_panel=STUDY,
            ),
        ] = None,
        search_space: Annotated[
            str | None,
            typer.Option(
                help=(
                    "wide, large or demo for markets, game for games; narrow:STUDY#TRIAL for the neighbourhood of a "
                    "trial; or a TOML file like those in optimize/spaces. Default: wide, or game."
                ),
                rich_help_panel=STUDY,
            ),
        ] = None,
        sampler: Annotated[
            str, typer.Option(help="tpe, random, or cmaes (over ranges).", rich_help_panel=STUDY)
        ] = "tpe",
        pruner: Annotated[
            str,
            typer.Option(
                help="hyperband (the worse half ends at each rung, in brackets), median, or none.",
                rich_help_panel=STUDY,
            ),
        ] = "hyperband",
        objective: Annotated[
            str | None,
            typer.Option(
                help=(
                    "Markets: information-ratio (the Sharpe ratio of the returns in excess of equal weight, which the "
                    "gate tests), sharpe-difference (the Sharpe ratio minus that of equal weight), sharpe or sortino: "
                    "the mean over paths minus a tenth of the deviation. Games: return, the interquartile mean over "
                    "seeds. Default: the first."
                ),
                rich_help_panel=STUDY,
            ),
        ] = None,
        seed: Annotated[
            int,
            typer.Option(
                help="Of the sampler, and with a trial's number of every trial.",
                rich_help_panel=STUDY,
            ),
        ] = 0,
        trials_per_batch: Annotated[
            int | None,
            typer.Option(
                help="Trials of one shape trained and judged together. Default: at least 4.",
                rich_help_panel=STUDY,
            ),
        ] = None,
        auto_deploy: Annotated[
            bool,
            typer.Option(
                "--auto-deploy/--no-auto-deploy",
                help="Judge each new best trial beside the training, and ask for promotion when the study is done.",
                rich_help_panel=STUDY,
            ),
        ] = True,
        env: Annotated[
            str,
            typer.Option(
                help="crypto, cartpole, bucket-brigade, gym:ID for a Gymnasium environment (gym:Pendulum-v1), "
                "vector:ID for its own vector environment, pettingzoo:MODULE for a PettingZoo environment, or "
                "MODULE:NAME for a game of your own, or for a function that makes an environment of one of these kinds "
                "or of PufferLib's (docs/games.md, docs/vectorization.md).",
                rich_help_panel=GAME,
            ),
        ] = "crypto",
        algo: Annotated[
            str,
            typer.Option(
                help="ppo, sac, d3qn, elegantrl:NAME for ElegantRL's own agents (elegantrl:td3), or heuristic.",
                rich_help_panel=GAME,
            ),
        ] = "ppo",
        seeds: Annotated[
            int,
            typer.Option(help="Members of a trial where there are no folds.", rich_help_panel=GAME),
        ] = 4,
        episodes: Annotated[
            int,
            typer.Option(
                help="Episodes that each of them plays whenever a trial is judged.",
                rich_help_panel=GAME,
            ),
        ] = 32,
        look_steps: Annotated[
            int,
            typer.Option(
                min=0,
                help="Steps of random play in each of 16 environments, by which observations are scaled. 0: 256, or as "
                "many as 5 seconds allow.",
                rich_help_panel=GAME,
            ),
        ] = 0,
        scenario: Annotated[
            str | None,
            typer.Option(help="Of bucket-brigade: a name, or all.", rich_help_panel=GAME),
        ] = None,
        env_param: Annotated[
            list[str] | None,
            typer.Option(
                help="NAME=VALUE: a parameter of the game that all trials share.",
                rich_help_panel=GAME,
            ),
        ] = None,
        data_dir: Annotated[
            Path | None,
            typer.Option(
                help="Folder of bars, one file per ticker, like BTC_USDT-1h.parquet (see sweepd data).",
                rich_help_panel=DATA,
            ),
        ] = None,
        timeframe: Annotated[
            str,
            typer.Option(help="Length of a bar: 1m, 5m, 15m, 1h, 4h, 1d, …", rich_help_panel=DATA),
        ] = "1h",
        tickers: Annotated[
            str | None,
            typer.Option(
                help="Which and in what order, like BTC/USDT,ETH/USDT. Default: all in the folder.",
                rich_help_panel=DATA,
            ),
        ] = None,
        recipe: Annotated[
            str, typer.Option(help="Feature recipe.", rich_help_panel=DATA)
        ] = "default",
        holdout: Annotated[
            float,
            typer.Option(
                help="Share of the newest bars that no trial sees; promotion is decided there.",
                rich_help_panel=DATA,
            ),
        ] = 0.15,
        cv: Annotated[
            str,
            typer.Option(
                help="cpcv (combinatorial purged), kfold, walk-forward or single.",
                rich_help_panel=DATA,
            ),
        ] = "cpcv",
        groups: Annotated[
            int,
            typer.Option(
                help="Contiguous groups that the bars are divided into.", rich_help_panel=DATA
            ),
        ] = 5,
        test_groups: Annotated[
            int, typer.Option(help="Groups tested per fold (cpcv only).", rich_help_panel=DATA)
        ] = 2,
        embargo: Annotated[
            float,
            typer.Option(
                help="Share of the bars left out after a test group, on top of the purge; at least a day.",
                rich_help_panel=DATA,
            ),
        ] = 0.01,
        budget: Annotated[
            int,
            typer.Option(
                help="Environment steps per fold or seed of an unpruned trial.",
                rich_help_panel=TRAINING,
            ),
        ] = 250_000,
        rungs: Annotated[
            int,
            typer.Option(
                help="Equal parts of the budget; after each, trials report, may be pruned, and are checkpointed.",
                rich_help_panel=TRAINING,
            ),
        ] = 4,
        n_envs: Annotated[
            str,
            typer.Option(
                help="Parallel environments per member: a number, or auto: what is fastest here, measured (ppo).",
                rich_help_panel=TRAINING,
            ),
        ] = "auto",
        horizon: Annotated[
            int | None,
            typer.Option(
                help="Steps of each environment per rollout. Default: as suits the algorithm, 64 for ppo.",
                rich_help_panel=TRAINING,
            ),
        ] = None,
        slots: Annotated[
            int | None,
            typer.Option(
                help="Members per batched program, at least 2. Default: about 10 on a CPU, 64 on a GPU, full trials.",
                rich_help_panel=TRAINING,
            ),
        ] = None,
        episode_bars: Annotated[
            int, typer.Option(help="Bars per training episode; 0: a week.", rich_help_panel=MARKET)
        ] = 0,
        fee: Annotated[
            float, typer.Option(help="Share of every order's value.", rich_help_panel=MARKET)
        ] = 0.0025,
        slippage: Annotated[
            float,
            typer.Option(help="Share of the price, against the trader.", rich_help_panel=MARKET),
        ] = 0.0005,
        minimum_order: Annotated[
            float, typer.Option(help="Smallest order, in quote units.", rich_help_panel=MARKET)
        ] = 10.0,
        initial_cash: Annotated[
            float,
            typer.Option(
                help="What every episode starts with, in quote units.", rich_help_panel=MARKET
            ),
        ] = 10_000.0,
        gpu: Annotated[
            str | None,
            typer.Option(
                help="A GPU's number, all (one worker each), or cpu. Default: GPU 0 where there is one.",
                rich_help_panel=MACHINE,
            ),
        ] = None,
        threads: Annotated[
            int | None,
            typer.Option(
                help="torch's CPU threads; results don't depend on them. Default: measured when the study is made.",
                rich_help_panel=MACHINE,
            ),
        ] = None,
        precision: Annotated[
            str,
            typer.Option(
                help="Of matrix products: fp32, tf32 (NVIDIA cards) or bf16 (processors with AMX); part of the study.",
                rich_help_panel=MACHINE,
            ),
        ] = "fp32",
        runs_dir: Annotated[
            Path, typer.Option(help="Where studies keep their files.", rich_help_panel=MACHINE)
        ] = Path("runs"),
        max_memory: Annotated[
            float | None,
            typer.Option(
                min=0,
                help=(
                    "GiB of resident memory above which the worker puts its trials back at the next rung and starts "
                    "itself again, as the same process; 0: never. Default: 70 % of the machine's or control group's."
                ),
                rich_help_panel=MACHINE,
            ),
        ] = None,
        alongside: Annotated[
            bool,
            typer.Option(
                "--alongside",
                help="Run beside a worker of this study that is running on this machine, instead of taking over.",
                rich_help_panel=MACHINE,
            ),
        ] = False,
        log_file: Annotated[
            Path | None,
            typer.Option(
                help="Keep a copy of all output in this file; a new one is begun every 10 MB, five old ones stay.",
                rich_help_panel=MACHINE,
            ),
        ] = None,
        log_format: Annotated[
            str, typer.Option(help="plain, or json: one object per line.", rich_help_panel=MACHINE)
        ] = "plain",
        metrics_port: Annotated[
            int | None,
            typer.Option(
                min=0,
                max=65535,
                help="Answer Prometheus on this port of 127.0.0.1.",
                rich_help_panel=MACHINE,
            ),
        ] = None,
    ) -> None:
        """Search: train trials on the study until it has --n-trials of them, then sum up and ask for promotion.

        Stop it with Ctrl-C or SIGTERM: the trials in hand are put back, and the same command goes on with them. Flags
        that decide what
        the study is are frozen when it is made; later runs take them from it.
        """
        flags = {
            name: value
            for name, value in locals().items()
            if name in context.params and name != "config"
        }
        from optimize.cli import actions  # here, so that --help need not wait for torch

        actions.train(flags, _given(context), after_study, on_new_best, count_looks)

    @app.command(
        "profile",
        help="Measure where the time of `train` with the same flags would go, and what to change.",
    )
    @functools.wraps(train)
    def profile(context: typer.Context, **flags: Any) -> None:
        from optimize.cli import actions

        flags.pop("config")
        actions.profile(flags, _given(context))

    @app.command()
    def run(
        config: Annotated[
            Path,
            typer.Argument(
                help="TOML with [data], [cv], [train], [shape], [ppo] and [env]; see docs."
            ),
        ],
        out: Annotated[
            Path | None,
            typer.Option(
                help="Folder for results and checkpoints. Default: as in the file, else runs/run-NAME."
            ),
        ] = None,
        start_from: Annotated[
            Path | None,
            typer.Option(
                help=(
                    "A checkpoint of the same run, to go on exactly; or a trial's or bundle's folder, whose weights "
                    "it starts from."
                )
            ),
        ] = None,
        gpu: Annotated[
            str | None,
            typer.Option(help="A GPU's number, or cpu. Default: GPU 0 where there is one."),
        ] = None,
    ) -> None:
        """Train once with one set of parameters, outside any study, and print what its test groups say."""
        from optimize.cli import actions

        actions.run(config, out, start_from, gpu)

    @app.command()
    def status(
        study_name: Annotated[str | None, typer.Option(help="Which study. Default: all.")] = None,
        storage: Storage = None,
        runs_dir: Annotated[Path | None, typer.Option(help="As for train.")] = None,
        as_json: Annotated[
            bool,
            typer.Option("--json", help="Print JSON; docs/operations.md says what each key means."),
        ] = False,
        watch: Annotated[
            bool, typer.Option("--watch", help="Again every 2 seconds, until Ctrl-C.")
        ] = False,
    ) -> None:
        """Say what studies there are, who works on them, and how far they are.

        Exit code for health checks: 0 where all is well (done, paused, or being worked on); 1 where trials are left
        and no worker is alive, or a living worker's heartbeat is more than two minutes old; 2 for wrong input.
        """
        from optimize.cli import actions

        if not actions.show_status(study_name, storage, runs_dir, as_json, watch, count_looks):
            raise typer.Exit(1)

    @app.command()
    def pause(
        study: Annotated[str, typer.Argument(help="Which study.")],
        storage: Storage = None,
        runs_dir: Annotated[Path, typer.Option(help="As for train.")] = Path("runs"),
        wait: Annotated[
            float,
            typer.Option(min=0, help="Seconds to wait until every worker has let go of its GPU."),
        ] = 60.0,
    ) -> None:
        """Have all workers of a study put their trials back and wait, without GPU memory, until it is resumed. Nothing
        is lost.
        """
        from optimize.cli import actions

        actions.pause(study, storage, runs_dir, wait)

    @app.command()
    def resume(
        study: Annotated[str, typer.Argument(help="Which study.")],
        storage: Storage = None,
        runs_dir: Annotated[Path, typer.Option(help="As for train.")] = Path("runs"),
    ) -> None:
        """Let the workers of a paused study go on, exactly where they were."""
        from optimize.cli import actions

        actions.resume(study, storage, runs_dir)

    @app.command()
    def doctor(
        storage: Storage = None,
        runs_dir: Annotated[Path, typer.Option(help="As for train.")] = Path("runs"),
    ) -> None:
        """Look at torch, GPUs, memory, disk, database and versions: each line ok, or what to do. Exit code 1 where
        something is to do.
        """
        from optimize.cli import actions

        raise typer.Exit(1 if actions.diagnose(storage, runs_dir) else 0)

    app.add_typer(service_app(), name="service")


def _given(context: typer.Context) -> frozenset[str]:
    """Names of the parameters that were set on the command line or in the config file."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(
        name for name, source in sources.items() if source is not None and source.name != "DEFAULT"
    )
