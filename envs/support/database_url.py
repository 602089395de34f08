"""Database URLs as --storage takes them, and their passwords: hidden in what is printed, and kept out of the arguments
of child processes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import typer
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from envs.support.errors import InputError

STORAGE_VARIABLE = "SWEEPD_STORAGE"  # the value of --storage, where the flag is not given

# Greedy: a password may hold an @ that should have been written as %40.
_AFTER_USER = re.compile(r"(://[^:/@\s]*:)\S*@")
_PARAMETERS = ("password", "passwd", "pwd", "sslpassword")
_PARAMETER = re.compile(rf"([?&](?:{'|'.join(_PARAMETERS)})=)[^&\s]*", re.IGNORECASE)


def database_url(storage: str) -> str:
    """SQLAlchemy's URL for a value of --storage: the path of a SQLite file, sqlite:///path, or postgresql://….

    Raises InputError, without the password, where it is none of them or cannot be parsed.
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
            f"--storage {shown}: use a SQLite file (path or sqlite:///path) or postgresql://user@host/database"
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


def hide_password(text: str) -> str:
    """The text with the password of every database URL in it replaced by ***: `scheme://user:password@host`, and the
    parameter `?password=`. A URL that cannot be parsed is treated alike.
    """
    return _PARAMETER.sub(r"\1***", _AFTER_USER.sub(r"\1***@", text))


def has_password(text: str) -> bool:
    """Whether `hide_password` would hide something."""
    return hide_password(text) != text


def remove_password(url: str) -> str:
    """SQLAlchemy's URL without its password: PGPASSWORD or ~/.pgpass supplies it."""
    parsed = make_url(url)
    secret = [name for name in parsed.query if name.lower() in _PARAMETERS]
    parsed = parsed.difference_update_query(secret)._replace(
        password=None
    )  # `set` takes None for "as it is"
    return parsed.render_as_string(hide_password=False)


def without_passwords(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """A command's words without a --storage that holds a password, and the environment variable that takes its place.

    Any user of a machine can read the arguments of a process; only its own user can read its environment.
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
    """Callback of an option that takes a database URL and reads it from an environment variable, too: a sentence on
    stderr where the option is given as an argument and holds a password.
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
            f"warning: all users of this machine can read the password in --{parameter.name}; set {parameter.envvar}, "
            "or PGPASSWORD or ~/.pgpass with a URL without password, instead",
            err=True,
        )
    return value
