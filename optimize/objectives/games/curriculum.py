"""Curricula of studies: checks against the game, and champions as opponents."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.envs.core.env_spec import EnvSpec
from sweepd.envs.external.wrapping import KEY as WRAPPERS
from sweepd.envs.games.curriculum import (
    BUNDLE,
    BUNDLE_DIGITS,
    EITHER,
    Curriculum,
    Phase,
    check_opponents,
    is_bundle,
)
from sweepd.envs.games.game import Game
from sweepd.envs.games.pairings import is_versus
from sweepd.envs.games.phase_files import parse_curriculum
from sweepd.envs.games.reward_sums import check_zero_sum
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
    if is_versus(game, params):
        check_opponents(curriculum.opponents, tuple(game.scripted(params)), game.name)
        if curriculum.has_league:
            check_zero_sum(game, params, "--opponents league")
    else:
        if game.roles(params).names:
            raise InputError(
                "opponents and phases are for one policy, not several of --roles; leave "
                "--opponents, --phases and [[phases]] out"
            )
        _check_without_opponents(game, curriculum, game.seats(params))
    for number, phase in enumerate(curriculum.phases, 1):
        if phase.until is not None and phase.until.score is not None and is_versus(game, params):
            raise InputError(
                f"phase {number}: until: score is for games without opponents, and {game.name} has "
                "opponents; use win_rate"
            )
        phase_params(game, phase, number, env)


def _check_without_opponents(game: Game, curriculum: Curriculum, seats: int) -> None:
    """Raise InputError for what only phases of games of two seats have. seats: of the game."""
    found = "one seat" if seats == 1 else f"{seats} seats, or is not made from TensorGame"
    why = f"games of two seats made from TensorGame, and {game.name} has {found}"
    for number, phase in enumerate(curriculum.phases, 1):
        if phase.opponents:
            raise InputError(
                f"opponents are for {why}; leave --opponents, and opponents in [[phases]], out"
            )
        if phase.seat != EITHER:
            raise InputError(f"phase {number}: seat is for {why}; leave it out")
        if phase.until is not None and phase.until.opponent is not None:
            raise InputError(
                f"phase {number}: until: opponent and win_rate are for {why}; use games, or score, "
                "a mean return"
            )
    if not any(phase.env for phase in curriculum.phases):
        raise InputError(
            f"no phase of {game.name} changes a parameter of the game (env), so phases have no "
            "effect; leave --phases and [[phases]] out"
        )


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
    if WRAPPERS in phase.env:
        raise InputError(
            f"phase {number}: env: all phases have the same wrappers; give them by --wrapper"
        )
    try:
        return make_with(game.params, {**env, **phase.env}, game.name)
    except InputError as error:
        raise InputError(f"phase {number}: env: {error}") from None


def check_spaces(game: Game, params: Any, changed: Any) -> None:
    """Raise InputError where a phase changes what a network's shape depends on.

    Args:
        game: the game.
        params: the parameters of the study's game.
        changed: those of the phase.
    """
    if params == changed:
        return
    before, after = (_spec_of(game, own) for own in (params, changed))
    for name in (field.name for field in dataclasses.fields(EnvSpec)):
        own, other = getattr(before, name), getattr(after, name)
        if own != other:
            raise InputError(
                f"it changes {name} from {own} to {other}, and networks cannot change their shape "
                "between phases"
            )


def _spec_of(game: Game, params: Any) -> EnvSpec:
    if game.described is not None:
        return game.described(params).spec
    env = game.make([params], 1, together=1, device="cpu")
    env.close()
    return env.spec


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
