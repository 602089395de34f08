"""The rules of the duel for one game, in plain Python objects, and masks by trying every action.

Written from the rules alone. Players are seats 0 and 1; the tensors keep the player to move first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sweepd.envs.games.card_duel.cards import CHAMPION, Effect, Keyword, Kind, card
from sweepd.envs.games.card_duel.constants import (
    CHOICES,
    DECISIONS,
    HEALTH,
    SPARK_MANA,
    TYPES,
    Action,
    Phase,
)

ACTIONS = list(Action)
Target = tuple[int, int]  # seat and place: front slots 0-3, champion 4


@dataclass
class Body:
    """A unit in the front row, or a champion."""

    id: int
    damage: int = 0
    strength: int = 0  # this turn's additional attack
    tapped: bool = False
    stunned: bool = False
    fresh: bool = False
    gear: int = 0

    @property
    def is_champion(self) -> bool:
        return self.id == CHAMPION

    @property
    def max_health(self) -> int:
        return HEALTH if self.is_champion else card(self.id).health

    @property
    def cost(self) -> int:
        return card(self.id).cost

    @property
    def attack(self) -> int:
        own = 0 if self.is_champion else card(self.id).attack
        return own + self.strength + (card(self.gear).attack if self.gear else 0)

    def has(self, keyword: Keyword) -> bool:
        own = Keyword(0) if self.is_champion else card(self.id).keywords
        return keyword in own | (card(self.gear).keywords if self.gear else Keyword(0))

    def hurt(self, amount: int, *, stuns: bool = False) -> None:
        dealt = max(0, amount - (1 if self.has(Keyword.ARMOR) else 0))
        self.damage += dealt
        if stuns and dealt > 0:
            self.stun()

    def stun(self) -> None:
        self.tapped = self.stunned = True


@dataclass
class Resting:
    """A unit in the back row."""

    id: int
    fresh: bool


@dataclass
class Side:
    """What belongs to one player."""

    deck: list[int]
    hand: list[int] = field(default_factory=list)
    front: list[Body | None] = field(default_factory=lambda: [None] * 4)
    champion: Body = field(default_factory=lambda: Body(CHAMPION))
    back: list[Resting | None] = field(default_factory=lambda: [None] * 4)
    discard: Counter[int] = field(default_factory=Counter)
    mana: int = 0
    max_mana: int = 0
    spark: bool = False
    advanced: bool = False
    overdrawn: bool = False

    def draw(self, uniform: float) -> None:
        """Draw a random card of the deck: its order is decided as late as possible."""
        if not self.deck:
            self.overdrawn = True
            return
        at = int(uniform * len(self.deck))
        drawn, last = self.deck[at], self.deck.pop()
        if at < len(self.deck):
            self.deck[at] = last
        self.take(drawn)

    def take(self, card_id: int) -> None:
        """Put a card into the hand, or onto the discard if the hand is full."""
        if len(self.hand) < 10:
            self.hand.append(card_id)
        else:
            self.discard[card_id] += 1

    def bodies(self) -> list[Body | None]:
        return [*self.front, self.champion]

    def remove(self, slot: int) -> Body:
        """Take a unit off the front row; its gear goes to the discard."""
        body = self.front[slot]
        assert body is not None
        self.front[slot] = None
        self.drop_gear(body)
        return body

    def drop_gear(self, body: Body) -> None:
        if body.gear:
            self.discard[body.gear] += 1
            body.gear = 0

    def cards(self) -> Counter[int]:
        """Return the cards of all zones."""
        found = Counter(self.deck) + Counter(self.hand) + self.discard
        for body in self.bodies():
            if body is not None:
                found.update([own for own in (body.id, body.gear) if own not in (0, CHAMPION)])
        return found + Counter(unit.id for unit in self.back if unit is not None)


class Duel:
    """One game. `winner` is None while it goes on, then 0, 1, or -1 for a draw."""

    def __init__(self, decks: Sequence[Sequence[int]], uniforms: Sequence[float]) -> None:
        """Begin with these decks; uniforms: the first player, then five draws of each."""
        self.sides = [Side(list(deck)) for deck in decks]
        self.first = self.mover = self.turn_of = 0 if uniforms[0] < 0.5 else 1
        for number, uniform in enumerate(uniforms[1:]):
            self.sides[self.first if number < 5 else 1 - self.first].draw(uniform)
        self.sides[1 - self.first].spark = True
        self.phase = Phase.MULLIGAN
        self.attacker: int | None = None  # place of the attacking body
        self.target: int | None = None  # place of its target
        self.effect = Effect.NONE  # that waits for a target
        self.source: int | None = None  # front slot of its unit
        self.decisions, self.turns = 0, 0
        self.winner: int | None = None

    # What is legal

    def legal(self, kind: int, first: int, second: int) -> bool:
        """Whether the player to move may act so."""
        action = ACTIONS[kind]
        own = self.sides[self.mover]
        if self.phase == Phase.MULLIGAN:
            return action in (Action.END, Action.MULLIGAN) and first == second == 0
        if self.phase == Phase.TARGET:
            return action == Action.TARGET and first == 0 and self._hits(self.effect, second)
        if action == Action.END:
            return first == second == 0
        if action == Action.SPELL:
            return self._castable(first, second)
        if self.phase == Phase.RESPONSE:
            return action == Action.GUARD and second == 0 and self._can_guard(first)
        if action in (Action.PLAY_FRONT, Action.PLAY_BACK):
            row = own.front if action == Action.PLAY_FRONT else own.back
            return self._affordable(first, Kind.UNIT) and second < 4 and row[second] is None
        if action == Action.GEAR:
            bearer = {0: 0, 1: 1, 2: 2, 3: 3, 8: 4}.get(second)
            if bearer is None or not self._affordable(first, Kind.GEAR):
                return False
            body = own.bodies()[bearer]
            return body is not None and not body.gear
        if action == Action.ATTACK:
            return self._can_attack(first) and self._attackable(second)
        if action == Action.ADVANCE:
            if first >= 4 or second >= 4 or own.advanced:
                return False
            return own.back[first] is not None and own.front[second] is None
        if action == Action.SPARK:
            return first == second == 0 and own.spark and own.mana < 8
        return False

    def _affordable(self, hand: int, kind: Kind) -> bool:
        own = self.sides[self.mover]
        if hand >= len(own.hand):
            return False
        held = card(own.hand[hand])
        return held.kind == kind and held.cost <= own.mana

    def _castable(self, hand: int, target: int) -> bool:
        if not self._affordable(hand, Kind.SPELL):
            return False
        spell = card(self.sides[self.mover].hand[hand])
        if self.phase == Phase.RESPONSE and not spell.quick:
            return False
        return target == 0 if spell.effect == Effect.DRAW else self._hits(spell.effect, target)

    def _place(self, target: int) -> Target:
        """Return the seat and place that a target's number means for the player to move."""
        if target in (8, 9):
            return (self.mover if target == 8 else 1 - self.mover), 4
        return (self.mover if target < 4 else 1 - self.mover), target % 4

    def _hits(self, effect: Effect, target: int) -> bool:
        seat, place = self._place(target)
        body = self.sides[seat].bodies()[place]
        own, unit = seat == self.mover, place < 4
        if body is None or (own and place == self.source):
            return False
        if effect == Effect.DAMAGE:
            return not own
        if effect == Effect.HEAL:
            return own
        if effect == Effect.STUN:
            return not own and unit
        if effect == Effect.RETURN:
            return unit and body.cost <= 3
        return effect == Effect.STRENGTHEN and own and unit

    def _can_attack(self, place: int) -> bool:
        if place > 4:
            return False
        body = self.sides[self.mover].bodies()[place]
        if body is None or body.tapped:
            return False
        if body.is_champion:
            return body.gear != 0
        return not body.fresh or body.has(Keyword.CHARGE)

    def _attackable(self, target: int) -> bool:
        if target == 9:
            return True
        seat, place = self._place(target)
        body = self.sides[seat].bodies()[place]
        return seat != self.mover and body is not None and body.tapped

    def _can_guard(self, slot: int) -> bool:
        attacker = self._attacker()
        guard = self.sides[self.mover].front[slot] if slot < 4 else None
        if guard is None or attacker is None:
            return False
        return not attacker.has(Keyword.EVASIVE) and not guard.tapped and guard.has(Keyword.GUARD)

    def _attacker(self) -> Body | None:
        if self.attacker is None:
            return None
        return self.sides[self.turn_of].bodies()[self.attacker]

    # What happens

    def play(self, kind: int, first: int, second: int, uniforms: Sequence[float]) -> None:
        """Play a legal action.

        uniforms: five for the draws of the player to move, one for a draw of the other.
        """
        assert self.winner is None
        assert self.legal(kind, first, second)
        action, own = Action(kind), self.sides[self.mover]
        luck = {self.mover: list(uniforms[:5]), 1 - self.mover: list(uniforms[5:])}
        if self.phase == Phase.MULLIGAN:
            self._mulligan(action, luck)
        elif action in (Action.PLAY_FRONT, Action.PLAY_BACK):
            self._play_unit(action, own, first, second, luck)
        elif action == Action.GEAR:
            played = self._pay(own, first)
            body = own.bodies()[self._place(second)[1]]
            assert body is not None
            body.gear = played
        elif action == Action.SPELL:
            spell = self._pay(own, first)
            own.discard[spell] += 1
            self._apply(card(spell).effect, second, luck)
        elif action == Action.TARGET:
            effect, self.effect, self.source = self.effect, Effect.NONE, None
            self.phase = Phase.MAIN
            self._apply(effect, second, luck)
        elif action == Action.ATTACK:
            self.attacker, self.target = first, self._place(second)[1]
            body = own.bodies()[first]
            assert body is not None
            body.tapped = True
            self.phase, self.mover = Phase.RESPONSE, 1 - self.mover
        elif action == Action.ADVANCE:
            unit = own.back[first]
            assert unit is not None
            own.back[first] = None
            own.front[second] = Body(unit.id, strength=1, fresh=unit.fresh)
            own.advanced = True
        elif action == Action.SPARK:
            own.spark = False
            own.mana = min(8, own.mana + SPARK_MANA)
        elif self.phase == Phase.RESPONSE:  # a guard or a pass
            if action == Action.GUARD:
                self.target = first
            self._fight(luck)
        else:
            self._end_turn(luck)
        self._after()

    def _mulligan(self, action: Action, luck: dict[int, list[float]]) -> None:
        own = self.sides[self.mover]
        if action == Action.MULLIGAN:
            own.deck += own.hand
            own.hand = []
            for _ in range(5):
                own.draw(luck[self.mover].pop(0))
        if self.mover == self.first:
            self.mover = 1 - self.first
        else:
            self._begin_turn(self.first, luck, draws=False)

    def _begin_turn(self, seat: int, luck: dict[int, list[float]], *, draws: bool = True) -> None:
        own = self.sides[seat]
        self.mover = self.turn_of = seat
        self.phase = Phase.MAIN
        self.turns += 1
        for body in own.bodies():
            if body is not None:
                body.tapped, body.stunned = body.stunned, False
        own.max_mana = min(8, own.max_mana + 1)
        own.mana = own.max_mana
        own.advanced = False
        if draws:
            own.draw(luck[seat].pop(0))

    def _end_turn(self, luck: dict[int, list[float]]) -> None:
        for side in self.sides:
            for place, body in enumerate(side.bodies()):
                if body is None:
                    continue
                body.strength = 0
                if place < 4:
                    body.damage = 0
                side.drop_gear(body)
                body.fresh = False
            for unit in side.back:
                if unit is not None:
                    unit.fresh = False
        self._begin_turn(1 - self.mover, luck)

    def _pay(self, own: Side, hand: int) -> int:
        played = own.hand.pop(hand)
        own.mana -= card(played).cost
        return played

    def _play_unit(
        self, action: Action, own: Side, hand: int, slot: int, luck: dict[int, list[float]]
    ) -> None:
        played = self._pay(own, hand)
        if action == Action.PLAY_FRONT:
            own.front[slot] = Body(played, fresh=True)
            self.source = slot
        else:
            own.back[slot] = Resting(played, fresh=True)
        effect = card(played).effect
        if effect == Effect.DRAW:
            self._apply(effect, 0, luck)
        elif any(self._hits(effect, target) for target in range(CHOICES)):
            self.effect, self.phase = effect, Phase.TARGET
            return
        self.source = None

    def _apply(self, effect: Effect, target: int, luck: dict[int, list[float]]) -> None:
        if effect == Effect.DRAW:
            for _ in range(2):
                self.sides[self.mover].draw(luck[self.mover].pop(0))
            return
        seat, place = self._place(target)
        body = self.sides[seat].bodies()[place]
        assert body is not None
        if effect == Effect.DAMAGE:
            body.hurt(2)
            self._bury(luck)
        elif effect == Effect.HEAL:
            body.damage = max(0, body.damage - 3)
        elif effect == Effect.STUN:
            body.stun()
        elif effect == Effect.RETURN:
            self.sides[seat].take(self.sides[seat].remove(place).id)
        elif effect == Effect.STRENGTHEN:
            body.strength += 2
        self._stop_attack_without_fighters()

    def _stop_attack_without_fighters(self) -> None:
        if self.phase != Phase.RESPONSE:
            return
        assert self.target is not None
        if self._attacker() is None or self.sides[self.mover].bodies()[self.target] is None:
            self._end_attack()

    def _end_attack(self) -> None:
        self.attacker = self.target = None
        self.phase, self.mover = Phase.MAIN, self.turn_of

    def _fight(self, luck: dict[int, list[float]]) -> None:
        assert self.target is not None
        attacker, defender = self._attacker(), self.sides[self.mover].bodies()[self.target]
        assert attacker is not None
        assert defender is not None
        blows = attacker.attack, defender.attack
        attacker.hurt(blows[1], stuns=defender.has(Keyword.STUN))
        defender.hurt(blows[0], stuns=attacker.has(Keyword.STUN))
        self._bury(luck)
        self._end_attack()

    def _bury(self, luck: dict[int, list[float]]) -> None:
        """Units whose damage reaches their health go to the discard; last gifts are drawn."""
        gifts = []
        for seat, side in enumerate(self.sides):
            for slot, body in enumerate(side.front):
                if body is not None and body.damage >= body.max_health:
                    if body.has(Keyword.LAST_GIFT):
                        gifts.append(seat)
                    side.discard[side.remove(slot).id] += 1
        for seat in gifts:
            self.sides[seat].draw(luck[seat].pop(0))

    def _after(self) -> None:
        self.decisions += 1
        lost = [side.overdrawn or side.champion.damage >= HEALTH for side in self.sides]
        if any(lost):
            self.winner = -1 if all(lost) else lost.index(False)
        elif self.decisions >= DECISIONS:
            self.winner = -1


def observation(game: Duel, seat: int) -> list[int]:
    """Return what a seat sees, byte by byte."""
    sides = [game.sides[seat], game.sides[1 - seat]]
    seats = [seat, 1 - seat]
    bytes_: list[int] = [*sides[0].hand, *[0] * (10 - len(sides[0].hand))]
    for whose, side in zip(seats, sides, strict=True):
        for place, body in enumerate(side.bodies()):
            is_attacker = whose == game.turn_of and place == game.attacker
            is_target = whose != game.turn_of and place == game.target
            is_source = whose == game.turn_of and place == game.source
            flags = [is_attacker, is_target, is_source]
            if body is None:
                bytes_ += [0] * 9
                continue
            bytes_ += [body.id, max(0, body.max_health - body.damage), body.attack]
            bytes_ += map(int, [body.tapped, body.stunned, body.fresh, *flags])
    for side in sides:
        for unit in side.back:
            bytes_ += [0, 0] if unit is None else [unit.id, int(unit.fresh)]
    for side in sides:
        bytes_ += [0 if body is None else body.gear for body in side.bodies()]
    bytes_ += [int(game.phase == phase) for phase in Phase]
    bytes_ += [int(game.effect == effect) for effect in Effect if effect != Effect.NONE]
    bytes_ += [int(game.turn_of == seat), int(game.mover == seat), int(game.first != seat)]
    bytes_ += [(300 - game.decisions) // 2]
    for side in sides:
        bytes_ += [side.mana, side.max_mana, int(side.spark), int(side.advanced)]
        bytes_ += [len(side.hand), len(side.deck)]
    for side in sides:
        bytes_ += [side.discard[own] for own in range(1, 25)]
    return bytes_


def masks(game: Duel) -> tuple[list[bool], list[list[bool]], list[list[list[bool]]]]:
    """Return the three masks by trying every action.

    An action that has no legal first or second number is not legal. For types that are not legal,
    everything that follows is false.
    """
    second = [
        [[game.legal(kind, i, j) for j in range(CHOICES)] for i in range(CHOICES)]
        for kind in range(TYPES)
    ]
    first = [[any(row) for row in of_type] for of_type in second]
    return [any(of_type) for of_type in first], first, second
