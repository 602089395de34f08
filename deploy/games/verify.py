"""Verification of a game's bundle: its panel is played again, and all numbers are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sweepd.deploy.games.bundle import GameBundle
from sweepd.deploy.games.duel_panel import DuelGames, episodes_of
from sweepd.deploy.games.panel import PanelGames
from sweepd.envs.games.pairings import is_versus
from sweepd.envs.games.play import EpisodeResults
from sweepd.envs.support.errors import InputError


@dataclass(frozen=True)
class PanelVerification:
    """The result of a verification.

    Attributes:
        bundle: hash of the bundle.
        games: number of games that all players played again.
        names: the baseline players.
        mean: the player's mean return now.
        differing: the numbers that differ, in words; empty if the bundle is verified.
    """

    bundle: str
    games: int
    names: tuple[str, ...]
    mean: float
    differing: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether all numbers are equal."""
        return not self.differing

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "bundle": self.bundle,
            "agrees": self.agrees,
            "games": self.games,
            "baselines": list(self.names),
            "mean": self.mean,
            "differing": list(self.differing),
        }


def verify_game_bundle(bundle: GameBundle) -> PanelVerification:
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
    return PanelVerification(
        bundle.hash, rules.games, tuple(means), float(own.returns[0].mean()), tuple(differing)
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


def _verify_duels(bundle: GameBundle, stored: dict[str, Any]) -> PanelVerification:
    """Verify the games against the baseline players."""
    was = tuple(stored["baselines"])
    users = tuple(sorted(name for name in was if ":" in name))
    rules = DuelGames(bundle.game, bundle.params, int(stored["games"]), int(stored["seed"]), users)
    names, found = rules.play_baselines(bundle.player, was)
    own = episodes_of(found)
    mean, differing = float(own.returns.mean()), tuple(_differing(stored, own))
    return PanelVerification(bundle.hash, own.returns.size, names, mean, differing)
