"""Database URLs as in `--storage`, and how a command gets one with a password.

Passwords are kept out of the arguments of child processes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import typer
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.passwords import PARAMETERS, has_password, hide_password
from sweepd.envs.support.terminal import printable

STORAGE_VARIABLE = "SWEEPD_STORAGE"  # environment variable read if --storage is not given


def database_url(storage: str) -> str:
    """Return the SQLAlchemy URL for a value of `--storage`.

    Args:
        storage: path of a SQLite file, `sqlite:///path` or `postgresql://…`.

    Raises:
        InputError: it is none of these or cannot be parsed. The message hides the password.
    """
    if "://" not in storage:
        if re.search(r":[^/]*@", storage):
            raise InputError(
                "--storage holds user and password, but does not begin with postgresql://; use "
                "postgresql://user@host/database, or the path of a SQLite file"
            )
        return f"sqlite:///{Path(storage).resolve()}"
    if storage.startswith("sqlite:///"):
        return storage
    shown = hide_password(storage)
    if not storage.startswith(("postgresql://", "postgresql+")):
        raise InputError(
            f"--storage {shown}: use a SQLite file (path or sqlite:///path) or "
            "postgresql://user@host/database"
        )
    try:
        host = make_url(storage).host or ""
    except (ArgumentError, ValueError):  # ValueError: the port is not a number
        raise InputError(
            f"--storage {shown} cannot be parsed; use postgresql://user@host:port/database"
        ) from None
    if "@" in host:
        raise InputError(
            f"--storage {shown} has more than one @; write %40 for an @ in the user or password"
        )
    return re.sub("^postgresql://", "postgresql+psycopg://", storage)


def sqlite_path(url: str) -> Path | None:
    """Return the file of a SQLite database; None for a database server."""
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None


def remove_password(url: str) -> str:
    """Remove the password from a URL; PGPASSWORD or ~/.pgpass then supplies it."""
    parsed = make_url(url)
    secret = [name for name in parsed.query if name.lower() in PARAMETERS]
    # `URL.set` takes None for "unchanged", so the password is removed with `_replace`.
    parsed = parsed.difference_update_query(secret)._replace(password=None)
    return parsed.render_as_string(hide_password=False)


def without_passwords(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Move a `--storage` with a password from a command's arguments to the environment.

    All users of a machine can read a process's arguments, but only its owner the environment.

    Returns:
        The remaining arguments, and the environment variables to set.
    """
    kept: list[str] = []
    storage: str | None = None
    rest = iter(words)
    for word in rest:
        if word == "--storage":
            storage = next(rest, None)
        elif word.startswith("--storage="):
            storage = word.removeprefix("--storage=")
        else:
            kept.append(word)
    if storage is None or not has_password(storage):
        return list(words), {}
    return kept, {STORAGE_VARIABLE: storage}


def warn_of_password(
    context: typer.Context, parameter: typer.CallbackParam, value: str | None
) -> str | None:
    """Warn on stderr if a database URL with a password was given as an argument.

    A Typer callback for options that also read an environment variable.
    """
    source = context.get_parameter_source(parameter.name or "")
    on_command_line = source is not None and source.name == "COMMANDLINE"
    if (
        value is not None
        and on_command_line
        and has_password(value)
        and not context.resilient_parsing
    ):
        typer.echo(
            printable(
                f"warning: all users of this machine can read the password in --{parameter.name}; set "
                f"{parameter.envvar}, or PGPASSWORD or ~/.pgpass with a URL without password, instead"
            ),
            err=True,
        )
    return value
