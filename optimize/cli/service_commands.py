"""`sweepd service install|uninstall|show`: workers, promoters, traders and nights under systemd."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from sweepd.envs.support.database_url import STORAGE_VARIABLE
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.passwords import has_password
from sweepd.envs.support.terminal import printable
from sweepd.optimize.cli.service import (
    AT,
    COMMANDS,
    LOOP,
    PREFIX,
    environment_file,
    install,
    installed,
    lingers,
    make_units,
    state_of,
    uninstall,
)

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


service_app = typer.Typer(
    no_args_is_help=True,
    help="Run a worker, promoter, paper trader or nightly loop as a systemd service of your account.",
)


@service_app.command("install", context_settings=PASS_ON)
def install_command(
    context: typer.Context,
    kind: Annotated[
        str,
        typer.Argument(
            help="worker (sweepd train), promoter (sweepd promote), trader (sweepd trade) or loop "
            "(sweepd loop, once a day)."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(help="Name of the service. Default: study, slot and GPU of the flags."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help=f"Of loop: UTC time of the day at which it begins. Default: {AT}."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the units without installing them.")
    ] = False,
) -> None:
    """Install a command as a systemd service, and start it now and at every boot.

    All other flags are passed to the command and checked now. Example:
    sweepd service install worker --study-name btc --data-dir data/binance.
    The service runs in the current directory with the current Python.
    """
    if kind not in COMMANDS:
        raise InputError(f"{kind!r} is not a service; choose one of {', '.join(COMMANDS)}")
    found = _checked(context, kind)
    # Before anything is written, as the command itself would refuse its flags.
    _refuse_unfit(context.args, found)
    at = _time_of(kind, at)
    parts = (
        [name]
        if name
        else [
            found.get("study_name"),
            found.get("slot"),
            found.get("gpu") and f"gpu{found['gpu']}",
            Path(str(found["config"])).stem if kind == LOOP else None,
        ]
    )
    label = re.sub(r"[^\w.+-]", "-", "-".join(str(part) for part in parts if part))
    units = make_units(kind, label, context.args, Path.cwd(), at)
    if dry_run:
        for unit in units:
            typer.echo(printable(f"# {unit.name}\n{unit.text}"))
        return
    install(units)
    started = units[-1].name
    typer.echo(printable(f"{started} is running, and starts at every boot"))
    typer.echo(printable(f"  follow it:  journalctl --user -u {units[0].name} -f"))
    typer.echo(
        printable(f"  stop it:    systemctl --user stop {started}    (its trials are requeued)")
    )
    typer.echo(printable(f"  secrets:    {environment_file()}"))
    if (
        STORAGE_VARIABLE in os.environ
        and kind not in ("trader", LOOP)
        and not any(w.startswith("--storage") for w in context.args)
    ):
        typer.echo(
            printable(
                f"  warning: the service does not see this shell's {STORAGE_VARIABLE}; add it to that "
                f"file, then run: systemctl --user restart {started}"
            )
        )
    # systemd ends all services of an account at its last logout, unless it lingers.
    if lingers() is False:
        typer.echo("  it stops when you log out; to keep it running: loginctl enable-linger")


@service_app.command("uninstall")
def uninstall_command(
    name: Annotated[
        str, typer.Argument(help="Name of the service (see sweepd service show), or all.")
    ],
) -> None:
    """Stop a service (a worker requeues its trials) and remove it."""
    paths = installed() if name == "all" else []
    paths = paths or _units_of(name)
    uninstall(paths)
    for path in paths:
        typer.echo(printable(f"removed {path.name}"))


@service_app.command("show")
def show_command(
    name: Annotated[
        str | None,
        typer.Argument(help="Print the unit of this service. Default: list all services."),
    ] = None,
) -> None:
    """List the services and their state."""
    if name is not None:
        for path in _units_of(name):
            typer.echo(printable(f"# {path}\n{path.read_text(encoding='utf-8')}"))
        return
    paths = installed()
    for path in paths:
        state = state_of(path)
        words = f"{state.get('ActiveState', 'unknown')} ({state.get('SubState', '?')})"
        restarts = int(state.get("NRestarts") or 0)
        words += f", restarted {restarts} times" if restarts else ""
        status = state.get("StatusText")
        typer.echo(printable(f"{path.name}: {words}" + (f", {status}" if status else "")))
    if not paths:
        typer.echo("no service; install one with: sweepd service install worker --study-name …")


def _units_of(name: str) -> list[Path]:
    """Return the unit files of a service, named with or without prefix and suffix."""
    paths = installed()
    found = [p for p in paths if p.stem in (name, PREFIX + name) or p.name == name]
    if not found:
        names = ", ".join(sorted({path.stem for path in paths})) or "none"
        raise InputError(f"no service is called {name!r}; there are: {names}")
    return found


def _checked(context: typer.Context, kind: str) -> dict[str, object]:
    """Parse the flags as the command will; raises the command's errors."""
    group = context.find_root().command
    assert isinstance(group, TyperGroup)
    command = group.get_command(context, COMMANDS[kind])
    if command is None:
        raise InputError(f"there is no command sweepd {COMMANDS[kind]} to make a service of")
    return dict(command.make_context(COMMANDS[kind], list(context.args)).params)


def _time_of(kind: str, at: str | None) -> str:
    """Return the value of --at, which loop alone has."""
    if kind != LOOP and at is not None:
        raise InputError(f"--at {at} is for loop, and this is a {kind}; leave it out")
    at = at or AT
    if not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", at):
        raise InputError(f"--at {at!r} is not a time of the day; write it as {AT}")
    return at


def _refuse_unfit(arguments: list[str], found: dict[str, object]) -> None:
    if found.get("gpu") == "all":
        raise InputError(
            "--gpu all: install one service for each GPU (--gpu 0, --gpu 1, …), so that systemd "
            "supervises each"
        )
    for word in arguments:
        if has_password(word):
            raise InputError(
                "other users can read a unit, so it must not contain a password; remove it from "
                f"the URL, and write PGPASSWORD=… into {environment_file()}"
            )
