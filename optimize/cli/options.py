"""Options that several search commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sweepd.envs.support.files import read_toml
from sweepd.envs.support.flags import as_defaults

StudyName = Annotated[str, typer.Argument(help="Name of the study.")]
Why = Annotated[str, typer.Option("--reason", help="Reason, recorded in the study.")]


def read_config_file(path: Path) -> dict[str, Any]:
    """Read a TOML file whose keys are the flags of a command, with - or _.

    Returns:
        The values by parameter name (with _).

    Raises:
        InputError: the file cannot be read or is not TOML.
    """
    entries = read_toml(path, f"--config {path}", "a TOML file of flags")
    return {key.replace("-", "_"): value for key, value in entries.items()}


def _apply_config(context: typer.Context, path: Path | None) -> Path | None:
    """Use the file's entries as defaults of the flags; the command line takes precedence."""
    if path is None or context.resilient_parsing:
        return path
    parameters = [p for p in context.command.params if p.name not in ("config", "help")]
    defaults = as_defaults(read_config_file(path), parameters, f"--config {path}")
    # Read by Typer for the options that follow: this option is eager.
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        help="TOML file of flags, e.g. n-trials = 40. Flags on the command line take precedence.",
        callback=_apply_config,
        is_eager=True,
    ),
]
