"""`sweepd dashboard`: paper trading and studies, as a local web page or in the terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from sweepd.deploy.dashboard.source import PaperSource
from sweepd.deploy.dashboard.terminal import age_line, slot_screen, slots_table
from sweepd.deploy.registry.bundle_files import finite
from sweepd.deploy.registry.flags import AsJson, RegistryFlags
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.flags import takes_flags
from sweepd.envs.support.study_options import RunsDir, Storage
from sweepd.envs.support.terminal import Terminal, screen

EVERY = 2.0  # seconds between two updates of a terminal


@takes_flags
def dashboard(
    context: typer.Context,
    where: RegistryFlags,
    slot: Annotated[str | None, typer.Argument(help="Slot to show. Default: all.")] = None,
    training: Annotated[
        bool,
        typer.Option(
            "--training",
            help="Show the progress of a study: trials per hour, ETA, best trial, GPU.",
        ),
    ] = False,
    terminal: Annotated[
        bool,
        typer.Option(
            "--terminal", help="Show in the terminal, updated every 2 seconds until Ctrl-C."
        ),
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    as_json: AsJson = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: any free port.")
    ] = 8080,
    study_name: Annotated[
        str | None, typer.Option(help="Study to show; implies --training. Default: the newest.")
    ] = None,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only", help="Offer no actions, and refuse changes in optuna-dashboard."
        ),
    ] = False,
) -> None:
    """Show paper trading, studies and optuna-dashboard on http://127.0.0.1:8080.

    The server answers this machine only, and asks for a token: the printed address contains it,
    unless SWEEPD_DASHBOARD_TOKEN sets it. --terminal, --once and --json print the slots as text
    instead; `sweepd watch` shows a study in the terminal.
    """
    training = training or study_name is not None
    paper = PaperSource(where)
    search = context.obj.open_studies(study_name, storage, runs_dir, where)
    shown = _Paper(paper, slot)
    if training and slot is not None:
        raise InputError(f"{slot!r} with --training: name a study with --study-name")
    if training and (terminal or once or as_json):
        raise InputError(
            "--terminal, --once and --json show slots; for a study: sweepd watch, with --once or "
            "--json"
        )
    if as_json:
        typer.echo(json.dumps(finite(shown.facts()), indent=1))
    # A file or pipe cannot be updated in place: print once.
    elif once or (terminal and not sys.stdout.isatty()):
        console = screen()
        console.print(shown.screen(), end="")
    elif terminal:
        _watch(shown.screen)
    else:
        # Imported here: the web server is an extra.
        from sweepd.deploy.dashboard.actions import Places
        from sweepd.deploy.dashboard.server import serve

        places = None if read_only else Places(where, storage, runs_dir)
        serve(paper, search, places, port, "/training" if training else shown.path)


@dataclass
class _Paper:
    """All slots, or one."""

    source: PaperSource
    slot: str | None

    @property
    def path(self) -> str:
        return "/" if self.slot is None else "/?" + urlencode({"slot": self.slot})

    def names(self) -> list[str]:
        names = list(self.source.slots())
        if self.slot is None:
            return names
        if self.slot not in names and (found := self.source.untraded(self.slot)):
            what, command = found
            raise InputError(f"slot {self.slot!r} {what}: {command} shows it")
        if self.slot not in names:
            raise InputError(f"there is no slot {self.slot!r}; slots: {', '.join(names)}")
        return [self.slot]

    def facts(self) -> dict[str, Any]:
        return {"slots": [self.source.view(name).to_dict() for name in self.names()]}

    def screen(self) -> RenderableType:
        names = self.names()
        screens = [slot_screen(self.source.view(name)) for name in names]
        return Group(*([slots_table(self.source.slots()), ""] if len(names) > 1 else []), *screens)


def _watch(screen: Callable[[], RenderableType]) -> None:
    with Live(console=Terminal(), screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(Group(screen(), age_line(time.time(), EVERY)), refresh=True)
                time.sleep(EVERY)
        except KeyboardInterrupt:
            return
