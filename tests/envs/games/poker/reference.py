"""Kuhn and Leduc poker, one game at a time, in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class KuhnGame:
    """cards: 0 to 2, of both players. decisions: "p" pass, "b" bet."""

    cards: tuple[int, int]
    decisions: str = ""

    @property
    def over(self) -> bool:
        return self.decisions in {"pp", "bp", "bb", "pbp", "pbb"}

    @property
    def mover(self) -> int:
        return len(self.decisions) % 2

    @property
    def legal(self) -> list[bool]:
        return [True, True]

    def play(self, option: int) -> None:
        self.decisions += "pb"[option]

    @property
    def returns(self) -> tuple[float, float]:
        winner = 1 if self.cards[0] > self.cards[1] else -1
        won = {"pp": winner, "bb": 2 * winner, "pbb": 2 * winner, "bp": 1, "pbp": -1}
        first = float(won[self.decisions])
        return first, -first

    def seen(self, seat: int) -> list[float]:
        seats, own = [0.0] * 2, [0.0] * 3
        seats[seat] = own[self.cards[seat]] = 1.0
        made = [0.0] * 6
        for place, decision in enumerate(self.decisions):
            made[2 * place + (decision == "b")] = 1.0
        return seats + own + made


@dataclass
class LeducGame:
    """cards: 0 to 5, of both players and public. Options: 0 fold, 1 call, 2 raise."""

    cards: tuple[int, int, int]
    rounds: list[list[int]] = field(default_factory=lambda: [[]])
    paid: list[int] = field(default_factory=lambda: [1, 1])
    folded: int | None = None
    over: bool = False

    @property
    def mover(self) -> int:
        return len(self.rounds[-1]) % 2

    @property
    def legal(self) -> list[bool]:
        return [self.paid[0] != self.paid[1], True, self.rounds[-1].count(2) < 2]

    def play(self, option: int) -> None:
        seat, present = self.mover, self.rounds[-1]
        present.append(option)
        if option == 0:
            self.folded, self.over = seat, True
        elif option == 2:
            self.paid[seat] = max(self.paid) + (2 if len(self.rounds) == 1 else 4)
        else:
            self.paid[seat] = max(self.paid)
            if len(present) > 1 and len(self.rounds) == 2:
                self.over = True
            elif len(present) > 1:
                self.rounds.append([])

    @property
    def returns(self) -> tuple[float, float]:
        if self.folded is not None:
            first = float(-self.paid[0] if self.folded == 0 else self.paid[1])
            return first, -first
        public = self.cards[2] // 2
        hands = [(card // 2 == public, card // 2) for card in self.cards[:2]]
        first = float(self.paid[0] * ((hands[0] > hands[1]) - (hands[0] < hands[1])))
        return first, -first

    def seen(self, seat: int) -> list[float]:
        seats, own, public = [0.0] * 2, [0.0] * 6, [0.0] * 6
        seats[seat] = own[self.cards[seat]] = 1.0
        if len(self.rounds) == 2:
            public[self.cards[2]] = 1.0
        made = [0.0] * 16
        for number, decisions in enumerate(self.rounds):
            for place, option in enumerate(decisions):
                if option:
                    made[8 * number + 2 * place + option - 1] = 1.0
        return seats + own + public + made
