"""Games in turns in words, for people who watch or play them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from PIL import Image
from rich.text import Text
from torch import Tensor

WIDTH = 78  # columns of a terminal that positions may need
YOU = "you"  # the name of a person who plays


class Words:
    """Says what players see and decide. The base class suits every game, in numbers.

    Everything is said from observations alone, so that nothing hidden can be shown. A game
    overrides these methods and sets `GameRules.words`.

    Attributes:
        draws: Whether there are pictures (`picture`); else pictures show the words.
    """

    draws = False

    def position(self, seen: Tensor, names: tuple[str, str]) -> Text:
        """Describe what a player sees, in lines of at most `WIDTH` columns.

        Args:
            seen: (state_dim,), its observation.
            names: The player's name, and the other one's.
        """
        del names
        numbers = " ".join(f"{value:.4g}" for value in seen.tolist())
        return Text("\n".join(textwrap.wrap(f"observes {numbers}", WIDTH)))

    def option(self, seen: Tensor, chosen: Sequence[int], option: int) -> str:
        """Name an option of the player to move.

        Args:
            seen: (state_dim,), its observation.
            chosen: Its earlier choices.
            option: The option, which is legal.
        """
        del seen
        return f"choice {len(chosen) + 1}: {option}"

    def action(self, seen: Tensor, action: Sequence[int], *, own: bool) -> str:
        """Say what the player to move does, in a phrase that begins with a verb: "bet".

        Args:
            seen: (state_dim,), its observation.
            action: All of its choices.
            own: Whether it is said to the player itself. The base class tells the other nothing, as
                the action may be hidden.
        """
        del seen
        return f"choose {', '.join(map(str, action))}" if own else "make a decision"

    def picture(
        self, seen: Tensor, names: tuple[str, str], caption: str, log: Sequence[str]
    ) -> Image.Image:
        """Draw what a player sees, where there are pictures (`draws`).

        Args:
            seen: See `position`.
            names: See `position`.
            caption: Written above.
            log: The latest decisions, oldest first.
        """
        raise NotImplementedError


def sentence(name: str, phrase: str) -> str:
    """Return who does what: "you bet", but "Mira bets"."""
    if name == YOU:
        return f"{name} {phrase}"
    verb, *rest = phrase.split(" ")
    verb += "es" if verb.endswith(("s", "sh", "ch", "x")) else "s"
    return " ".join((name, verb, *rest))
