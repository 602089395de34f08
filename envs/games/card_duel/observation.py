"""What a player sees, as bytes: ids and features of cards in places, then plain numbers.

"Own" is the player's, whether it is to move or not. Nothing depends on the order of the decks or on
which cards the enemy holds.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch
from torch import Tensor

from sweepd.envs.core.items import ItemGroup, Items
from sweepd.envs.games.card_duel.cards import CARDS, CHAMPION, DECK_SIZE, Effect
from sweepd.envs.games.card_duel.constants import BACK, DECISIONS, HAND, HIGHEST_MANA, Phase
from sweepd.envs.games.card_duel.layout import BODIES, CHAMPION_PLACE, Board, is_equal, pick
from sweepd.envs.games.card_duel.tables import facts, look_up, numbers_of_cards

# The features of a body, each with its scale: health that is left, attack with everything that
# adds to it, and flags: it attacks or is attacked in the pending attack, or it is the unit whose
# effect waits for a target.
FEATURES = {
    "health": 8.0,
    "attack": 8.0,
    "tapped": 1.0,
    "stunned": 1.0,
    "fresh": 1.0,
    "attacks": 1.0,
    "attacked": 1.0,
    "acts": 1.0,
}
# Groups of places: name, places, and the features after each id. A front row ends with the
# champion, under the id CHAMPION; gear stands in the order of its bearers.
GROUPS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("own hand", HAND, ()),
    ("own front", BODIES, tuple(FEATURES)),
    ("enemy front", BODIES, tuple(FEATURES)),
    ("own back", BACK, ("fresh",)),
    ("enemy back", BACK, ("fresh",)),
    ("own gear", BODIES, ()),
    ("enemy gear", BODIES, ()),
)
# Plain numbers after the groups: name, columns, scale. Decisions are counted in pairs, as 300 does
# not fit into a byte.
PLAIN: tuple[tuple[str, int, float], ...] = (
    ("phase", len(Phase), 1.0),  # flags
    ("effect", len(Effect) - 1, 1.0),  # flags: which one waits for its target
    ("own turn", 1, 1.0),
    ("to move", 1, 1.0),
    ("second player", 1, 1.0),  # whether the other had the first turn
    ("decision pairs left", 1, DECISIONS / 2),
    *(
        entry
        for whose in ("own", "enemy")
        for entry in (
            (f"{whose} mana", 1, float(HIGHEST_MANA)),
            (f"{whose} highest mana", 1, float(HIGHEST_MANA)),
            (f"{whose} spark", 1, 1.0),
            (f"{whose} advanced", 1, 1.0),
            (f"{whose} hand cards", 1, float(HAND)),
            (f"{whose} deck cards", 1, float(DECK_SIZE)),
        )
    ),
    ("own discard", len(CARDS), 2.0),  # counts by card
    ("enemy discard", len(CARDS), 2.0),
)
_SIZES = {name: count * (1 + len(features)) for name, count, features in GROUPS} | {
    name: columns for name, columns, _ in PLAIN
}
# First and last column of each group and of each plain entry.
COLUMNS = dict(zip(_SIZES, pairwise(accumulate(_SIZES.values(), initial=0)), strict=True))
SIZE = sum(_SIZES.values())
# The same for networks, with what they may know of each card.
ITEMS = Items(
    vocabulary=CHAMPION + 1,
    groups=tuple(ItemGroup(name, count, features) for name, count, features in GROUPS),
    features=tuple(FEATURES.items()),
    plain=tuple(scale for _, columns, scale in PLAIN for _ in range(columns)),
    facts=numbers_of_cards(),
)


def observe(cells: Tensor, decisions: Tensor, seat: Tensor) -> Tensor:
    """Return what seats see: (games, SIZE) uint8, whose memory has the games last.

    Args:
        cells: (ROWS, games) int8, the positions.
        decisions: (games,) int16, made so far.
        seat: (games,) int64, who looks.
    """
    board = Board(cells)
    waits = board.mover ^ seat.to(torch.int8)  # whether it is the other's move

    def views(rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the own and the enemy's (…, games) of both sides' (2, …, games)."""
        own, enemy = pick(waits, rows.flip(0), rows).unbind(0)
        return own, enemy

    hand, _ = views(board.hand)
    front, enemy_front = views(_fronts(board))
    resting, enemy_resting = views(torch.stack((board.back, board.back_fresh), 2))
    gear, enemy_gear = views(board.gear)
    counts, enemy_counts = views(
        torch.stack(
            (board.mana, board.max_mana, board.spark, board.advanced, board.held, board.left), 1
        )
    )
    discards, enemy_discards = views(board.discard[:, 1:])
    phases = torch.arange(len(Phase), dtype=torch.int8, device=cells.device).unsqueeze(1)
    effects = torch.arange(1, len(Effect), dtype=torch.int8, device=cells.device).unsqueeze(1)
    # As bytes from here on: 150 pairs do not fit into int8.
    pairs = ((DECISIONS - decisions) >> 1).to(torch.uint8).view(torch.int8)
    rows = (
        hand,
        front.flatten(0, 1),
        enemy_front.flatten(0, 1),
        resting.flatten(0, 1),
        enemy_resting.flatten(0, 1),
        gear,
        enemy_gear,
        is_equal(phases, board.phase),
        is_equal(effects, board.effect),
        (board.own_turn ^ waits).unsqueeze(0),
        (waits ^ 1).unsqueeze(0),
        (board.starter ^ seat.to(torch.int8)).unsqueeze(0),
        pairs.unsqueeze(0),
        counts,
        enemy_counts,
        discards,
        enemy_discards,
    )
    return torch.cat(rows).view(torch.uint8).t()


def _fronts(board: Board) -> Tensor:
    """Return (2, places, 1 + features, games): ids and features of the bodies of both sides."""
    table, ids = facts(board.cells.device), board.id
    health = look_up(table.health, ids) - board.damage
    attack = look_up(table.attack, ids) + look_up(table.attack, board.gear) + board.strength
    places = torch.arange(1, BODIES + 1, dtype=torch.int8, device=ids.device).unsqueeze(1)
    # Side 1 attacks side 0, which responds - or, in no attack, both are 0.
    attacks, attacked = is_equal(places, board.attacker), is_equal(places, board.target)
    acts, none = is_equal(places, board.source), torch.zeros_like(attacks)
    # A champion beyond 0 health shows 0.
    health[:, CHAMPION_PLACE].clamp_min_(0)
    features = (
        ids,
        health,
        attack,
        board.tapped,
        board.stunned,
        board.fresh,
        torch.stack((none, attacks)),
        torch.stack((attacked, none)),
        torch.stack((acts, none)),
    )
    return torch.stack(features, 2)


def seen(obs: Tensor, name: str) -> Tensor:
    """Return a group, (..., places, 1 + features), or a plain entry, (..., columns), by name."""
    first, last = COLUMNS[name]
    columns = obs[..., first:last]
    for group, count, features in GROUPS:
        if group == name:
            return columns.reshape(*obs.shape[:-1], count, 1 + len(features))
    return columns
