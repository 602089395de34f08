"""A picture of a duel, as a player sees it."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from sweepd.envs.games.card_duel.cards import CARDS, card
from sweepd.envs.games.card_duel.constants import FRONT
from sweepd.envs.games.card_duel.scene import Body, Scene, Side

WIDTH, HEIGHT = 640, 640  # pixels; multiples of 16, as video codecs need
SUPERSAMPLING = 3  # shapes are drawn that much larger and reduced, for smooth edges
PAPER, INK, GREY, SAND, FACE_DOWN = "#f4f7f8", "#222222", "#8a949c", "#e3e9ec", "#4a6a85"
SIDES = ("#1f5fa8", "#c0392b")  # of the player whose view it is, and of the other one
MARK = "#e0a020"  # around what attacks, is attacked, or waits for a target
LEFT, GAP, CARD_HEIGHT = 14, 8, 62  # margin; between cards; of a card on the table
HAND = 5  # cards in a row of the hand
# Upper edges of rows: of the enemy's hand and rows, then of the player's.
ENEMY_STATUS, ENEMY_BACK, ENEMY_FRONT = 34, 84, 154
OWN_FRONT, OWN_BACK, OWN_STATUS, HAND_TOP = 240, 310, 382, 432
_SMALL = 46  # height of a card in the hand
_ROWS = ("back", "front", "front", "back")

Box = tuple[int, int, int, int]


def as_image(scene: Scene, names: tuple[str, str], caption: str, log: Sequence[str]) -> Image.Image:
    """Draw what a player sees: the other's side above, its own below, its hand at the bottom."""
    image = Image.new("RGB", (SUPERSAMPLING * WIDTH, SUPERSAMPLING * HEIGHT), PAPER)
    cards = [
        *_table(scene.enemy, ENEMY_BACK, ENEMY_FRONT),
        *_table(scene.own, OWN_BACK, OWN_FRONT),
        *((hand_box(index), own, None) for index, own in enumerate(scene.hand)),
    ]
    draw = ImageDraw.Draw(image)
    middle = SUPERSAMPLING * (OWN_FRONT + ENEMY_FRONT + CARD_HEIGHT) // 2
    draw.line(
        (SUPERSAMPLING * LEFT, middle, SUPERSAMPLING * (WIDTH - LEFT), middle), GREY, SUPERSAMPLING
    )
    for box, own, body in cards:
        _outline(draw, box, own, body)
    for index in range(scene.enemy.hand):  # face down: only their number is known
        corner = WIDTH - LEFT - 14 * (scene.enemy.hand - index) + 2
        _rounded(draw, (corner, ENEMY_STATUS, corner + 12, ENEMY_STATUS + 18), FACE_DOWN, PAPER)
    small = image.resize((WIDTH, HEIGHT), Image.Resampling.BOX)
    for box, own, body in cards:
        _label(small, box, own, body)
    _write(small, scene, names, caption, log)
    return small


def hand_box(index: int) -> Box:
    """Return the place of a card in the hand: two rows of five."""
    left, right = _columns(index % HAND, HAND)
    top = HAND_TOP + (_SMALL + 6) * (index // HAND)
    return left, top, right, top + _SMALL


def table_box(slot: int, top: int) -> Box:
    """Return the place of a card in a row whose upper edge is `top`."""
    left, right = _columns(slot, FRONT)
    return left, top, right, top + CARD_HEIGHT


def _columns(place: int, places: int) -> tuple[int, int]:
    """Return the left and right edge of one of several places that share the picture's width."""
    step = (WIDTH - 2 * LEFT + GAP) // places
    left = LEFT + step * place
    return left, left + step - GAP


def _table(side: Side, back: int, front: int) -> list[tuple[Box, int, Body | None]]:
    """Return the places of both rows, with the cards' ids (0: free) and bodies."""
    rows = [(table_box(slot, back), own, None) for slot, (own, _) in enumerate(side.back)]
    return rows + [
        (table_box(slot, front), body.id if body else 0, body)
        for slot, body in enumerate(side.front[:FRONT])
    ]


def _outline(draw: ImageDraw.ImageDraw, box: Box, own: int, body: Body | None) -> None:
    """Draw a card, a free place, or a marked card; tapped ones are grey."""
    if not own:
        _rounded(draw, box, PAPER, SAND)
        return
    marked = body is not None and (body.attacks or body.attacked or body.acts)
    tapped = body is not None and body.tapped
    _rounded(draw, box, SAND if tapped else "#ffffff", MARK if marked else GREY, 3 if marked else 1)


def _rounded(draw: ImageDraw.ImageDraw, box: Box, fill: str, edge: str, width: int = 1) -> None:
    scaled = [SUPERSAMPLING * value for value in box]
    draw.rounded_rectangle(
        scaled, radius=5 * SUPERSAMPLING, fill=fill, outline=edge, width=width * SUPERSAMPLING
    )


def _label(image: Image.Image, box: Box, own: int, body: Body | None) -> None:
    """Write a card's name, its numbers, and its gear."""
    if not own:
        return
    draw, (left, top, right, bottom) = ImageDraw.Draw(image), box
    font, small = ImageFont.load_default(12), ImageFont.load_default(11)
    unit = CARDS[own - 1]
    draw.text((left + 6, top + 4), unit.name, fill=INK, font=font)
    if body is not None:
        draw.text((left + 6, top + 22), body.state, fill=INK, font=font)
        worn = f"+{card(body.gear).name}" if body.gear else body.keywords
        draw.text((left + 6, bottom - 18), worn, fill=GREY, font=small)
        return
    numbers = f"{unit.attack}/{unit.health}" if unit.health else f"+{unit.attack}"
    draw.text((left + 6, top + 22), numbers if unit.attack else "spell", fill=INK, font=font)
    draw.text((right - 6, top + 22), str(unit.cost), fill=SIDES[0], font=font, anchor="ra")


def _write(
    image: Image.Image, scene: Scene, names: tuple[str, str], caption: str, log: Sequence[str]
) -> None:
    """Write the caption, both players' numbers, what is to be decided, and the log."""
    draw = ImageDraw.Draw(image)
    small, large = ImageFont.load_default(12), ImageFont.load_default(16)
    draw.text((LEFT, 8), caption, fill=INK, font=small)
    places = (OWN_STATUS, ENEMY_STATUS)
    for side, name, colour, top in zip((scene.own, scene.enemy), names, SIDES, places, strict=True):
        champion = side.champion
        draw.text((LEFT, top), f"{name[:40]}: {champion.health}", fill=colour, font=large)
        worn = f", with {card(champion.gear).name}" if champion.gear else ""
        counts = f"mana {side.mana}/{side.highest}, hand {side.hand}, deck {side.deck}, "
        counts += f"discard {sum(side.discard)}"
        counts += (", spark" if side.spark else "") + worn
        draw.text((LEFT, top + 24), counts, fill=INK, font=small)
    draw.text((LEFT, HEIGHT - 96), scene.situation(names), fill=INK, font=small)
    for index, line in enumerate(log):
        draw.text((LEFT, HEIGHT - 78 + 14 * index), line, fill=GREY, font=small)
