"""The bundle of a game's player: one policy that plays at every seat, or a team of several.

A trial trains several members that differ in their seeds. An ensemble of them would be a policy
that was never trained, so a bundle holds a single member: the one with the best score when its
trial was judged. Where the members of a trial play together in training, a bundle may also hold the
team, with a policy for each seat. The choice of members is biased; the gate's panel therefore plays
new games.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sweepd.agents.policy.members import chosen_members
from sweepd.agents.policy.outside import SpacePolicy
from sweepd.deploy.games.manifest import (
    FORMAT,
    GameManifest,
    OriginPart,
    PlayerManifest,
    TeamManifest,
)
from sweepd.deploy.games.player import Network, Player, read_player
from sweepd.deploy.registry.bundle_files import (
    GAME,
    MEMBERS_FILE,
    UNTRADED,
    BundleFacts,
    StoredBundle,
    TrainedTrial,
    canonical_json,
    check_file,
    sha256,
)
from sweepd.envs.external.codec import SpaceCodec
from sweepd.envs.external.wrapping import KEY as WRAPPERS
from sweepd.envs.games.game import Game
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError


@dataclass(frozen=True)
class GameBundle(StoredBundle[PlayerManifest]):
    """A loaded bundle of a player."""

    kind = GAME
    format = FORMAT
    files: Mapping[str, bytes]
    versions = {1: GameManifest, 2: TeamManifest}  # noqa: RUF012 (declared as a class variable)

    @cached_property
    def player(self) -> Player:
        """The player that the weights define; InputError if they define none."""
        play, seats = self.manifest.player.play, self.manifest.seats
        return read_player(self.files[MEMBERS_FILE], play, seats)

    @property
    def game(self) -> Game:
        """The game that it plays."""
        return get_game(self.manifest.game.name)

    @property
    def params(self) -> Any:
        """Parameters of the game."""
        return self.game.params(**self.manifest.game.params)

    @cached_property
    def policy(self) -> SpacePolicy:
        """The player as a policy for the environment outside a study: `policy.action(observation)`.

        Raises:
            InputError: the player is no single network, or there are no such spaces.
        """
        if not isinstance(self.player, Network):
            raise InputError(f"the player of bundle {self.name} is no single network")
        part = self.manifest.player
        if part.spaces is None:
            raise InputError(
                f"the player of bundle {self.name} has no spaces of one observation and one action: "
                f"in {self.manifest.game.name}, players are in turns, or choices depend on each other"
            )
        return SpacePolicy(self.player.policy, SpaceCodec.from_dict(part.spaces), part.algorithm)

    @property
    def origin(self) -> OriginPart:
        """Study, trial and members that it comes from."""
        return self.manifest.origin

    @property
    def members_sha256(self) -> str:
        """Identity of the weights."""
        return self.manifest.files[MEMBERS_FILE].sha256

    @property
    def identity(self) -> str:
        """Identity of the weights and the way of playing: equal ones act alike."""
        play, seats = self.manifest.player.play, self.manifest.seats
        how = [play] * (play != "deterministic") + [f"team {seats}"] * bool(seats)
        own = self.members_sha256
        return sha256(" ".join([own, *how]).encode()) if how else own

    @property
    def facts(self) -> BundleFacts:
        """What the registry records about it."""
        origin = self.origin
        return BundleFacts(self.manifest.game.name, origin.study, origin.study_uid, origin.trial)

    @property
    def trained(self) -> tuple[TrainedTrial, ...]:
        """See `StoredBundle.trained`."""
        return (TrainedTrial(self.origin.study, self.origin.study_uid, self.origin.trial),)

    def retrained(self, contents: Sequence[bytes]) -> GameBundle:
        """See `StoredBundle.retrained`."""
        [content] = contents
        own = chosen_members(content, self.origin.chosen, MEMBERS_FILE)
        return dataclasses.replace(self, files={MEMBERS_FILE: own})

    def check(self) -> None:
        """See `StoredBundle.check`; an unknown game is an InputError, too."""
        check_file(MEMBERS_FILE, self.files[MEMBERS_FILE], self.manifest.files[MEMBERS_FILE])
        own, player, game = self.player, self.manifest.player, self.manifest.game
        if (own.state_dim, own.action_dim, own.choices) != (
            player.state_dim,
            player.action_dim,
            player.choices,
        ):
            raise InputError(
                f"the member maps {own.state_dim} numbers to {own.action_dim} actions in choices "
                f"of {list(own.choices)}, not {player.state_dim} to {player.action_dim} in choices "
                f"of {list(player.choices)}"
            )
        try:
            seats = self.game.seats(self.params)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{game.name} takes no parameters like {game.params} ({error})"
            ) from error
        if seats != game.seats:
            raise InputError(f"{game.name} with {game.params} has {seats} seats, not {game.seats}")


def game_bundle(bundle: StoredBundle[Any]) -> GameBundle:
    """Return the bundle, or raise InputError if it is not one of a game."""
    if not isinstance(bundle, GameBundle):
        what, command = UNTRADED.get(bundle.kind, ("trades", "sweepd trade --replay"))
        raise InputError(f"bundle {bundle.name} {what} and plays no game: {command} shows it")
    return bundle


def game_key(game: str, params: Mapping[str, Any]) -> str:
    """The key of a game and its parameters: `cartpole`, `bucket-brigade-rest_trap`.

    Evaluations on its panel are counted under this key, and its default slot is named after it
    (`sweepd.deploy.registry.slots.slot_name`), shortened if the key is no valid slot name.
    """
    parts = [game.replace(":", "-").replace("/", "-")]
    parts += [str(params["scenario"])] if "scenario" in params else []
    own = sorted(params.keys() - {"scenario", WRAPPERS})
    parts += [f"{name}_{params[name]}" for name in own]
    # Texts of wrappers have quotes and braces: a slot has their names and a digest.
    if texts := params.get(WRAPPERS, ()):
        names = "+".join(text.partition(" ")[0].replace(":", ".") for text in texts)
        parts += [f"wrapped_{names}_{sha256(canonical_json({WRAPPERS: list(texts)}).encode())[:8]}"]
    return "-".join(parts)
