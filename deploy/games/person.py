"""Games in turns of a person against a player, with numbered lists of legal options."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor

from sweepd.deploy.games.bundle import GameBundle
from sweepd.deploy.games.show import SELF
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.game import Game
from sweepd.envs.games.opponents import ScriptedPlayer, scripted_act
from sweepd.envs.games.tensor_game import TensorGame
from sweepd.envs.games.turns_view import LOG, TurnsRenderer
from sweepd.envs.games.words import YOU
from sweepd.envs.support.errors import InputError

SEATS = ("me", "first", "second")  # values of --seat
_LONGEST = 3  # digits of a number that a person enters


class Stopped(Exception):
    """The person has ended the game, or its input has ended."""


@dataclass(frozen=True)
class Played:
    """What a person has played.

    Attributes:
        outcomes: Of the finished games, for the person: 1 won, 0.5 drawn, 0 lost.
        opponent: Who played against it.
        stopped: Whether it ended the last game early.
    """

    outcomes: list[float]
    opponent: str
    stopped: bool


class Match:
    """Games of a person against one player.

    Args:
        game: The game.
        params: Its parameters.
        champion: The player, unless `opponent` is another one; None: there is none.
        name: What the champion is called; "": as its bundle.
        seat: One of `SEATS`; "me" takes the first seat in the first game, and changes seats after
            every game.
        opponent: The name of a scripted player; None or "self": the champion. Without one, None is
            the game's last scripted player.
        seed: Of the games.
        console: Where everything is printed.

    Raises:
        InputError: The game is not one in turns, or something is not known.
    """

    def __init__(
        self,
        game: Game,
        params: Any,
        *,
        champion: GameBundle | None,
        seat: str,
        opponent: str | None,
        seed: int,
        console: Console,
        name: str = "",
    ) -> None:
        if seat not in SEATS:
            raise InputError(f"--seat {seat!r} is not known; choose one of {', '.join(SEATS)}")
        env: Any = None
        if game.versus is not None:
            env = game.versus([params], 1, together=1, device="cpu", outcome_rewards=True)
        if not isinstance(env, TensorGame) or not env.in_turns:
            raise InputError(f"--seat is for games of two players in turns; {game.name} is not one")
        scripted = game.scripted(params)
        known = [*([] if champion is None else [SELF]), *scripted]
        if not known:
            raise InputError(
                f"{game.name} has no scripted players: name a champion to play against"
            )
        if opponent is None:
            opponent = known[0 if champion else -1]
        if opponent not in known:
            one_of = ", ".join(known)
            raise InputError(f"--opponent {opponent!r} is not known; choose one of {one_of}")
        self.env, self._console, self._seat = env, console, seat
        env.reset_member(0, seed)
        own = derive_seed(seed, "player")
        if champion is not None and opponent == SELF:
            self.opponent = name or champion.name
            self._act: Callable[[Tensor], Tensor] = champion.player.seated(env, own)
        else:
            self.opponent = opponent
            self._act = _ScriptedSeat(scripted[opponent], env, own)

    def play(self, games: int) -> Played:
        """Play that many games; Ctrl-C, "q" and the end of the input end them."""
        outcomes: list[float] = []
        try:
            for game in range(games):
                outcomes.append(self._game(game))
        except (Stopped, KeyboardInterrupt):
            return Played(outcomes, self.opponent, stopped=True)
        return Played(outcomes, self.opponent, stopped=False)

    def _game(self, game: int) -> float:
        """Play a game; return the person's outcome."""
        env = self.env
        seat = game % 2 if self._seat == "me" else int(self._seat == "second")
        names = (self.opponent, YOU) if seat else (YOU, self.opponent)
        renderer = TurnsRenderer(env, names, seat, whole=False)
        ended = getattr(self._act, "ended", lambda _: None)
        shown = 0  # decisions that the person has seen
        while True:
            if int(env.to_move()[0]) == seat:
                fresh = max(LOG, len(renderer.log) - shown)
                caption = f"game {game + 1}, against {self.opponent}"
                self._print(renderer.text(caption, final=False, log=fresh))
                shown = len(renderer.log)
                action = torch.tensor([choose(env, self._console)])
                action = action if env.spec.action_dims else action[:, 0]
            else:
                action = self._act(env.observe())
            made = env.step(action)
            env.check()
            renderer.note()
            ended(made.terminated)
            if bool(made.terminated[0]):
                break
        outcome = float(made.reward[0, seat])
        result = "a draw" if outcome == 0.5 else f"you have {'won' if outcome > 0.5 else 'lost'}"
        caption = f"game {game + 1}, the end: {result}"
        fresh = max(LOG, len(renderer.log) - shown)
        self._print(renderer.text(caption, final=True, log=fresh))
        return outcome

    def _print(self, text: Text) -> None:
        self._console.print()
        self._console.print(text, highlight=False, soft_wrap=True)


class _ScriptedSeat:
    """A scripted player that acts where it is to move, in an environment of one game."""

    def __init__(self, player: ScriptedPlayer, env: TensorGame, seed: int) -> None:
        self._player, self._env = player, env
        self._generator = torch.Generator().manual_seed(seed)
        self._memory = player.start(self._uniforms())

    def __call__(self, obs: Tensor) -> Tensor:
        env = self._env
        legal = env.action_mask if env.spec.masked else None
        action, self._memory = scripted_act(
            self._player, obs, self._memory, self._uniforms(), legal
        )
        return action

    def ended(self, over: Tensor) -> None:
        """Begin the next game. over: (1,) bool."""
        if bool(over[0]):
            self._memory = self._player.start(self._uniforms())

    def _uniforms(self) -> Tensor:
        return torch.rand(1, self._player.uniforms, generator=self._generator, dtype=torch.float64)


def legal_options(env: TensorGame, chosen: Sequence[int]) -> list[int]:
    """Return the legal options of the next choice in an environment of one game.

    Args:
        env: The environment.
        chosen: The first choices of the player to move.
    """
    if not env.spec.masked:
        sizes = env.spec.choices
        return list(range(sizes[len(chosen)]))
    mask = env.action_mask(torch.tensor([list(chosen)], dtype=torch.int64).view(1, -1))
    return [int(option) for option in mask[0].nonzero().flatten()]


def choose(env: TensorGame, console: Console) -> list[int]:
    """Ask a person for the action of the player to move, choice by choice.

    A choice with one legal option is made without a question, unless the whole action would be.

    Raises:
        Stopped: The person ends the game, or the input has ended.
    """
    words, seen = env.words, env.observe()[0, : env.state_dim]
    choices = len(env.spec.choices)
    chosen: list[int] = []
    asked = False
    while len(chosen) < choices:
        options = legal_options(env, chosen)
        if not options:
            env.check()
            raise RuntimeError(f"no option is legal after {chosen}: {env.position(final=False)}")
        if len(options) == 1:
            chosen.append(options[0])
            continue
        labels = [words.option(seen, chosen, option) for option in options]
        answer = _ask(labels, console, back=asked)
        asked = answer is not None
        chosen = [] if answer is None else [*chosen, options[answer]]
    if not asked:
        _ask([words.action(seen, chosen, own=True)], console, back=False)
    return chosen


def _ask(labels: Sequence[str], console: Console, *, back: bool) -> int | None:
    """Let a person choose one of the labels; return its index, or None to go back."""
    width = len(str(len(labels)))
    for number, label in enumerate(labels, 1):
        console.print(f"  {number:>{width}}  {label}", markup=False, highlight=False)
    hint = f"1-{len(labels)}" if len(labels) > 1 else "1"
    hint += ", b: back, q: quit" if back else ", q: quit"
    while True:
        console.print(f"{hint} > ", end="", markup=False, highlight=False)
        answer = _read(console)
        if answer == "q":
            raise Stopped
        if answer == "b" and back:
            return None
        if answer.isascii() and answer.isdigit() and len(answer) <= _LONGEST:
            number = int(answer)
            if 1 <= number <= len(labels):
                return number - 1
        allowed = f"a number from 1 to {len(labels)}" if len(labels) > 1 else "1"
        console.print(f"please enter {allowed}" + (", b or q" if back else " or q"))


def _read(console: Console) -> str:
    """Read a line.

    Raises:
        Stopped: There is none.
    """
    console.file.flush()
    with contextlib.suppress(AttributeError, ValueError):
        # Bytes that are no text are wrong input like any other.
        sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    line = sys.stdin.readline() if sys.stdin is not None else ""
    if not sys.stdin or not sys.stdin.isatty():
        console.print()  # a terminal shows the end of the line that was typed
    if not line:
        raise Stopped
    return line.strip().lower()
