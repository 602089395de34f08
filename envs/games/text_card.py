"""Pictures of games that have words or numbers, but no drawing of their own."""

from __future__ import annotations

import textwrap

from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT = 640, 320  # pixels; multiples of 16, as video codecs need
PAPER, INK, GREY = "#ffffff", "#222222", "#777777"
_LEFT, _TOP, _LINE = 16, 14, 21  # pixels; of the first line, and from one line to the next
_COLUMNS = 80  # most characters of a line
_LINES = (HEIGHT - _TOP) // _LINE


def text_card(text: str) -> Image.Image:
    """Return a picture of a text, always of the same size; its first line is a caption.

    Long lines are wrapped, indented ones are grey, and what does not fit is left out.
    """
    image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    draw = ImageDraw.Draw(image)
    caption, *rest = text.splitlines() or [""]
    rows = [(caption, GREY)]
    for line in rest:
        colour = GREY if line.startswith(" ") else INK
        rows += [(part, colour) for part in textwrap.wrap(line, _COLUMNS) or [""]]
    for row, (line, colour) in enumerate(rows[:_LINES]):
        font = ImageFont.load_default(13 if row == 0 else 15)
        draw.text((_LEFT, _TOP + row * _LINE), line, fill=colour, font=font)
    return image
