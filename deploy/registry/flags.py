"""The options that name the registry."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweepd.envs.support.database_url import remove_password, warn_of_password
from sweepd.envs.support.supervisor import READY_FILE

if TYPE_CHECKING:  # a database takes long to import, and `sweepd plan` needs none
    from sweepd.deploy.registry.registry import Registry

DEPLOYMENTS = Path("deployments")

# Environment variables; workers read them, too.
DEPLOYMENTS_VARIABLE, REGISTRY_VARIABLE = "SWEEPD_DEPLOYMENTS", "SWEEPD_REGISTRY"
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@dataclass(frozen=True)
class RegistryFlags:
    """The options that name the registry."""

    deployments: Annotated[
        Path,
        typer.Option(envvar=DEPLOYMENTS_VARIABLE, help="Folder of bundles, registry and replays."),
    ] = DEPLOYMENTS
    registry: Annotated[
        str | None,
        typer.Option(
            envvar=REGISTRY_VARIABLE,
            callback=warn_of_password,
            help="SQLAlchemy URL of the registry. Default: registry.db in the deployments folder.",
        ),
    ] = None

    @staticmethod
    def from_environment() -> RegistryFlags:
        """Return the flags for callers without options, such as a worker."""
        folder = Path(os.environ.get(DEPLOYMENTS_VARIABLE) or DEPLOYMENTS)
        return RegistryFlags(folder, os.environ.get(REGISTRY_VARIABLE) or None)

    def open(self, *, create: bool = False) -> Registry:
        """Open the registry. create: see `sweepd.deploy.registry.reader.RegistryReader`."""
        from sweepd.deploy.registry.registry import Registry

        return Registry(self.deployments, self.registry, create=create)


def registry_environment(registry: Registry) -> dict[str, str]:
    """Return the environment of a command of sweepd on this registry, in a process of its own.

    The URL may have a password, so it is no argument, which `ps` would show. Messages to the
    supervisor are this process's.
    """
    url = registry.database.url.render_as_string(hide_password=False)
    own = {DEPLOYMENTS_VARIABLE: str(registry.folder), REGISTRY_VARIABLE: url}
    mine = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", READY_FILE)
    return {name: one for name, one in os.environ.items() if name not in mine} | own


def registry_flags(registry: Registry) -> str:
    """Return the flags that name a registry, each after a space; none for the default."""
    from sqlalchemy.engine import make_url

    words = [] if registry.folder == DEPLOYMENTS else ["--deployments", str(registry.folder)]
    # Only flags that differ from their defaults, so that the lines stay short.
    url = registry.database.url
    if url != make_url(f"sqlite:///{registry.folder / 'registry.db'}"):
        words += ["--registry", remove_password(url.render_as_string(hide_password=False))]
    return "".join(f" {shlex.quote(word)}" for word in words)
