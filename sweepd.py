"""The `sweepd` command: the packages' commands put together, and the parts wired.

This is the one module that imports everything (docs/architecture.md): it hands the promotion step to the worker as a
function, so that `optimize` never imports `deploy`.
"""

from __future__ import annotations

import errno
import sys
from datetime import datetime
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console

from deploy.commands import count_looks, deploy_commands, promote_after_study
from envs.commands import data_app
from envs.crypto.timeframe import bar_seconds
from envs.errors import InputError, RunError, TryAgainLater
from optimize.commands import search_commands
from optimize.study import StudyHandle


def promote_best(handle: StudyHandle, console: Console) -> None:
    """The auto-deploy step of a finished study: ask for the best trial's promotion, replay the champion on paper."""
    promote_after_study(handle.name, handle.storage.url, console=console)


def looks_so_far(handle: StudyHandle) -> int:
    """How often the bars of a study's hold-out were looked at, by whichever study of the same assets."""
    data, bars = handle.spec.data, round(handle.spec.holdout * handle.spec.data.bars)
    last = int(datetime.fromisoformat(data.last).timestamp())
    return count_looks(data.tickers, last - (bars - 1) * bar_seconds(data.timeframe), last) if bars else 0


def print_version(wanted: bool) -> None:
    """`--version`."""
    if wanted:
        typer.echo(f"sweepd {version('sweepd')}")
        raise typer.Exit


def build_app() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, rich_markup_mode="markdown"
    )

    @app.callback()
    def sweepd(
        _: Annotated[
            bool, typer.Option("--version", callback=print_version, is_eager=True, help="Say which version this is.")
        ] = False,
    ) -> None:
        """Search hyperparameters of trading policies, test the best against luck, and trade the champion on paper.

        Research software, paper trading only: no order is ever sent to a real market.
        """

    search_commands(app, promote_best, looks_so_far)
    deploy_commands(app)
    app.add_typer(data_app, name="data")
    return app


def main() -> None:
    """Entry point: wrong input is one sentence and exit code 2, a fault while running one sentence and exit code 1, or
    75 where the same command is worth starting again later.
    """
    try:
        build_app()()
    except InputError as error:
        code, message = 2, str(error)
    except TryAgainLater as error:
        code, message = 75, str(error)
    except RunError as error:
        code, message = 1, str(error)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f" at {error.filename}" if error.filename else ""
        code, message = 1, f"no space left{where}; free some, and the same command goes on where it was"
    else:
        return
    Console(stderr=True).print("[bold red]error:[/] ", end="")
    Console(stderr=True).print(message, markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
