"""A small game with items: play the best card of a hand, given what lies on the table."""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.envs.core.items import ItemGroup, Items
from sweepd.envs.games.tensor_game import State, TensorGame

HAND, CARDS = 4, 8
# Worth of each card by id; no card is the worst choice.
WORTH = (-1.0, 3.0, 7.0, 1.0, 5.0, 2.0, 8.0, 4.0, 6.0)


class BestCard(TensorGame):
    """One decision: which place of the hand holds the card of the highest worth.

    The card that lies on the table counts nothing in the hand, unless it is marked. Right choices
    are rewarded with 1.
    """

    action_dim, if_discrete, obs_dtype = HAND, True, "uint8"
    max_step, uniforms_per_start = 1, HAND + 2
    items = Items(
        vocabulary=CARDS + 1,
        groups=(ItemGroup("hand", HAND), ItemGroup("table", 1, ("marked",))),
        features=(("marked", 1.0),),
        plain=(float(HAND),),  # number of cards in the hand
    )
    state_dim = items.columns

    def start(self, uniforms: Tensor) -> State:
        # Id 0, no card, as often as each card.
        ids = (uniforms[:, : HAND + 1] * (CARDS + 1)).long()
        return {
            "hand": ids[:, :HAND],
            "table": ids[:, HAND],
            "marked": (uniforms[:, HAND + 1] < 0.5).long(),
        }

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        del uniforms
        worth = torch.tensor(WORTH, device=action.device)[state["hand"]]
        lies = (state["hand"] == state["table"].unsqueeze(1)) & (state["marked"] == 0).unsqueeze(1)
        worth = worth.masked_fill(lies, 0.0)
        right = worth.gather(1, action.unsqueeze(1)).squeeze(1) == worth.amax(1)
        return state, right.float(), torch.ones_like(right)

    def see(self, state: State) -> Tensor:
        count = (state["hand"] > 0).sum(1)
        table = torch.stack((state["table"], state["marked"], count), 1)
        return torch.cat((state["hand"], table), 1).to(torch.uint8)
