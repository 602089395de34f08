"""What a player of the duel sees, read from its observation, and the names of options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from sweepd.envs.games.card_duel.cards import CHAMPION, Card, Effect, Keyword, Kind, card
from sweepd.envs.games.card_duel.constants import (
    DAMAGE,
    DRAWN,
    HEALING,
    OWN_CHAMPION,
    STRENGTH,
    Action,
    Phase,
)
from sweepd.envs.games.card_duel.layout import CHAMPION_PLACE
from sweepd.envs.games.card_duel.observation import FEATURES, seen
from sweepd.envs.games.words import YOU

EFFECTS = {
    Effect.DAMAGE: f"{DAMAGE} damage",
    Effect.HEAL: f"heal {HEALING}",
    Effect.STUN: "stun",
    Effect.RETURN: "return",
    Effect.STRENGTHEN: f"+{STRENGTH} attack",
    Effect.DRAW: f"draw {DRAWN}",
}
_TYPES = {
    Action.MULLIGAN: "take five other cards",
    Action.PLAY_FRONT: "play a unit to the front row",
    Action.PLAY_BACK: "play a unit to the back row",
    Action.GEAR: "play gear",
    Action.SPELL: "cast a spell",
    Action.ATTACK: "attack",
    Action.ADVANCE: "advance a unit from the back row",
    Action.GUARD: "guard with another unit",
    Action.TARGET: "choose a target",
    Action.SPARK: "use the spark",
}
_ENDS = {Phase.MULLIGAN: "keep the hand", Phase.RESPONSE: "pass"}
_FROM_HAND = (Action.PLAY_FRONT, Action.PLAY_BACK, Action.GEAR, Action.SPELL)


class Body(NamedTuple):
    """A front unit or a champion; the fields after its name are `observation.FEATURES`."""

    id: int
    gear: int
    health: int
    attack: int
    tapped: int
    stunned: int
    fresh: int
    attacks: int
    attacked: int
    acts: int

    @property
    def name(self) -> str:
        """The unit's name, or "champion"."""
        return "champion" if self.id == CHAMPION else card(self.id).name

    @property
    def state(self) -> str:
        """Attack and health, and whether it is ready."""
        marks = ["stunned" if self.stunned else "tapped" if self.tapped else ""]
        marks += ["new"] if self.fresh else []
        return " ".join((f"{self.attack}/{self.health}", *filter(None, marks)))

    @property
    def keywords(self) -> str:
        """The unit's own keywords."""
        return "" if self.id == CHAMPION else keywords(card(self.id))


class Side(NamedTuple):
    """What is seen of a player.

    Attributes:
        front: Front units, None where there is none, and the champion.
        back: Ids of units in the back row, 0 where there is none, and whether they are new.
        mana, highest, spark, hand, deck: Numbers, those of cards in hand and deck.
        discard: Counts by card, from the first.
    """

    front: list[Body | None]
    back: list[tuple[int, bool]]
    mana: int
    highest: int
    spark: int
    hand: int
    deck: int
    discard: list[int]

    @property
    def champion(self) -> Body:
        """The champion."""
        own = self.front[CHAMPION_PLACE]
        assert own is not None
        return own

    @property
    def discarded(self) -> str:
        """The discard pile in words."""
        piles = [
            card(own).name + (f" x{count}" if count > 1 else "")
            for own, count in enumerate(self.discard, 1)
            if count
        ]
        return ", ".join(piles) or "nothing"


class Scene(NamedTuple):
    """A position as a player sees it; everything comes from the observation.

    Attributes:
        own, enemy: The sides.
        hand: Ids of the cards in its hand.
        phase, effect: The phase; the effect that waits for its target.
        to_move: Whether the player is to move.
        left: The highest number of decisions that may be left.
    """

    own: Side
    enemy: Side
    hand: list[int]
    phase: Phase
    effect: Effect
    to_move: bool
    left: int

    @property
    def bodies(self) -> list[Body]:
        """All front units and champions."""
        return [body for side in (self.own, self.enemy) for body in side.front if body]

    def situation(self, names: tuple[str, str]) -> str:
        """Say what is to be decided. names: the player's, and the other one's."""
        own = names[0 if self.to_move else 1]
        have = "are" if own == YOU else "is"
        attacker = next((body for body in self.bodies if body.attacks), None)
        target = next((body for body in self.bodies if body.attacked), None)
        if attacker and target:
            whose = "your" if own == YOU else f"{own}'s"
            return f"{attacker.name} attacks {whose} {target.name}; {own} may respond"
        if self.phase == Phase.TARGET:
            return f"{own} {have} to choose a target for: {EFFECTS[self.effect]}"
        if self.phase == Phase.MULLIGAN:
            return f"{own} {have} to keep the hand, or to take five other cards"
        return f"{own} {have} to move"


def scene_of(obs: Tensor) -> Scene:
    """Return what an observation (SIZE,) uint8 shows."""

    def numbers(name: str) -> list[int]:
        return [int(value) for value in seen(obs, name).flatten().tolist()]

    def side(whose: str) -> Side:
        rows = seen(obs, f"{whose} front").tolist()
        gear = numbers(f"{whose} gear")
        front = [
            Body(row[0], worn, *row[1 : 1 + len(FEATURES)]) if row[0] else None
            for row, worn in zip(rows, gear, strict=True)
        ]
        back = [(own, bool(fresh)) for own, fresh in seen(obs, f"{whose} back").tolist()]
        return Side(
            front,
            back,
            mana=numbers(f"{whose} mana")[0],
            highest=numbers(f"{whose} highest mana")[0],
            spark=numbers(f"{whose} spark")[0],
            hand=numbers(f"{whose} hand cards")[0],
            deck=numbers(f"{whose} deck cards")[0],
            discard=numbers(f"{whose} discard"),
        )

    effects = numbers("effect")
    return Scene(
        side("own"),
        side("enemy"),
        [own for own in numbers("own hand") if own],
        Phase(numbers("phase").index(1)),
        Effect(effects.index(1) + 1 if 1 in effects else 0),
        bool(numbers("to move")[0]),
        2 * numbers("decision pairs left")[0] + 1,
    )


def keywords(own: Card) -> str:
    """Return a card's keywords in words."""
    return " ".join(
        (word.name or "").lower().replace("_", " ") for word in Keyword if word in own.keywords
    )


def card_line(own: Card) -> str:
    """Return a card in a line: name, cost, and what it is."""
    does = EFFECTS.get(own.effect, "")
    if own.kind == Kind.UNIT:
        parts = [f"{own.attack}/{own.health}", keywords(own), does and f"play: {does}"]
    elif own.kind == Kind.GEAR:
        parts = [f"+{own.attack}", keywords(own)]
    else:
        parts = ["quick" if own.quick else "", "spell:", does]
    return " ".join((f"{own.name} ({own.cost})", *filter(None, parts)))


def name_type(scene: Scene, kind: Action) -> str:
    """Name a type of action, as an option."""
    return _ENDS.get(scene.phase, "end the turn") if kind == Action.END else _TYPES[kind]


def name_first(scene: Scene, kind: Action, number: int) -> str:
    """Name a first number, as an option: a card or a unit."""
    if kind in _FROM_HAND:
        return card_line(card(scene.hand[number]))
    if kind == Action.ADVANCE:
        return f"{card(scene.own.back[number][0]).name} (back {number + 1})"
    if kind in {Action.ATTACK, Action.GUARD}:
        return _body(scene.own, number)
    return name_type(scene, kind)


def name_second(scene: Scene, kind: Action, number: int) -> str:
    """Name a second number, as an option: a slot or a target."""
    if kind in {Action.PLAY_FRONT, Action.ADVANCE}:
        return f"front {number + 1}"
    if kind == Action.PLAY_BACK:
        return f"back {number + 1}"
    if kind in {Action.GEAR, Action.SPELL, Action.ATTACK, Action.TARGET}:
        return name_target(scene, number)
    return name_type(scene, kind)


def name_target(scene: Scene, number: int) -> str:
    """Name a target."""
    whose = "own" if number < CHAMPION_PLACE or number == OWN_CHAMPION else "enemy"
    side = scene.own if whose == "own" else scene.enemy
    place = CHAMPION_PLACE if number >= OWN_CHAMPION else number % CHAMPION_PLACE
    return f"{whose} {_body(side, place)}"


def name_action(scene: Scene, action: Sequence[int]) -> str:
    """Say an action of the player to move, beginning with a verb."""
    kind, first, second = Action(action[0]), action[1], action[2]
    if kind in {Action.PLAY_FRONT, Action.PLAY_BACK, Action.ADVANCE}:
        own = scene.own.back[first][0] if kind == Action.ADVANCE else scene.hand[first]
        verb = "advance" if kind == Action.ADVANCE else "play"
        return f"{verb} {card(own).name} to {name_second(scene, kind, second)}"
    if kind == Action.GEAR:
        return f"give {card(scene.hand[first]).name} to {name_target(scene, second)}"
    if kind == Action.SPELL:
        own = scene.hand[first]
        on = "" if card(own).effect == Effect.DRAW else f" on {name_target(scene, second)}"
        return f"cast {card(own).name}{on}"
    if kind == Action.ATTACK:
        return f"attack {name_target(scene, second)} with {_body(scene.own, first)}"
    if kind == Action.TARGET:
        return f"choose {name_target(scene, second)} for: {EFFECTS[scene.effect]}"
    if kind == Action.GUARD:
        return f"guard with {_body(scene.own, first)}"
    return name_type(scene, kind)


def _body(side: Side, place: int) -> str:
    body = side.front[place]
    if body is None:
        return f"front {place + 1}"
    return body.name if place == CHAMPION_PLACE else f"{body.name} (front {place + 1})"
