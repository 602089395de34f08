"""A signalling game in turns that players can only win if they remember.

Each seat has a card that the other one does not see. In turn, they show a signal of their choice,
then a second one that nobody reads, and then name the other's card. A seat sees its card only while
it chooses the signal, and the other's signal only in its next decision. So who names a card sees
nothing: without memory, half of the names are right at best.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.envs.games.tensor_game import State, TensorGame

CARDS = 2


class Signals(TensorGame):
    """Rewards are the same for both: 1/2 for each card that is named."""

    seats, in_turns = 2, True
    state_dim, action_dim, if_discrete, max_step = 2 * CARDS + 3, CARDS, True, 6
    uniforms_per_start = 2

    def start(self, uniforms: Tensor) -> State:
        none = torch.zeros(len(uniforms), dtype=torch.int64, device=uniforms.device)
        return {"cards": (CARDS * uniforms).long(), "signal": none, "turn": none}

    def mover(self, state: State) -> Tensor:
        return state["turn"] % 2

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        del uniforms
        turn, mover = state["turn"], state["turn"] % 2
        others = state["cards"].gather(1, 1 - mover.unsqueeze(1))[:, 0]
        paid = 0.5 * ((turn >= 4) & (action == others))
        state = {**state, "signal": action, "turn": turn + 1}
        return state, torch.stack((paid, paid), 1), turn == 5

    def see(self, state: State, seat: Tensor) -> Tensor:
        turn, hot = state["turn"], torch.nn.functional.one_hot
        card = hot(state["cards"].gather(1, seat.unsqueeze(1))[:, 0], CARDS)
        signal = hot(state["signal"], CARDS)
        round_ = turn // 2
        shown = card * (round_ == 0).unsqueeze(1)
        # The first signal of seat 0 in decision 1, and that of seat 1 in decision 2.
        heard = signal * ((turn == 1) | (turn == 2)).unsqueeze(1)
        return torch.cat((shown, heard, hot(round_.clamp(max=2), 3)), 1)
