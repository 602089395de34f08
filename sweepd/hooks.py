"""What the packages need of each other: functions that are handed to their commands.

Only this module and `sweepd.commands` import all packages (see docs/explanation/architecture.md), so that
`optimize` does not import `deploy`. A function imports what it needs when it is called, since most
commands call none of them.
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweepd.optimize.cli.hooks import Hooks

if TYPE_CHECKING:
    from rich.console import Console

    from sweepd.deploy.cli.reproduce import Retrain
    from sweepd.deploy.dashboard.source import OpenStudies, StudySource
    from sweepd.deploy.registry.flags import RegistryFlags
    from sweepd.optimize.api.study import Study
    from sweepd.optimize.objectives.games.curriculum import FoundBundle
    from sweepd.optimize.study.record.reader import StudyReader
    from sweepd.optimize.study.record.retrained import Retrained
    from sweepd.optimize.study.study import StudyHandle


def create_study(name: str | None = None, **settings: Any) -> Study:
    """Create a study, or join an existing one, to run it in this process with `Study.run`.

    The settings of a study are fixed when it is created. To join it, its name suffices.

    Args:
        name: name of the study. Default: `crypto-TIMEFRAME`, or the name of the game.
        **settings: the flags of `sweepd train`, with _ for -: for example `env="cartpole"`,
            `n_trials=8`, `budget=50_000`, `data_dir="data/binance"`, `tickers=["BTC/USD"]`,
            `search_space={"learning_rate": sweepd.log_float(1e-5, 1e-2)}`, `gpu="cpu"`,
            `runs_dir="runs"`. Units and defaults are those of the flags. Flags that need a process
            of their own are refused. Besides, there are
            `env`: also a class or function that makes an environment, with `env_kwargs` and
            `wrappers`;
            `search_space`: also parameters by name, or a function of an Optuna trial;
            `objective`: also a training function, which takes a `sweepd.Trial`;
            `callbacks`: a list of `sweepd.Callback`.

    Returns:
        The study; nothing is trained before `Study.run`.

    Raises:
        InputError: a setting is unknown or wrong, or an existing study has other settings.
    """
    from sweepd.optimize.api import study as study_api

    return study_api.create_study(name, settings, Hooks(**_search_hooks()))


def promote_best(handle: StudyHandle, console: Console) -> None:
    """Request promotion of a complete study's best trial, and replay the champion on paper.

    Runs in a separate process with one thread, whose output is printed as it arrives. A failure does
    not affect the exit code of training. Its priority is the usual one, because the user waits for
    the verdict: beside other programs, a lower one would take minutes instead of seconds.
    """
    from rich.text import Text

    say = functools.partial(console.print, highlight=False, soft_wrap=True)
    again = f"to try again: sweepd promote --study-name {handle.name}"
    command, environment = _deployment(handle, "promote-after-study")
    # rich in the child process must format for this console, not for the pipe.
    environment |= {"COLUMNS": str(console.width), "TTY_INTERACTIVE": "0"}
    if console.is_terminal and not console.no_color:
        environment["FORCE_COLOR"] = "1"
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        say(f"The best trial could not be evaluated ({error}); {again}", style="yellow")
        return
    assert process.stdout is not None
    # Line by line, so that the output also reaches the log file.
    for line in process.stdout:
        say(Text.from_ansi(line.rstrip("\n")))
    if process.wait() != 0:
        ended = f"ended with code {process.returncode}" if process.returncode > 0 else "was killed"
        say(f"The evaluation of the best trial {ended}; {again}", style="yellow")


class BackgroundEvaluation:
    """Evaluates new best trials by the rules that do not use the hold-out, in a separate process.

    The process has the lowest priority; its output goes to `gate/first-stage.log` in the study's
    directory. While one is running, further trials are skipped: the end of the study evaluates all.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self, handle: StudyHandle) -> None:
        from sweepd.optimize.objectives.table import objective_of

        if not objective_of(handle.spec.environment).first_stage:
            return
        if self.process is not None and self.process.poll() is None:
            return
        command, environment = _deployment(handle, "promote", "--first-stage")
        try:
            log = handle.run_dir / "gate" / "first-stage.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as output:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
                )
        except OSError:  # training continues; the end of the study evaluates all
            return
        _lower_priority(self.process)


def _deployment(handle: StudyHandle, *words: str) -> tuple[list[str], dict[str, str]]:
    """Return a command on a study and its environment variables.

    The database's URL may contain a password, so it is not an argument, which `ps` would show.
    """
    from sweepd.envs.external.guard import untagged
    from sweepd.envs.support.database_url import STORAGE_VARIABLE

    environment = {**untagged(), "OMP_NUM_THREADS": "1", STORAGE_VARIABLE: handle.storage.url}
    where = ("--study-name", handle.name, "--runs-dir", str(handle.run_dir.parent))
    return [sys.executable, "-m", "sweepd", *words, *where], environment


def _lower_priority(process: subprocess.Popen[Any]) -> None:
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        psutil.Process(process.pid).nice(19)


def looks_so_far(handle: StudyReader, where: RegistryFlags | None = None) -> int:
    """Return the number of hold-out evaluations used on the bars of a study.

    Evaluations by all studies with an asset in common count. A registry that does not exist yet
    counts 0 evaluations, and is not created.

    Args:
        handle: the study.
        where: the registry; by default the one that environment variables name.
    """
    from sweepd.deploy.registry.flags import RegistryFlags
    from sweepd.optimize.study.record.spans import holdout_span

    span = holdout_span(handle.spec)
    if span is None:
        return 0
    registry = (where or RegistryFlags.from_environment()).open(create=True)
    return registry.evaluations.count_holdout(*span)


def load_opponent(reference: str) -> FoundBundle:
    """Return a bundle as an opponent in a game.

    Args:
        reference: as `sweepd play` takes it.

    Raises:
        InputError: there is no such bundle, or it is not a network that plays a game.
    """
    from sweepd.deploy.games.bundle import game_bundle
    from sweepd.deploy.games.player import Network
    from sweepd.deploy.gates import load_reference
    from sweepd.deploy.registry.flags import RegistryFlags
    from sweepd.envs.support.errors import InputError
    from sweepd.optimize.objectives.games.curriculum import FoundBundle

    registry = RegistryFlags.from_environment().open(create=True)
    bundle = game_bundle(load_reference(registry, reference))
    player = bundle.player
    if not isinstance(player, Network):
        raise InputError(f"bundle {bundle.name} is not a network, and cannot be an opponent")
    return FoundBundle(bundle.hash, bundle.manifest.game.name, player.policy, player.sampled)


def watch_studies(
    study_name: str | None, storage: str | None, runs_dir: Path | None, where: RegistryFlags
) -> StudySource:
    """Return the source of the dashboard's studies. where: the registry, see `looks_so_far`."""
    from sweepd.optimize.cli.progress import StudyWatch

    return StudyWatch(study_name, storage, runs_dir, functools.partial(looks_so_far, where=where))


def retrain_trial(*arguments: Any, **places: Any) -> Retrained | None:
    """Train a trial again, see `sweepd.optimize.cli.reproduce.retrain`."""
    from sweepd.optimize.cli.reproduce import retrain

    return retrain(*arguments, **places, load_bundle=load_opponent)


def check_registry() -> None:
    """Raise InputError if the registry that environment variables name cannot be used."""
    from sweepd.deploy.registry.flags import RegistryFlags

    RegistryFlags.from_environment().open(create=True)


@dataclass(frozen=True)
class CommandHooks(Hooks):
    """What all commands find as `context.obj`: `Hooks` for the search, and for deployment:

    Attributes:
        open_studies: returns the source of the dashboard's studies.
        retrain: trains a trial again.
    """

    open_studies: OpenStudies = watch_studies
    retrain: Retrain = retrain_trial


def command_hooks() -> CommandHooks:
    """Return the functions for the commands of a process."""
    return CommandHooks(
        after_study=promote_best, on_new_best=BackgroundEvaluation(), **_search_hooks()
    )


def _search_hooks() -> dict[str, Any]:
    """Return what a worker needs of other packages, without promotion."""
    return {
        "count_looks": looks_so_far,
        "check_registry": check_registry,
        "load_bundle": load_opponent,
    }
