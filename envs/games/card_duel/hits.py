"""Combat and effects: what happens to bodies, in one pass over at most one body of each side."""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.envs.games.card_duel.actions import Choice, fights
from sweepd.envs.games.card_duel.cards import CHAMPION, Effect, Keyword
from sweepd.envs.games.card_duel.constants import DAMAGE, DRAWN, HEALING, STRENGTH, Action
from sweepd.envs.games.card_duel.draws import discard, take
from sweepd.envs.games.card_duel.layout import ATTRIBUTES, Board, at, is_equal
from sweepd.envs.games.card_duel.tables import facts, look_up

BOTH = slice(0, 2)


def hit(board: Board, choice: Choice, effect: Tensor) -> Tensor:
    """Fight out attacks and apply effects, in place.

    An action hits at most one body of each side: attacker and target of an attack, or the target
    of an effect. Those are taken out, changed, and written back.

    Args:
        board: The positions.
        choice: The actions.
        effect: (games,) ids of the effects that happen now.

    Returns:
        (2, games) int8, the cards that each side draws: effects and last gifts.
    """
    table = facts(board.cells.device)
    numbers = torch.arange(len(Effect), dtype=torch.int8, device=effect.device).unsqueeze(1)
    effects = is_equal(numbers, effect)
    # Of each side: whether the effect's target is there. An own one is not the enemy's.
    aimed = torch.stack((choice.enemy ^ 1, choice.enemy))
    fight = fights(choice)
    places = _places(board, choice, fight)
    index = places.view(2, 1, 1, -1).expand(-1, len(ATTRIBUTES), -1, -1)
    bodies = board.bodies.gather(2, index).squeeze(2)
    ids, damage, strength, tapped, stunned, fresh, gear = bodies.unbind(1)

    keywords = look_up(table.keywords, ids) | look_up(table.keywords, gear)
    attack = look_up(table.attack, ids) + look_up(table.attack, gear) + strength
    blows = attack.flip(0) * fight + aimed * (DAMAGE * effects[Effect.DAMAGE])
    dealt = (blows - _has(keywords, Keyword.ARMOR)).clamp_min(0)
    hurts = (dealt > 0).view(torch.int8) & fight & _has(keywords, Keyword.STUN).flip(0)
    stuns = hurts | aimed & effects[Effect.STUN]
    healed = torch.minimum(damage, aimed * (HEALING * effects[Effect.HEAL]))
    damage = damage + dealt - healed
    strength = strength + aimed * (STRENGTH * effects[Effect.STRENGTHEN])

    unit = (is_equal(ids, 0) | is_equal(ids, CHAMPION)) ^ 1
    dies = unit & (damage >= look_up(table.health, ids)).view(torch.int8)
    returns = aimed & effects[Effect.RETURN]
    leaves = dies | returns
    changed = [ids, damage, strength, tapped | stuns, stunned | stuns, fresh, gear]
    stays = torch.stack(changed, 1) & (leaves - 1).unsqueeze(1)
    board.bodies.scatter_(2, index, stays.unsqueeze(2))
    discard(board, BOTH, ids, dies)
    discard(board, BOTH, gear, leaves & (is_equal(gear, 0) ^ 1))
    take(board, BOTH, ids * returns, returns)
    draws: Tensor = dies & _has(keywords, Keyword.LAST_GIFT)
    draws[0] += DRAWN * effects[Effect.DRAW]
    return draws


def _places(board: Board, choice: Choice, fight: Tensor) -> Tensor:
    """Return (2, games) int64, the body of each side that may be hit."""
    guard = choice.kinds[Action.GUARD]
    # Flags select by multiplication: exactly one term is there.
    defender = choice.first * guard + (board.target - 1) * (fight ^ guard)
    attacker = (board.attacker - 1) * fight
    by_effect = choice.place * (fight ^ 1)
    return torch.stack((defender + by_effect, attacker + by_effect)).long()


def _has(keywords: Tensor, keyword: Keyword) -> Tensor:
    """Return where a keyword is set, as flags."""
    return (keywords >> (keyword.bit_length() - 1)) & 1


def fighters_live(board: Board) -> Tensor:
    """Return where both attacker and target of the pending attack are there, (games,) flags."""
    attacker = at(board.id[1], (board.attacker - 1).clamp_min(0).long())
    target = at(board.id[0], (board.target - 1).clamp_min(0).long())
    return (is_equal(attacker, 0) | is_equal(target, 0)) ^ 1
