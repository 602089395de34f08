"""Leduc poker (Southey et al., "Bayes' Bluff: Opponent Modelling in Poker", UAI 2005)."""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.envs.games.poker.cards import deal, every_deal
from sweepd.envs.games.poker.words import LeducWords
from sweepd.envs.games.tensor_game import State, TensorGame

FOLD, CALL, RAISE = 0, 1, 2
CARDS = ("J1", "J2", "Q1", "Q2", "K1", "K2")  # two suits of three ranks
RAISE_SIZES = (2.0, 4.0)  # by round
MOST_RAISES = 2  # of both players in a round
_DECISIONS = 4  # at most in a round: call, raise, raise, call
_NOT_YET = -1


class Leduc(TensorGame):
    """Six cards, an ante of 1, two rounds of bets, and a public card between them.

    Each player gets one card. In turns, they fold, call (or check) or raise by 2 chips, by 4 in the
    second round; at most two raises per round, and no fold where there is nothing to call. The
    first player begins both rounds. At the end, a pair with the public card wins, else the higher
    rank; equal ranks split the pot. Rewards are chips won or lost, in the last step.

    Observations: whose view it is (2 columns), one's own card (6), the public card (6, zeros in the
    first round), and for each of the four possible decisions of both rounds whether it was a call
    or a raise (16). Critics also know the opponent's card and the public card to come. Actions: 0
    fold, 1 call, 2 raise.

    The outcome is linear in the chips, so that points measure what the game is about: 0.5 plus the
    chips won divided by 26; at most 13 can be won.
    """

    seats, in_turns = 2, True
    state_dim, action_dim, if_discrete, masked = 30, 3, True, True
    privileged_dim = 12
    # Zeros and ones; columns that are rarely 1 would be scaled to large numbers.
    prescaled = True
    seat_column = 1
    max_step = 2 * _DECISIONS
    uniforms_per_start = 3
    words = LeducWords()

    def start(self, uniforms: Tensor) -> State:
        """See `GameRules.start`. Cards: of the first player, of the second, public."""
        games, device = len(uniforms), uniforms.device
        return {
            "cards": deal(uniforms, len(CARDS)),
            "history": torch.full((games, 2, _DECISIONS), _NOT_YET, device=device),
            "round": torch.zeros(games, dtype=torch.int64, device=device),
            "stakes": torch.ones(games, 2, dtype=torch.float64, device=device),
        }

    def deals(self) -> Tensor:
        """See `GameRules.deals`."""
        return every_deal(3, len(CARDS))

    def mover(self, state: State) -> Tensor:
        """See `GameRules.mover`."""
        return (_this_round(state) != _NOT_YET).sum(1) % 2

    def mask(self, state: State, chosen: Tensor) -> Tensor:
        """See `GameRules.mask`."""
        del chosen
        to_call = state["stakes"][:, 0] != state["stakes"][:, 1]
        may_raise = (_this_round(state) == RAISE).sum(1) < MOST_RAISES
        return torch.stack((to_call, torch.ones_like(to_call), may_raise), 1)

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        """See `GameRules.move`."""
        del uniforms
        games = torch.arange(len(action), device=action.device)
        number, seat = state["round"], self.mover(state)
        made = (_this_round(state) != _NOT_YET).sum(1)
        history = state["history"].clone()
        history[games, number, made.clamp(max=_DECISIONS - 1)] = action
        sizes = torch.tensor(RAISE_SIZES, dtype=torch.float64, device=action.device)
        highest = state["stakes"].max(1).values
        stake = torch.where(action == RAISE, highest + sizes[number], highest)
        # A fold adds nothing to the pot.
        stake = torch.where(action == FOLD, state["stakes"][games, seat], stake)
        stakes = state["stakes"].scatter(1, seat.unsqueeze(1), stake.unsqueeze(1))
        # A call ends the round, except the first decision, which is a check.
        closed = (action == CALL) & (made > 0)
        folded = action == FOLD
        over = folded | (closed & (number == 1))
        moved = {
            "cards": state["cards"],
            "history": history,
            "round": (number + closed.long()).clamp(max=1),
            "stakes": stakes,
        }
        # Of the folding player, 1 for the second seat: its opponent wins.
        winner = torch.where(folded, 2.0 * seat - 1.0, _better_hand(state["cards"]))
        # At a showdown both stakes are equal; after a fold the smaller one is lost.
        won = torch.where(over, winner * stakes.min(1).values, 0.0)
        return moved, torch.stack((won, -won), 1), over

    def see(self, state: State, seat: Tensor) -> Tensor:
        """See `GameRules.see`."""
        own = state["cards"].gather(1, seat.unsqueeze(1)).squeeze(1)
        shown = torch.nn.functional.one_hot(state["cards"][:, 2], len(CARDS))
        history = state["history"].flatten(1)
        columns = [
            torch.nn.functional.one_hot(seat, 2),
            torch.nn.functional.one_hot(own, len(CARDS)),
            shown * state["round"].unsqueeze(1),
            torch.stack((history == CALL, history == RAISE), 2).flatten(1),
        ]
        return torch.cat(columns, 1).float()

    def privileged(self, state: State, seat: Tensor) -> Tensor:
        """See `GameRules.privileged`: the opponent's card, and the public card in all rounds."""
        other = state["cards"].gather(1, 1 - seat.unsqueeze(1)).squeeze(1)
        cards = torch.stack((other, state["cards"][:, 2]), 1)
        return torch.nn.functional.one_hot(cards, len(CARDS)).flatten(1).float()

    def outcome(self, state: State, returns: Tensor) -> Tensor:
        """See `GameRules.outcome`."""
        del state
        return 0.5 + returns / 26.0

    def describe(self, state: State, game: int) -> str:
        """See `GameRules.describe`."""
        first, second, public = (CARDS[card] for card in state["cards"][game].tolist())
        names = ("fold", "call", "raise")
        rounds = [
            ", ".join(names[one] for one in decisions if one != _NOT_YET) or "none"
            for decisions in state["history"][game].tolist()
        ]
        return (
            f"cards {first} and {second}, public card {public}, stakes "
            f"{state['stakes'][game].tolist()}, decisions of round 1: {rounds[0]}; of round 2: "
            f"{rounds[1]}"
        )


def _this_round(state: State) -> Tensor:
    """Return (G, 4), the decisions of the present round."""
    second = (state["round"] == 1).unsqueeze(1)
    return torch.where(second, state["history"][:, 1], state["history"][:, 0])


def _better_hand(cards: Tensor) -> Tensor:
    """Return (G,) float64: 1 where the first player has the better hand, -1 the second, or 0."""
    ranks = cards // 2
    # A pair is better than every other hand; ranks are 0 to 2.
    pair = 3 * (ranks[:, :2] == ranks[:, 2:])
    strength = ranks[:, :2] + pair
    return torch.sign((strength[:, 0] - strength[:, 1]).double())
