"""Bundles of all kinds: those that trade, and those that play a game."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploy.games.bundle import GameBundle
from deploy.market.bundle import Bundle
from deploy.registry.bundle_files import StoredBundle, read_bundle
from envs.support.errors import InputError

KINDS: tuple[type[StoredBundle[Any]], ...] = (Bundle, GameBundle)


def load_any(path: Path, *, expected: str | None = None) -> StoredBundle[Any]:
    """Read and check a bundle of whichever kind. Raises InputError as `deploy.registry.bundle_files.read_bundle` does."""
    return read_bundle(path, KINDS, expected=expected)


def trader(bundle: StoredBundle[Any]) -> Bundle:
    """The bundle, if it is one that trades. Raises InputError for another."""
    if not isinstance(bundle, Bundle):
        raise InputError(
            f"bundle {bundle.name} plays {bundle.registered.environment}, and does not trade: sweepd play shows it"
        )
    return bundle


def player(bundle: StoredBundle[Any]) -> GameBundle:
    """The bundle, if it is one that plays a game. Raises InputError for another."""
    if not isinstance(bundle, GameBundle):
        raise InputError(
            f"bundle {bundle.name} trades, and plays no game: sweepd trade --replay shows it"
        )
    return bundle
