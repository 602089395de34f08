"""Champions in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sweepd.deploy.gates import load_reference
from sweepd.deploy.registry.bundle_files import StoredBundle
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.envs.support.flags import read_flags

SOURCE = "load_champion"


def load_champion(
    slot: str | None = None, *, deployments: str | Path | None = None, registry: str | None = None
) -> StoredBundle[Any]:
    """Load and check the champion of a slot.

    Args:
        slot: name of the slot; None: the only one with a champion. As in the commands,
            `"SLOT@previous"` is the champion before it, `"SLOT@3"` the slot's third bundle; the
            beginning of a bundle's hash or a bundle's folder work, too.
        deployments: folder of bundles and registry; default: `SWEEPD_DEPLOYMENTS`, or
            `deployments`.
        registry: URL of the registry's database; default: `SWEEPD_REGISTRY`, or `registry.db` in
            that folder.

    Returns:
        The bundle: `manifest` says what it is and where it comes from. That of a game has `policy`,
        whose `action(observation)` acts in the environment's own spaces, and whose `reset()` begins
        an episode; that of a program has its files in `files`.

    Raises:
        InputError: there is no such champion or registry, or files of the bundle are missing or
            changed.
    """
    given = {"deployments": deployments, "registry": registry}
    flags, _ = read_flags(RegistryFlags, given, SOURCE)
    return load_reference(flags.open(), slot)
