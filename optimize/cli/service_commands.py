"""`sweepd service install|uninstall|show`: workers, promoters and traders under systemd."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from envs.support.database_url import STORAGE_VARIABLE, has_password
from envs.support.errors import InputError
from optimize.cli.service import (
    COMMANDS,
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


def service_app() -> typer.Typer:
    """The command group."""
    app = typer.Typer(
        no_args_is_help=True,
        help="Run a worker, promoter or paper trader under systemd, as yourself.",
    )
    app.command("install", context_settings=PASS_ON)(install_command)
    app.command("uninstall")(uninstall_command)
    app.command("show")(show_command)
    return app


def install_command(
    context: typer.Context,
    kind: Annotated[
        str, typer.Argument(help="worker (sweepd train), promoter (promote) or trader (trade).")
    ],
    name: Annotated[
        str | None,
        typer.Option(help="Of the service. Default: the study, slot and GPU among the flags."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the units; change nothing.")
    ] = False,
) -> None:
    """Make a systemd service of a command, start it now and at every boot, and watch over it.

    All other flags are the command's own: sweepd service install worker --study-name btc --data-dir data/binance.
    They are checked here as the command would. The service runs in this folder, with this Python.
    """
    if kind not in COMMANDS:
        raise InputError(f"{kind!r} is not a service; choose one of {', '.join(COMMANDS)}")
    found = _checked(context, kind)
    _refuse_unfit(context.args, found)
    parts = (
        [name]
        if name
        else [found.get("study_name"), found.get("slot"), found.get("gpu") and f"gpu{found['gpu']}"]
    )
    label = re.sub(r"[^\w.+-]", "-", "-".join(str(part) for part in parts if part))
    units = make_units(kind, label, context.args, Path.cwd())
    if dry_run:
        for unit in units:
            typer.echo(f"# {unit.name}\n{unit.text}")
        return
    install(units)
    started = units[-1].name
    typer.echo(f"{started} runs, and will after every boot")
    typer.echo(f"  follow it:  journalctl --user -u {units[0].name} -f")
    typer.echo(
        f"  stop it:    systemctl --user stop {started}    (trials are put back, nothing is lost)"
    )
    typer.echo(f"  secrets:    {environment_file()}")
    if (
        STORAGE_VARIABLE in os.environ
        and kind != "trader"
        and not any(w.startswith("--storage") for w in context.args)
    ):
        typer.echo(
            f"  warning: the service does not see this shell's {STORAGE_VARIABLE}; write it into that file, then "
            f"systemctl --user restart {started}"
        )
    if lingers() is False:
        typer.echo(
            "  it ends when you log out, unless you allow it to stay: loginctl enable-linger"
        )


def uninstall_command(
    name: Annotated[str, typer.Argument(help="As sweepd service show prints it, or all.")],
) -> None:
    """Stop a service (its trials are put back) and remove it."""
    paths = [
        p for p in installed() if name == "all" or p.stem in (name, PREFIX + name) or p.name == name
    ]
    if not paths:
        raise InputError(f"no service is called {name!r}; there are: {_names()}")
    uninstall(paths)
    for path in paths:
        typer.echo(f"{path.name} is gone")


def show_command(
    name: Annotated[
        str | None, typer.Argument(help="Print this one's unit. Default: list all.")
    ] = None,
) -> None:
    """Say which services there are and how they are."""
    paths = installed()
    if name is not None:
        paths = [p for p in paths if p.stem in (name, PREFIX + name) or p.name == name]
        if not paths:
            raise InputError(f"no service is called {name!r}; there are: {_names()}")
        for path in paths:
            typer.echo(f"# {path}\n{path.read_text(encoding='utf-8')}")
        return
    for path in paths:
        state = state_of(path)
        words = f"{state.get('ActiveState', 'unknown')} ({state.get('SubState', '?')})"
        restarts = int(state.get("NRestarts") or 0)
        words += f", restarted {restarts} times" if restarts else ""
        status = state.get("StatusText")
        typer.echo(f"{path.name}: {words}" + (f", {status}" if status else ""))
    if not paths:
        typer.echo("no service; make one with: sweepd service install worker --study-name …")


def _names() -> str:
    return ", ".join(sorted({path.stem for path in installed()})) or "none"


def _checked(context: typer.Context, kind: str) -> dict[str, object]:
    """The command's flags as it will read them. Raises what it raises for wrong ones."""
    group = context.find_root().command
    assert isinstance(group, TyperGroup)
    command = group.get_command(context, COMMANDS[kind])
    if command is None:
        raise InputError(f"there is no command sweepd {COMMANDS[kind]} to make a service of")
    return dict(command.make_context(COMMANDS[kind], list(context.args)).params)


def _refuse_unfit(arguments: list[str], found: dict[str, object]) -> None:
    if found.get("gpu") == "all":
        raise InputError(
            "--gpu all: install one service for each GPU (--gpu 0, --gpu 1, …), so each is watched over"
        )
    for word in arguments:
        if has_password(word):
            raise InputError(
                "a unit can be read by other users, so it must not hold a password; leave it out of the URL, and "
                f"write PGPASSWORD=… into {environment_file()}"
            )
