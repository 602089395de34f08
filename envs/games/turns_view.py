"""Shows games in turns as one seat sees them, with a log of the latest decisions."""

from __future__ import annotations

from PIL import Image
from rich.text import Text
from torch import Tensor

from sweepd.envs.games.tensor_game import TensorGame
from sweepd.envs.games.text_card import text_card
from sweepd.envs.games.words import Words, sentence

LOG = 5  # decisions that are shown


class TurnsRenderer:
    """Shows the first game of an environment (`render.Renderer`).

    Args:
        env: The game, in turns.
        names: What the players at both seats are called.
        seat: Whose view is shown, unless the game has no words of its own: then the whole position
            is described, with what is hidden, if `whole`.
        whole: Whether all may be shown, as to someone who does not play.

    Attributes:
        log: The decisions of the present game, in words.
    """

    fps = 2.0

    def __init__(
        self, env: TensorGame, names: tuple[str, str], seat: int = 0, *, whole: bool = True
    ) -> None:
        self._env, self.names, self.seat = env, names, seat
        self._whole = whole and type(env.words) is Words
        self.log: list[str] = []
        self._noted = env.played

    def note(self) -> None:
        """Add the latest decision to the log. Called after every step, or by `text`."""
        played = self._env.played
        if played is None or played is self._noted:
            return
        self._noted = played
        action, before = played
        mover = self._env.mover(before)
        who, seen = int(mover[0]), self._env.see(before, mover)[0]
        phrase = self._env.words.action(seen, action[0].reshape(-1).tolist(), own=who == self.seat)
        self.log.append(sentence(self.names[who], phrase))

    def text(self, caption: str, *, final: bool, log: int = LOG) -> Text:
        """See `Renderer.text`. log: number of decisions that are shown."""
        self.note()
        if self._whole:
            shown = Text(self._env.position(final=final))
        else:
            shown = self._env.words.position(self._seen(final), self._views())
        decisions = [Text(f"  {entry}", style="dim") for entry in self._latest(log, final)]
        return Text("\n").join([Text(caption), shown, *decisions])

    def picture(self, caption: str, *, final: bool) -> Image.Image:
        """See `Renderer.picture`. The text, unless the game's words draw."""
        if not self._env.words.draws:
            return text_card(self.text(caption, final=final).plain)
        self.note()
        seen, log = self._seen(final), self._latest(LOG, final)
        return self._env.words.picture(seen, self._views(), caption, log)

    def _seen(self, final: bool) -> Tensor:
        return self._env.seen_by(self.seat, final=final)

    def _views(self) -> tuple[str, str]:
        return self.names[self.seat], self.names[1 - self.seat]

    def _latest(self, count: int, final: bool) -> list[str]:
        latest = self.log[-count:] if count else []
        if final:  # the next decision is one of the next game
            self.log.clear()
        return latest
