"""A position of the duel in words."""

from __future__ import annotations

from torch import Tensor

from sweepd.envs.games.card_duel.cards import CHAMPION, Effect, card
from sweepd.envs.games.card_duel.constants import HEALTH, OWN_CHAMPION, Action, Phase
from sweepd.envs.games.card_duel.layout import ATTRIBUTES, CHAMPION_PLACE, Board

# How the numbers of a type of action are to be read, for people.
_NUMBERS = {
    Action.PLAY_FRONT: ("hand", "slot"),
    Action.PLAY_BACK: ("hand", "slot"),
    Action.GEAR: ("hand", "target"),
    Action.SPELL: ("hand", "target"),
    Action.ATTACK: ("body", "target"),
    Action.ADVANCE: ("back", "slot"),
    Action.GUARD: ("slot",),
    Action.TARGET: ("", "target"),
}
_FLAGS = ("tapped", "stunned", "fresh")


def describe_action(kind: int, first: int, second: int) -> str:
    """Return an action in words, such as "ATTACK body 0, target enemy champion"."""
    parts = []
    for name, number in zip(_NUMBERS.get(Action(kind), ()), (first, second), strict=False):
        if name == "target":
            parts.append(f"target {_target(number)}")
        elif name:
            parts.append(f"{name} {number}")
    return " ".join((Action(kind).name, ", ".join(parts))).rstrip()


def describe_position(cells: Tensor, decisions: int, turns: int) -> str:
    """Return everything about one position, hidden cards too.

    Args:
        cells: (ROWS,) int8.
        decisions: Made so far.
        turns: Begun so far.
    """
    board = Board(cells.cpu().view(-1, 1).contiguous())
    phase, mover = Phase(int(board.phase)), int(board.mover)
    said = [f"decision {decisions + 1}, turn {turns}, phase {phase.name}, seat {mover} to move"]
    if int(board.attacker):
        # Side 1 attacks, as the defender is to move.
        attacker = _name(_column(board.id[1])[int(board.attacker) - 1])
        target = _name(_column(board.id[0])[int(board.target) - 1])
        places = f"place {int(board.attacker) - 1} on place {int(board.target) - 1}"
        said.append(f"{attacker} attacks {target} ({places})")
    if int(board.effect):
        effect = Effect(int(board.effect)).name
        source = int(board.source)
        whose = f"of the unit in front slot {source - 1} " if source else ""
        said.append(f"{effect} {whose}waits for its target")
    for side in (0, 1):
        seat = mover if side == 0 else 1 - mover
        said.append(f"seat {seat}: {_side(board, side)}")
    return "; ".join(said)


def _side(board: Board, side: int) -> str:
    def one(rows: Tensor) -> int:
        return int(rows[side])

    bodies = [_body(board, side, place) for place in range(CHAMPION_PLACE)]
    fresh = _column(board.back_fresh[side])
    back = [
        "-" if not own else _name(own) + (" (fresh)" if fresh[slot] else "")
        for slot, own in enumerate(_column(board.back[side]))
    ]
    hand = [_name(own) for own in _column(board.hand[side]) if own]
    deck = sorted(_name(own) for own in _column(board.deck[side]) if own)
    counts = _column(board.discard[side])
    discard = [f"{count} {_name(own)}" for own, count in enumerate(counts) if own and count]
    spark = ", a spark" if one(board.spark) else ""
    advanced = ", has advanced" if one(board.advanced) else ""
    return (
        f"{_body(board, side, CHAMPION_PLACE)}, mana {one(board.mana)} of {one(board.max_mana)}"
        f"{spark}{advanced}, hand [{', '.join(hand)}], front [{', '.join(bodies)}], "
        f"back [{', '.join(back)}], deck of {one(board.left)} [{', '.join(deck)}], "
        f"discard [{', '.join(discard)}]"
    )


def _body(board: Board, side: int, place: int) -> str:
    values = board.bodies[side, :, place, 0].tolist()
    own = dict(zip(ATTRIBUTES, values, strict=True))
    if not own["id"]:
        return "-"
    champion = own["id"] == CHAMPION
    attack = (0 if champion else card(own["id"]).attack) + own["strength"]
    attack += card(own["gear"]).attack if own["gear"] else 0
    health = (HEALTH if champion else card(own["id"]).health) - own["damage"]
    notes = [name for name in _FLAGS if own[name]]
    notes += [f"with {_name(own['gear'])}"] if own["gear"] else []
    return " ".join((_name(own["id"]), f"{attack}/{health}", *notes))


def _column(rows: Tensor) -> list[int]:
    return [int(value) for value in rows[:, 0].tolist()]


def _name(own: int) -> str:
    return {0: "none", CHAMPION: "champion"}.get(own) or card(own).name


def _target(number: int) -> str:
    whose = "own" if number < 4 or number == OWN_CHAMPION else "enemy"
    return f"{whose} champion" if number >= OWN_CHAMPION else f"{whose} front {number % 4}"
