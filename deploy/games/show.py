"""Show a player's games frame by frame, in the terminal or as an animation."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from PIL import Image
from rich.console import Console
from rich.live import Live
from rich.text import Text

from sweepd.deploy.games.bundle import GameBundle
from sweepd.deploy.promotion.studies import attach
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.opponents import Opponents, Scripted
from sweepd.envs.games.pairings import is_versus
from sweepd.envs.games.render import Renderer, showing
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.invocation import install_extra
from sweepd.optimize.study.record.reader import StudyReader

MOST_FRAMES = 2_000  # of an animation
GIF_FPS = 25.0  # higher rates need larger files, and not all programs support them
COLOURS = 64


SELF = "self"  # the player itself as its opponent
RESULTS = {1.0: "won", 0.5: "drawn", 0.0: "lost"}  # by outcome


@dataclass(frozen=True)
class Shot:
    """A moment of a game.

    Attributes:
        episode: index of the game.
        step: number of steps so far.
        total: the return so far; in a game of two players the outcome, at its end.
        final: whether it is the last state.
        opponent: who plays against the player in a game of two.
    """

    episode: int
    step: int
    total: float
    final: bool
    opponent: str | None = None

    @property
    def caption(self) -> str:
        """The caption of the frame."""
        if self.opponent is not None:
            result = RESULTS.get(self.total, f"outcome {self.total:.4g}")
            ended = f", {result}" if self.final else ""
            return f"game {self.episode + 1}, step {self.step}, against {self.opponent}{ended}"
        ended = ", the end" if self.final else ""
        return f"game {self.episode + 1}, step {self.step}, return {self.total:.4g}{ended}"


class Show:
    """Plays a bundle's games one after the other.

    Args:
        bundle: the player.
        seed: of the games.
        pictures: whether pictures will be drawn.
        name: what the player is called; None: as its bundle.
        opponent: in a game of two players the name of the scripted player at the second seat, or
            "self"; None: the game's last scripted player, or "self" if it has none.

    Attributes:
        opponent: who plays against the player; None in other games.

    Raises:
        InputError: the game cannot be shown, or has no such opponent.
    """

    def __init__(
        self,
        bundle: GameBundle,
        *,
        seed: int,
        pictures: bool,
        name: str | None = None,
        opponent: str | None = None,
    ) -> None:
        self.game, self.params = bundle.game, bundle.params
        self.opponent = self._opponent(opponent)
        opponents: Opponents | None = None
        if self.opponent not in (None, SELF):
            assert self.opponent is not None
            player = self.game.scripted(self.params)[self.opponent]
            opponents = Scripted({self.opponent: player}, 1)
            opponents.configure_member(0, {self.opponent: 1.0}, "first")
        versus_itself = self.opponent in (None, SELF)
        names = ("first", "second") if versus_itself else (name or bundle.name, str(self.opponent))
        self.env, self.renderer = showing(
            self.game, self.params, pictures=pictures, opponents=opponents, names=names
        )
        self._player, self._seed = bundle.player, seed

    def _opponent(self, asked: str | None) -> str | None:
        if not is_versus(self.game, self.params):
            if asked is not None:
                raise InputError(f"--opponent {asked}: {self.game.name} has no opponents")
            return None
        known = [SELF, *self.game.scripted(self.params)]
        if asked is not None and asked not in known:
            raise InputError(f"--opponent {asked!r} is not known; choose one of {', '.join(known)}")
        return asked or known[-1]

    def shots(self, episodes: int) -> Iterator[Shot]:
        """Every moment of that many games; the renderer shows it until the next one is drawn."""
        env = self.env
        env.reset_member(0, self._seed)
        act = self._player.seated(env, derive_seed(self._seed, "player"))
        ended = getattr(act, "ended", lambda _: None)
        obs = env.observe()
        # Rows of the first game that count: in a game of two players, the player's own seat.
        seats = 1 if self.opponent else self.game.seats(self.params)
        for episode in range(episodes):
            total, playing = 0.0, torch.ones(seats, dtype=torch.bool)
            yield Shot(episode, 0, total, final=False, opponent=self.opponent)
            for step in itertools.count(1):
                made = env.step(act(obs))
                obs = made.obs
                # Against itself in turns, a row has the rewards of both; the player is the first.
                reward = made.reward if env.spec.players == 1 else made.reward[:, 0]
                total += float((reward.double() * env.reward_unit)[:seats][playing].sum())
                over = made.terminated | made.truncated
                ended(over)
                playing &= ~over[:seats]
                final = not bool(playing.any())
                yield Shot(episode, step, total, final, self.opponent)
                if final:
                    break
        env.check()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def best_seed(bundle: GameBundle, games: int, seed: int, **shown: Any) -> tuple[int, float]:
    """Play games without drawing them, and return the seed and the result of the best one.

    Args:
        bundle: the player.
        games: their number; of equal results the first game counts.
        seed: of the first game; the others have the seeds that follow.
        shown: further arguments of `Show`.
    """
    best = (seed, -math.inf)
    for own in range(seed, seed + games):
        with contextlib.closing(Show(bundle, seed=own, pictures=False, **shown)) as show:
            total = [shot.total for shot in show.shots(1)][-1]
        best = (own, total) if total > best[1] else best
    return best


def show_in_terminal(show: Show, episodes: int, console: Console) -> list[float]:
    """Print all frames, at the game's own speed if the output is a terminal.

    Returns:
        The returns of the finished games; Ctrl-C ends the show.
    """
    returns: list[float] = []
    watched = console.is_terminal
    try:
        with (
            Live(console=console, auto_refresh=False)
            if watched
            else contextlib.nullcontext() as live
        ):
            for shot in show.shots(episodes):
                text = show.renderer.text(shot.caption, final=shot.final)
                text = Text(text) if isinstance(text, str) else text
                if live is None:
                    console.print(text, highlight=False, soft_wrap=True)
                else:
                    live.update(text, refresh=True)
                    time.sleep(1.0 / show.renderer.fps)
                if shot.final:
                    returns.append(shot.total)
    except KeyboardInterrupt:
        console.print("stopped", style="dim")
    return returns


def write_animation(show: Show, episodes: int, path: Path) -> list[float]:
    """Write a GIF or an MP4, depending on the file's name.

    Returns:
        The returns of the games that are shown to their end.

    Raises:
        InputError: the file is of another type, or a package is missing.
    """
    writers = {".gif": _write_gif, ".mp4": _write_mp4}
    if path.suffix.lower() not in writers:
        raise InputError(f"--out {path} must end in .gif or .mp4")
    returns: list[float] = []
    stride = max(1, round(show.renderer.fps / GIF_FPS))

    def pictures(renderer: Renderer) -> Iterator[Image.Image]:
        shots = itertools.islice(show.shots(episodes), MOST_FRAMES * stride)
        for shot in shots:
            if shot.final:
                returns.append(shot.total)
            if shot.step % stride == 0 or shot.final:
                yield renderer.picture(shot.caption, final=shot.final)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write = writers[path.suffix.lower()]
        write_atomic(
            path, lambda target: write(target, pictures(show.renderer), show.renderer.fps / stride)
        )
    except OSError as error:
        raise InputError(f"--out {path} cannot be written: {error.strerror or error}") from error
    return returns


def _write_gif(path: Path, pictures: Iterator[Image.Image], fps: float) -> None:
    reduced = (picture.quantize(COLOURS, dither=Image.Dither.NONE) for picture in pictures)
    first = next(reduced)
    first.save(
        path,
        format="GIF",
        save_all=True,
        append_images=reduced,
        duration=round(1000.0 / fps),
        loop=0,
    )


def _write_mp4(path: Path, pictures: Iterator[Image.Image], fps: float) -> None:
    try:
        import imageio.v2 as imageio
        import imageio_ffmpeg  # noqa: F401 - its absence gives a clearer message than imageio's
    except ModuleNotFoundError as error:
        raise InputError(
            f"--out: MP4 needs packages that are missing here: {install_extra('video')}"
        ) from error
    import numpy as np

    options: dict[str, Any] = {
        "format": "FFMPEG",
        "fps": fps,
        "macro_block_size": 2,
        "output_params": ["-f", "mp4"],
    }
    with contextlib.closing(cast(Any, imageio.get_writer(path, **options))) as writer:
        for picture in pictures:
            writer.append_data(np.asarray(picture))


def publish_replay(study: StudyReader, bundle: GameBundle, name: str) -> Path:
    """Write a game of the player as a GIF, and attach it to the study for optuna-dashboard.

    Optuna accepts no artifacts for finished trials, so the study gets it, under the trial's name.

    Args:
        study: the study.
        bundle: of the player.
        name: what the player is called in the picture.

    Returns:
        The GIF's path.

    Raises:
        InputError: the game cannot be shown.
    """
    path = study.run_dir / "gate" / f"replay-trial-{bundle.origin.trial}.gif"
    seed = int(bundle.manifest.gate["panel"]["seed"])
    with contextlib.closing(Show(bundle, seed=seed, pictures=True, name=name)) as show:
        write_animation(show, 1, path)
    attach(study, [path])
    return path
