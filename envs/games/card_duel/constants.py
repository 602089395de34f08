"""Numbers and names of the duel's rules: sizes of zones, phases, actions."""

from __future__ import annotations

from enum import IntEnum

HEALTH = 20
HAND, OPENING_HAND = 10, 5
FRONT, BACK = 4, 4
HIGHEST_MANA = 8
CHEAP = 3  # highest cost of a unit that can be returned
DECISIONS = 300  # after as many the game is drawn
DAMAGE, HEALING, STRENGTH, DRAWN = 2, 3, 2, 2  # what the effects do
ADVANCE_STRENGTH = 1
# With one mana and a draw in the very first turn, greedy players win 65 to 68 % of the games in
# which they are first.
SPARK_MANA = 2

TYPES, CHOICES = 11, 10  # types of actions; values of their first and second number


class Action(IntEnum):
    """The types of actions, with their first and second number; 0 is a number that is not used.

    END(0, 0) ends the turn, passes in a response, and keeps the hand. Targets are own front units
    0-3, enemy front units 4-7, the own champion 8 and the enemy champion 9; slots are 0-3.
    """

    END = 0
    MULLIGAN = 1  # (0, 0)
    PLAY_FRONT = 2  # (hand, slot)
    PLAY_BACK = 3  # (hand, slot)
    GEAR = 4  # (hand, own target)
    SPELL = 5  # (hand, target), or (hand, 0) if it has none
    ATTACK = 6  # (own unit 0-3 or champion 4, enemy target)
    ADVANCE = 7  # (back slot, front slot)
    GUARD = 8  # (front slot, 0)
    TARGET = 9  # (0, target) of the effect of a unit that was played
    SPARK = 10  # (0, 0)


class Phase(IntEnum):
    """What the player to move decides."""

    MULLIGAN = 0
    MAIN = 1
    RESPONSE = 2  # to an attack, by the defender
    TARGET = 3  # of the effect of the unit just played


OWN_CHAMPION, ENEMY_CHAMPION = 8, 9  # targets
