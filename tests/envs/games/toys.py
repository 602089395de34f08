"""Small games of two players, some with known equilibria, and policies of given probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sweepd.agents.policy.members import Member
from sweepd.envs.core.vec_env import Legal
from sweepd.envs.games.opponents import ScriptedPlayer
from sweepd.envs.games.tensor_game import State, TensorGame

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


class Nim(TensorGame):
    """Nim with three piles and secrets, in turns: who takes the last stone wins.

    A decision is a pile, and one to three of its stones (option 0: one stone). Who takes one stone
    of the last pile moves again. Who empties a pile costs the other 0.25. A win pays 1 and an
    eighth of the winner's secret, which only the winner saw before. Now and then, luck ends a game
    without a winner.
    """

    seats, in_turns, masked = 2, True, True
    state_dim, action_dims, if_discrete, max_step = 6, (3, 3), True, 5
    obs_dtype, seat_column = "uint8", 4
    uniforms_per_start, uniforms_per_move = 6, 1

    def start(self, uniforms: Tensor) -> State:
        piles = 1 + (4 * uniforms[:, :3]).long()
        return {
            "piles": piles,
            "secret": (4 * uniforms[:, 3:5]).long(),
            "mover": (2 * uniforms[:, 5]).long(),
        }

    def mover(self, state: State) -> Tensor:
        return state["mover"]

    def mask(self, state: State, chosen: Tensor) -> Tensor:
        piles = state["piles"]
        if not chosen.shape[1]:
            return piles > 0
        return torch.arange(3, device=piles.device) < piles.gather(1, chosen[:, :1])

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        pile, stones = action[:, :1], 1 + action[:, 1:]
        left = state["piles"].gather(1, pile) - stones
        piles = state["piles"].scatter(1, pile, left)
        mover = state["mover"].unsqueeze(1)
        won = piles.sum(1, keepdim=True) == 0
        prize = 1.0 + state["secret"].gather(1, mover) / 8.0
        own = torch.where(won, prize, 0.0)
        theirs = torch.where(won, -prize, 0.0) - torch.where(left == 0, 0.25, 0.0)
        reward = torch.where(mover == 0, torch.cat((own, theirs), 1), torch.cat((theirs, own), 1))
        again = (pile == 2) & (stones == 1)
        following = torch.where(again, mover, 1 - mover)[:, 0]
        over = won[:, 0] | (uniforms[:, 0] < 0.05)
        return {"piles": piles, "secret": state["secret"], "mover": following}, reward, over

    def see(self, state: State, seat: Tensor) -> Tensor:
        turn = state["mover"] == seat
        secret = state["secret"].gather(1, seat.unsqueeze(1))
        return torch.cat((state["piles"], secret, seat.unsqueeze(1), turn.unsqueeze(1)), 1).to(
            torch.uint8
        )

    def describe(self, state: State, game: int) -> str:
        return f"piles {state['piles'][game].tolist()}, seat {int(state['mover'][game])} to move"


class PlainNim:
    """One game of Nim."""

    def __init__(self, uniforms: Sequence[float]) -> None:
        self.piles = [1 + int(4 * number) for number in uniforms[:3]]
        self.secret = [int(4 * number) for number in uniforms[3:5]]
        self.mover = int(2 * uniforms[5])

    def mask(self, chosen: Sequence[int]) -> list[bool]:
        if not chosen:
            return [pile > 0 for pile in self.piles]
        return [stones <= self.piles[chosen[0]] for stones in (1, 2, 3)]

    def move(self, action: Sequence[int], luck: float) -> tuple[list[float], bool]:
        pile, stones = action[0], 1 + action[1]
        mover, rewards = self.mover, [0.0, 0.0]
        self.piles[pile] -= stones
        if self.piles[pile] == 0:
            rewards[1 - mover] -= 0.25
        won = not any(self.piles)
        if won:
            rewards[mover] += 1 + self.secret[mover] / 8
            rewards[1 - mover] -= 1 + self.secret[mover] / 8
        if pile != 2 or stones != 1:
            self.mover = 1 - mover
        return rewards, won or luck < 0.05

    def see(self, seat: int) -> list[int]:
        return [*self.piles, self.secret[seat], seat, int(self.mover == seat)]


class Grabber:
    """Takes one stone in its first decision of an episode, then as many as it may."""

    uniforms, memory = 0, 1

    def start(self, uniforms: Tensor) -> Tensor:
        return uniforms.new_zeros(len(uniforms), 1)

    def act(
        self,
        obs: Tensor,
        memory: Tensor,
        uniforms: Tensor,  # noqa: ARG002
        legal: Legal,
    ) -> tuple[Tensor, Tensor]:
        pile = (obs[:, :3] > 0).byte().argmax(1, keepdim=True)
        most = legal(pile).sum(1) - 1
        stones = torch.where(memory[:, 0] == 0, 0, most.clamp(0, 2))
        return torch.cat((pile, stones.unsqueeze(1)), 1), memory + 1


class Drifter:
    """Chooses any legal decision."""

    uniforms, memory = 2, 0

    def start(self, uniforms: Tensor) -> Tensor:
        return uniforms[:, :0]

    def act(
        self, obs: Tensor, memory: Tensor, uniforms: Tensor, legal: Legal
    ) -> tuple[Tensor, Tensor]:
        chosen = torch.zeros(len(obs), 0, dtype=torch.int64, device=obs.device)
        for choice in range(2):
            options = legal(chosen)
            count = (uniforms[:, choice] * options.sum(1)).long()
            at = ((options.cumsum(1) - 1 == count.unsqueeze(1)) & options).byte().argmax(1)
            chosen = torch.cat((chosen, at.unsqueeze(1)), 1)
        return chosen, memory


class Giver:
    """Takes one stone of the first pile that has some."""

    uniforms = memory = 0

    def start(self, uniforms: Tensor) -> Tensor:
        return uniforms[:, :0]

    def act(self, obs: Tensor, memory: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        pile = (obs[:, :3] > 0).byte().argmax(1)
        return torch.stack((pile, torch.zeros_like(pile)), 1), memory


NIM_PLAYERS: dict[str, ScriptedPlayer] = {"grabber": Grabber(), "drifter": Drifter()}
NIM = Nim.game(scripted=lambda _: NIM_PLAYERS)
EASY_NIM = Nim.game(scripted=lambda _: {"giver": Giver()})
RPS = RockPaperScissors.game()
RPS_SCRIPTED = RockPaperScissors.game(
    scripted=lambda _: {"rock": Always(0), "paper": Always(1), "scissors": Always(2)}
)
SHOWDOWN = Showdown.game()


def chooser(*shares: Sequence[float]) -> Member:
    """A member whose probabilities are shares[i] if its i-th observation is 1.

    With one list of shares, they apply always.
    """
    logits = torch.tensor(shares, dtype=torch.float32).clamp_min(1e-8).log()
    if len(shares) == 1:
        weight, bias = torch.zeros(logits.shape[1], 1), logits[0]
    else:
        weight, bias = logits.t().contiguous(), torch.zeros(logits.shape[1])
    columns = weight.shape[1]
    return Member.of_tensors(
        {
            "net.0.weight": weight,
            "net.0.bias": bias,
            "state_avg": torch.zeros(columns),
            "state_std": torch.ones(columns),
        }
    )
