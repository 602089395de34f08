"""The settings of every study, and of the process that works on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sweepd.envs.support.database_url import STORAGE_VARIABLE, warn_of_password
from sweepd.optimize.study.settings.setting import Panel, Setting, most_threads, num_envs


@dataclass(frozen=True)
class CommonSettings:
    """Settings of every study, and of the process that works on it."""

    demo: Annotated[
        bool,
        Setting(
            None,
            "Create a synthetic market in data/demo and run a small study on it (about five "
            "minutes on two cores).",
            "--demo",
        ),
    ] = False
    smoke: Annotated[
        bool,
        Setting(
            None,
            "A study as small as possible, which runs every step once, in under a minute: of the "
            "market of --demo, or of the game of --env.",
            "--smoke",
        ),
    ] = False
    n_trials: Annotated[
        int,
        Setting(
            Panel.STUDY,
            "Total number of trials of the study: complete, pruned and failed. An existing study "
            "keeps its number unless this flag is given.",
            most=1_000_000,
        ),
    ] = 40
    study_name: Annotated[
        str | None,
        Setting(
            Panel.STUDY,
            "Name of the study; an existing study is continued. Default: crypto-TIMEFRAME, or the "
            "name of the game or program.",
        ),
    ] = None
    storage: Annotated[
        str | None,
        Setting(
            Panel.STUDY,
            "Database of the study: a SQLite file on a local disk, or "
            "postgresql://user@host/database (password in PGPASSWORD or ~/.pgpass). Default: "
            "sweepd.db in --runs-dir.",
            envvar=STORAGE_VARIABLE,
            callback=warn_of_password,
        ),
    ] = None
    search_space: Annotated[
        str | None,
        Setting(
            Panel.STUDY,
            "A preset (wide, large or demo for markets, game for games), a TOML file like those in "
            "optimize/spaces, its parameters as JSON, or narrow:STUDY#TRIAL for the neighbourhood of "
            "a trial. Default: "
            "wide, or game; a command needs a file with a table [params].",
        ),
    ] = None
    search: Annotated[
        str,
        Setting(
            Panel.STUDY,
            "trials (every trial keeps its hyperparameters), or pbt (population-based training, for "
            "games of one player: after every rung, the worst quarter of a population takes weights "
            "and hyperparameters of the best quarter; see docs/how_to/pbt.md).",
            fixes="search",
        ),
    ] = "trials"
    sampler: Annotated[
        str,
        Setting(
            Panel.STUDY,
            "auto (for games of one player race with --seeds 1 --rungs 10 --pruner none, unless "
            "these are given; for commands race with --seeds 1; otherwise tpe), race (further trials "
            "of good parameters are further seeds, see docs/explanation/search.md), tpe, random, cmaes (for "
            "numeric ranges), or MODULE:NAME (any sampler class for Optuna).",
            fixes="sampler",
            automatic="auto",
        ),
    ] = "auto"
    prior: Annotated[
        list[str] | None,
        Setting(
            Panel.STUDY,
            "In a race: an earlier study of the same database with (at least) the same "
            "parameters, from which a new study learns; may be repeated. See docs/how_to/priors.md.",
        ),
    ] = None
    try_first: Annotated[
        list[str] | None,
        Setting(
            Panel.STUDY,
            "STUDY#TRIAL, a trial of another study of the same database whose parameters a new "
            "study tries first; may be repeated, in the order of the trials. The gate counts that "
            "study's trials, too.",
        ),
    ] = None
    pruner: Annotated[
        str,
        Setting(
            Panel.STUDY,
            "hyperband (stops the worse half of each bracket's trials at every rung), median, "
            "none, or MODULE:NAME (any pruner class for Optuna). Default: hyperband; none for games if "
            "--sampler auto takes race, and for commands without --rungs.",
            show_default=False,
            fixes="pruner",
        ),
    ] = "hyperband"
    objective: Annotated[
        str | None,
        Setting(
            Panel.STUDY,
            "Markets: information-ratio (Sharpe ratio of the returns in excess of equal weight; "
            "the default), sharpe-difference (Sharpe ratio minus that of equal weight), sharpe or "
            "sortino; each is the mean over paths minus 0.1 standard deviations. Games: return "
            "(mean over seeds), or MODULE:NAME, a function of the returns, lengths and infos of "
            "episodes; of two players: points. Commands: value, what the program reports.",
            fixes="objective",
        ),
    ] = None
    also: Annotated[
        list[str] | None,
        Setting(
            Panel.STUDY,
            "A further value of every trial, maximize:NAME or minimize:NAME, of a number that "
            "evaluations record, like minimize:max_drawdown; may be repeated. The best trials are "
            "then a frontier. See docs/how_to/values.md.",
            fixes="also",
        ),
    ] = None
    constraint: Annotated[
        list[str] | None,
        Setting(
            Panel.STUDY,
            "NAME<=NUMBER or NAME>=NUMBER, like max_drawdown<=0.3, of a number that evaluations "
            "record: a trial that does not meet it is never selected; may be repeated.",
            fixes="constraints",
        ),
    ] = None
    choose: Annotated[
        str | None,
        Setting(
            Panel.STUDY,
            "With --also, the trial of the frontier that is selected: balanced (nearest to the "
            "best of every value), or first (highest --objective). Default: first if there is a "
            "--constraint, else balanced.",
            fixes="choose",
        ),
    ] = None
    seed: Annotated[
        int,
        Setting(
            Panel.STUDY,
            "Seed of the sampler; trial seeds derive from it and the trial number.",
            fixes="seed",
        ),
    ] = 0
    trials_per_batch: Annotated[
        int | None,
        Setting(
            Panel.STUDY,
            "Trials of one network shape that a worker trains and prunes together. Default: 4, or "
            "as many as fill --slots, and no more than --n-trials of a new study. With --search "
            "pbt: members of a population; default: up to 40.",
            fixes="trials_per_batch",
            most=2**16,
        ),
    ] = None
    auto_deploy: Annotated[
        bool,
        Setting(
            Panel.STUDY,
            "Evaluate each new best trial in the background, and promote the best one when the "
            "study is complete.",
            "--auto-deploy/--no-auto-deploy",
        ),
    ] = True
    env: Annotated[
        str,
        Setting(
            Panel.ENVIRONMENT,
            "crypto, cartpole, bucket-brigade, hockey, gym:ID (a Gymnasium environment, e.g. "
            "gym:Pendulum-v1), vector:ID (a Gymnasium vector environment), pettingzoo:MODULE, "
            "versus:MODULE (its two agents play against each other), or "
            "MODULE:NAME (your own game, or a function that returns a Gymnasium, PettingZoo or "
            "PufferLib environment): see docs/how_to/games.md; or command:WORDS, a program, with {NAME} for "
            "a parameter, or python:MODULE:NAME, a training function: see docs/how_to/command.md.",
            fixes="environment",
        ),
    ] = "crypto"
    algo: Annotated[
        str,
        Setting(
            Panel.ENVIRONMENT,
            "ppo, sac, d3qn, elegantrl:NAME (an ElegantRL agent, e.g. elegantrl:td3), heuristic, or "
            "MODULE:NAME (an algorithm of your own, see docs/how_to/plugins.md).",
            fixes="algorithm",
        ),
    ] = "ppo"
    budget: Annotated[
        int,
        Setting(
            Panel.TRAINING,
            "Environment steps per fold or seed of an unpruned trial; of a command, the steps that "
            "it reports.",
            fixes="budget",
            most=10**12,
            in_space=True,
        ),
    ] = 250_000
    rungs: Annotated[
        int,
        Setting(
            Panel.TRAINING,
            "Number of equal parts of the budget. After each one, trials are evaluated, "
            "checkpointed, and may be pruned. Default: 4; 10 if --sampler auto takes race; for "
            "commands 1.",
            show_default=False,
            fixes="rungs",
            most=1_000,
            in_space=True,
        ),
    ] = 4
    evaluate_every: Annotated[
        int,
        Setting(
            Panel.TRAINING,
            "Environment steps per fold or seed after which a trial is evaluated beside rungs, at the "
            "end of the rollout: more points of its learning curve, which change nothing else. 0: "
            "never. An existing study keeps its number unless this flag is given.",
            min=0,
            least=0,
            most=10**12,
        ),
    ] = 0
    n_envs: Annotated[
        int | None,
        Setting(
            Panel.TRAINING,
            "Parallel environments per member: a number, or auto (the fastest, measured). "
            "Algorithms other than ppo have other defaults.",
            fixes="num_envs",
            most=2**20,
            in_space=True,
            parser=num_envs,
            show_default="auto",
        ),
    ] = None
    horizon: Annotated[
        int | None,
        Setting(
            Panel.TRAINING,
            "Steps of each environment per rollout. Default: 64 for ppo.",
            fixes="horizon",
            most=10**6,
            in_space=True,
        ),
    ] = None
    slots: Annotated[
        int | None,
        Setting(
            Panel.TRAINING,
            "Members per batched program, at least 2. Default: about 10 on a CPU and 64 on a GPU, "
            "rounded to whole trials.",
            fixes="slots",
            least=2,
            most=2**16,
        ),
    ] = None
    gpu: Annotated[
        str | None,
        Setting(
            Panel.MACHINE,
            "Index of a GPU, all (one worker per GPU), or cpu. Default: GPU 0 if there is one, "
            "else cpu.",
        ),
    ] = None
    threads: Annotated[
        int | None,
        Setting(
            Panel.MACHINE,
            "CPU threads used by torch; results do not depend on it. Default: measured when the "
            "study is created.",
            fixes="threads",
            most=most_threads,
        ),
    ] = None
    precision: Annotated[
        str,
        Setting(
            Panel.MACHINE,
            "Precision of matrix products: fp32, tf32 (NVIDIA GPUs) or bf16 (GPUs, CPUs with AMX). "
            "Fixed when the study is created.",
            fixes="precision",
        ),
    ] = "fp32"
    runs_dir: Annotated[Path, Setting(Panel.MACHINE, "Folder of the studies' files.")] = Path(
        "runs"
    )
    max_memory: Annotated[
        float | None,
        Setting(
            Panel.MACHINE,
            "Resident memory in GiB above which the worker restarts itself at the next rung, with "
            "the same process id; 0: no limit. Default: 70% of the machine's or control group's.",
            min=0,
        ),
    ] = None
    alongside: Annotated[
        bool,
        Setting(
            Panel.MACHINE,
            "Do not replace another worker of this study on this machine, but run in parallel.",
            "--alongside",
        ),
    ] = False
    log_file: Annotated[
        Path | None,
        Setting(
            Panel.MACHINE,
            "Copy all output to this file. It is rotated at 10 MB; five old files are kept.",
        ),
    ] = None
    log_format: Annotated[str, Setting(Panel.MACHINE, "plain, or json (one object per line).")] = (
        "plain"
    )
    track: Annotated[
        list[str] | None,
        Setting(
            Panel.MACHINE,
            "Show the trials in an experiment tracker, mlflow, wandb or MODULE:NAME (one of your "
            "own); may be repeated. The libraries' own variables configure them, e.g. "
            "MLFLOW_TRACKING_URI or WANDB_MODE. See docs/how_to/trackers.md.",
        ),
    ] = None
    metrics_port: Annotated[
        int | None,
        Setting(
            Panel.MACHINE, "Serve Prometheus metrics on this port of 127.0.0.1.", min=0, max=65535
        ),
    ] = None
