"""Kuhn poker (H. W. Kuhn, "A simplified two-person poker", 1950)."""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.envs.games.poker.cards import deal, every_deal
from sweepd.envs.games.poker.words import KuhnWords
from sweepd.envs.games.tensor_game import State, TensorGame

PASS, BET = 0, 1
CARDS = "JQK"
_NOT_YET = -1


class Kuhn(TensorGame):
    """Three cards, an ante of 1 and at most one bet of 1.

    Each player gets one card. In turns, they pass or bet; a pass after a bet folds, a bet after a
    bet calls. With two passes or a called bet, the higher card wins the pot. Rewards are chips won
    or lost, in the last step.

    Observations: whose view it is (2 columns), one's own card (3), and for each of the first three
    decisions whether it was a pass or a bet (6). Critics also know the opponent's card. Actions: 0
    pass, 1 bet. Both are always legal.

    The outcome is linear in the chips, so that points measure what the game is about: 0.5 plus a
    quarter of the chips won, at most 2.
    """

    seats, in_turns = 2, True
    state_dim, action_dim, if_discrete, masked = 11, 2, True, True
    privileged_dim = 3
    # Zeros and ones; columns that are rarely 1 would be scaled to large numbers.
    prescaled = True
    seat_column = 1
    max_step = 3
    uniforms_per_start = 2
    words = KuhnWords()

    def start(self, uniforms: Tensor) -> State:
        """See `GameRules.start`."""
        history = torch.full((len(uniforms), 3), _NOT_YET, device=uniforms.device)
        return {"cards": deal(uniforms, len(CARDS)), "history": history}

    def deals(self) -> Tensor:
        """See `GameRules.deals`."""
        return every_deal(2, len(CARDS))

    def mover(self, state: State) -> Tensor:
        """See `GameRules.mover`."""
        return (state["history"] != _NOT_YET).sum(1) % 2

    def mask(self, state: State, chosen: Tensor) -> Tensor:
        """See `GameRules.mask`."""
        del chosen
        return torch.ones_like(state["cards"], dtype=torch.bool)

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        """See `GameRules.move`."""
        del uniforms
        cards, before = state["cards"], state["history"]
        made = (before != _NOT_YET).sum(1, keepdim=True)
        history = before.scatter(1, made.clamp(max=2), action.view(-1, 1))
        passed, bet = history == PASS, history == BET
        # Every sequence of two decisions ends the game, except pass and bet.
        over = (history[:, 1] != _NOT_YET) & ~(passed[:, 0] & bet[:, 1])
        over = over | (history[:, 2] != _NOT_YET)
        bets = torch.stack((bet[:, 0] | bet[:, 2], bet[:, 1]), 1).double()
        higher = torch.sign((cards[:, 0] - cards[:, 1]).double())
        # Where one player has bet and the other not, it wins the other's ante.
        ahead = bets[:, 0] - bets[:, 1]
        won = torch.where(ahead == 0.0, higher * (1.0 + bets[:, 0]), ahead)
        won = torch.where(over, won, 0.0)
        return {"cards": cards, "history": history}, torch.stack((won, -won), 1), over

    def see(self, state: State, seat: Tensor) -> Tensor:
        """See `GameRules.see`."""
        own = state["cards"].gather(1, seat.unsqueeze(1)).squeeze(1)
        columns = [
            torch.nn.functional.one_hot(seat, 2),
            torch.nn.functional.one_hot(own, len(CARDS)),
            torch.stack((state["history"] == PASS, state["history"] == BET), 2).flatten(1),
        ]
        return torch.cat(columns, 1).float()

    def privileged(self, state: State, seat: Tensor) -> Tensor:
        """See `GameRules.privileged`: the opponent's card."""
        other = state["cards"].gather(1, 1 - seat.unsqueeze(1)).squeeze(1)
        return torch.nn.functional.one_hot(other, len(CARDS)).float()

    def outcome(self, state: State, returns: Tensor) -> Tensor:
        """See `GameRules.outcome`."""
        del state
        return 0.5 + returns / 4.0

    def describe(self, state: State, game: int) -> str:
        """See `GameRules.describe`."""
        first, second = (CARDS[card] for card in state["cards"][game].tolist())
        made = [("pass", "bet")[one] for one in state["history"][game].tolist() if one >= 0]
        return f"cards {first} and {second}, decisions: {', '.join(made) or 'none'}"
