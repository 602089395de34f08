"""`sweepd loop`: one night of a slot."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from sweepd.deploy.night.config import NightConfig, changed, read_config
from sweepd.deploy.night.delivery import read_facts
from sweepd.deploy.night.machine import Done, Perform, is_over, next_step, steps_of, which_nights
from sweepd.deploy.night.processes import Commands, Stopped, locked
from sweepd.deploy.night.records import Night, NightStep, NightStore
from sweepd.deploy.night.report import night_report
from sweepd.deploy.night.shell import NightShell
from sweepd.deploy.night.steps import PERFORM
from sweepd.deploy.night.study import flag_words, train_words
from sweepd.deploy.promotion.terminal import print_steps, report_view
from sweepd.deploy.registry.database import utc_text
from sweepd.deploy.registry.flags import AsJson, RegistryFlags
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.registry.slots import slot_name
from sweepd.deploy.trading.live.runner import ending_on_signals
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.flags import takes_flags
from sweepd.envs.support.supervisor import Supervisor
from sweepd.envs.support.terminal import Terminal

FOLDER = "nights"  # in the deployments folder: locks and messages of the commands


@takes_flags
def loop_command(
    context: typer.Context,
    where: RegistryFlags,
    config: Annotated[Path, typer.Argument(help="TOML file: see docs/how_to/run_every_night.md.")],
    night: Annotated[
        str | None,
        typer.Option(help="The night's UTC day, as 20261128. Default: today's, or an open one."),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Show what the newest night did; do nothing.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the night would do; do nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Do one night of a slot: new bars, a study, its judgement, the arena and a report.

    Every step is done once: after a kill, the same command goes on. The slot's trader is not
    touched. Exit code 0: the night is over, also if no candidate passed, or the command was asked
    to stop. 1: a step failed or was refused. 75: a step failed, and the same command tries again.
    """
    # Before the input is checked: see `promote_command`.
    supervisor = Supervisor()
    supervisor.ready("the night")
    if report and dry_run:
        raise InputError("--report and --dry-run exclude each other")
    settings = read_config(config)
    _check_flags(context, config, settings)
    registry = where.open(create=True)
    view = _View(registry, settings.slot, as_json)
    if report:
        view.show(night)
    elif dry_run:
        view.plan(settings, night)
    else:
        registry.database.check_writable()
        _run(settings, registry, supervisor, view, night)


def _check_flags(context: typer.Context, path: Path, settings: NightConfig) -> None:
    """Parse the flags of [study] as `train` will."""
    if settings.study is None:
        return
    group = context.find_root().command
    assert isinstance(group, TyperGroup)
    command = group.get_command(context, "train")
    assert command is not None
    words = flag_words(settings.study.flags)
    try:
        command.make_context("train", words)
    except TyperException as error:
        raise InputError(f"CONFIG {path}: [study]: {error.format_message()}") from None


def _run(
    settings: NightConfig,
    registry: Registry,
    supervisor: Supervisor,
    view: _View,
    asked: str | None,
) -> None:
    slot, stop = settings.slot, threading.Event()
    folder = registry.folder / FOLDER / slot_name(slot)
    busy = f"the night of slot {slot!r} is done by another process on this machine"
    with locked(folder / "loop.lock", busy), ending_on_signals(stop):
        names = which_nights(view.store.nights(slot), asked, time.time())
        outcome = None
        for name in names:
            commands = Commands(registry, folder / name, folder / "command.lock", supervisor, stop)
            shell = NightShell(registry, PERFORM, commands, supervisor, view.tell)
            view.begins(settings, name)
            try:
                outcome = shell.run(settings, name)
            except Stopped:
                view.tell("stopped; the same command continues the night")
                return
    view.show(names[-1])
    if outcome != "done":
        raise typer.Exit(RunError.exit_code)


class _View:
    """What the command prints; with --json, the result alone is on stdout."""

    def __init__(self, registry: Registry, slot: str, as_json: bool) -> None:
        self._registry = registry
        self.store, self._slot, self._json = NightStore(registry.database), slot, as_json
        self._console, self._notes = Terminal(), Terminal(stderr=as_json)

    def tell(self, line: str) -> None:
        """Print a line about a step."""
        self._notes.print_line(line)

    def begins(self, settings: NightConfig, name: str) -> None:
        """Say which night is done, and what of the file does not apply to it."""
        self.tell(f"night {name} of {self._slot}")
        night = self.store.night(self._slot, name)
        if night is None:
            return
        others = changed(NightConfig.of(night.config), settings)
        if others and night.ended is None:
            self.tell(
                f"it keeps the settings that it began with; changed since: {', '.join(others)}"
            )

    def show(self, asked: str | None) -> None:
        """Print a night, by default the newest."""
        nights = {one.night: one for one in self.store.nights(self._slot)}
        if not nights or (asked is not None and asked not in nights):
            named = "" if asked is None else f" {asked}"
            raise InputError(f"slot {self._slot!r} has had no night{named}: sweepd loop CONFIG")
        night = nights[asked or max(nights)]
        rows = self.store.steps(self._slot, night.night)
        if self._json:
            typer.echo(json.dumps(_content(night, rows), indent=1))
            return
        report = night_report(read_facts(self._registry, self._slot, night.night, time.time()))
        self._console.print(report_view(report))
        print_steps(self._console, report.steps)

    def plan(self, settings: NightConfig, asked: str | None) -> None:
        """Print what the next start would do."""
        nights, now = self.store.nights(self._slot), time.time()
        names = which_nights(nights, asked, now)
        known = {one.night: one for one in nights}
        night = known.get(names[-1]) or Night(
            self._slot, names[-1], "", settings.record, utc_text(now)
        )
        own = NightConfig.of(night.config)
        rows = {row.step: row for row in self.store.steps(self._slot, night.night)}
        left = [name for name in steps_of(own) if name not in rows]
        words: list[str] = []
        if "study" in left and "begin" in rows:
            words = train_words(own, rows["begin"].facts["study"], rows["begin"].facts["first"])
        if self._json:
            typer.echo(json.dumps({"nights": names, "left": left, "train": words}, indent=1))
            return
        for name in names[:-1]:
            self._console.print_line(f"night {name} would be closed as late")
        what = (
            next_step(own, night, rows, over=is_over(night, nights, now)) if left else Done("done")
        )
        first = f"; next: {what.step}" if isinstance(what, Perform) else ""
        self._console.print_line(f"night {night.night}: {', '.join(left) or 'is over'}{first}")
        if own.study is not None:
            self._console.print_line(
                f"study: {own.study.n_trials} trials, at most {own.study.hours:g} hours"
            )


def _content(night: Night, rows: list[NightStep]) -> dict[str, Any]:
    """Return a night as plain data, without what belongs to the process."""
    own = dataclasses.asdict(night)
    del own["token"]
    steps = [
        {"step": row.step, "at": row.at, "seconds": row.seconds, "outcome": row.outcome}
        | {"facts": row.facts}
        for row in rows
    ]
    return own | {"steps": steps}
