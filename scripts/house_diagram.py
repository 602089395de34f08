"""Draw the rooms of the packages: `python -m scripts.house_diagram` writes docs/images/house.svg.

`ROOMS` is the rule that `tests/test_architecture.py` holds; the drawing shows nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

IMAGE = Path(__file__).resolve().parent.parent / "docs/images/house.svg"
# The rooms of each package, from the lowest level to the highest: a room imports only rooms of the
# levels below its own.
ROOMS = {
    "envs": (("support",), ("native",), ("core",), ("crypto", "external"), ("games",)),
    "agents": (("networks",), ("native",), ("engine",), ("algorithms",), ("policy",)),
    "optimize": (("tracking", "study"), ("objectives",), ("worker",), ("cli",), ("api",)),
    "deploy": (
        *(("registry",), ("promotion",), ("market", "games", "programs")),
        *(("trading",), ("night",), ("dashboard",), ("cli",), ("api",), ("export",)),
    ),
}
WIDTH, WING, HEAD, GAP, SPACE = 760, 348, 28, 28, 5
TOP, WING_HEIGHT, FLOOR_HEIGHT = 70, 248, 172  # of the walls; of optimize and deploy; of the others
STYLE = """
text { font: 14px system-ui, sans-serif; text-anchor: middle; fill: #1c2333; }
.name { font-weight: 600; }
.note { font-size: 12px; }
.floor { fill: #dfe4f5; }
.room { fill: #ffffff; stroke: #7986cb; }
.arrow { stroke: #3f51b5; stroke-width: 2; fill: none; marker-end: url(#head); }
#head path { fill: #3f51b5; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9f5; }
  .floor { fill: #2a3050; }
  .room { fill: #171b2e; stroke: #7986cb; }
  .arrow { stroke: #9fa8da; }
  #head path { fill: #9fa8da; }
}
"""


def drawing() -> str:
    """Return the SVG: `optimize` and `deploy` beside each other on `agents`, which is on `envs`."""
    agents = TOP + WING_HEIGHT + GAP
    envs = agents + FLOOR_HEIGHT + GAP
    height, right, middle = envs + FLOOR_HEIGHT, WIDTH - WING, WIDTH / 2
    level = TOP + WING_HEIGHT - (WING_HEIGHT - HEAD) / (2 * len(ROOMS["optimize"]))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>The rooms of sweepd's packages; imports point downwards</title>",
        f"<style>{STYLE}</style>",
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" markerHeight="5" '
        'orient="auto"><path d="M0 0 8 4 0 8z"/></marker>',
        f'<path class="floor" d="M{middle} 0 {WIDTH} {TOP - GAP} 0 {TOP - GAP}z"/>',
        _text("name", middle, TOP - GAP - 10, "sweepd"),
        *_floor("optimize", 0, TOP, WING, WING_HEIGHT),
        *_floor("deploy", right, TOP, WING, WING_HEIGHT),
        *_floor("agents", 0, agents, WIDTH, FLOOR_HEIGHT),
        *_floor("envs", 0, envs, WIDTH, FLOOR_HEIGHT),
        _text("note", middle, level - 8, "record"),
        _arrow(right, level, WING, level),
    ]
    wings = WING / 2, right + WING / 2
    parts += [_arrow(x, top, x, top + GAP) for x in wings for top in (TOP - GAP, agents - GAP)]
    return "\n".join([*parts, _arrow(middle, envs - GAP, middle, envs), "</svg>\n"])


def _floor(package: str, left: float, top: float, width: float, height: float) -> Iterator[str]:
    """Yield a package and its rooms, the highest level first."""
    yield f'<rect class="floor" x="{left}" y="{top}" width="{width}" height="{height}" rx="6"/>'
    yield _text("name", left + width / 2, top + 19, package)
    step = (height - HEAD) / len(ROOMS[package])
    for row, level in enumerate(reversed(ROOMS[package])):
        wide = (width - SPACE) / len(level)
        for column, room in enumerate(level):
            x, y = left + SPACE + column * wide, top + HEAD + row * step
            size = f'width="{wide - SPACE:g}" height="{step - SPACE:g}"'
            yield f'<rect class="room" x="{x:g}" y="{y:g}" {size} rx="3"/>'
            yield _text("", x + (wide - SPACE) / 2, y + (step - SPACE) / 2 + 5, room)


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{text}</text>'


def _arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<path class="arrow" d="M{x:g} {y:g} {to_x:g} {to_y:g}"/>'


if __name__ == "__main__":
    IMAGE.write_text(drawing())
