"""The options of `sweepd train` and `sweepd profile`, and the config file that sets them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sweepd.envs.crypto.data.jumps import ACCEPT_JUMPS
from sweepd.envs.support.database_url import STORAGE_VARIABLE, warn_of_password
from sweepd.envs.support.files import read_toml
from sweepd.envs.support.flags import as_defaults
from sweepd.envs.support.study_record import Play

STUDY = "Study"
ENVIRONMENT = "Environment and algorithm"
DATA = "Market: data and folds"
TRAINING = "Training"
MARKET = "Market: costs and cash"
MACHINE = "Machine"


def _option(panel: str | None, text: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **settings)


@dataclass(frozen=True)
class _FirstFlags:
    """The options of `train` that its `--help` shows first."""

    demo: Annotated[
        bool,
        _option(
            None,
            "Create a synthetic market in data/demo and run a small study on it (about five "
            "minutes on two cores).",
            "--demo",
        ),
    ] = False
    smoke: Annotated[
        bool,
        _option(
            None,
            "A study as small as possible, which runs every step once, in under a minute: of the "
            "market of --demo, or of the game of --env.",
            "--smoke",
        ),
    ] = False
    n_trials: Annotated[
        int,
        _option(
            STUDY,
            "Total number of trials of the study: complete, pruned and failed. An existing study "
            "keeps its number unless this flag is given.",
        ),
    ] = 40
    study_name: Annotated[
        str | None,
        _option(
            STUDY,
            "Name of the study; an existing study is continued. Default: crypto-TIMEFRAME, or the "
            "name of the game.",
        ),
    ] = None
    storage: Annotated[
        str | None,
        _option(
            STUDY,
            "Database of the study: a SQLite file on a local disk, or "
            "postgresql://user@host/database (password in PGPASSWORD or ~/.pgpass). Default: "
            "sweepd.db in the runs directory.",
            envvar=STORAGE_VARIABLE,
            callback=warn_of_password,
        ),
    ] = None
    search_space: Annotated[
        str | None,
        _option(
            STUDY,
            "A preset (wide, large or demo for markets, game for games), a TOML file like those in "
            "optimize/spaces, or narrow:STUDY#TRIAL for the neighbourhood of a trial. Default: "
            "wide, or game.",
        ),
    ] = None
    search: Annotated[
        str,
        _option(
            STUDY,
            "trials (every trial keeps its hyperparameters), or pbt (population-based training, for "
            "games of one player: after every rung, the worst quarter of a population takes weights "
            "and hyperparameters of the best quarter; see docs/search.md).",
        ),
    ] = "trials"
    sampler: Annotated[
        str,
        _option(
            STUDY,
            "auto (for games of one player race with --seeds 1 --rungs 10 --pruner none, unless "
            "these are given; otherwise tpe), race (further trials of good parameters are further "
            "seeds, see docs/search.md), tpe, random, or cmaes (for numeric ranges).",
        ),
    ] = "auto"
    prior: Annotated[
        list[str] | None,
        _option(
            STUDY,
            "In a race: an earlier study of the same database with (at least) the same "
            "parameters, from which a new study learns; may be repeated. See docs/search.md.",
        ),
    ] = None
    pruner: Annotated[
        str,
        _option(
            STUDY,
            "hyperband (stops the worse half of each bracket's trials at every rung), median, or "
            "none. Default: hyperband; none if --sampler auto takes race.",
            show_default=False,
        ),
    ] = "hyperband"
    objective: Annotated[
        str | None,
        _option(
            STUDY,
            "Markets: information-ratio (Sharpe ratio of the returns in excess of equal weight; "
            "the default), sharpe-difference (Sharpe ratio minus that of equal weight), sharpe or "
            "sortino; each is the mean over paths minus 0.1 standard deviations. Games: return "
            "(mean over seeds); of two players: points.",
        ),
    ] = None
    fresh_seeds: Annotated[
        int,
        _option(
            STUDY,
            "Games of one player: once the study is complete, train the selected parameters with "
            "this many seeds that the selection has not seen; 0: do not.",
        ),
    ] = 5
    seed: Annotated[
        int, _option(STUDY, "Seed of the sampler; trial seeds derive from it and the trial number.")
    ] = 0
    trials_per_batch: Annotated[
        int | None,
        _option(
            STUDY,
            "Trials of one network shape that a worker trains and prunes together. Default: 4, or "
            "as many as fill --slots, and no more than --n-trials of a new study. With --search "
            "pbt: members of a population; default: up to 40.",
        ),
    ] = None
    auto_deploy: Annotated[
        bool,
        _option(
            STUDY,
            "Evaluate each new best trial in the background, and promote the best one when the "
            "study is complete.",
            "--auto-deploy/--no-auto-deploy",
        ),
    ] = True
    env: Annotated[
        str,
        _option(
            ENVIRONMENT,
            "crypto, cartpole, bucket-brigade, hockey, gym:ID (a Gymnasium environment, e.g. "
            "gym:Pendulum-v1), vector:ID (a Gymnasium vector environment), pettingzoo:MODULE, or "
            "MODULE:NAME (your own game, or a function that returns a Gymnasium, PettingZoo or "
            "PufferLib environment). See docs/games.md.",
        ),
    ] = "crypto"
    algo: Annotated[
        str,
        _option(
            ENVIRONMENT,
            "ppo, sac, d3qn, elegantrl:NAME (an ElegantRL agent, e.g. elegantrl:td3), or "
            "heuristic.",
        ),
    ] = "ppo"
    seeds: Annotated[
        int,
        _option(
            ENVIRONMENT,
            "Games: members (training seeds) per trial. Default: 4; 1 if --sampler auto takes race.",
            show_default=False,
        ),
    ] = 4
    episodes: Annotated[
        int,
        _option(
            ENVIRONMENT,
            "Games: evaluation episodes per member; an eighth at rungs that the search does not "
            "use. 0: in games of one player, as many as a short training with several seeds asks "
            "for (see docs/games.md), else 32.",
            min=0,
        ),
    ] = 0
    own_episodes: Annotated[
        bool,
        _option(
            ENVIRONMENT,
            "Games: every seed is judged by episodes of its own, as training runs (sweepd run "
            "--trial) do; by default all seeds and trials play the same ones, which compares them "
            "best.",
        ),
    ] = False
    look_steps: Annotated[
        int,
        _option(
            ENVIRONMENT,
            "Games: steps of random play in each of 16 environments, which determine the "
            "observation normalizer. 0: 256, or as many as fit into 5 seconds.",
            min=0,
        ),
    ] = 0
    play: Annotated[
        Play | None,
        _option(
            ENVIRONMENT,
            "Games with --algo ppo: whether members are judged by their most probable actions, or "
            "by actions drawn from their policies, as mixed strategies need. Promotion follows. "
            "Default: that of the search space, else deterministic.",
        ),
    ] = None
    scenario: Annotated[
        str | None,
        _option(
            ENVIRONMENT, "bucket-brigade: name of a scenario, or all for one study per scenario."
        ),
    ] = None
    env_param: Annotated[
        list[str] | None,
        _option(
            ENVIRONMENT, "Games: NAME=VALUE, a parameter that all trials share; may be repeated."
        ),
    ] = None
    opponents: Annotated[
        str | None,
        _option(
            ENVIRONMENT,
            "Tensor games of two seats: whom a member plays against, with shares that add up "
            "to 1, e.g. weak=0.5,self=0.5: the game's scripted players, self (its present policy), "
            "past (its earlier selves), others (the trial's other members), league (the best members "
            "of the study's complete trials, in equilibrium; also alone, without a share), "
            "bundle:NAME (a champion), or the path of a bundle; none: the present policy sits at all seats. Default: "
            "those of the search space, else none.",
        ),
    ] = None
    phases: Annotated[
        str | None,
        _option(
            ENVIRONMENT,
            "Tensor games of two seats: a TOML file with [[phases]] of the training, or a JSON "
            "list of phases. A search space may contain them instead. See docs/games.md.",
        ),
    ] = None
    past_interval: Annotated[
        int | None,
        _option(
            ENVIRONMENT,
            "Rollouts between two snapshots of a member for the opponent past. Default: 10.",
        ),
    ] = None
    past_size: Annotated[
        int | None,
        _option(
            ENVIRONMENT,
            "Snapshots that a member keeps for the opponent past; the oldest is replaced. "
            "Default: 8.",
        ),
    ] = None
    data_dir: Annotated[
        Path | None,
        _option(
            DATA,
            "Directory of bars with one file per ticker, e.g. BTC_USDT-1h.parquet (see sweepd "
            "data).",
        ),
    ] = None
    timeframe: Annotated[
        str,
        _option(
            DATA,
            "Length of a bar: 1m, 5m, 15m, 1h, 4h, 1d, …; of a market with hours, 1d and its calendar: 1d-XNYS.",
        ),
    ] = "1h"
    tickers: Annotated[
        str | None,
        _option(
            DATA,
            "Tickers in the order of the portfolio, e.g. BTC/USDT,ETH/USDT. Default: all in the "
            "directory.",
        ),
    ] = None


@dataclass(frozen=True)
class FoldFlags:
    """The options that decide which bars a study takes, and how many it needs."""

    accept_jumps: Annotated[bool, _option(DATA, ACCEPT_JUMPS, "--accept-jumps")] = False
    recipe: Annotated[
        str | None,
        _option(
            DATA,
            "Name of the feature recipe. Default: default; for bars of a day, which are few, short.",
        ),
    ] = None
    holdout: Annotated[
        float,
        _option(
            DATA,
            "Share of the bars, the newest ones, that no trial uses; they decide on promotion.",
        ),
    ] = 0.15
    cv: Annotated[
        str,
        _option(
            DATA, "Cross-validation: cpcv (combinatorial purged), kfold, walk-forward or single."
        ),
    ] = "cpcv"
    groups: Annotated[
        int, _option(DATA, "Number of contiguous groups that the bars are divided into.")
    ] = 5
    test_groups: Annotated[int, _option(DATA, "Test groups per fold (cpcv only).")] = 2
    embargo: Annotated[
        float,
        _option(
            DATA,
            "Share of the bars after each test group that is not trained on, in addition to the "
            "purge; at least one day.",
        ),
    ] = 0.01


@dataclass(frozen=True)
class TrainFlags(FoldFlags, _FirstFlags):
    """Values of all options, in the order of `--help`. `Request` explains what defines a study."""

    budget: Annotated[
        int, _option(TRAINING, "Environment steps per fold or seed of an unpruned trial.")
    ] = 250_000
    rungs: Annotated[
        int,
        _option(
            TRAINING,
            "Number of equal parts of the budget. After each one, trials are evaluated, "
            "checkpointed, and may be pruned. Default: 4; 10 if --sampler auto takes race.",
            show_default=False,
        ),
    ] = 4
    n_envs: Annotated[
        str,
        _option(
            TRAINING,
            "Parallel environments per member: a number, or auto (the fastest, measured). "
            "Algorithms other than ppo have other defaults.",
        ),
    ] = "auto"
    horizon: Annotated[
        int | None, _option(TRAINING, "Steps of each environment per rollout. Default: 64 for ppo.")
    ] = None
    slots: Annotated[
        int | None,
        _option(
            TRAINING,
            "Members per batched program, at least 2. Default: about 10 on a CPU and 64 on a GPU, "
            "rounded to whole trials.",
        ),
    ] = None
    episode_bars: Annotated[
        int, _option(MARKET, "Bars per training episode; 0: one week of bars.")
    ] = 0
    fee: Annotated[float, _option(MARKET, "Fee as a share of each order's value.")] = 0.0025
    slippage: Annotated[
        float, _option(MARKET, "Slippage as a share of the price, always against the trader.")
    ] = 0.0005
    minimum_order: Annotated[
        float, _option(MARKET, "Smallest value of an order, in the quote currency.")
    ] = 10.0
    initial_cash: Annotated[
        float, _option(MARKET, "Cash at the start of every episode, in the quote currency.")
    ] = 10_000.0
    allow_short: Annotated[
        bool,
        _option(
            MARKET,
            "Allow short positions: an action below 0 sells an asset that is not held. See "
            "docs/shorts.md.",
            "--allow-short",
        ),
    ] = False
    borrow_fee: Annotated[
        float,
        _option(
            MARKET,
            "With --allow-short: fee per year for what is borrowed, as a share of its value (0.1 "
            "is 10%), charged every bar.",
        ),
    ] = 0.1
    max_leverage: Annotated[
        float,
        _option(
            MARKET,
            "With --allow-short: orders keep the values of all positions, long and short, "
            "together within this many times the account's value.",
        ),
    ] = 1.0
    maintenance_margin: Annotated[
        float,
        _option(
            MARKET,
            "With --allow-short: at a close where the account is worth less than this share of "
            "the values of all positions together, all are liquidated.",
        ),
    ] = 0.25
    gpu: Annotated[
        str | None,
        _option(
            MACHINE,
            "Index of a GPU, all (one worker per GPU), or cpu. Default: GPU 0 if there is one, "
            "else cpu.",
        ),
    ] = None
    threads: Annotated[
        int | None,
        _option(
            MACHINE,
            "CPU threads used by torch; results do not depend on it. Default: measured when the "
            "study is created.",
        ),
    ] = None
    precision: Annotated[
        str,
        _option(
            MACHINE,
            "Precision of matrix products: fp32, tf32 (NVIDIA GPUs) or bf16 (CPUs with AMX). Fixed "
            "when the study is created.",
        ),
    ] = "fp32"
    runs_dir: Annotated[Path, _option(MACHINE, "Directory for the files of the studies.")] = Path(
        "runs"
    )
    max_memory: Annotated[
        float | None,
        _option(
            MACHINE,
            "Resident memory in GiB above which the worker restarts itself at the next rung, with "
            "the same process id; 0: no limit. Default: 70% of the machine's or control group's.",
            min=0,
        ),
    ] = None
    alongside: Annotated[
        bool,
        _option(
            MACHINE,
            "Do not replace another worker of this study on this machine, but run in parallel.",
            "--alongside",
        ),
    ] = False
    log_file: Annotated[
        Path | None,
        _option(
            MACHINE,
            "Copy all output to this file. It is rotated at 10 MB; five old files are kept.",
        ),
    ] = None
    log_format: Annotated[str, _option(MACHINE, "plain, or json (one object per line).")] = "plain"
    track: Annotated[
        list[str] | None,
        _option(
            MACHINE,
            "Show the trials in an experiment tracker, mlflow or wandb; may be repeated. The "
            "libraries' own variables configure them, e.g. MLFLOW_TRACKING_URI or WANDB_MODE. See "
            "docs/trackers.md.",
        ),
    ] = None
    metrics_port: Annotated[
        int | None,
        _option(MACHINE, "Serve Prometheus metrics on this port of 127.0.0.1.", min=0, max=65535),
    ] = None


def read_config_file(path: Path) -> dict[str, Any]:
    """Read a TOML file whose keys are the flags of a command, with - or _.

    Returns:
        The values by parameter name (with _).

    Raises:
        InputError: the file cannot be read or is not TOML.
    """
    entries = read_toml(path, f"--config {path}", "a TOML file of flags")
    return {key.replace("-", "_"): value for key, value in entries.items()}


def _apply_config(context: typer.Context, path: Path | None) -> Path | None:
    """Use the file's entries as defaults of the flags; the command line takes precedence."""
    if path is None or context.resilient_parsing:
        return path
    parameters = [p for p in context.command.params if p.name not in ("config", "help")]
    defaults = as_defaults(read_config_file(path), parameters, f"--config {path}")
    # Read by Typer for the options that follow: this option is eager.
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        help="TOML file of flags, e.g. n-trials = 40. Flags on the command line take precedence.",
        callback=_apply_config,
        is_eager=True,
    ),
]
