"""The commands of the search, from `train` to `studies` and `service`.

A command imports its action when it runs, so that `--help` does not wait for torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweepd.envs.support.database_url import STORAGE_VARIABLE, warn_of_password
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.flags import given_flags, takes_flags
from sweepd.optimize.cli.hooks import Hooks
from sweepd.optimize.cli.service_commands import service_app
from sweepd.optimize.cli.studies_commands import studies_app
from sweepd.optimize.cli.train_flags import ConfigFile, TrainFlags

Storage = Annotated[
    str | None,
    typer.Option(
        envvar=STORAGE_VARIABLE,
        callback=warn_of_password,
        help="Database of the studies, as for train.",
    ),
]
RunsDir = Annotated[Path, typer.Option(help="Directory of the studies' files, as for train.")]
StudyName = Annotated[str, typer.Argument(help="Name of the study.")]


def search_commands(app: typer.Typer, hooks: Hooks | None = None) -> None:
    """Add the commands to `app`. They find `hooks` as `context.obj`."""
    settings = {"obj": hooks or Hooks()}
    for command in (train, profile, run, status, pause, resume, doctor, enqueue):
        app.command(context_settings=settings)(command)
    app.add_typer(studies_app(), name="studies")
    app.add_typer(service_app(), name="service")


@takes_flags
def train(
    context: typer.Context,
    flags: TrainFlags,
    config: ConfigFile = None,  # noqa: ARG001 (its callback uses it)
) -> None:
    """Search hyperparameters until the study has --n-trials finished trials.

    The last worker prints a summary and evaluates the best trial for promotion. On Ctrl-C or
    SIGTERM, a worker checkpoints and requeues its trials; the same command continues them.

    The settings of a study are fixed when it is created. To continue it, --study-name suffices.
    """
    from sweepd.optimize.cli.train import train

    train(flags, given_flags(context), context.obj)


@takes_flags
def profile(
    context: typer.Context,
    flags: TrainFlags,
    config: ConfigFile = None,  # noqa: ARG001 (its callback uses it)
) -> None:
    """Measure how `train` with the same flags would spend its time, and suggest faster settings."""
    from sweepd.optimize.cli.profile import profile

    profile(flags, given_flags(context), context.obj)


def run(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Argument(
            help="TOML file with the tables [data], [cv], [train], [shape], [ppo] and [env]; "
            "optimize/worker/run.py lists the keys."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory for results and checkpoints. Default: the file's setting, else "
            "runs/run-NAME."
        ),
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option(
            help="A checkpoint of the same run, which is resumed exactly; or the directory of a "
            "trial or bundle, whose weights initialize the run."
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="Index of a GPU, or cpu. Default: GPU 0 if there is one, else cpu."),
    ] = None,
    trial: Annotated[
        str | None,
        typer.Option(help="STUDY#NUMBER, a trial to train again, or STUDY for its best one."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="With --trial: steps per fold or seed, or a multiple such as 10x of the study's."
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(help="With --trial: new seeds; members of a game, repetitions on a market."),
    ] = 5,
    from_weights: Annotated[
        bool,
        typer.Option(
            "--from-weights", help="With --trial: start from the trial's weights (ppo only)."
        ),
    ] = False,
    study_name: Annotated[
        str | None,
        typer.Option(help="With --trial: name of the run's study. Default: STUDY-runNUMBER."),
    ] = None,
    storage: Storage = None,
    runs_dir: Annotated[
        Path | None, typer.Option(help="With --trial: directory of the studies' files.")
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(help="Show the run in an experiment tracker, mlflow or wandb; as for train."),
    ] = None,
) -> None:
    """Train once with one set of parameters: of a file, or exactly those of a trial.

    With --trial, the run is a study of its own in the trial's database. The same command continues
    it after Ctrl-C. It ends with the learning curve over its seeds, and `sweepd promote` may judge
    it: the trials that its parameters were chosen from count.
    """
    if trial is not None:
        misplaced = [n for n, v in (("CONFIG", config), ("--out", out)) if v is not None]
        misplaced += [] if start_from is None else ["--start-from"]
        if misplaced:
            raise InputError(f"--trial and {misplaced[0]} exclude each other")
        from sweepd.optimize.cli.trial_run import run_trial
        from sweepd.optimize.worker.trial_run import RunRequest

        request = RunRequest(trial, budget, seeds, study_name, from_weights)
        run_trial(request, storage, runs_dir, gpu, tuple(track or ()), context.obj)
        return
    given = given_flags(context) & {"budget", "seeds", "from_weights", "study_name", "runs_dir"}
    if given:
        raise InputError(f"--{min(given).replace('_', '-')} is for --trial STUDY#NUMBER")
    if config is None:
        raise InputError("name a CONFIG file, or a trial with --trial STUDY#NUMBER")
    from sweepd.optimize.cli.run import run

    run(config, out, start_from, gpu, tuple(track or ()))


def status(
    context: typer.Context,
    study_name: Annotated[
        str | None, typer.Option(help="Name of the study. Default: all studies.")
    ] = None,
    storage: Storage = None,
    runs_dir: Annotated[
        Path | None, typer.Option(help="Directory of the studies' files, as for train.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; docs/operations.md describes the keys.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Update every 2 seconds until Ctrl-C.")
    ] = False,
) -> None:
    """Show studies, their progress and their workers.

    The exit code serves health checks: 0 if every study is done, paused or in progress; 1 if a
    study has trials left but no live worker, or a live worker's last heartbeat is more than two
    minutes old; 2 for wrong input.
    """
    from sweepd.optimize.cli.status import show_status

    healthy = show_status(
        study_name, storage, runs_dir, as_json=as_json, watch=watch, hooks=context.obj
    )
    if not healthy:
        raise typer.Exit(1)


def pause(
    study: StudyName,
    storage: Storage = None,
    runs_dir: RunsDir = Path("runs"),
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait until all workers have paused.")
    ] = 60.0,
) -> None:
    """Pause a study: its workers checkpoint and requeue their trials, free GPU memory, and wait."""
    from sweepd.optimize.cli.pause import pause

    pause(study, storage, runs_dir, wait)


def enqueue(
    study: StudyName,
    params: Annotated[
        list[str] | None,
        typer.Argument(help="NAME=VALUE, parameters of the trial; the sampler draws the others."),
    ] = None,
    storage: Storage = None,
    runs_dir: Annotated[
        Path | None, typer.Option(help="Directory of the studies' files, as for train.")
    ] = None,
    from_study: Annotated[
        str | None,
        typer.Option(help="Study of the same database whose best trials are tried again."),
    ] = None,
    best: Annotated[
        int, typer.Option(min=1, help="Number of best trials that --from-study takes.")
    ] = 3,
) -> None:
    """Add a trial with parameters of yours to a study; workers train it before new ones.

    With --from-study, the best trials of another study are added instead (a warm start). They count
    towards --n-trials. Names and ranges are those of the study's search space.
    """
    from sweepd.optimize.cli.studies import enqueue_trial

    enqueue_trial(study, params or [], storage, runs_dir, from_study, best)


def resume(study: StudyName, storage: Storage = None, runs_dir: RunsDir = Path("runs")) -> None:
    """Resume a paused study: its workers continue exactly from the checkpoints."""
    from sweepd.optimize.cli.pause import resume

    resume(study, storage, runs_dir)


@takes_flags
def doctor(
    context: typer.Context,
    flags: TrainFlags,
    config: ConfigFile = None,  # noqa: ARG001 (its callback uses it)
    compile_now: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Only compile the native code, for all processors of this architecture, into the "
            "cache: for images, and machines whose cache cannot be written to later.",
        ),
    ] = False,
) -> None:
    """Check this machine, or with --env NAME an environment and the flags of a study on it.

    Without --env: torch, GPUs, memory, disk, database and package versions. With --env: random
    legal play with all strict checks on, shapes and types, masks, whether the algorithm and the
    opponents fit, and whether n-envs, horizon, minibatch and budget do, with the nearest valid
    values. Flags are those of `train`. Every line says `ok`, or what to fix. With --compile, the
    native code is compiled and tested, and nothing else is done.

    The exit code is 1 if anything needs fixing, and 2 for wrong input.
    """
    given = given_flags(context)
    if "env" in given:
        if compile_now:
            raise InputError("--compile compiles for every environment; omit --env")
        from sweepd.optimize.cli.check_environment import check_environment

        raise typer.Exit(1 if check_environment(flags, given, context.obj) else 0)
    from sweepd.optimize.cli.doctor import compile_native, diagnose

    misplaced = sorted(given - {"storage", "runs_dir", "config", "compile_now"})
    if misplaced:
        raise InputError(
            f"sweepd doctor needs --env NAME to check --{misplaced[0].replace('_', '-')}; without "
            "--env, it checks this machine"
        )
    if compile_now:
        raise typer.Exit(1 if compile_native() else 0)
    raise typer.Exit(1 if diagnose(flags.storage, flags.runs_dir) else 0)
