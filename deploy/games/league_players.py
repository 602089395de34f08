"""The players of a league: champions, bundles and trials of any studies of one game, and scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from sweepd.deploy.games.baselines import RANDOM, baseline_player
from sweepd.deploy.games.bundle import GameBundle, game_bundle
from sweepd.deploy.registry.bundle_files import StoredBundle
from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.games.game import Game
from sweepd.envs.games.pairings import Entrant, RandomEntrant, ScriptedEntrant, is_versus
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.tensor_game import TensorGame
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.validation import make_with

Act = Callable[[Tensor], Tensor]
DEFAULT = "default"  # in messages: of a parameter that a player's game leaves out


class NamedPlayer(Protocol):
    """A player of a league.

    Attributes:
        name: as it was asked for.
        identity: equal ones act alike.
    """

    @property
    def name(self) -> str: ...
    @property
    def identity(self) -> str: ...

    def seated(self, game: Game, params: Any, env: GameEnv, seed: int) -> Act:
        """Return a function that acts for all rows of an environment of the game.

        Args:
            game: the game.
            params: its parameters.
            env: the environment, just reset.
            seed: of the player's own random numbers.
        """

    def entrant(self, game: Game, params: Any, name: str) -> Entrant:
        """Return the player under this name, for a game of two players."""

    def misfit(self, game: Game, params: Any) -> str:
        """Return why it cannot play the game with these parameters; "" if it can."""


@dataclass(frozen=True)
class ScriptedPlayer:
    """A scripted player of the game, or uniform random play."""

    name: str

    @property
    def identity(self) -> str:
        """See `NamedPlayer`."""
        return self.name

    def seated(self, game: Game, params: Any, env: GameEnv, seed: int) -> Act:
        """See `NamedPlayer.seated`."""
        return baseline_player(self.name, env, game.players(params, seed), None, seed)

    def entrant(self, game: Game, params: Any, name: str) -> Entrant:
        """See `NamedPlayer.entrant`."""
        if self.name == RANDOM:
            return RandomEntrant(name)
        return ScriptedEntrant(name, game.scripted(params)[self.name])

    def misfit(self, game: Game, params: Any) -> str:  # noqa: ARG002
        """See `NamedPlayer.misfit`."""
        return ""


@dataclass(frozen=True)
class TrainedPlayer:
    """The player of a bundle, a team included."""

    name: str
    bundle: GameBundle

    @property
    def identity(self) -> str:
        """See `NamedPlayer`."""
        return self.bundle.identity

    def seated(self, game: Game, params: Any, env: GameEnv, seed: int) -> Act:  # noqa: ARG002
        """See `NamedPlayer.seated`."""
        return self.bundle.player.seated(env, seed)

    def entrant(self, game: Game, params: Any, name: str) -> Entrant:  # noqa: ARG002
        """See `NamedPlayer.entrant`."""
        return self.bundle.player.entrant(name)

    def misfit(self, game: Game, params: Any) -> str:
        """See `NamedPlayer.misfit`."""
        seats, of_team = game.seats(params), len(self.bundle.manifest.seats)
        if of_team not in (0, seats):
            return f"{self.name} is a team for {of_team} seats, and the game has {seats}"
        try:
            if game.versus is not None and is_versus(game, params):
                with closing(game.versus([params], 2, together=1, device="cpu")) as table:
                    assert isinstance(table, TensorGame)
                    self.entrant(game, params, self.name).sit(table, 2, 0)
            else:
                with closing(game.make([params], 1, together=1, device="cpu")) as env:
                    self.bundle.player.seated(env, 0)
        except InputError as error:
            return str(error)
        return ""


def scripted_names(game: Game, params: Any) -> tuple[str, ...]:
    """Return the names of the game's scripted players, without uniform random play."""
    versus = is_versus(game, params)
    found = game.scripted(params) if versus else game.players(params, 0)
    return tuple(name for name in found if name != RANDOM)


def find_players(
    words: Sequence[str], env: str | None, named: Mapping[str, StoredBundle[Any]]
) -> tuple[Game, list[NamedPlayer]]:
    """Return the players that the words name, and their game.

    Args:
        words: each one of `named`, or else the name of a scripted player.
        env: name of the game; None: that of the players.
        named: bundles by word (`sweepd.deploy.gates.named_bundle`).

    Raises:
        InputError: a name is not known, two name the same player, or they play different games.
    """
    bundles = {word: game_bundle(found) for word, found in named.items()}
    games = {word: found.manifest.game.name for word, found in bundles.items()}
    games = ({f"--env {env}": env} if env is not None else {}) | games
    if not games:
        raise InputError(
            f"{', '.join(words)}: none of these is a slot, STUDY#TRIAL or bundle:HASH; name the "
            "game of scripted players: --env bucket-brigade"
        )
    (first, name), *others = games.items()
    for word, own in others:
        if own != name:
            raise InputError(
                f"{word} plays {own}, and {first} plays {name}: name players of one game"
            )
    game = get_game(name)
    params = game.params(**next(iter(bundles.values())).manifest.game.params if bundles else {})
    scripts = dict.fromkeys((RANDOM, *scripted_names(game, params)))
    players: list[NamedPlayer] = []
    for word in words:
        if word in bundles:
            players.append(TrainedPlayer(word, bundles[word]))
        elif word in scripts:
            players.append(ScriptedPlayer(word))
        else:
            raise InputError(
                f"{word!r} is no slot of the registry, STUDY#TRIAL or bundle:HASH, and no "
                f"scripted player of {name}: those are {', '.join(scripts)}"
            )
    known: dict[str, str] = {}
    for player in players:
        if player.identity in known:
            raise InputError(
                f"{known[player.identity]} and {player.name} are the same player: name it once"
            )
        known[player.identity] = player.name
    return game, players


def common_params(
    players: Sequence[NamedPlayer], given: Mapping[str, Any], over: str | None = None
) -> dict[str, Any]:
    """Return the parameters of the game in which the players meet.

    They are those of the games in which the players were trained, and in place of them the given
    ones.

    Args:
        players: the players.
        given: parameters by name.
        over: name of a parameter that is left out, since it has several values.

    Raises:
        InputError: the players were trained with different parameters, and none is given.
    """
    trained = [player for player in players if isinstance(player, TrainedPlayer)]
    first = trained[0].bundle.manifest.game.params if trained else {}
    for player in trained:
        own = player.bundle.manifest.game.params
        for name in {*own, *first} - {*given, over}:
            if own.get(name, DEFAULT) != first.get(name, DEFAULT):
                one, other = first.get(name, DEFAULT), own.get(name, DEFAULT)
                raise InputError(
                    f"{trained[0].name} was trained with {name} {one}, and {player.name} with "
                    f"{name} {other}: choose with --env-param {name}=VALUE, or compare with --over "
                    f"{name}=VALUES"
                )
    return {name: first[name] for name in first if name != over} | dict(given)


def game_with(game: Game, params: Mapping[str, Any], flag: str) -> Any:
    """Return the game's parameters; InputError if it does not take them. flag: for messages."""
    return make_with(game.params, params, f"{flag}: {game.name}")
