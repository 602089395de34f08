"""The command line: which commands there are, and what a command's errors print.

A command's module is imported when the command is used, so that `sweepd --help` and the commands
that only read a database do not wait for torch.
"""

from __future__ import annotations

import errno
import importlib
import io
import sys
import traceback
from types import TracebackType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sweepd.envs.support.errors import INTERRUPTED, InputError, RunError
from sweepd.envs.support.loading import end_loading, loading
from sweepd.envs.support.passwords import hide_password
from sweepd.envs.support.terminal import Terminal
from sweepd.hooks import command_hooks
from sweepd.optimize.cli.hooks import Hooks

_STYLE: dict[str, Any] = {"rich_markup_mode": "markdown", "pretty_exceptions_enable": False}
_SEARCH = "sweepd.optimize.cli"
_DEPLOY = "sweepd.deploy.cli"
# By name, in the order of `--help`: the function or `typer.Typer` of the command, and the first
# paragraph of its help, which a test compares with that of the function; "" hides the command.
COMMANDS = {
    "train": (
        f"{_SEARCH}.commands:train",
        "Search hyperparameters until the study has --n-trials finished trials.",
    ),
    "profile": (
        f"{_SEARCH}.commands:profile",
        "Measure how `train` with the same flags would spend its time, and suggest faster settings.",
    ),
    "run": (
        f"{_SEARCH}.commands:run",
        "Train once with one set of parameters: of a file, or exactly those of a trial.",
    ),
    "fork": (
        f"{_SEARCH}.commands:fork",
        "Continue a trial's exact state after a rung with other hyperparameters.",
    ),
    "status": (
        f"{_SEARCH}.study_commands:status",
        "Show studies, their progress and their workers.",
    ),
    "watch": (
        f"{_SEARCH}.study_commands:watch",
        "Watch a study in the terminal: its curves, progress, ETA, workers and best trial.",
    ),
    "pause": (
        f"{_SEARCH}.study_commands:pause",
        "Pause a study: its workers checkpoint and requeue their trials, free GPU memory, and wait.",
    ),
    "resume": (
        f"{_SEARCH}.study_commands:resume",
        "Resume a paused study: its workers continue exactly from the checkpoints.",
    ),
    "doctor": (
        f"{_SEARCH}.commands:doctor",
        "Check this machine, or with --env NAME an environment and the flags of a study on it.",
    ),
    "enqueue": (
        f"{_SEARCH}.study_commands:enqueue",
        "Add a trial with parameters of yours to a study; workers train it before new ones.",
    ),
    "plan": (
        f"{_DEPLOY}.plan:plan_command",
        "Show before training how often the gate finds a return over equal weight, by years and trials.",
    ),
    "promote": (
        f"{_DEPLOY}.promote:promote_command",
        "Evaluate a study's best trial, and make it champion of a slot if it meets every rule.",
    ),
    "promote-after-study": (f"{_DEPLOY}.promote:after_study_command", ""),
    "export": (
        "sweepd.deploy.export.command:export_command",
        "Export the parameters or the policy of a trial for another library.",
    ),
    "rollback": (
        f"{_DEPLOY}.registry_commands:rollback_command",
        "Restore a slot's previous champion. A second rollback undoes the first.",
    ),
    "reproduce": (
        f"{_DEPLOY}.reproduce:reproduce_command",
        "Train a champion or a trial again from its record, compare the weights, and score them.",
    ),
    "trade": (
        f"{_DEPLOY}.trade_commands:trade_command",
        "Trade a slot's champion on paper, bar by bar as the bars close, until stopped.",
    ),
    "loop": (
        f"{_DEPLOY}.loop:loop_command",
        "Do one night of a slot: new bars, a study, its judgement, the arena and a report.",
    ),
    "play": (
        f"{_DEPLOY}.play:play_command",
        "Show a player's games in the terminal, or write them as GIF or MP4. Ctrl-C ends it.",
    ),
    "league": (
        f"{_DEPLOY}.league:league_command",
        "Compare players of any studies: in all pairs, or with --over NAME=VALUES.",
    ),
    "defend": (
        f"{_DEPLOY}.defend:defend_command",
        "Let the challengers of a game's slot play its champion in fresh games.",
    ),
    "dashboard": (
        f"{_DEPLOY}.dashboard:dashboard",
        "Show paper trading, studies and optuna-dashboard on http://127.0.0.1:8080.",
    ),
    "studies": (
        f"{_SEARCH}.studies_commands:studies_app",
        "List, compare, export, thin and delete studies.",
    ),
    "service": (
        f"{_SEARCH}.service_commands:service_app",
        "Run a worker, promoter, paper trader or nightly loop as a systemd service of your account.",
    ),
    "trader": (
        f"{_DEPLOY}.trader_commands:trader_app",
        "Halt, resume, show or check the trader of a slot, which `sweepd trade SLOT` starts.",
    ),
    "registry": (
        f"{_DEPLOY}.registry_commands:registry_app",
        "Show, compare, verify, export and delete the bundles of slots.",
    ),
    "data": (
        f"{_SEARCH}.check_bars:data_app",
        "Check, download, import or generate OHLCV bars: one file per ticker and timeframe, named "
        "like BTC_USDT-1h.parquet.",
    ),
}


class UnloadedCommand(TyperCommand):
    """A command whose module is imported when it is used.

    Args:
        name: its name.
        target: "module:attribute" of its function or `typer.Typer`.
        help: the first paragraph of its help; "" for a hidden command.
    """

    def __init__(self, name: str, target: str, help: str) -> None:
        super().__init__(name, help=help, hidden=not help)
        self._target = target

    def load(self) -> TyperCommand | TyperGroup:
        """Import the command."""
        module, _, attribute = self._target.partition(":")
        app = typer.Typer(**_STYLE)
        with loading():
            found = getattr(importlib.import_module(module), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=self.name)
        else:
            app.command(self.name)(found)
        command = typer.main.get_group(app).commands[str(self.name)]
        assert isinstance(command, TyperCommand | TyperGroup)
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Return a context of the loaded command, which is then invoked in place of this one."""
        if self.name == "doctor":
            args = with_first_gpu(args)
        return self.load().make_context(info_name, args, parent, **extra)


def with_first_gpu(args: list[str]) -> list[str]:
    """Return arguments in which `--gpu` without a value has the number of the first GPU."""
    following = [*args[1:], "-"]
    pairs = zip(args, following, strict=True) if args else ()
    return [
        "--gpu=0" if word == "--gpu" and after.startswith("-") else word for word, after in pairs
    ]


class CommandTable(TyperGroup):
    """The commands of `COMMANDS`, not loaded."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (target, text) in COMMANDS.items():
            self.add_command(UnloadedCommand(name, target, text))

    def load_all(self) -> None:
        """Load all commands, for tools that read their options."""
        for name, command in self.commands.items():
            if isinstance(command, UnloadedCommand):
                self.commands[name] = command.load()


def print_version(wanted: bool) -> None:
    """`--version`."""
    if wanted:
        from importlib.metadata import version  # takes as long as the rest of this command

        typer.echo(f"sweepd {version('sweepd')}")
        raise typer.Exit


def build_app(hooks: Hooks | None = None) -> typer.Typer:
    """Return the command line.

    Args:
        hooks: what commands find as `context.obj`. Default: `sweepd.hooks.command_hooks`.
    """
    app = typer.Typer(
        cls=CommandTable,
        context_settings={"obj": hooks or command_hooks()},
        no_args_is_help=True,
        add_completion=False,
        **_STYLE,
    )

    @app.callback()
    def sweepd(
        _: Annotated[
            bool,
            typer.Option(
                "--version", callback=print_version, is_eager=True, help="Print the version."
            ),
        ] = False,
    ) -> None:
        """Search hyperparameters for reinforcement learning, and trade the best trials on paper.

        Research software for paper trading only: it never sends an order to a real market.
        """
        end_loading()  # from now on, an interrupt may have something to put right

    return app


def run() -> None:
    """Run the command line `sys.argv`.

    Errors are printed as one sentence. Exit codes: 2 for wrong input, 1 for a failure at run time,
    75 if the same command may succeed later, 130 after Ctrl-C. Characters that the output's
    encoding lacks are printed as question marks. Passwords of database URLs are hidden in messages
    and tracebacks.
    """
    # With LANG=C, a character such as "…" would otherwise end the command with an error.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.excepthook = _print_traceback
    try:
        build_app()(prog_name="sweepd")  # also where it runs as `python -m sweepd`
    except (InputError, RunError) as error:
        code, message = error.exit_code, str(error)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f" at {error.filename}" if error.filename else ""
        message = f"no space left{where}; free some space and run the same command to continue"
        code = RunError.exit_code
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    else:
        return
    console = Terminal(stderr=True)
    console.print("error: ", style="bold red", end="")
    console.print_line(hide_password(message))
    sys.exit(code)


def _print_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    sys.stderr.write(hide_password("".join(traceback.format_exception(kind, error, trace))))
