"""Verification of a game's bundle: its panel is played again, and all numbers are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweepd.deploy.games.bundle import GameBundle
from sweepd.deploy.games.duel_panel import DuelGames, episodes_of
from sweepd.deploy.games.panel import PanelGames
from sweepd.deploy.promotion.gate import Verification
from sweepd.envs.games.pairings import is_versus
from sweepd.envs.games.play import EpisodeResults
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import counted


def verify_game_bundle(bundle: GameBundle) -> Verification:
    """Play the bundle's panel again with the player and the baseline players.

    The bundle's bytes were checked when it was loaded.

    Raises:
        InputError: the bundle was never evaluated on a panel.
    """
    stored = bundle.manifest.gate.get("panel")
    if not isinstance(stored, dict):
        raise InputError(
            f"bundle {bundle.name} was never evaluated on a panel, so there is nothing to verify"
        )
    if is_versus(bundle.game, bundle.params):
        return _verify_duels(bundle, stored)
    rules = PanelGames(bundle.game, bundle.params, int(stored["games"]), int(stored["seed"]))
    own = rules.play_player(bundle.player)
    differing = _differing(stored, own)
    was = {name: found["own"]["mean"] for name, found in stored["baselines"].items()}
    played = rules.play_baselines(bundle.player, tuple(was))
    means = {name: float(episodes.returns[0].mean()) for name, episodes in played.items()}
    differing += [
        f"mean of {name}: {was[name]!r} then, {means[name]!r} now"
        for name in means
        if was[name] != means[name]
    ]
    return _verification(bundle, rules.games, tuple(means), float(own.returns[0].mean()), differing)


def _verification(
    bundle: GameBundle, games: int, names: Sequence[str], mean: float, differing: Sequence[str]
) -> Verification:
    """Tell the result.

    Args:
        bundle: the bundle.
        games: number of games that all players played again.
        names: the baseline players.
        mean: the player's mean return now.
        differing: the numbers that differ, in words.
    """
    content = {
        "bundle": bundle.hash,
        "agrees": not differing,
        "games": games,
        "baselines": list(names),
        "mean": mean,
        "differing": list(differing),
    }
    if not differing:
        return Verification(
            content,
            f"{bundle.name} is verified: its files have their hashes, and all {games:,} games of "
            f"its panel ended as before, also those of the baseline players ({', '.join(names)}); "
            f"mean return {mean:.6g}.",
        )
    manifest = bundle.manifest
    return Verification(
        content,
        f"bundle {bundle.name} plays differently now ({differing[0]}; "
        f"{counted(len(differing), 'number')} in all), although its files are the same; was it "
        f"evaluated by another version of sweepd ({manifest.code_version}), of torch "
        f"({manifest.torch_version}) or of the game?",
        difference=differing[0],
    )


def _differing(stored: dict[str, Any], own: EpisodeResults) -> list[str]:
    """The games whose return or length is another one now."""
    return [
        f"game {game + 1}: {was!r} then, {now!r} now"
        for key, values in (
            ("returns", own.returns[0].tolist()),
            ("lengths", own.lengths[0].tolist()),
        )
        for game, (was, now) in enumerate(zip(stored[key], values, strict=True))
        if was != now
    ]


def _verify_duels(bundle: GameBundle, stored: dict[str, Any]) -> Verification:
    """Verify the games against the baseline players."""
    was = tuple(stored["baselines"])
    users = tuple(sorted(name for name in was if ":" in name))
    rules = DuelGames(bundle.game, bundle.params, int(stored["games"]), int(stored["seed"]), users)
    names, found = rules.play_baselines(bundle.player, was)
    own = episodes_of(found)
    mean = float(own.returns.mean())
    return _verification(bundle, own.returns.size, names, mean, _differing(stored, own))
