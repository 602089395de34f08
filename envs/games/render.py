"""Renderers of games: as text for the terminal, and as images.

A renderer shows the first game of an environment after every step. To add one, write a class and
enter it in `_RENDERERS`. Gymnasium's environments render themselves.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import gymnasium
from PIL import Image, ImageDraw, ImageFont
from rich.text import Text

from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.external.sources import spec_of
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.external.wrapping import KEY as WRAPPERS
from sweepd.envs.external.wrapping import wrap
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.render import Scene, as_frame, as_text, scene
from sweepd.envs.games.game import Game
from sweepd.envs.games.hockey.game import Hockey
from sweepd.envs.games.hockey.physics import DT
from sweepd.envs.games.hockey.render import TRAIL, HockeyScene, as_image, scene_of
from sweepd.envs.games.hockey.render import as_text as hockey_text
from sweepd.envs.games.opponents import Opponents
from sweepd.envs.games.tensor_game import TensorGame
from sweepd.envs.games.text_card import text_card
from sweepd.envs.games.turns_view import TurnsRenderer
from sweepd.envs.support.errors import InputError

WIDTH, HEIGHT = 480, 320  # pixels; multiples of 16, as video codecs need
SUPERSAMPLING = 3  # images are drawn that much larger and reduced, for smooth edges
PAPER, INK, GREY, RED, BLUE, WOOD = "#ffffff", "#222222", "#9a9a9a", "#c0392b", "#1f5fa8", "#c98a3c"


class Renderer(Protocol):
    """Shows the first game of an environment with a caption above.

    It shows the present state, or with `final` the state at the end of the last ended episode.

    Attributes:
        fps: Natural number of images per second.
    """

    fps: float

    def text(self, caption: str, *, final: bool) -> str | Text: ...
    def picture(self, caption: str, *, final: bool) -> Image.Image: ...


def showing(
    game: Game,
    params: Any,
    *,
    pictures: bool,
    opponents: Opponents | None = None,
    names: tuple[str, str] = ("first", "second"),
) -> tuple[GameEnv, Renderer]:
    """Make an environment of one game, not yet reset, and its renderer.

    The rewards of a game of two players are outcomes.

    Args:
        game: The game.
        params: Its parameters.
        pictures: Whether images will be needed.
        opponents: Who plays against a player at the first seat, in a game of two; None: every seat
            is a row.
        names: What the players at both seats are called, in a game in turns.

    Raises:
        InputError: A Gymnasium environment has no images, or a package that draws them is missing.
    """
    if game.name.startswith("gym:"):
        return _gymnasium(game.name, dict(params), pictures=pictures)
    env: GameEnv
    if game.versus is None:
        env = game.make([params], 1, together=1, device="cpu")
    else:
        env = game.versus(
            [params], 1, together=1, device="cpu", opponents=opponents, outcome_rewards=True
        )
    if game.name in _RENDERERS:
        return env, _RENDERERS[game.name](env, params)
    if isinstance(env, TensorGame) and env.in_turns:
        return env, TurnsRenderer(env, names)
    return env, ObservationRenderer(env)


class CartPoleRenderer:
    """Shows the cart, the pole, and the track with its ends."""

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
        for row in range(rows):  # the factor 2 because characters are twice as high as wide
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
        image = Image.new("RGB", (SUPERSAMPLING * WIDTH, SUPERSAMPLING * HEIGHT), PAPER)
        draw = ImageDraw.Draw(image)

        def at(*points: float) -> list[float]:
            return [SUPERSAMPLING * value for value in points]

        ground, scale = 250.0, (WIDTH - 80) / (2.0 * self._params.x_threshold)
        centre, top, long = WIDTH / 2 + x * scale, ground - 28.0, 150.0
        draw.line(at(20, ground, WIDTH - 20, ground), fill=GREY, width=SUPERSAMPLING * 2)
        for side in (-1, 1):
            end = WIDTH / 2 + side * self._params.x_threshold * scale
            draw.line(at(end, ground - 12, end, ground + 12), fill=RED, width=SUPERSAMPLING * 3)
        draw.rectangle(at(centre - 28, top, centre + 28, ground), fill=INK)
        tip = (centre + long * math.sin(angle), top - long * math.cos(angle))
        draw.line(at(centre, top, *tip), fill=WOOD, width=SUPERSAMPLING * 9)
        draw.ellipse(at(centre - 5, top - 5, centre + 5, top + 5), fill=BLUE)
        small = image.resize((WIDTH, HEIGHT), Image.Resampling.BOX)
        ImageDraw.Draw(small).text((12, 10), caption, fill=INK, font=ImageFont.load_default(14))
        return small


class BucketBrigadeRenderer:
    """Shows nights of Bucket Brigade; images have no caption, since they name the night."""

    fps = 2.0

    def __init__(self, env: GameEnv, params: Any) -> None:  # noqa: ARG002
        self._env = cast(BucketBrigade, env)
        self._night = 0

    def _scene(self, *, final: bool) -> Scene:
        if final:  # one night after the last one shown
            return scene(self._env, ended_night=self._night + 1)
        now = scene(self._env)
        self._night = now.night
        return now

    def text(self, caption: str, *, final: bool) -> str:
        return f"{caption}\n{as_text(self._scene(final=final))}"

    def picture(self, caption: str, *, final: bool) -> Image.Image:  # noqa: ARG002
        return Image.fromarray(as_frame(self._scene(final=final)))


class HockeyRenderer:
    """Shows the field as player 1 sees it, the puck's trail, and the goals of all games shown."""

    fps = 1.0 / DT

    def __init__(self, env: GameEnv, params: Any) -> None:  # noqa: ARG002
        self._env = cast(Hockey, env)
        self._trail: deque[tuple[float, float]] = deque(maxlen=TRAIL)
        self._score = (0, 0)
        self._time = 0

    def _scene(self, *, final: bool) -> HockeyScene:
        seen = (self._env.final_obs() if final else self._env.observe())[0].tolist()
        if final:
            goal = float(self._env.final["scored"][0])
            self._score = (self._score[0] + (goal > 0), self._score[1] + (goal < 0))
        # At the end, one step after the last one shown.
        self._time = self._time + 1 if final else int(self._env.age[0])
        shown = scene_of(seen, tuple(self._trail), self._score, self._time)
        self._trail.append(shown.puck)
        if final:
            self._trail.clear()
        return shown

    def text(self, caption: str, *, final: bool) -> str:
        return f"{caption}\n{hockey_text(self._scene(final=final))}"

    def picture(self, caption: str, *, final: bool) -> Image.Image:
        return as_image(self._scene(final=final), caption)


class ObservationRenderer:
    """Shows the observation as numbers, for games without a renderer of their own."""

    fps = 10.0

    def __init__(self, env: GameEnv) -> None:
        self._env = env

    def text(self, caption: str, *, final: bool) -> str:
        seen = (self._env.final_obs() if final else self._env.observe())[0].flatten().tolist()
        numbers = " ".join(f"{value:8.4g}" for value in seen[:16])
        return f"{caption}\nobserves {numbers}{' …' if len(seen) > 16 else ''}"

    def picture(self, caption: str, *, final: bool) -> Image.Image:
        """Return the text as a picture."""
        return text_card(self.text(caption, final=final))


class GymnasiumRenderer(ObservationRenderer):
    """Shows what a Gymnasium environment renders; without render mode "ansi", its observation."""

    def __init__(self, env: ExternalVecEnv, inside: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._inside = inside
        self.fps = float(inside.metadata.get("render_fps") or 30.0)
        self._drawn: Image.Image | None = None

    def text(self, caption: str, *, final: bool) -> str:
        if self._inside.render_mode == "ansi" and not final:
            return f"{caption}\n{self._inside.render()}"
        return super().text(caption, final=final)

    def picture(self, caption: str, *, final: bool) -> Image.Image:
        """Return an image. With `final` it is the last one again: the next episode has begun."""
        del caption
        if not final or self._drawn is None:
            self._drawn = Image.fromarray(cast(Any, self._inside.render())).convert("RGB")
        return self._drawn


_RENDERERS: Mapping[str, Callable[[GameEnv, Any], Renderer]] = {
    "cartpole": CartPoleRenderer,
    "bucket-brigade": BucketBrigadeRenderer,
    "hockey": HockeyRenderer,
}


def _gymnasium(name: str, arguments: dict[str, Any], *, pictures: bool) -> tuple[GameEnv, Renderer]:
    spec = spec_of(name.removeprefix("gym:"))
    wrappers = arguments.get(WRAPPERS, ())
    plain = {name: value for name, value in arguments.items() if name != WRAPPERS}
    made: list[gymnasium.Env[Any, Any]] = []

    def make(mode: str | None) -> gymnasium.Env[Any, Any]:
        # Not all environments accept the argument, so it is omitted if not needed.
        drawing: dict[str, Any] = {"render_mode": mode} if mode else {}
        env = gymnasium.make(spec, disable_env_checker=True, **plain, **drawing)
        made.append(wrap(env, wrappers))
        return made[-1]

    try:
        modes = make(None).metadata.get("render_modes", [])
        made.pop().close()
        if pictures and "rgb_array" not in modes:
            raise InputError(
                f"{name} draws no pictures (its render modes: {', '.join(modes) or 'none'})"
            )
        mode = "rgb_array" if pictures else "ansi" if "ansi" in modes else None
        if pictures:
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame then needs no screen
            make(mode).reset(seed=0)
            made[-1].render()
            made.pop().close()
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise InputError(f"{name} needs a package that is missing here: {error}") from error
    except InputError:
        raise
    except Exception as error:  # the environment may raise anything
        raise InputError(f"{name} cannot be shown: {type(error).__name__}: {error}") from error
    env = ExternalVecEnv(lambda: make(mode), 1, 1)
    return env, GymnasiumRenderer(env, made[-1])
