"""The bundle of a player of a game: one policy, which plays at every seat.

A trial trains several members that differ in their seed. The champion is to be the best player, and an ensemble would
be another player than any that was trained: so a bundle holds a single member, the one that scored best when its trial
was judged. (It was chosen by that, so what it scored there flatters it; the panel of the gate plays games of its own.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from deploy.games.manifest import FORMAT, GameManifest, GameOriginPart
from deploy.games.player import Player, read_player
from deploy.registry.bundle_files import (
    GAME,
    MEMBERS_FILE,
    BundleFacts,
    StoredBundle,
    check_file,
    new_bundle,
)
from envs.games.registry import Game, get_game
from envs.support.errors import InputError


@dataclass(frozen=True)
class GameBundle(StoredBundle[GameManifest]):
    """A loaded bundle of a player."""

    kind = GAME
    format = FORMAT
    versions = {1: GameManifest}  # noqa: RUF012 (declared as a class variable)

    @cached_property
    def player(self) -> Player:
        """Who plays, from these very bytes. Raises InputError where they are no player."""
        return read_player(self.files[MEMBERS_FILE])

    @property
    def game(self) -> Game:
        """The game that it plays."""
        return get_game(self.manifest.game.name)

    @property
    def params(self) -> Any:
        """Its game's parameters."""
        return self.game.params(**self.manifest.game.params)

    @property
    def origin(self) -> GameOriginPart:
        """Where it comes from."""
        return self.manifest.origin

    @property
    def members_sha256(self) -> str:
        """What identifies the weights."""
        return self.manifest.files[MEMBERS_FILE].sha256

    @property
    def facts(self) -> BundleFacts:
        """What the registry records about it."""
        origin = self.origin
        return BundleFacts(self.manifest.game.name, origin.study, origin.study_uid, origin.trial)

    def check(self) -> None:
        """Raises InputError for weights that do not fit the manifest, and for a game that is not known here."""
        check_file(MEMBERS_FILE, self.files[MEMBERS_FILE], self.manifest.files[MEMBERS_FILE])
        own, player, game = self.player, self.manifest.player, self.manifest.game
        if (own.state_dim, own.action_dim, own.choices) != (
            player.state_dim,
            player.action_dim,
            player.choices,
        ):
            raise InputError(
                f"the member maps {own.state_dim} numbers to {own.action_dim} actions in choices of "
                f"{list(own.choices)}, not {player.state_dim} to {player.action_dim} in choices of "
                f"{list(player.choices)}"
            )
        try:
            seats = self.game.seats(self.params)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{game.name} takes no parameters like {game.params} ({error})"
            ) from error
        if seats != game.seats:
            raise InputError(f"{game.name} with {game.params} has {seats} seats, not {game.seats}")


def make_game_bundle(manifest: GameManifest, files: Mapping[str, bytes]) -> GameBundle:
    """A bundle in memory, checked like one from disk. Raises InputError where manifest and files don't fit."""
    return new_bundle(GameBundle, manifest, files)


def game_key(game: str, params: Mapping[str, Any]) -> str:
    """What identifies a game with its parameters: `cartpole`, `bucket-brigade-rest_trap`, `cartpole-length_1.0`.

    Looks at its panel are counted under it, and its default slot is named after it (`Registry.default_slot`). It may be
    too long for a slot's name, and may contain characters that such a name must not have.
    """
    parts = [game.replace(":", "-").replace("/", "-")]
    parts += [str(params["scenario"])] if "scenario" in params else []
    parts += [f"{name}_{params[name]}" for name in sorted(params) if name != "scenario"]
    return "-".join(parts)
