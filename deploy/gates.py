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
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.programs import is_command
from sweepd.optimize.study.record.specs import CRYPTO

if TYPE_CHECKING:
    from sweepd.deploy.promotion.gate import Gate

BUNDLE = "bundle:"  # before a bundle's hash or folder

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


def named_bundle(
    word: str, registry: Registry, storage: str, runs_dir: Path | None = None
) -> StoredBundle[Any] | None:
    """Return the bundle that a word names: a slot, `bundle:` with a hash or a folder, or a trial.

    Args:
        word: see `named_trial` for trials, and
            `sweepd.deploy.registry.reader.RegistryReader.find` for slots.
        registry: where slots and bundles are.
        storage: the database of the studies.
        runs_dir: see `sweepd.deploy.promotion.studies.find_study`.

    Returns:
        None if the word has another form.
    """
    if word.startswith(BUNDLE):
        return load_reference(registry, word.removeprefix(BUNDLE))
    if registry.has_slot(word) or registry.has_slot(word.partition("@")[0]):
        return load_reference(registry, word)
    return named_trial(word, storage, runs_dir) if "#" in word else None


def named_trial(name: str, storage: str, runs_dir: Path | None = None) -> StoredBundle[Any]:
    """Return what a complete trial would be deployed as; of a game, its best member or its team.

    Args:
        name: STUDY#N, or STUDY#N@team.
        storage: an SQLAlchemy URL.
        runs_dir: see `sweepd.deploy.promotion.studies.find_study`.

    Raises:
        InputError: the name is of another form, or there is no such trial, player or team.
    """
    from sweepd.deploy.promotion.studies import find_study

    study, _, which = name.rpartition("#")
    number, at, kind = which.partition("@")
    if not study or not (number.isascii() and number.isdecimal()) or (at and kind != "team"):
        raise InputError(
            f"{name!r} must be STUDY#N, for example cartpole#8, or STUDY#N@team for the team of "
            "the trial's members"
        )
    found = find_study(study, storage, runs_dir)
    gate = gate_of(found.spec.environment)
    bundle: StoredBundle[Any] = gate.trial_bundle(found, int(number), team=bool(at))
    return bundle
