"""Options that several deployment commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEPLOYMENTS = Path("deployments")

Deployments = Annotated[Path, typer.Option("--deployments", help="Folder of bundles, registry and replays.")]
RegistryUrl = Annotated[
    str | None,
    typer.Option("--registry", help="SQLAlchemy URL of the registry; default: registry.db in the deployments folder."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
