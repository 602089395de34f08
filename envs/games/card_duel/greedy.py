"""How the greedy player values its options, from what it sees.

All scores are int16 with games last. A unit's value is its cost plus 1. The rules of thumb:

- it plays the most expensive card that does something useful, and uses the spark for a unit that
  it makes affordable;
- then it advances its strongest resting unit;
- then it attacks: a unit of the enemy, if that dies and is worth at least what is lost by it, else
  the champion, unless an enemy unit could then attack the tapped attacker and win by it;
- it answers attacks with a guard if that saves more than it costs, or with a quick spell that kills
  the attacker.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.envs.games.card_duel.cards import Effect, Keyword, Kind
from sweepd.envs.games.card_duel.constants import (
    BACK,
    CHEAP,
    CHOICES,
    DAMAGE,
    FRONT,
    HEALING,
    SPARK_MANA,
    STRENGTH,
    TYPES,
    Action,
)
from sweepd.envs.games.card_duel.layout import BODIES
from sweepd.envs.games.card_duel.observation import COLUMNS, FEATURES
from sweepd.envs.games.card_duel.tables import facts, look_up

NEVER = -1000  # of illegal options
_USEFUL = {  # the least score of a target for which a spell is cast
    Effect.DAMAGE: 1,
    Effect.HEAL: 1,
    Effect.STUN: 1,
    Effect.RETURN: 10,
    Effect.STRENGTHEN: 10,
}
_SAFE_DECK = 6  # cards that must be left to draw with a spell


class Bodies:
    """What is seen of bodies; every attribute is (places, games) int16.

    Attributes:
        present, cost, value, health, lost, attack, tapped, stunned, fresh, attacks, attacked: As
            named; `value` is what their death costs, 0 of champions, and `lost` is health.
        armor, stuns, ready: Keywords, those of gear too; ready to attack if untapped.
        guards: Whether it may become an attack's target, unless the attacker is evasive.
        bare: Whether there is no gear.
    """

    def __init__(self, rows: Tensor, gear: Tensor) -> None:
        """Read (places, 1 + features, games) int16 and the bodies' gear, (places, games)."""
        ids = rows[:, 0]
        table = facts(rows.device)
        names = dict(zip(FEATURES, rows[:, 1:].unbind(1), strict=True))
        self.health, self.attack, self.tapped = names["health"], names["attack"], names["tapped"]
        self.attacks, self.attacked = names["attacks"], names["attacked"]
        self.fresh = names["fresh"]
        self.present = (ids > 0).short()
        self.unit = self.present * (look_up(table.kind, ids) == Kind.UNIT)
        self.cost = look_up(table.cost, ids).short()
        self.value = (self.cost + 1) * self.unit
        self.lost = look_up(table.health, ids) - self.health
        keywords = look_up(table.keywords, ids) | look_up(table.keywords, gear)
        self.armor = ((keywords & Keyword.ARMOR) > 0).short()
        charges = (keywords & Keyword.CHARGE) > 0
        self.bare = (gear == 0).short()
        self.guards = self.unit * (self.tapped == 0) * ((keywords & Keyword.GUARD) > 0)
        self.ready = self.present * (self.tapped == 0) * ((self.fresh == 0) | charges)


class Sight:
    """The parts of observations that the greedy player reads, games last, int16."""

    def __init__(self, obs: Tensor) -> None:
        """Read (games, SIZE) uint8."""
        rows = obs.t().short()
        table = facts(obs.device)

        def part(name: str) -> Tensor:
            first, last = COLUMNS[name]
            return rows[first:last]

        def bodies(whose: str) -> Bodies:
            front = part(f"{whose} front").view(BODIES, 1 + len(FEATURES), -1)
            return Bodies(front, part(f"{whose} gear"))

        self.hand = part("own hand")
        self.kind, self.cost = look_up(table.kind, self.hand), look_up(table.cost, self.hand)
        self.effect = look_up(table.effect, self.hand)
        self.mana = part("own mana")[0]
        self.own, self.enemy = bodies("own"), bodies("enemy")
        self.back = part("own back").view(BACK, 2, -1)[:, 0]
        self.back_attack = look_up(table.attack, self.back)
        self.responds = part("phase")[2]
        self.pending = part("effect")
        self.deck = part("own deck cards")[0]


def _at(rows: Tensor, index: Tensor) -> Tensor:
    return rows.gather(0, index.unsqueeze(0)).squeeze(0)


class Scores:
    """Scores of the options of each choice, given the earlier ones: (games, options) int16."""

    def __init__(self, sight: Sight) -> None:
        self.sight = sight
        self._targets = self._of_targets()
        self._attacks = self._of_attacks()
        self._guards = self._of_guards()
        self._cards = self._of_cards()

    def types(self, chosen: Tensor) -> Tensor:
        """Score the types, (games, TYPES)."""
        del chosen
        see, cards = self.sight, self._cards
        soon = (see.kind == Kind.UNIT) & (see.cost == see.mana + SPARK_MANA)
        scores = torch.zeros(TYPES, len(see.mana), dtype=torch.int16, device=see.mana.device)
        scores[Action.MULLIGAN] = -1
        scores[Action.SPARK] = soon.any(0) * 200 - 1
        for action, kind in (
            (Action.PLAY_FRONT, Kind.UNIT),
            (Action.PLAY_BACK, Kind.UNIT),
            (Action.GEAR, Kind.GEAR),
            (Action.SPELL, Kind.SPELL),
        ):
            # The front row is better.
            behind = int(action == Action.PLAY_BACK)
            scores[action] = torch.where(see.kind == kind, cards - behind, -1).amax(0)
        scores[Action.ADVANCE] = 50
        scores[Action.ATTACK] = self._attacks.flatten(0, 1).amax(0)
        scores[Action.GUARD] = self._guards.amax(0)
        return scores.t()

    def firsts(self, chosen: Tensor) -> Tensor:
        """Score first numbers, (games, CHOICES), given the type."""
        kind = chosen[:, 0]
        scores = self._cards.new_zeros(TYPES, CHOICES, len(kind))
        for action in (Action.PLAY_FRONT, Action.PLAY_BACK, Action.GEAR, Action.SPELL):
            scores[action] = self._cards
        scores[Action.ATTACK, :BODIES] = self._attacks.amax(1)
        scores[Action.ADVANCE, :BACK] = self.sight.back_attack.short()
        scores[Action.GUARD, :FRONT] = self._guards
        return _at(scores, kind.expand(CHOICES, -1)).t()

    def seconds(self, chosen: Tensor) -> Tensor:
        """Score second numbers, (games, CHOICES), given type and first number."""
        see, (kind, first) = self.sight, chosen.unbind(1)
        scores = self._cards.new_zeros(TYPES, CHOICES, len(kind))
        # Of spells by the card's effect; of units by the effect that waits.
        effect = _at(see.effect, first).long()
        scores[Action.SPELL] = _at(self._targets, effect.expand(CHOICES, -1))
        scores[Action.TARGET] = (self._targets[1:] * see.pending.unsqueeze(1)).sum(0)
        bearers = see.own.ready * 10 + see.own.attack
        scores[Action.GEAR, :FRONT] = bearers[:FRONT]
        scores[Action.GEAR, 8] = bearers[FRONT]
        of_body = self._attacks.gather(
            0, first.clamp_max(BODIES - 1).expand(1, BODIES, -1)
        ).squeeze(0)
        scores[Action.ATTACK, FRONT : 2 * FRONT] = of_body[:FRONT]
        scores[Action.ATTACK, 9] = of_body[FRONT]
        return _at(scores, kind.expand(CHOICES, -1)).t()

    def _of_targets(self) -> Tensor:
        """Return (effects, CHOICES, games): what each effect is worth on each target."""
        own, enemy = self.sight.own, self.sight.enemy
        scores = own.attack.new_zeros(len(Effect), CHOICES, own.attack.shape[1])
        units, champion = slice(0, FRONT), FRONT
        of_own, of_enemy = slice(0, FRONT), slice(FRONT, 2 * FRONT)
        dies = enemy.unit * (enemy.health + enemy.armor <= DAMAGE)
        responds = self.sight.responds
        # In a response, only what kills the attacker counts.
        counts = torch.where(responds > 0, enemy.attacks * 10, 1)
        scores[Effect.DAMAGE, of_enemy] = (dies * (10 + enemy.cost) * counts)[units]
        lethal = enemy.health[champion] <= DAMAGE
        scores[Effect.DAMAGE, 9] = 5 * (1 - responds) + 100 * lethal
        healed = own.lost.clamp_max(HEALING)
        scores[Effect.HEAL, of_own] = healed[units]
        scores[Effect.HEAL, 8] = healed[champion]
        scores[Effect.STUN, of_enemy] = (enemy.unit * (enemy.attack + 10 * (1 - enemy.tapped)))[
            units
        ]
        cheap = enemy.unit * (enemy.cost <= CHEAP)
        scores[Effect.RETURN, of_enemy] = (cheap * (10 + enemy.cost))[units]
        scores[Effect.RETURN, of_own] = (own.unit * (own.cost <= CHEAP))[units]
        attacker = _Attacker(enemy)
        short = attacker.health + attacker.armor - own.attack  # attack that is missing to kill it
        turns = attacker.unit * own.attacked * (short > 0) * (short <= STRENGTH)
        ready = own.unit * (own.attack + 10 * own.ready)
        scores[Effect.STRENGTHEN, of_own] = torch.where(responds > 0, 100 * turns, ready)[units]
        return scores

    def _of_attacks(self) -> Tensor:
        """Return (own bodies, enemy bodies, games)."""
        own, enemy = self.sight.own, self.sight.enemy
        blow = (own.attack.unsqueeze(1) - enemy.armor).clamp_min(0)
        answer = (enemy.attack - own.armor.unsqueeze(1)).clamp_min(0)
        kills = (blow >= enemy.health) & (enemy.unit > 0)
        # A champion does not die for a trade.
        price = torch.where(own.unit > 0, own.value, 100)
        loss = (answer >= own.health.unsqueeze(1)) * price.unsqueeze(1)
        balance = enemy.value - loss
        scores = torch.where(kills & (balance >= 0) & (enemy.tapped > 0), 20 + balance, NEVER)
        # In the next turn an enemy unit could attack the tapped one, both with full health again.
        struck = enemy.attack >= (own.health + own.lost + own.armor).unsqueeze(1)
        back = own.attack.unsqueeze(1) >= enemy.health + enemy.lost + enemy.armor
        worse = struck & (own.value.unsqueeze(1) > back * enemy.value) & (enemy.unit > 0)
        safe = ~worse.any(1) | (own.unit == 0)
        face = torch.where(safe & (blow[:, -1] > 0), 10 + blow[:, -1].clamp_max(9), NEVER)
        scores[:, -1] = torch.where(blow[:, -1] >= enemy.health[-1], 40, face)
        # The champion needs gear.
        able = own.ready * (1 - own.bare * (1 - own.unit))
        return torch.where(able.unsqueeze(1) > 0, scores, NEVER).short()

    def _of_guards(self) -> Tensor:
        """Return (FRONT, games): what is won by each guard, twice the value of units."""
        own, attacker = self.sight.own, _Attacker(self.sight.enemy)
        blow = (attacker.attack - own.armor).clamp_min(0)
        dies = blow >= own.health
        kills = attacker.unit * (own.attack - attacker.armor >= attacker.health)
        saved = torch.where(own.unit > 0, 2 * own.value * dies, blow + 100 * dies)
        saved = (saved * own.attacked).sum(0, dtype=torch.int16)
        won = 2 * (kills * attacker.value - dies * own.value) + saved
        return torch.where(own.guards > 0, won, NEVER)[:FRONT].short()

    def _of_cards(self) -> Tensor:
        """Return (HAND, games): the more expensive the better; -1 of what is of no use."""
        see = self.sight
        best = self._targets.amax(1)  # (effects, games)
        useful = torch.stack(
            [
                best[effect] >= _USEFUL[effect] if effect in _USEFUL else see.deck >= _SAFE_DECK
                for effect in Effect
            ]
        )
        bearer = (see.own.ready * see.own.bare).amax(0) > 0
        helps = torch.where(
            see.kind == Kind.SPELL, useful.gather(0, see.effect.long()), see.kind == Kind.UNIT
        )
        helps |= (see.kind == Kind.GEAR) & bearer
        order = 2 * (see.kind == Kind.UNIT) + (see.kind == Kind.SPELL)
        scores = 60 + 4 * see.cost + order
        return torch.where(helps & (see.cost <= see.mana), scores, -1).short()


class _Attacker:
    """The attacking body; every attribute is (games,) int16, 0 if there is none."""

    def __init__(self, enemy: Bodies) -> None:
        def of_attacker(rows: Tensor) -> Tensor:
            return (rows * enemy.attacks).sum(0, dtype=torch.int16)

        self.health, self.armor = of_attacker(enemy.health), of_attacker(enemy.armor)
        self.attack, self.value = of_attacker(enemy.attack), of_attacker(enemy.value)
        self.unit = of_attacker(enemy.unit)
