"""Bundles of all kinds, as the commands load them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sweepd.deploy.games.bundle import GameBundle
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.bundle_files import StoredBundle, read_bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.errors import InputError

BUNDLE_KINDS: tuple[type[StoredBundle[Any]], ...] = (Bundle, GameBundle)


def load_bundle(path: Path, *, expected: str | None = None) -> StoredBundle[Any]:
    """Read and check a bundle of any kind; see
    `sweepd.deploy.registry.bundle_files.read_bundle`.
    """
    return read_bundle(path, BUNDLE_KINDS, expected=expected)


def load_reference(registry: Registry, reference: str | None) -> StoredBundle[Any]:
    """Load the bundle that a reference names; None is the champion of the only slot with one."""
    if reference is None:
        champion = registry.require(None).champion
        assert champion is not None
        return registry.bundle(champion, *BUNDLE_KINDS)
    # Names of slots may contain a slash (game/scenario): such a reference is a path only if
    # there is no such slot.
    if Path(reference).is_dir() or (
        "/" in reference and not registry.has_slot(reference.partition("@")[0])
    ):
        return load_bundle(Path(reference))
    return registry.bundle(registry.find(reference), *BUNDLE_KINDS)


def called(registry: Registry, bundle: StoredBundle[Any]) -> str:
    """Return what a bundle is called: its slot as champion, else `SLOT@3`, else its own name."""
    versions = [one for one in registry.versions() if one.bundle == bundle.hash]
    champions = [one.slot for one in versions if registry.slot(one.slot).champion == bundle.hash]
    others = [f"{one.slot}@{one.number}" for one in versions]
    return next(iter([*champions, *others]), bundle.name)


def market_bundle(bundle: StoredBundle[Any]) -> Bundle:
    """Return the bundle, or raise InputError if it is not one of a market."""
    if not isinstance(bundle, Bundle):
        raise InputError(
            f"bundle {bundle.name} plays {bundle.facts.environment} and does not trade: "
            "sweepd play shows it"
        )
    return bundle


def game_bundle(bundle: StoredBundle[Any]) -> GameBundle:
    """Return the bundle, or raise InputError if it is not one of a game."""
    if not isinstance(bundle, GameBundle):
        raise InputError(
            f"bundle {bundle.name} trades and plays no game: sweepd trade --replay shows it"
        )
    return bundle
