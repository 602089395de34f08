"""The table of the kinds of studies in deployment: the gate of a study, and of a stored bundle.

Only this module and the packages of the kinds know which kinds there are. A gate is imported when it
is asked for, since the gates import torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sweepd.deploy.registry.bundle_files import (
    GAME,
    KINDS,
    MARKET,
    PROGRAM,
    Kind,
    StoredBundle,
    read_bundle,
)
from sweepd.deploy.registry.registry import Registry
from sweepd.optimize.study.record.programs import is_command
from sweepd.optimize.study.record.specs import CRYPTO

if TYPE_CHECKING:
    from sweepd.deploy.promotion.gate import Gate

AnyGate: TypeAlias = "type[Gate[Any, Any, Any, Any]]"


def gate_of(environment: str) -> AnyGate:
    """Return the gate of studies on this environment."""
    if is_command(environment):
        return gate_of_kind(PROGRAM)
    return gate_of_kind(MARKET if environment == CRYPTO else GAME)


def gate_of_kind(kind: Kind) -> AnyGate:
    """Return the gate of bundles of this kind."""
    if kind == MARKET:
        from sweepd.deploy.market.gate import MarketGate

        return MarketGate
    if kind == PROGRAM:
        from sweepd.deploy.programs.gate import ProgramGate

        return ProgramGate
    from sweepd.deploy.games.gate import GameGate

    return GameGate


def bundle_types() -> tuple[type[StoredBundle[Any]], ...]:
    """Return the bundles of all kinds."""
    return tuple(gate_of_kind(kind).bundle_type for kind in KINDS)


def load_bundle(path: Path, *, expected: str | None = None) -> StoredBundle[Any]:
    """Read and check a bundle of any kind; see
    `sweepd.deploy.registry.bundle_files.read_bundle`.
    """
    return read_bundle(path, bundle_types(), expected=expected)


def load_reference(registry: Registry, reference: str | None) -> StoredBundle[Any]:
    """Load the bundle that a reference names; None is the champion of the only slot with one."""
    if reference is None:
        champion = registry.require(None).champion
        assert champion is not None
        return registry.bundle(champion, *bundle_types())
    # Names of slots may contain a slash (game/scenario): such a reference is a path only if
    # there is no such slot.
    if Path(reference).is_dir() or (
        "/" in reference and not registry.has_slot(reference.partition("@")[0])
    ):
        return load_bundle(Path(reference))
    return registry.bundle(registry.find(reference), *bundle_types())
