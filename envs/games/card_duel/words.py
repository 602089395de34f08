"""The duel in words and pictures, for people who watch or play it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from PIL import Image
from rich.text import Text
from torch import Tensor

from sweepd.envs.games.card_duel.cards import card
from sweepd.envs.games.card_duel.constants import FRONT, Action
from sweepd.envs.games.card_duel.picture import as_image
from sweepd.envs.games.card_duel.scene import (
    Body,
    Side,
    card_line,
    name_action,
    name_first,
    name_second,
    name_type,
    scene_of,
)
from sweepd.envs.games.words import WIDTH, Words

_LABEL, _CELL, _CARD = 8, 17, 39  # columns of a row's name, of a unit, of a card in the hand
_COLOURS = ("cyan", "red")  # of the player whose view it is, and of the other one
_SOON = 60  # decisions before the limit from which on it is shown

Line = list[tuple[str, str]]  # parts of a line, and their styles


class DuelWords(Words):
    """See `Words`."""

    draws = True

    def position(self, seen: Tensor, names: tuple[str, str]) -> Text:
        """See `Words.position`. The hand of the other player is a number of cards."""
        scene = scene_of(seen)
        headline = scene.situation(names)
        if scene.left < _SOON:
            headline += f"; at most {scene.left} decisions left"
        lines: list[Line] = [[(headline, "bold")]]
        lines += _status(scene.enemy, names[1], _COLOURS[1])
        lines += _row("back", _back(scene.enemy)) + _row("front", _front(scene.enemy))
        lines += [[("-" * (_LABEL + FRONT * _CELL), "dim")]]
        lines += _row("front", _front(scene.own)) + _row("back", _back(scene.own))
        lines += _status(scene.own, names[0], _COLOURS[0])
        cards = [card_line(card(own)) for own in scene.hand]
        half = (len(cards) + 1) // 2
        pairs = zip_longest(cards[:half], cards[half:], fillvalue="")
        lines += [[(f"  {left:<{_CARD}}{right}", "")] for left, right in pairs]
        return Text("\n").join(_text(line) for line in lines)

    def option(self, seen: Tensor, chosen: Sequence[int], option: int) -> str:
        """See `Words.option`."""
        scene = scene_of(seen)
        if not chosen:
            return name_type(scene, Action(option))
        if len(chosen) == 1:
            return name_first(scene, Action(chosen[0]), option)
        if chosen[0] == Action.SPELL:
            return name_action(scene, (*chosen, option))  # which may have no target
        return name_second(scene, Action(chosen[0]), option)

    def action(self, seen: Tensor, action: Sequence[int], *, own: bool) -> str:  # noqa: ARG002
        """See `Words.action`. All actions are public, as are the cards that they play."""
        return name_action(scene_of(seen), action)

    def picture(
        self, seen: Tensor, names: tuple[str, str], caption: str, log: Sequence[str]
    ) -> Image.Image:
        """See `Words.picture`."""
        return as_image(scene_of(seen), names, caption, log)


def _text(line: Line) -> Text:
    text = Text()
    for part, style in line:
        text.append(part, style or None)
    text.rstrip()
    return text


def _status(side: Side, name: str, colour: str) -> list[Line]:
    """Return the champion, the counts and the discard pile."""
    champion = side.champion
    marks = [champion.state.partition(" ")[2]]
    marks += [f"attacks with {card(champion.gear).name}"] if champion.gear else []
    counts = f"mana {side.mana}/{side.highest}  hand {side.hand}  deck {side.deck}"
    counts += "  spark" if side.spark else ""
    lines: list[Line] = [
        [
            (f"{_cut(name, 24)}  ", f"bold {colour}"),
            (f"health {champion.health}", "bold"),
            (f"  {counts}", ""),
        ]
    ]
    worn = ", ".join(filter(None, marks))
    if worn or champion.attack:
        said = f"  champion: {champion.attack} attack" + (f", {worn}" if worn else "")
        lines.append([(said, "yellow" if champion.attacks or champion.attacked else "")])
    return [*lines, [(_cut(f"  discard: {side.discarded}", WIDTH), "dim")]]


def _front(side: Side) -> list[Line]:
    return [_unit(body) for body in side.front[:FRONT]]


def _unit(body: Body | None) -> Line:
    """Return the lines of a unit's cell."""
    if body is None:
        return [("-", "dim")]
    marked = body.attacks or body.attacked or body.acts
    style = "bold yellow" if marked else "bold"
    state_style = "dim" if body.tapped else ""
    lines = [(body.name, style), (body.state, state_style)]
    lines += [(body.keywords, "magenta")] if body.keywords else []
    return lines + ([(f"+{card(body.gear).name}", "magenta")] if body.gear else [])


def _back(side: Side) -> list[Line]:
    cells: list[Line] = []
    for own, new in side.back:
        if not own:
            cells.append([("-", "dim")])
            continue
        unit = card(own)
        state = f"{unit.attack}/{unit.health}" + (" new" if new else "")
        cells.append([(unit.name, ""), (state, "")])
    return cells


def _row(name: str, cells: Sequence[Line]) -> list[Line]:
    """Return the lines of a row of cells, which are numbered from 1."""
    lines: list[Line] = []
    for index, parts in enumerate(zip_longest(*cells, fillvalue=("", ""))):
        line: Line = [(f"{'' if index else name:<{_LABEL}}", "dim")]
        for number, (part, style) in enumerate(parts, 1):
            # The name has two columns less, for the number.
            before = "  " if index else f"{number} "
            line += [(before, "dim"), (f"{_cut(part, _CELL - 3):<{_CELL - 2}}", style)]
        lines.append(line)
    return lines


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else f"{text[: columns - 2]}.."
