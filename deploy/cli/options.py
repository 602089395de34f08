"""Options that several deployment commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from envs.support.database_url import warn_of_password

DEPLOYMENTS = Path("deployments")

# Environment variables; workers read them, too.
DEPLOYMENTS_VARIABLE, REGISTRY_VARIABLE = "SWEEPD_DEPLOYMENTS", "SWEEPD_REGISTRY"

Deployments = Annotated[
    Path,
    typer.Option(
        "--deployments",
        envvar=DEPLOYMENTS_VARIABLE,
        help="Folder of bundles, registry and replays.",
    ),
]
RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--registry",
        envvar=REGISTRY_VARIABLE,
        callback=warn_of_password,
        help="SQLAlchemy URL of the registry. Default: registry.db in the deployments folder.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def chosen_registry() -> tuple[Path, str | None]:
    """Return deployments folder and registry URL from the environment.

    For callers without options for them.
    """
    return Path(os.environ.get(DEPLOYMENTS_VARIABLE) or DEPLOYMENTS), os.environ.get(
        REGISTRY_VARIABLE
    ) or None
