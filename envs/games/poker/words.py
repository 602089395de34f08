"""Kuhn and Leduc poker in words, for people who watch or play them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from torch import Tensor

from sweepd.envs.games.words import Words


class KuhnWords(Words):
    """See `Words`."""

    def position(self, seen: Tensor, names: tuple[str, str]) -> Text:
        """See `Words.position`."""
        made = [name for _, name in _kuhn_decisions(seen)]
        return Text(
            f"card of {names[0]}: {'JQK'[_place(seen[2:5])]}; of {names[1]}: face down\n"
            f"decisions: {', '.join(made) or 'none'}"
        )

    def option(self, seen: Tensor, chosen: Sequence[int], option: int) -> str:
        """See `Words.option`."""
        del chosen
        after_bet = any(bet for bet, _ in _kuhn_decisions(seen))
        return (("pass", "bet"), ("fold", "call"))[after_bet][option]

    def action(self, seen: Tensor, action: Sequence[int], *, own: bool) -> str:
        """See `Words.action`."""
        del own
        return self.option(seen, (), action[0])


class LeducWords(Words):
    """See `Words`."""

    def position(self, seen: Tensor, names: tuple[str, str]) -> Text:
        """See `Words.position`. Suits do not count."""
        public = seen[8:14]
        shown = _rank(public) if bool(public.any()) else "not yet shown"
        rounds = [", ".join(_leduc_decisions(seen, number)) or "none" for number in (0, 1)]
        return Text(
            f"card of {names[0]}: {_rank(seen[2:8])}; of {names[1]}: face down; public card: "
            f"{shown}\ndecisions of round 1: {rounds[0]}; of round 2: {rounds[1]}"
        )

    def option(self, seen: Tensor, chosen: Sequence[int], option: int) -> str:
        """See `Words.option`."""
        del chosen
        made = _leduc_decisions(seen, int(seen[8:14].any()))
        raised = bool(made) and made[-1] == "raise"
        return ("fold", "call" if raised else "check", "raise")[option]

    def action(self, seen: Tensor, action: Sequence[int], *, own: bool) -> str:
        """See `Words.action`."""
        del own
        return self.option(seen, (), action[0])


def _place(flags: Tensor) -> int:
    return int(flags.argmax())


def _rank(flags: Tensor) -> str:
    """Return the rank of a card; two suits of each are adjacent."""
    return "JQK"[_place(flags) // 2]


def _kuhn_decisions(seen: Tensor) -> list[tuple[bool, str]]:
    """Return the decisions so far: whether each was a bet, and its name."""
    flags = seen[5:11].view(3, 2).bool().tolist()
    return [(bet, "bet" if bet else "pass") for passed, bet in flags if passed or bet]


def _leduc_decisions(seen: Tensor, number: int) -> list[str]:
    """Return the names of the decisions of a round, from 0."""
    flags = seen[14:].view(2, -1, 2)[number].bool().tolist()
    return ["raise" if raised else "call" for called, raised in flags if called or raised]
