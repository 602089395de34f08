"""A game's champion defends its slot: challengers play it in fresh games until E decides.

Points of a deal are the mean of both seatings in a game of two players; in other games, a deal is a
game that both play from equal seeds, and counts 1, 1/2 or 0 for more, equal or less return. X is
the points minus 1/2, so no bar can be too bad, and the test of
`sweepd.deploy.promotion.betting` is exact. Games cost computing alone: they are played in blocks
until the challenger wins or the games are spent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.games.bundle import GameBundle
from sweepd.deploy.games.duel_panel import DuelGames
from sweepd.deploy.games.panel import PanelGames
from sweepd.deploy.games.player import Player
from sweepd.deploy.promotion.betting import log_capital_at_end, log_threshold
from sweepd.deploy.registry.arena_rows import ArenaEntry
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.game import Game
from sweepd.envs.games.pairings import is_versus
from sweepd.envs.support.errors import InputError

Floats = NDArray[np.float64]
BLOCK = 100  # deals
DEALS = 20_000  # of a challenge, by default
LEVEL = 0.05  # of all challenges of a champion together
LIMIT = 0.25  # L: X is at least -1/2


@dataclass(frozen=True)
class Defence:
    """The result of a challenge. points: the challenger's mean. deals: that were played."""

    number: int
    deals: int
    points: float
    log_e: float
    won: bool

    @property
    def text(self) -> str:
        """The result in a sentence without its full stop."""
        needed = math.exp(log_threshold(self.number, LEVEL))
        return (
            f"{self.points:.3f} points a deal against the champion in {self.deals:,} deals, "
            f"E = {math.exp(min(self.log_e, 700.0)):.3g} of {needed:,.0f}"
        )


def settle(blocks: Iterable[Floats], number: int) -> Defence:
    """Return the result of a challenge.

    Args:
        blocks: the challenger's points by deal, in [0, 1], in blocks as they are played; no more
            are taken once it has won.
        number: of the challenge in the champion's reign, from 1.
    """
    points, log_e = np.empty(0), 0.0
    for block in blocks:
        points = np.concatenate([points, block])
        log_e = log_capital_at_end(points - 0.5, LIMIT)
        if log_e >= log_threshold(number, LEVEL):
            break
    mean = float(points.mean()) if len(points) else 0.5
    won = log_e >= log_threshold(number, LEVEL)
    return Defence(number, len(points), mean, log_e, won)


def defend(
    game: Game,
    params: Any,
    challenger: Player,
    champion: Player,
    number: int,
    *,
    games: int = DEALS,
    seed: int = 0,
) -> Defence:
    """Let a challenger play against a champion.

    Args:
        game: the game.
        params: its parameters.
        challenger: the player that asks.
        champion: the player that defends.
        number: of the challenge in the champion's reign, from 1.
        games: the most games that the challenger plays.
        seed: of all deals.
    """
    versus = is_versus(game, params)
    play: Callable[[int], Floats] = (
        (lambda own: _duels(game, params, challenger, champion, own))
        if versus
        else (lambda own: _games(game, params, challenger, champion, own))
    )
    blocks = games // (BLOCK * (2 if versus else 1))
    if blocks < 1:
        raise InputError(f"games = {games} are fewer than a block of {BLOCK} deals")
    return settle(_each(play, seed, blocks), number)


def _each(play: Callable[[int], Floats], seed: int, blocks: int) -> Iterator[Floats]:
    for block in range(blocks):
        yield play(derive_seed(seed, "defence", block))


def _duels(game: Game, params: Any, challenger: Player, champion: Player, seed: int) -> Floats:
    found = DuelGames(game, params, 2 * BLOCK, seed).play(
        challenger, [champion.entrant("champion")]
    )
    return np.asarray(found.points[0].mean(axis=1))


def _games(game: Game, params: Any, challenger: Player, champion: Player, seed: int) -> Floats:
    own, other = (
        PanelGames(game, params, BLOCK, seed).play_player(one).returns[0]
        for one in (challenger, champion)
    )
    return np.asarray(0.5 + 0.5 * np.sign(own - other))


def defend_champion(registry: Registry, slot: str, *, games: int = DEALS) -> list[str]:
    """Let the slot's challengers play its champion, in the order in which they came.

    It stops at the first that wins, which becomes champion; the others play that one at the next
    call. Who does not win is withdrawn. After a kill, a challenge is played again with the same
    number and deals.

    Args:
        registry: the registry that holds the slot.
        slot: the slot, of a game.
        games: the most games of a challenge.

    Returns:
        What changed, in sentences.

    Raises:
        InputError: the slot has no champion, or it cannot be loaded.
        ChampionMoved, ReignEnded: the champion changed meanwhile; call again.
    """
    hash_, reign, told = registry.require(slot).champion, registry.arena.reign(slot), list[str]()
    assert hash_ is not None
    assert reign is not None  # written with the champion
    champion = registry.bundle(hash_, GameBundle)
    for asked in registry.arena.challengers(slot):
        try:
            bundle = registry.bundle(asked.bundle, GameBundle)
        except InputError as error:
            told += _withdraw(registry, slot, asked.bundle, f"it cannot be loaded: {error}")
            continue
        if bundle.manifest.game != champion.manifest.game:
            told += _withdraw(registry, slot, asked.bundle, "it plays another game")
            continue
        entry = ArenaEntry(slot, reign.number, 0, bundle.hash, "challenger", "", 0, 0.5, 0.5)
        registry.arena.enter([entry], "")
        entries = registry.arena.entries(slot, reign.number)
        [entry] = [one for one in entries if one.bundle == bundle.hash]
        if entry.left is not None:
            why = "it has challenged this champion before"
            told += _withdraw(registry, slot, bundle.hash, why)
            continue
        seed = derive_seed(int(champion.hash[:15], 16), slot, reign.number, entry.number)
        result = defend(
            bundle.game,
            bundle.params,
            bundle.player,
            champion.player,
            entry.number,
            games=games,
            seed=seed,
        )
        if result.won:
            reason = f"won in the arena: {result.text}"
            registry.promote(slot, bundle, expected=champion.hash, reason=reason)
            return [*told, f"{bundle.name} is the champion: {reason}"]
        told += _withdraw(registry, slot, bundle.hash, f"did not win in the arena: {result.text}")
    return told


def _withdraw(registry: Registry, slot: str, hash_: str, why: str) -> list[str]:
    registry.withdraw(slot, hash_, why)
    return [f"{hash_[:16]} leaves: {why}"]
