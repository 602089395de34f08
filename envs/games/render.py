"""What a game looks like: as text for the terminal, and as pictures.

A renderer shows the first game of an environment. Adding one means a class and its place in `_RENDERERS`; Gymnasium's
environments draw themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import gymnasium
from PIL import Image, ImageDraw, ImageFont

from envs.errors import InputError
from envs.external.vec_env import ExternalVecEnv
from envs.games.bucket_rules import BURNING, HOUSE, MODE, RUINED, SIGNAL, WORK
from envs.games.registry import Game, GameEnv

WIDTH, HEIGHT = 480, 320  # of our pictures; whole blocks of 16, as video wants them
PAPER, INK, GREY, RED, BLUE, GREEN = "#ffffff", "#222222", "#9a9a9a", "#c0392b", "#1f5fa8", "#2a9d5c"


class Renderer(Protocol):
    """Shows the first game of an environment, as it is now; or, `final`, as it was when its last episode ended.

    fps: pictures per second at which it looks natural. caption: a line to put above.
    """

    fps: float

    def text(self, caption: str, *, final: bool) -> str: ...
    def picture(self, caption: str, *, final: bool) -> Image.Image: ...


def showing(game: Game, params: Any, *, pictures: bool) -> tuple[GameEnv, Renderer]:
    """An environment of one game, not yet reset, and what shows it. pictures: whether any will be asked for.

    Raises InputError where there are none of this game, or a package is missing for them.
    """
    if game.name.startswith("gym:"):
        return _gymnasium(game.name, dict(params), pictures=pictures)
    env = game.make([params], 1, together=1, device="cpu")
    if game.name not in _RENDERERS:
        raise InputError(f"{game.name} cannot be shown; these can: {', '.join(_RENDERERS)} and gym:ID")
    return env, _RENDERERS[game.name](env, params)


class CartPoleRenderer:
    """Cart, pole, and the track with its ends."""

    def __init__(self, env: GameEnv, params: Any) -> None:
        self._env, self._params = cast(Any, env), params
        self.fps = 1.0 / params.tau

    def _state(self, final: bool) -> tuple[float, float]:
        x, _, angle, _ = (self._env.final_obs() if final else self._env.observe())[0].tolist()
        return x, angle

    def text(self, caption: str, *, final: bool) -> str:
        columns, rows = 61, 7
        x, angle = self._state(final)
        middle = columns // 2
        cart = middle + round(x / self._params.x_threshold * (middle - 3))
        lines = [[" "] * columns for _ in range(rows)]
        for row in range(rows):  # a character is about twice as high as it is wide
            at = cart + round(math.tan(angle) * 2.0 * (rows - row))
            if 0 <= at < columns:
                lines[row][at] = "|" if abs(angle) < 0.05 else "/" if angle > 0 else "\\"
        body = [" "] * columns
        for at in range(max(cart - 2, 0), min(cart + 3, columns)):
            body[at] = "#"
        track = "|" + "-" * (columns - 2) + "|"
        return "\n".join([caption, *("".join(line).rstrip() for line in (*lines, body)), track])

    def picture(self, caption: str, *, final: bool) -> Image.Image:
        x, angle = self._state(final)
        image, draw = _canvas(caption)
        ground, scale = 250, (WIDTH - 80) / (2.0 * self._params.x_threshold)
        centre, width, height = WIDTH / 2 + x * scale, 56, 28
        draw.line([(20, ground), (WIDTH - 20, ground)], fill=GREY, width=2)
        for side in (-1, 1):
            at = WIDTH / 2 + side * self._params.x_threshold * scale
            draw.line([(at, ground - 12), (at, ground + 12)], fill=RED, width=3)
        draw.rectangle([centre - width / 2, ground - height, centre + width / 2, ground], fill=INK)
        pivot, long = (centre, ground - height), 150
        tip = (centre + long * math.sin(angle), ground - height - long * math.cos(angle))
        draw.line([pivot, tip], fill="#c98a3c", width=9)
        draw.ellipse([pivot[0] - 5, pivot[1] - 5, pivot[0] + 5, pivot[1] + 5], fill=BLUE)
        return image


class BucketRenderer:
    """The ring of houses, and every agent beside the house it went to: filled where it works, with its signal."""

    fps = 2.0
    _STATES = (("o", GREEN), ("*", RED), ("x", GREY))  # safe, burning, ruined

    def __init__(self, env: GameEnv, params: Any) -> None:
        self._env, self._params = cast(Any, env), params

    def _state(self, final: bool) -> tuple[list[int], list[list[int]]]:
        """Every house's state, and every agent's last house, mode and signal."""
        own, name = self._env.get_member(0), "final_" if final else ""
        return own[f"{name}houses"][:, 0].tolist(), own[f"{name}acts"][:, :, 0].tolist()

    def text(self, caption: str, *, final: bool) -> str:
        houses, acts = self._state(final)
        agents = len(acts)
        lines = [caption, "house owner  state    agents there (capital: works; !: signals work)"]
        words = {BURNING: "BURNING", RUINED: "ruined"}
        for house, state in enumerate(houses):
            here = [
                f"{chr((ord('A') if act[MODE] == WORK else ord('a')) + index)}{'!' if act[SIGNAL] == WORK else ''}"
                for index, act in enumerate(acts)
                if act[HOUSE] == house
            ]
            owner = chr(ord("A") + house % agents)
            lines.append(f"{house:5d}   {owner}    {words.get(state, 'safe'):8s} {' '.join(here)}".rstrip())
        return "\n".join(lines)

    def picture(self, caption: str, *, final: bool) -> Image.Image:
        houses, acts = self._state(final)
        image, draw = _canvas(caption)
        count, centre, radius = len(houses), (WIDTH / 2, HEIGHT / 2 + 12), 112.0
        size = min(26.0, math.pi * radius / count * 0.6)
        for house, state in enumerate(houses):
            turn = 2.0 * math.pi * house / count - math.pi / 2.0
            x, y = centre[0] + radius * math.cos(turn), centre[1] + radius * math.sin(turn)
            draw.polygon([(x - size, y), (x, y - size), (x + size, y)], fill=self._STATES[state][1])
            draw.rectangle([x - 0.8 * size, y, x + 0.8 * size, y + 0.8 * size], fill=self._STATES[state][1])
            owner = chr(ord("A") + house % len(acts))
            draw.text((x, y + 0.35 * size), owner, fill=PAPER, font=_font(14), anchor="mm")
            here = [index for index, act in enumerate(acts) if act[HOUSE] == house]
            for place, index in enumerate(here):
                inner = radius - 1.9 * size - 21.0 * place
                self._agent(draw, centre[0] + inner * math.cos(turn), centre[1] + inner * math.sin(turn), index, acts)
        draw.text((10, HEIGHT - 20), "house: safe green, burning red, ruined grey", fill=GREY, font=_font(11))
        draw.text((WIDTH - 10, HEIGHT - 20), "agent: filled works, ring says it will", fill=GREY, font=_font(11),
                  anchor="ra")  # fmt: skip
        return image

    @staticmethod
    def _agent(draw: ImageDraw.ImageDraw, x: float, y: float, index: int, acts: list[list[int]]) -> None:
        works, signals = acts[index][MODE] == WORK, acts[index][SIGNAL] == WORK
        if signals:
            draw.ellipse([x - 11, y - 11, x + 11, y + 11], outline=BLUE, width=1)
        draw.ellipse([x - 8, y - 8, x + 8, y + 8], fill=BLUE if works else PAPER, outline=BLUE, width=2)
        name = chr(ord("A") + index)
        draw.text((x, y), name, fill=PAPER if works else BLUE, font=_font(11), anchor="mm")


class GymnasiumRenderer:
    """What a Gymnasium environment draws of itself; as text, what the agent sees."""

    def __init__(self, env: ExternalVecEnv, inside: gymnasium.Env[Any, Any]) -> None:
        self._env, self._inside = env, inside
        self.fps = float(inside.metadata.get("render_fps") or 30.0)

    def text(self, caption: str, *, final: bool) -> str:
        if self._inside.render_mode == "ansi" and not final:
            return f"{caption}\n{self._inside.render()}"
        seen = (self._env.final_obs() if final else self._env.observe())[0].flatten().tolist()
        return f"{caption}\nsees {' '.join(f'{value:8.4g}' for value in seen[:16])}{' …' if len(seen) > 16 else ''}"

    def picture(self, caption: str, *, final: bool) -> Image.Image:
        """The episode's last state is gone when it has ended (the next one has begun), so `final` shows that."""
        del caption, final
        drawn = self._inside.render()
        return Image.fromarray(cast(Any, drawn)).convert("RGB")


_RENDERERS: Mapping[str, Callable[[GameEnv, Any], Renderer]] = {
    "cartpole": CartPoleRenderer,
    "bucket-brigade": BucketRenderer,
}


def _gymnasium(name: str, arguments: dict[str, Any], *, pictures: bool) -> tuple[GameEnv, Renderer]:
    spec = gymnasium.spec(name.removeprefix("gym:"))
    made: list[gymnasium.Env[Any, Any]] = []

    def make(mode: str | None) -> gymnasium.Env[Any, Any]:
        made.append(gymnasium.make(spec, render_mode=mode, disable_env_checker=True, **arguments))
        return made[-1]

    try:
        modes = make(None).metadata.get("render_modes", [])
        made.pop().close()
        if pictures and "rgb_array" not in modes:
            raise InputError(f"{name} draws no pictures (its render modes: {', '.join(modes) or 'none'})")
        mode = "rgb_array" if pictures else "ansi" if "ansi" in modes else None
        if pictures:
            make(mode).reset(seed=0)
            made[-1].render()
            made.pop().close()
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise InputError(f"{name} needs a package that is missing here: {error}") from error
    env = ExternalVecEnv(lambda: make(mode), 1, 1)
    return cast(GameEnv, env), GymnasiumRenderer(env, made[-1])


def _canvas(caption: str) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    draw = ImageDraw.Draw(image)
    draw.text((12, 10), caption, fill=INK, font=_font(14))
    return image, draw


def _font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)
