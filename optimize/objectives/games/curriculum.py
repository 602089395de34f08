"""Curricula of studies: checks against the game, and champions as opponents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.envs.games.curriculum import (
    BUNDLE,
    BUNDLE_DIGITS,
    Curriculum,
    Phase,
    check_opponents,
    is_bundle,
)
from sweepd.envs.games.game import Game
from sweepd.envs.games.pairings import is_versus
from sweepd.envs.games.phase_files import parse_curriculum
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.validation import make_with
from sweepd.optimize.study.record.specs import GameSpec


def spec_curriculum(spec: GameSpec) -> Curriculum | None:
    """Return the curriculum of a study; None if it has none."""
    return parse_curriculum(spec.curriculum, "the study's phases") if spec.curriculum else None


def check_curriculum(game: Game, curriculum: Curriculum, env: Mapping[str, Any]) -> None:
    """Raise InputError if a game cannot be trained in with a curriculum.

    Args:
        game: the game.
        curriculum: the phases.
        env: parameters of the study's games.
    """
    params = game.params(**env)
    if not is_versus(game, params):
        seats = game.seats(params)
        found = "one seat" if seats == 1 else f"{seats} seats, or is not made from TensorGame"
        raise InputError(
            f"opponents and phases are for games of two seats made from TensorGame, and "
            f"{game.name} has {found}; leave --opponents, --phases and [[phases]] out"
        )
    check_opponents(curriculum.opponents, tuple(game.scripted(params)), game.name)
    for number, phase in enumerate(curriculum.phases, 1):
        phase_params(game, phase, number, env)


def phase_params(game: Game, phase: Phase, number: int, env: Mapping[str, Any]) -> Any:
    """Return the game's parameters in a phase.

    Args:
        game: the game.
        phase: the phase.
        number: of the phase, from 1, in messages.
        env: parameters of the study and the trial, which the phase's replace.

    Raises:
        InputError: a parameter of the phase is unknown, or its value is not valid.
    """
    try:
        return make_with(game.params, {**env, **phase.env}, game.name)
    except InputError as error:
        raise InputError(f"phase {number}: env: {error}") from None


@dataclass(frozen=True)
class FoundBundle:
    """A champion of the registry, or another bundle.

    Attributes:
        hash: of the bundle.
        environment: what it plays.
        actor: its policy.
        sampled: whether it samples its actions.
    """

    hash: str
    environment: str
    actor: FrozenPolicy
    sampled: bool = False


# Loads a bundle by a reference, such as a slot, the beginning of a hash or a path. `optimize` does
# not import `deploy`, so the entry point provides it.
LoadBundle = Callable[[str], FoundBundle]


def find_bundles(
    curriculum: Curriculum, environment: str, load: LoadBundle | None
) -> dict[str, FoundBundle]:
    """Return the opponents that are bundles, by name.

    Args:
        curriculum: once a study exists, it has the bundles' hashes, and the same ones are found.
        environment: what they must play.
        load: loads them.

    Raises:
        InputError: a bundle cannot be loaded, plays something else, or has changed.
    """
    found = {}
    for name in curriculum.opponents:
        if not is_bundle(name):
            continue
        if load is None:
            raise InputError(f"opponent {name} cannot be loaded: this command has no registry")
        known = curriculum.bundles.get(name)
        reference = name.removeprefix(BUNDLE)
        if known is not None and name.startswith(BUNDLE):
            reference = known  # the slot's champion may be another one by now
        try:
            bundle = load(reference)
        except InputError as error:
            raise InputError(f"opponent {name}: {error}") from None
        if bundle.environment != environment:
            raise InputError(f"opponent {name} plays {bundle.environment}, not {environment}")
        if known not in (None, bundle.hash):
            raise InputError(
                f"opponent {name} is not the bundle that the study began with: its hash is "
                f"{bundle.hash[:BUNDLE_DIGITS]}…, not {known[:BUNDLE_DIGITS]}…"
            )
        found[name] = bundle
    return found
