"""Every sentence of the rules in a position made for it, with numbers written by hand.

`Made.play` plays both forms and compares them, so what is said of the one holds of the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from sweepd.envs.games.card_duel.cards import CARDS
from sweepd.envs.games.card_duel.constants import Action, Phase
from sweepd.envs.games.card_duel.game import CardDuel, CardDuelParams
from sweepd.envs.games.card_duel.layout import Board
from sweepd.envs.games.card_duel.masks import full_masks, legal_actions
from tests.envs.games.card_duel.reference import Body, Duel, Resting, Side
from tests.envs.games.card_duel.sample_games import Chosen, Pair, as_cells
from tests.envs.games.card_duel.test_rules import check_masks, some_decks, step

ID = {own.name: number for number, own in enumerate(CARDS, 1)}
END, MULLIGAN, FRONT, BACK = Action.END, Action.MULLIGAN, Action.PLAY_FRONT, Action.PLAY_BACK
GEAR, SPELL, ATTACK, ADVANCE = Action.GEAR, Action.SPELL, Action.ATTACK, Action.ADVANCE
GUARD, TARGET, SPARK = Action.GUARD, Action.TARGET, Action.SPARK
OWN_CHAMPION, ENEMY_CHAMPION = 8, 9
FILLER = ID["Sand Hopper"]


def side(
    hand: Sequence[str] = (), front: Sequence[str] = (), back: Sequence[str] = (), deck: int = 10
) -> Side:
    """Return a side with 8 mana, whose units were played in earlier turns."""
    made = Side([FILLER] * deck, [ID[name] for name in hand], mana=8, max_mana=8)
    made.front[: len(front)] = [Body(ID[name]) for name in front]
    made.back[: len(back)] = [Resting(ID[name], fresh=False) for name in back]
    return made


class Made(Pair):
    """One game in the turn of seat 0, as a scalar and as tensors."""

    def __init__(self, own: Side, enemy: Side) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.game = Duel([[FILLER] * 30, [FILLER] * 30], [0.0] * 11)
        self.game.sides, self.game.phase = [own, enemy], Phase.MAIN
        self.games, self.own, self.enemy = [self.game], own, enemy
        self.cells = as_cells(self.games)

    def play(self, kind: Action, first: int = 0, second: int = 0) -> None:
        step(self, [(kind, first, second)])

    def legal(self, kind: Action) -> list[tuple[int, int]]:
        """Return the legal numbers of a type of action."""
        legal = legal_actions(Board(self.cells))
        check_masks(self.games, legal)
        numbers: list[list[int]] = full_masks(legal)[2][0, kind].nonzero().tolist()
        return [(first, second) for first, second in numbers]

    def unit(self, seat: int, slot: int) -> Body:
        found = self.game.sides[seat].front[slot]
        assert found is not None
        return found

    def fight(self, attacker: int, target: int) -> None:
        """Attack, and the defender passes."""
        self.play(ATTACK, attacker, target)
        self.play(END)

    @property
    def lost(self) -> list[int]:
        """The seats that have lost."""
        return [
            seat
            for seat, own in enumerate(self.game.sides)
            if own.overdrawn or own.champion.damage >= 20
        ]


def tapped(made: Side, *slots: int) -> Side:
    for slot in slots:
        body = made.bodies()[slot]
        assert body is not None
        body.tapped = True
    return made


# The beginning


def test_the_opening() -> None:
    pair = Pair(some_decks(64, 1), 1)
    board = Board(pair.cells)
    assert 20 < int(board.mover.sum()) < 44  # the first player is a random one
    assert (board.held == 5).all()
    assert (board.left == 25).all()
    assert (board.max_mana == 0).all()
    assert board.spark[:, 0].tolist() == [0, 1]  # of the second player
    kinds, _, actions = full_masks(legal_actions(board))
    assert kinds[0].nonzero().flatten().tolist() == [END, MULLIGAN]
    assert int(actions[0].sum()) == 2


def test_each_player_has_one_mulligan_and_the_first_turn_begins_without_a_draw() -> None:
    pair = Pair(some_decks(1, 2), 2)
    game = pair.games[0]
    first, second = game.sides[game.first], game.sides[1 - game.first]
    kept, before, all_cards = list(second.hand), list(first.hand), first.cards()
    step(pair, [(MULLIGAN, 0, 0)])
    assert game.mover == 1 - game.first
    assert game.phase == Phase.MULLIGAN
    step(pair, [(END, 0, 0)])
    assert (game.mover, game.phase) == (game.first, Phase.MAIN)
    assert first.hand != before
    assert (len(first.hand), len(first.deck)) == (5, 25)  # another five, and none is drawn
    assert first.cards() == all_cards
    assert second.hand == kept
    assert (first.mana, first.max_mana) == (1, 1)
    step(pair, [(END, 0, 0)])
    assert (len(second.hand), second.mana, second.max_mana) == (6, 1, 1)


def test_a_hand_of_the_mulligan_can_be_drawn_again() -> None:
    """The hand goes back before five are drawn."""
    pair = Pair([[[1, 2] * 15, [3, 4] * 15]] * 200, 3)
    hands = [list(game.sides[game.mover].hand) for game in pair.games]
    step(pair, [(MULLIGAN, 0, 0)] * 200, looks=False)
    again = sum(
        game.sides[game.first].hand == hand for game, hand in zip(pair.games, hands, strict=True)
    )
    assert 0 < again < 30  # one in 32


# Turns


def test_a_turn_begins_with_one_mana_more_up_to_eight_and_a_card() -> None:
    made = Made(side(), side())
    made.enemy.mana, made.enemy.max_mana = 0, 6
    made.cells = as_cells(made.games)
    for most, cards in ((7, 1), (8, 2), (8, 3)):
        made.play(END)
        assert (made.enemy.mana, made.enemy.max_mana, len(made.enemy.hand)) == (most, most, cards)
        made.enemy.mana = 2  # some was spent
        made.cells = as_cells(made.games)
        made.play(END)


def test_units_and_champion_untap_in_their_own_turn() -> None:
    made = Made(tapped(side(front=["Manta"]), 0, 4), tapped(side(front=["Manta"]), 0, 4))
    made.play(END)
    assert [own and own.tapped for own in made.enemy.bodies()] == [False, None, None, None, False]
    assert made.unit(0, 0).tapped
    made.play(END)
    assert not made.unit(0, 0).tapped
    assert not made.own.champion.tapped


def test_a_stunned_unit_stays_tapped_once() -> None:
    made = Made(side(hand=["Sea Nettle"]), side(front=["Manta"]))
    made.play(FRONT, 0, 0)
    made.play(TARGET, 0, 4)
    assert made.unit(1, 0).tapped
    made.play(END)
    assert made.unit(1, 0).tapped
    assert not made.legal(ATTACK)
    made.play(END)
    made.play(END)
    assert not made.unit(1, 0).tapped


def test_the_end_of_a_turn_heals_units_and_ends_additions() -> None:
    made = Made(
        side(hand=["Coral Spear"], front=["Iron Lobster"], back=["Manta"]),
        side(front=["Stone Turtle"]),
    )
    for body in (*made.own.bodies(), *made.enemy.bodies()):
        if body is not None:
            body.damage, body.strength = 1, 2
    made.cells = as_cells(made.games)
    made.play(ADVANCE, 0, 1)
    made.play(GEAR, 0, 0)
    assert made.unit(0, 0).attack == 3 + 2 + 2
    assert made.unit(0, 1).attack == 3 + 1
    made.play(END)
    for seat, slot in ((0, 0), (0, 1), (1, 0)):
        assert (made.unit(seat, slot).damage, made.unit(seat, slot).strength) == (0, 0)
        assert made.unit(seat, slot).attack == 3
    assert [own.champion.damage for own in (made.own, made.enemy)] == [1, 1]
    assert made.own.discard == {ID["Coral Spear"]: 1}


def test_a_draw_from_an_empty_deck_loses() -> None:
    made = Made(side(), side(deck=0))
    made.play(END)
    assert made.lost == [1]
    made = Made(side(hand=["High Tide"], deck=1), side())  # draws 2
    made.play(SPELL)
    assert made.lost == [0]
    made = Made(side(hand=["High Tide"], deck=2), side())
    made.play(SPELL)
    assert (made.lost, len(made.own.hand), len(made.own.deck)) == ([], 2, 0)


def test_a_hand_holds_ten_cards_and_those_beyond_are_discarded() -> None:
    made = Made(
        side(hand=["Undertow Eel"]), side(hand=["High Tide"] * 9, front=["Barracuda"], deck=2)
    )
    made.play(FRONT, 0, 0)
    made.play(TARGET, 0, 4)
    assert made.enemy.hand[9:] == [ID["Barracuda"]]
    made.play(END)
    assert (len(made.enemy.hand), made.enemy.discard) == (10, {FILLER: 1})
    assert made.lost == []


# Main actions


def test_a_unit_in_front_attacks_from_the_next_turn_on() -> None:
    made = Made(side(hand=["Iron Lobster", "Barracuda", "Hermit Crab"]), side())
    made.play(FRONT, 0, 2)
    assert made.own.mana == 4
    assert made.own.front[2] == Body(ID["Iron Lobster"], fresh=True)
    assert not made.legal(ATTACK)
    made.play(FRONT, 0, 0)
    assert made.legal(ATTACK) == [(0, ENEMY_CHAMPION)]  # Charge
    assert {second for _, second in made.legal(FRONT)} == {1, 3}
    made.play(END)
    made.play(END)
    assert made.legal(ATTACK) == [(0, ENEMY_CHAMPION), (2, ENEMY_CHAMPION)]


def test_only_what_the_mana_pays_for_is_played() -> None:
    made = Made(side(hand=["Old Whale", "Hermit Crab", "Surge"], front=["Manta"]), side())
    made.own.mana = 6
    made.cells = as_cells(made.games)
    assert {first for first, _ in made.legal(FRONT)} == {1}
    made.own.mana = 0
    made.cells = as_cells(made.games)
    assert not made.legal(FRONT) + made.legal(BACK) + made.legal(SPELL)


def test_the_back_row_does_not_fight_and_is_no_target() -> None:
    made = Made(
        side(hand=["Brine Jet", "Sand Hopper", "Coral Spear"], front=["Manta"], back=["Barracuda"]),
        tapped(side(back=["Hermit Crab"]), 4),
    )
    made.play(BACK, 1, 3)
    assert made.own.back[3] == Resting(ID["Sand Hopper"], fresh=True)
    assert made.legal(ATTACK) == [(0, ENEMY_CHAMPION)]
    assert made.legal(SPELL) == [(0, ENEMY_CHAMPION)]
    assert made.legal(GEAR) == [(1, 0), (1, OWN_CHAMPION)]
    made.play(ATTACK, 0, ENEMY_CHAMPION)
    assert made.legal(GUARD) == []


def test_gear_goes_onto_a_front_unit_or_the_champion_which_attacks_only_with_it() -> None:
    made = Made(side(hand=["Coral Spear", "Shell Plate"], front=["Manta"]), side())
    assert made.legal(GEAR) == [(0, 0), (0, OWN_CHAMPION), (1, 0), (1, OWN_CHAMPION)]
    assert made.legal(ATTACK) == [(0, ENEMY_CHAMPION)]
    made.play(GEAR, 0, OWN_CHAMPION)
    assert made.legal(GEAR) == [(0, 0)]  # one on each
    assert made.legal(ATTACK) == [(0, ENEMY_CHAMPION), (4, ENEMY_CHAMPION)]
    made.fight(4, ENEMY_CHAMPION)
    assert made.enemy.champion.damage == 2
    assert made.own.champion.damage == 0  # the other champion has no gear
    assert made.legal(ATTACK) == [(0, ENEMY_CHAMPION)]  # it is tapped


def test_gear_of_a_unit_that_leaves_is_discarded() -> None:
    made = Made(side(hand=["Coral Spear", "Riptide"], front=["Barracuda"]), side())
    made.play(GEAR, 0, 0)
    made.play(SPELL, 0, 0)
    assert made.own.hand == [ID["Barracuda"]]
    assert made.own.discard == {ID["Coral Spear"]: 1, ID["Riptide"]: 1}


def test_an_attack_taps_and_goes_at_the_champion_or_a_tapped_unit() -> None:
    made = Made(
        side(front=["Manta", "Manta", "Barracuda"]), tapped(side(front=["Manta", "Manta"]), 1)
    )
    assert made.legal(ATTACK) == [(place, target) for place in range(3) for target in (5, 9)]
    made.fight(0, ENEMY_CHAMPION)
    assert (made.unit(0, 0).tapped, made.enemy.champion.damage) == (True, 3)
    made.fight(1, 5)
    assert (made.unit(0, 1).damage, made.unit(1, 1).damage) == (3, 3)
    assert made.legal(ATTACK) == [(2, 5), (2, ENEMY_CHAMPION)]


def test_a_unit_advances_once_a_turn_with_one_attack_more() -> None:
    made = Made(side(hand=["Manta"], front=["Manta"], back=["Barracuda", "Manta"]), side())
    assert made.legal(ADVANCE) == [(back, front) for back in (0, 1) for front in (1, 2, 3)]
    made.play(ADVANCE, 1, 2)
    assert made.own.back[1] is None
    assert (made.unit(0, 2).id, made.unit(0, 2).attack) == (ID["Manta"], 4)
    assert made.legal(ADVANCE) == []
    made.fight(2, ENEMY_CHAMPION)
    assert made.enemy.champion.damage == 4
    made.play(END)
    made.play(END)
    assert made.unit(0, 2).attack == 3
    assert made.legal(ADVANCE) == [(0, 1), (0, 3)]


def test_a_unit_played_this_turn_may_advance_but_not_attack() -> None:
    made = Made(side(hand=["Manta", "Manta"]), side())
    made.play(BACK, 0, 0)
    made.play(BACK, 0, 1)
    made.play(ADVANCE, 0, 0)
    assert made.legal(ATTACK) == []
    made.play(END)
    made.play(END)
    made.play(ADVANCE, 1, 1)
    assert made.legal(ATTACK) == [(0, ENEMY_CHAMPION), (1, ENEMY_CHAMPION)]


def test_the_spark_gives_two_mana_once_and_no_more_than_eight() -> None:
    for mana, with_spark in ((0, 2), (6, 8), (7, 8)):
        own = side()
        own.mana, own.spark = mana, True
        made = Made(own, side())
        assert made.legal(SPARK) == [(0, 0)]
        made.play(SPARK)
        assert made.own.mana == with_spark
        assert made.legal(SPARK) == []
    own = side()
    own.spark = True
    assert Made(own, side()).legal(SPARK) == []  # has 8 mana


# Responses


def test_a_response_is_a_quick_spell_a_guard_or_a_pass() -> None:
    made = Made(
        side(front=["Barracuda"]),
        tapped(
            side(
                hand=["Brine Jet", "Riptide", "Surge", "Manta", "Coral Spear"],
                front=["Hermit Crab", "Manta", "Hermit Crab"],
                back=["Manta"],
            ),
            2,
        ),
    )
    made.enemy.mana = 2
    made.enemy.spark = True
    made.cells = as_cells(made.games)
    made.play(ATTACK, 0, ENEMY_CHAMPION)
    assert (made.game.mover, made.game.phase) == (1, Phase.RESPONSE)
    assert made.legal(SPELL) == [(0, 4), (0, ENEMY_CHAMPION), (2, 0), (2, 1), (2, 2)]
    assert made.legal(GUARD) == [(0, 0)]  # untapped, with Guard
    assert made.legal(END) == [(0, 0)]
    others = (MULLIGAN, FRONT, BACK, GEAR, ATTACK, ADVANCE, TARGET, SPARK)
    assert not any(made.legal(kind) for kind in others)
    made.play(SPELL, 2, 0)  # paid from the mana that is left
    assert made.enemy.mana == 1
    assert {first for first, _ in made.legal(SPELL)} == set()
    made.play(GUARD, 0)
    assert (made.game.mover, made.game.phase) == (0, Phase.MAIN)
    assert made.enemy.champion.damage == 0
    assert (made.enemy.front[0], made.own.front[0]) == (None, None)  # 3 on 2, and 1 + 2 on 2


@pytest.mark.parametrize("gear", [None, "Swift Current"])
def test_no_guard_stops_the_evasive(gear: str | None) -> None:
    attackers = ["Manta"] if gear is None else ["Iron Lobster"]
    made = Made(side(hand=[gear] if gear else [], front=attackers), side(front=["Old Whale"]))
    if gear:
        made.play(GEAR, 0, 0)
    made.play(ATTACK, 0, ENEMY_CHAMPION)
    assert made.legal(GUARD) == []


def test_an_attack_without_attacker_or_target_ends_without_a_fight() -> None:
    made = Made(side(front=["Barracuda"]), side(hand=["Brine Jet"]))
    made.play(ATTACK, 0, ENEMY_CHAMPION)
    made.play(SPELL, 0, 4)
    assert made.own.front[0] is None
    assert (made.game.mover, made.game.phase) == (0, Phase.MAIN)
    assert made.enemy.champion.damage == 0


# Combat


def test_damage_is_simultaneous() -> None:
    made = Made(side(front=["Barracuda"]), tapped(side(front=["Electric Ray"]), 0))
    made.fight(0, 4)  # 3 attack and 2 health against 2 and 3
    assert (made.own.front[0], made.enemy.front[0]) == (None, None)
    assert (made.own.discard, made.enemy.discard) == ({ID["Barracuda"]: 1}, {ID["Electric Ray"]: 1})


def test_armor_reduces_each_damage_by_one() -> None:
    made = Made(
        side(hand=["Brine Jet", "Shell Plate"], front=["Stone Turtle", "Manta"]),
        tapped(side(front=["Stone Turtle", "Manta"]), 0, 1),
    )
    made.play(SPELL, 0, 4)
    assert made.unit(1, 0).damage == 2 - 1
    made.play(GEAR, 0, 1)
    assert made.unit(0, 1).attack == 4
    made.fight(1, 4)
    assert (made.unit(0, 1).damage, made.unit(1, 0).damage) == (3 - 1, 1 + 4 - 1)
    made.fight(0, 5)
    assert (made.unit(0, 0).damage, made.unit(1, 1).damage) == (3 - 1, 3)


def test_what_stun_damages_is_stunned_units_and_champions() -> None:
    made = Made(
        side(hand=["Stinging Net"], front=["Electric Ray"]), tapped(side(front=["Sea Nettle"]), 0)
    )
    made.fight(0, 4)
    assert made.unit(1, 0).stunned
    assert not made.unit(0, 0).stunned
    made.play(GEAR, 0, OWN_CHAMPION)
    made.fight(4, ENEMY_CHAMPION)
    assert made.enemy.champion.stunned
    # Damage that armor takes does not stun.
    made = Made(side(hand=["Stinging Net"]), tapped(side(front=["Iron Lobster"]), 0))
    made.play(GEAR, 0, OWN_CHAMPION)
    made.fight(4, 4)
    assert (made.unit(1, 0).damage, made.unit(1, 0).stunned) == (0, False)
    assert made.own.champion.damage == 3


def test_a_last_gift_is_drawn_on_death_and_not_on_return() -> None:
    made = Made(
        side(hand=["Riptide"], front=["Barracuda"]),
        tapped(side(front=["Brittle Star", "Brittle Star"]), 0),
    )
    made.play(SPELL, 0, 5)
    assert made.enemy.hand == [ID["Brittle Star"]]
    made.fight(0, 4)
    assert made.enemy.hand == [ID["Brittle Star"], FILLER]


# Effects


def effect(
    name: str, own: Sequence[str] = (), enemy: Sequence[str] = ()
) -> tuple[Made, list[tuple[int, int]]]:
    """Play a unit to front slot 3; return the position and the legal targets."""
    made = Made(side(hand=[name], front=own), side(front=enemy))
    made.play(FRONT, 0, 3)
    assert made.game.phase == Phase.TARGET
    return made, made.legal(TARGET)


def test_damage_is_two_to_an_enemy() -> None:
    made, targets = effect("Pistol Shrimp", ["Manta"], ["Iron Lobster", "Manta"])
    assert targets == [(0, 4), (0, 5), (0, ENEMY_CHAMPION)]
    assert not made.legal(END) + made.legal(ATTACK) + made.legal(SPELL)
    made.play(TARGET, 0, ENEMY_CHAMPION)
    assert made.enemy.champion.damage == 2
    assert made.game.phase == Phase.MAIN


def test_healing_is_three_at_most() -> None:
    for damage, left in ((5, 2), (2, 0)):
        made = Made(side(hand=["Cleaner Shrimp"], front=["Manta"]), side(front=["Manta"]))
        made.own.champion.damage = damage
        made.cells = as_cells(made.games)
        made.play(BACK, 0, 0)
        assert made.legal(TARGET) == [(0, 0), (0, OWN_CHAMPION)]
        made.play(TARGET, 0, OWN_CHAMPION)
        assert made.own.champion.damage == left


def test_a_unit_of_cost_three_at_most_returns_to_its_owner() -> None:
    made, targets = effect("Undertow Eel", ["Manta", "Barracuda"], ["Iron Lobster", "Sand Hopper"])
    assert targets == [(0, 1), (0, 5)]
    made.play(TARGET, 0, 5)
    assert made.enemy.hand == [ID["Sand Hopper"]]
    assert made.enemy.front[1] is None


def test_strength_is_two_more_attack_this_turn() -> None:
    made, targets = effect("Reef Piper", ["Manta"], ["Manta"])
    assert targets == [(0, 0)]  # not the Piper, which is in slot 3
    made.play(TARGET, 0, 0)
    assert made.unit(0, 0).attack == 5
    made.play(END)
    assert made.unit(0, 0).attack == 3


def test_stun_is_for_enemy_units() -> None:
    _, targets = effect("Sea Nettle", ["Manta"], ["Manta", "Barracuda"])
    assert targets == [(0, 4), (0, 5)]


def test_two_cards_are_drawn_at_once() -> None:
    made = Made(side(hand=["Wise Octopus"]), side())
    made.play(FRONT, 0, 0)
    assert made.game.phase == Phase.MAIN
    assert len(made.own.hand) == 2


def test_without_a_possible_target_nothing_happens() -> None:
    made = Made(side(hand=["Reef Piper", "Surge", "Riptide"]), side(front=["Manta"]))
    assert made.legal(SPELL) == []
    made.play(FRONT, 0, 0)
    assert made.game.phase == Phase.MAIN
    assert made.unit(0, 0).strength == 0


# The end


def test_who_has_no_health_left_has_lost() -> None:
    made = Made(side(front=["Manta"]), side())
    made.enemy.champion.damage = 16
    made.cells = as_cells(made.games)
    made.fight(0, ENEMY_CHAMPION)
    assert (made.lost, made.game.winner) == ([], None)
    made.unit(0, 0).tapped = False
    made.cells = as_cells(made.games)
    made.fight(0, ENEMY_CHAMPION)
    assert (made.lost, made.game.winner) == ([1], 0)


def in_environment(made: Made, action: Chosen, decisions: int = 50) -> list[float] | None:
    """Return the rewards of an action in the environment if it ends the game, else None."""
    env = CardDuel([CardDuelParams()], 1)
    env.reset(0)
    env.state["cells"].copy_(made.cells.t())
    env.state["decisions"].fill_(decisions)
    env._known = None
    result = env.step(torch.tensor([action]))
    env.check()
    assert not result.truncated.any()
    rewards: list[float] = result.reward[0].tolist()
    return rewards if bool(result.terminated) else None


def test_outcomes() -> None:
    made = Made(side(hand=["Brine Jet"]), side())
    made.enemy.champion.damage = 18
    made.cells = as_cells(made.games)
    assert in_environment(made, (SPELL, 0, ENEMY_CHAMPION)) == [1.0, -1.0]
    assert in_environment(made, (END, 0, 0)) is None
    # After 300 decisions: a draw.
    assert in_environment(made, (END, 0, 0), 298) is None
    assert in_environment(made, (END, 0, 0), 299) == [0.0, 0.0]
    assert in_environment(made, (SPELL, 0, ENEMY_CHAMPION), 299) == [1.0, -1.0]
    assert in_environment(Made(side(), side(deck=0)), (END, 0, 0)) == [1.0, -1.0]


def test_both_at_once_is_a_draw() -> None:
    """Both units die, and neither last gift finds a card."""
    made = Made(
        side(front=["Brittle Star"], deck=0), tapped(side(front=["Brittle Star"], deck=0), 0)
    )
    made.play(ATTACK, 0, 4)
    assert in_environment(made, (END, 0, 0)) == [0.0, 0.0]
    made.play(END)
    assert (made.lost, made.game.winner) == ([0, 1], -1)
