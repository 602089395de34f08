"""Small games of two players with known equilibria, and policies of given probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from envs.games.tensor_game import State, TensorGame

# Rock, paper, scissors: what the row's choice gets against the column's.
WINS = ((0.0, -1.0, 1.0), (1.0, 0.0, -1.0), (-1.0, 1.0, 0.0))


class RockPaperScissors(TensorGame):
    """One round of rock, paper, scissors."""

    seats, state_dim, action_dim, if_discrete = 2, 1, 3, True
    max_step = 1

    def start(self, uniforms: Tensor) -> State:
        return {"none": torch.zeros(len(uniforms), device=uniforms.device)}

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        del uniforms
        payoffs = torch.tensor(WINS, device=action.device)
        own = payoffs[action[:, 0], action[:, 1]]
        return state, torch.stack((own, -own), 1), torch.ones_like(own, dtype=torch.bool)

    def see(self, state: State) -> Tensor:
        return state["none"].view(-1, 1, 1).expand(-1, 2, 1)


class Showdown(TensorGame):
    """Kuhn's poker with both decisions at once: each gets one of three cards, and bets or folds.

    If both bet, the higher card wins 2; a bet against a fold wins 1; two folds win nothing. The
    outcome is the share of the stake, so that points are the payoffs of the game.
    """

    seats, state_dim, action_dim, if_discrete = 2, 3, 2, True
    max_step = 1
    uniforms_per_start = 2

    def start(self, uniforms: Tensor) -> State:
        first = (uniforms[:, 0] * 3).long()
        second = (first + 1 + (uniforms[:, 1] * 2).long()) % 3
        return {"cards": torch.stack((first, second), 1)}

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        del uniforms
        cards, bets = state["cards"], action.double()
        higher = torch.sign((cards[:, 0] - cards[:, 1]).double())
        own = torch.where((bets > 0).all(1), 2.0 * higher, bets[:, 0] - bets[:, 1])
        return state, torch.stack((own, -own), 1), torch.ones_like(own, dtype=torch.bool)

    def see(self, state: State) -> Tensor:
        return torch.nn.functional.one_hot(state["cards"], 3)

    def outcome(self, state: State, returns: Tensor) -> Tensor:
        del state
        return 0.5 + returns / 4.0


@dataclass(frozen=True)
class Always:
    """A scripted player of rock, paper, scissors that makes one choice."""

    option: int
    uniforms = 0
    memory = 0

    def start(self, uniforms: Tensor) -> Tensor:
        return uniforms

    def act(self, obs: Tensor, memory: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        del uniforms
        return torch.full((len(obs),), self.option, device=obs.device), memory


RPS = RockPaperScissors.game()
RPS_SCRIPTED = RockPaperScissors.game(
    scripted=lambda _: {"rock": Always(0), "paper": Always(1), "scissors": Always(2)}
)
SHOWDOWN = Showdown.game()


def chooser(*shares: Sequence[float]) -> dict[str, Tensor]:
    """A member whose probabilities are shares[i] if its i-th observation is 1.

    With one list of shares, they apply always.
    """
    logits = torch.tensor(shares, dtype=torch.float32).clamp_min(1e-8).log()
    if len(shares) == 1:
        weight, bias = torch.zeros(logits.shape[1], 1), logits[0]
    else:
        weight, bias = logits.t().contiguous(), torch.zeros(logits.shape[1])
    columns = weight.shape[1]
    return {
        "net.0.weight": weight,
        "net.0.bias": bias,
        "state_avg": torch.zeros(columns),
        "state_std": torch.ones(columns),
    }
