"""The scripted players for one game of the scalar reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sweepd.envs.games.card_duel.cards import Card, Effect, Keyword, Kind, card
from sweepd.envs.games.card_duel.constants import SPARK_MANA, Action, Phase
from tests.envs.games.card_duel.reference import Body, Duel, masks
from tests.envs.games.card_duel.sample_games import Chosen

NEVER = -1000


def random_choice(game: Duel, uniforms: Sequence[float]) -> Chosen:
    """Choose type, first and second number, each with one uniform number."""
    types, firsts, seconds = masks(game)
    kind = _nth(types, uniforms[0])
    first = _nth(firsts[kind], uniforms[1])
    return kind, first, _nth(seconds[kind][first], uniforms[2])


def _nth(mask: Sequence[bool], uniform: float) -> int:
    legal = [option for option, allowed in enumerate(mask) if allowed]
    return legal[int(uniform * len(legal))]


class Greedy:
    """The greedy player's choice in one position."""

    def __init__(self, game: Duel) -> None:
        self.game = game
        self.own, self.enemy = game.sides[game.mover], game.sides[1 - game.mover]
        self.responds = game.phase == Phase.RESPONSE
        self.attacker = game._attacker() if self.responds else None
        self.attacked = self.own.bodies()[game.target] if game.target is not None else None

    def choice(self) -> Chosen:
        types, firsts, seconds = masks(self.game)
        kind = _best(types, self.of_type)
        first = _best(firsts[kind], lambda option: self.of_first(kind, option))
        return kind, first, _best(seconds[kind][first], lambda o: self.of_second(kind, first, o))

    def of_type(self, kind: int) -> int:
        hand = [card(held) for held in self.own.hand]
        if kind == Action.MULLIGAN:
            return -1
        if kind == Action.SPARK:
            missing = [own.cost - self.own.mana for own in hand if own.kind == Kind.UNIT]
            return 199 if SPARK_MANA in missing else -1
        wanted = {
            Action.PLAY_FRONT: Kind.UNIT,
            Action.PLAY_BACK: Kind.UNIT,
            Action.GEAR: Kind.GEAR,
            Action.SPELL: Kind.SPELL,
        }
        if kind in wanted:
            held = [self.of_card(own) for own in hand if own.kind == wanted[Action(kind)]]
            return max(held, default=-1) - (kind == Action.PLAY_BACK)
        if kind == Action.ADVANCE:
            return 50
        if kind == Action.ATTACK:
            return max(self.of_attack(i, j) for i in range(5) for j in range(5))
        if kind == Action.GUARD:
            return max(self.of_guard(slot) for slot in range(4))
        return 0

    def of_first(self, kind: int, option: int) -> int:
        if kind in (Action.PLAY_FRONT, Action.PLAY_BACK, Action.GEAR, Action.SPELL):
            return self.of_card(card(self.own.hand[option]))
        if kind == Action.ATTACK:
            return max(self.of_attack(option, place) for place in range(5))
        if kind == Action.ADVANCE:
            unit = self.own.back[option]
            assert unit is not None
            return card(unit.id).attack
        return self.of_guard(option) if kind == Action.GUARD else 0

    def of_second(self, kind: int, first: int, option: int) -> int:
        if kind == Action.SPELL:
            return self.of_target(card(self.own.hand[first]).effect, option)
        if kind == Action.TARGET:
            return self.of_target(self.game.effect, option)
        if kind == Action.GEAR:
            body = self.own.bodies()[min(option, 4)]
            assert body is not None
            return 10 * _ready(body) + body.attack
        if kind == Action.ATTACK:
            return self.of_attack(first, 4 if option == 9 else option - 4)
        return 0

    def of_card(self, own: Card) -> int:
        if own.cost > self.own.mana:
            return -1
        if own.kind == Kind.GEAR:
            ready = [body for body in self.own.bodies() if body and _ready(body) and not body.gear]
            return 60 + 4 * own.cost if ready else -1
        if own.kind == Kind.UNIT:
            return 60 + 4 * own.cost + 2
        if own.effect == Effect.DRAW:
            useful = len(self.own.deck) >= 6
        else:
            least = 10 if own.effect in (Effect.RETURN, Effect.STRENGTHEN) else 1
            useful = max(self.of_target(own.effect, target) for target in range(10)) >= least
        return 60 + 4 * own.cost + 1 if useful else -1

    def of_target(self, effect: Effect, target: int) -> int:
        """What an effect is worth on a target, 0 where it cannot be."""
        seat, place = self.game._place(target)
        own, body = seat == self.game.mover, self.game.sides[seat].bodies()[place]
        if body is None or effect == Effect.DRAW:
            return 0
        left = body.max_health - body.damage
        if effect == Effect.HEAL:
            return min(3, body.damage) if own else 0
        if body.is_champion:
            if effect == Effect.DAMAGE and not own:
                return 5 * (not self.responds) + 100 * (left <= 2)
            return 0
        if effect == Effect.DAMAGE and not own:
            weight = 1 if not self.responds else 10 * (body is self.attacker)
            return weight * (10 + body.cost) if left + _armor(body) <= 2 else 0
        if effect == Effect.STUN and not own:
            return body.attack + 10 * (not body.tapped)
        if effect == Effect.RETURN and body.cost <= 3:
            return 1 if own else 10 + body.cost
        if effect == Effect.STRENGTHEN and own:
            if not self.responds:
                return body.attack + 10 * _ready(body)
            if self.attacker is None or self.attacker.is_champion or body is not self.attacked:
                return 0
            health = self.attacker.max_health - self.attacker.damage
            return 100 * (0 < health + _armor(self.attacker) - body.attack <= 2)
        return 0

    def of_attack(self, place: int, target: int) -> int:
        own, enemy = self.own.bodies()[place], self.enemy.bodies()[target]
        if own is None or enemy is None or not _ready(own):
            return NEVER
        if own.is_champion and not own.gear:
            return NEVER
        blow = max(0, own.attack - _armor(enemy))
        left = enemy.max_health - enemy.damage
        if enemy.is_champion:
            if blow >= left:
                return 40
            return 10 + min(9, blow) if blow > 0 and self.is_safe(own) else NEVER
        if not enemy.tapped or blow < left:
            return NEVER
        dies = max(0, enemy.attack - _armor(own)) >= own.max_health - own.damage
        balance = _value(enemy) - dies * (100 if own.is_champion else _value(own))
        return 20 + balance if balance >= 0 else NEVER

    def is_safe(self, own: Body) -> bool:
        """Whether no enemy unit could attack the tapped unit next turn and win by it."""
        if own.is_champion:
            return True
        for enemy in self.enemy.front:
            if enemy is None or enemy.attack < own.max_health + _armor(own):
                continue
            dies = own.attack >= enemy.max_health + _armor(enemy)
            if _value(own) > dies * _value(enemy):
                return False
        return True

    def of_guard(self, slot: int) -> int:
        guard, attacker, attacked = self.own.front[slot], self.attacker, self.attacked
        if guard is None or attacker is None or attacked is None:
            return NEVER
        if not self.game._can_guard(slot):
            return NEVER
        kills = not attacker.is_champion and (
            guard.attack - _armor(attacker) >= attacker.max_health - attacker.damage
        )
        balance = kills * _value(attacker) - _dies(guard, attacker) * _value(guard)
        dies = _dies(attacked, attacker)
        if attacked.is_champion:
            return 2 * balance + max(0, attacker.attack - _armor(attacked)) + 100 * dies
        return 2 * balance + 2 * dies * _value(attacked)


def _best(mask: Sequence[bool], score: Callable[[int], int]) -> int:
    legal = [option for option, allowed in enumerate(mask) if allowed]
    return max(legal, key=lambda option: (score(option), -option))


def _value(body: Body) -> int:
    return 0 if body.is_champion else body.cost + 1


def _armor(body: Body) -> int:
    return int(body.has(Keyword.ARMOR))


def _ready(body: Body) -> bool:
    return not body.tapped and (not body.fresh or body.has(Keyword.CHARGE))


def _dies(body: Body, attacker: Body) -> bool:
    return max(0, attacker.attack - _armor(body)) >= body.max_health - body.damage
