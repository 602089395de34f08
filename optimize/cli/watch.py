"""`sweepd watch`: a study in the terminal, updated until Ctrl-C."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sweepd.envs.support.errors import RunError
from sweepd.envs.support.terminal import screen
from sweepd.optimize.cli.hooks import Hooks
from sweepd.optimize.cli.progress import StudyWatch
from sweepd.optimize.cli.status import show
from sweepd.optimize.study.insight.charts import StudyCharts, rate_line

EVERY = 2.0  # seconds between two updates
BAR = 60  # columns


def watch_study(
    study: str | None,
    storage: str | None,
    runs_dir: Path | None,
    *,
    once: bool,
    as_json: bool,
    hooks: Hooks,
) -> None:
    """Show a study.

    Args:
        study: its name; None for the newest.
        storage: `--storage`.
        runs_dir: `--runs-dir`.
        once: print once, also on a terminal.
        as_json: print the study's progress as JSON, once.
        hooks: with the number of hold-out evaluations used.

    Raises:
        InputError: there is no study.
        RunError: the database does not answer at the beginning.
    """
    source = StudyWatch(study, storage, runs_dir, hooks.count_looks)
    found = source.progress(source.first())
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    elif once or not sys.stdout.isatty():
        screen().print(study_screen(found), end="")
    else:
        _watch(source, found)


def study_screen(found: dict[str, Any]) -> RenderableType:
    """Return the progress of a study for a terminal. found: see `study_progress`."""
    history, rates = found["history"], rate_line(found["history"])
    line = [Text.assemble(("trials/hour  ", "bold"), rates)] if rates else []
    bar = Table.grid()  # in which it ends its line
    bar.add_row(ProgressBar(total=max(found["total"], 1), completed=found["done"], width=BAR))
    return Group(show(found), bar, "", StudyCharts(history), *line, "")


def _watch(source: StudyWatch, found: dict[str, Any]) -> None:
    """Update the terminal until Ctrl-C. While the database does not answer, say so."""
    name, problem = found["study"], ""
    with Live(console=screen(), screen=True, auto_refresh=False) as live:
        try:
            while True:
                # At the top, since a small terminal cuts off what is below.
                now = f"{datetime.now():%H:%M:%S}, every {EVERY:.0f} s; Ctrl-C ends it"
                head = Text(problem, style="bold red") if problem else Text(now, style="dim")
                live.update(Group(head, study_screen(found)), refresh=True)
                time.sleep(EVERY)
                try:
                    found, problem = source.progress(name), ""
                except RunError as error:
                    problem = str(error)
        except KeyboardInterrupt:
            return
