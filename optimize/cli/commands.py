"""The commands that train, or check whether a study can.

A command imports its action when it runs, so that `--help` does not wait for torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.flags import given_flags, takes_flags
from sweepd.envs.support.loading import loading
from sweepd.envs.support.study_options import RunsDir, Storage
from sweepd.optimize.cli.options import ConfigFile
from sweepd.optimize.study.settings.setting import flag_of
from sweepd.optimize.study.settings.study import StudySettings


@takes_flags
def train(
    context: typer.Context,
    flags: StudySettings,
    config: ConfigFile = None,  # noqa: ARG001 (its callback uses it)
) -> None:
    """Search hyperparameters until the study has --n-trials finished trials.

    The last worker prints a summary and evaluates the best trial for promotion. On Ctrl-C or
    SIGTERM, a worker checkpoints and requeues its trials; the same command continues them.

    The settings of a study are fixed when it is created. To continue it, --study-name suffices.
    """
    with loading():
        from sweepd.optimize.cli.train import train
    train(flags, given_flags(context), context.obj)


@takes_flags
def profile(
    context: typer.Context,
    flags: StudySettings,
    config: ConfigFile = None,  # noqa: ARG001 (its callback uses it)
) -> None:
    """Measure how `train` with the same flags would spend its time, and suggest faster settings."""
    with loading():
        from sweepd.optimize.cli.profile import profile
    profile(flags, given_flags(context), context.obj)


def run(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Argument(
            help="TOML file with the tables [data], [cv], [train], [shape], [ppo] and [env]; "
            "docs/how_to/training_run.md describes them."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run's database and results; the same command continues it. "
            "Default: the file's setting, else runs/run-NAME."
        ),
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a trial or bundle, or a file of weights or a checkpoint, whose "
            "networks the run starts from."
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
        typer.Option(
            help="Name of the run's study. Default: run-CONFIG; with --trial, STUDY-runNUMBER."
        ),
    ] = None,
    storage: Storage = None,
    runs_dir: Annotated[
        Path | None, typer.Option(help="With --trial: folder of the studies' files.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="With --trial of a program: programs that run at once; as for train."),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(help="Show the run in an experiment tracker, mlflow, wandb or MODULE:NAME."),
    ] = None,
) -> None:
    """Train once with one set of parameters: of a file, or exactly those of a trial.

    The run is a study of one trial in --out; with --trial, a study of its own in the trial's
    database. The same command continues it after Ctrl-C. With --trial, it ends with the learning
    curve over its seeds, and `sweepd promote` counts the trials that its parameters were chosen
    from.
    """
    if trial is not None:
        misplaced = [n for n, v in (("CONFIG", config), ("--out", out)) if v is not None]
        misplaced += [] if start_from is None else ["--start-from"]
        if misplaced:
            raise InputError(f"--trial and {misplaced[0]} exclude each other")
        with loading():
            from sweepd.optimize.cli.trial_run import run_trial
            from sweepd.optimize.worker.trial_run import RunRequest
        request = RunRequest(trial, budget, seeds, study_name, from_weights)
        run_trial(request, storage, runs_dir, gpu, jobs, tuple(track or ()), context.obj)
        return
    given = given_flags(context) & {"budget", "seeds", "from_weights", "runs_dir", "jobs"}
    if given:
        raise InputError(f"{flag_of(min(given))} is for --trial STUDY#NUMBER")
    if config is None:
        raise InputError("name a CONFIG file, or a trial with --trial STUDY#NUMBER")
    with loading():
        from sweepd.optimize.cli.run import run
    run(config, out, study_name, start_from, gpu, tuple(track or ()), context.obj)


def fork(
    context: typer.Context,
    trial: Annotated[
        str, typer.Argument(help="STUDY#NUMBER@RUNG, a trial and the rung after which it goes on.")
    ],
    params: Annotated[
        list[str] | None,
        typer.Argument(
            help="NAME=VALUE, hyperparameters from then on. Default: those of the trial."
        ),
    ] = None,
    study_name: Annotated[
        str | None, typer.Option(help="Name of the fork's study. Default: STUDY-forkNUMBER-RUNG.")
    ] = None,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="Index of a GPU, or cpu. Default: GPU 0 if there is one, else cpu."),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(help="Show the fork in an experiment tracker, mlflow, wandb or MODULE:NAME."),
    ] = None,
) -> None:
    """Continue a trial's exact state after a rung with other hyperparameters.

    The fork is a study of one trial in the same database; the same command continues it after
    Ctrl-C. Where the state is no longer stored, the trial is first trained again to that rung from
    its record. Where nothing is changed, the fork ends with the trial's own weights.
    """
    with loading():
        from sweepd.optimize.cli.fork import fork_trial
        from sweepd.optimize.study.enqueue import parse_guess
        from sweepd.optimize.worker.fork import ForkRequest
    request = ForkRequest(trial, parse_guess(params or []), study_name)
    fork_trial(request, storage, runs_dir, gpu, tuple(track or ()), context.obj)


@takes_flags
def doctor(
    context: typer.Context,
    flags: StudySettings,
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
    native code is compiled and tested, and nothing else is done. With --gpu and without --env, a
    GPU (the first, or --gpu NUMBER) is accepted or not, in a few minutes: kernels, recorded steps,
    equal bits, waits for the GPU, and the speed of 1, 100 and 1,000 members.

    The exit code is 1 if anything needs fixing, and 2 for wrong input.
    """
    given = given_flags(context)
    if "env" in given:
        if compile_now:
            raise InputError("--compile compiles for every environment; omit --env")
        with loading():
            from sweepd.optimize.cli.check_environment import check_environment
        raise typer.Exit(1 if check_environment(flags, given, context.obj) else 0)
    with loading():
        from sweepd.optimize.cli.doctor import accept_gpu, compile_native, diagnose
    misplaced = sorted(given - {"storage", "runs_dir", "config", "compile_now", "gpu"})
    if misplaced:
        raise InputError(
            f"sweepd doctor needs --env NAME to check {flag_of(misplaced[0])}; without "
            "--env, it checks this machine"
        )
    if flags.gpu is not None:
        if compile_now:
            raise InputError("--compile and --gpu exclude each other")
        raise typer.Exit(1 if accept_gpu(flags.gpu) else 0)
    if compile_now:
        raise typer.Exit(1 if compile_native() else 0)
    raise typer.Exit(1 if diagnose(flags.storage, flags.runs_dir) else 0)
