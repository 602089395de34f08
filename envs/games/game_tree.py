"""All that can happen in a small game in turns, as sequences of each player's own decisions.

In the sequence form (Koller, Megiddo and von Stengel, 1996), a policy is the vector of the
probabilities with which its player makes each sequence of decisions if chance and the opponent let
it. Expected returns are linear in the vectors of both players. The number of sequences is that of
pairs of an information set and an action, plus the empty sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweepd.envs.games.game import Game
from sweepd.envs.games.tensor_game import State, TensorGame
from sweepd.envs.support.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MOST_NODES = 2_000_000  # in all; a larger game is refused
EMPTY = 0  # the sequence without decisions


@dataclass(frozen=True)
class InformationSets:
    """What one player can observe where it is to move; I information sets, A options.

    An information set comes after all that its player passes before it.

    Attributes:
        observations: (I, state_dim), of the dtype of the game's observations.
        legal: (I, A) bool.
        before: (I,), the sequence that the player has made before.
        depth: (I,), the number of decisions in that sequence.
    """

    observations: Tensor
    legal: Tensor
    before: Ints
    depth: Ints

    @property
    def options(self) -> int:
        """A."""
        return self.legal.shape[1]

    @property
    def sequences(self) -> int:
        """The number of sequences: 0 is empty, 1 + i * A + a ends with option a at set i."""
        return 1 + self.legal.numel()

    @property
    def paths(self) -> Ints:
        """(I, largest depth + 1), the sets that lead to each one, by depth; then itself."""
        path = np.arange(len(self.depth))
        found = [path]
        for depth in range(int(self.depth.max(initial=0)) - 1, -1, -1):
            parent = (self.before[path] - 1) // self.options
            path = np.where(depth < self.depth, parent, path)
            found.insert(0, path)
        return np.stack(found, 1)


# From information sets to the probabilities of their options, (I, A), which sum to 1.
Behaviour = Callable[[InformationSets], Tensor]


@dataclass(frozen=True)
class GameTree:
    """A game in turns in sequence form; Z ends.

    Attributes:
        players: the information sets of both seats.
        chance: (Z,), the probability of chance's part in this end.
        sequences: (Z, 2), the sequence of each player that leads to it.
        returns: (Z, 2), of both players.
    """

    players: tuple[InformationSets, InformationSets]
    chance: Floats
    sequences: Ints
    returns: Floats


class _Sets:
    """The information sets of a player, found one node at a time."""

    def __init__(self, options: int) -> None:
        self.options, self.index = options, dict[bytes, int]()
        self.rows: list[Tensor] = []
        self.legal: list[Tensor] = []
        self.before: list[int] = []

    def find(self, seen: Tensor, legal: Tensor, before: int) -> int:
        """Return the number of the set with this observation; InputError if it is ambiguous."""
        key = seen.numpy().tobytes()
        found = self.index.setdefault(key, len(self.rows))
        if found == len(self.rows):
            self.rows.append(seen)
            self.legal.append(legal)
            self.before.append(before)
        elif self.before[found] != before:
            # A policy that maps observations to probabilities could not use all that its player
            # knows; the exact best response would be another problem (and hard to solve).
            raise InputError(
                "the same observation follows different decisions of the player; exact values need "
                "observations that tell all that the player has seen and done"
            )
        elif bool((self.legal[found] != legal).any()):
            raise InputError("positions with the same observation have different legal options")
        return found

    def done(self) -> InformationSets:
        """Return all sets."""
        before = np.array(self.before, dtype=np.int64)
        depth = np.zeros_like(before)
        for index, sequence in enumerate(before):
            if sequence != EMPTY:
                # The set in which the sequence's last decision was made has a lower number.
                depth[index] = 1 + depth[(sequence - 1) // self.options]
        return InformationSets(torch.stack(self.rows), torch.stack(self.legal), before, depth)


def is_enumerable(game: Game, params: Any) -> bool:
    """Whether `game_tree` can be asked for: the game is in turns and lists its deals."""
    if game.versus is None or game.seats(params) != 2:
        return False
    env = game.versus([params], 1, together=1, device="cpu")
    return isinstance(env, TensorGame) and env.in_turns and env.deals() is not None


def game_tree(game: Game, params: Any) -> GameTree:
    """Enumerate a game in turns in which all chance is in the deal (`GameRules.deals`).

    Raises:
        InputError: the game is of another kind or too large, or its observations do not tell a
            player all that it has seen and done (perfect recall).
    """
    if not is_enumerable(game, params):
        raise InputError(f"{game.name} is not a game in turns that lists all its deals")

    def rules(games: int) -> TensorGame:
        assert game.versus is not None
        env = game.versus([params], games, together=1, device="cpu")
        assert isinstance(env, TensorGame)
        return env

    return _enumerate(rules, game.name)


@torch.no_grad()
def _enumerate(rules: Callable[[int], TensorGame], name: str) -> GameTree:
    """Play all legal options of all deals, one decision after the other.

    Args:
        rules: makes the environment whose functions compute that many games.
        name: of the game, for errors.
    """
    deals = rules(1).deals()
    assert deals is not None
    env = rules(len(deals))
    if env.uniforms_per_move or len(env.spec.action_dims) > 1:
        raise InputError(
            f"{name}: exact values need one choice per action and chance in deals only"
        )
    state, count = env.start(deals), len(deals)
    chance = np.full(count, 1.0 / count)
    sequences, returns = np.zeros((count, 2), dtype=np.int64), np.zeros((count, 2))
    players = _Sets(env.action_dim), _Sets(env.action_dim)
    ends: list[tuple[Floats, Ints, Floats]] = []
    nodes = 0
    while len(chance):
        nodes += len(chance)
        if nodes > MOST_NODES:
            raise InputError(f"{name} has more than {MOST_NODES} positions: too many to enumerate")
        env = rules(len(chance))
        mover = env.mover(state)
        legal = env.mask(state, mover.new_zeros(len(mover), 0))
        sets = _information_sets(players, env.see(state, mover), legal, mover, sequences)
        node, option = (found.numpy() for found in legal.nonzero(as_tuple=True))
        state = {key: tensor[node] for key, tensor in state.items()}
        chance, sequences, returns = chance[node], sequences[node].copy(), returns[node]
        sequences[np.arange(len(node)), mover.numpy()[node]] = (
            1 + sets[node] * env.action_dim + option
        )
        state, over, reward = _move(rules(len(node)), state, option)
        returns = returns + reward
        ends.append((chance[over], sequences[over], returns[over]))
        state = {key: tensor[torch.from_numpy(~over)] for key, tensor in state.items()}
        chance, sequences, returns = chance[~over], sequences[~over], returns[~over]
    parts = zip(*ends, strict=True)
    own = players[0].done(), players[1].done()
    return GameTree(own, *(np.concatenate(part) for part in parts))


def _information_sets(
    players: tuple[_Sets, _Sets], seen: Tensor, legal: Tensor, mover: Tensor, sequences: Ints
) -> Ints:
    """Return (nodes,), the number of the mover's information set at every node."""
    found = [
        players[seat].find(seen[node], legal[node], int(sequences[node, seat]))
        for node, seat in enumerate(mover.tolist())
    ]
    return np.array(found, dtype=np.int64)


def _move(env: TensorGame, state: State, option: Ints) -> tuple[State, NDArray[np.bool_], Floats]:
    """Return the states after these options, whether the games are over, and the rewards."""
    uniforms = torch.zeros(len(option), 0, dtype=torch.float64)
    state, reward, over = env.move(state, torch.from_numpy(option), uniforms)
    return state, over.numpy(), reward.double().numpy()
