"""Games of two players against each other, in which every deal is played in both seatings.

A deal is all random numbers of the game itself. Two games with the same deal and exchanged seats
have the same luck on both sides, so an advantage of a seat cancels, and the sum of the points of
both players is the same in every pair: payoffs are exactly zero-sum.

Different pairs play the same deals. The results of a pair do not depend on which other pairs are
played with it, except that policies round differently in batches of different sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweepd.envs.core.rows import where_rows
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.vec_env import Legal
from sweepd.envs.games.game import Game
from sweepd.envs.games.game_tree import Behaviour, InformationSets
from sweepd.envs.games.opponents import ScriptedPlayer, scripted_act
from sweepd.envs.games.tensor_game import State, TensorGame
from sweepd.envs.support.errors import InputError, RunError

Floats = NDArray[np.float64]
Act = Callable[..., Tensor]  # as `Entrant.sit` returns it
SAMPLED, DETERMINISTIC = KINDS_OF_PLAY = ("sampled", "deterministic")
_CHECK_INTERVAL = 16  # steps between two checks whether all games have ended, which synchronize


class Entrant(ABC):
    """One player or several that act in one call.

    Attributes:
        names: of the players.
    """

    names: tuple[str, ...]

    @abstractmethod
    def sit(self, env: TensorGame, block: int, seed: int) -> Act:
        """Return a function that acts for all games of the players, from their beginning.

        It maps observations (rows, state_dim) float32 to controls (what `TensorGame.decode`
        returns). Rows are grouped by player in the order of `names`, equally many each; a player's
        are blocks, one per pair in which it plays.

        In games in turns and games with masks it is called as `act(obs, live, legal)`. live:
        (rows,) bool, the rows whose action counts, or None: all. What a player remembers must not
        change in other rows, where `obs` is what the player to move sees. legal: the masks of the
        rows (`sweepd.envs.core.vec_env.Legal`), or None.

        Args:
            env: the environment; the function is not called with its rows.
            block: rows of a block. Blocks get the same random numbers, so that the play in a pair
                does not depend on the number of pairs.
            seed: of the players' own random numbers.
        """

    def behaviours(self) -> Mapping[str, Behaviour]:
        """Return a single player's probabilities of options by kind of play, if they are known.

        The first kind (`KINDS_OF_PLAY`) is how it plays here; others are how it could play.
        """
        return {}


class ScriptedEntrant(Entrant):
    """A scripted player."""

    def __init__(self, name: str, player: ScriptedPlayer) -> None:
        self.names, self._player = (name,), player

    def sit(self, env: TensorGame, block: int, seed: int) -> Act:  # noqa: ARG002
        """See `Entrant.sit`."""
        player, draw = self._player, block_uniforms(block, seed)
        memory: list[Tensor] = []

        def act(obs: Tensor, live: Tensor | None = None, legal: Legal | None = None) -> Tensor:
            if not memory:
                memory.append(player.start(draw(obs, player.uniforms)))
            uniforms = draw(obs, player.uniforms)
            controls, after = scripted_act(player, obs, memory[0], uniforms, legal)
            memory[0] = after if live is None else where_rows(live, after, memory[0])
            return controls

        return act


class RandomEntrant(Entrant):
    """Uniform random play."""

    def __init__(self, name: str = "random") -> None:
        self.names = (name,)

    def sit(self, env: TensorGame, block: int, seed: int) -> Act:
        """See `Entrant.sit`."""
        draw = block_uniforms(block, seed)

        sizes = env.spec.choices

        def act(obs: Tensor, live: Tensor | None = None, legal: Legal | None = None) -> Tensor:
            del live
            if legal is not None or env.spec.action_dims:
                return random_legal(draw(obs, len(sizes)), sizes, legal)
            if env.if_discrete:
                return env.decode((draw(obs, 1)[:, 0] * env.action_dim).long())
            return env.decode(2.0 * draw(obs, env.action_dim) - 1.0)

        return act

    def behaviours(self) -> Mapping[str, Behaviour]:
        """See `Entrant.behaviours`."""
        return {SAMPLED: uniform_behaviour}


def uniform_behaviour(sets: InformationSets) -> Tensor:
    """Choose every legal option with the same probability: a `Behaviour`."""
    return sets.legal.double() / sets.legal.sum(1, keepdim=True)


def random_legal(uniforms: Tensor, sizes: Sequence[int], legal: Legal | None) -> Tensor:
    """Return uniformly random legal options: (rows,) int64, or (rows, choices) for several.

    Args:
        uniforms: (rows, choices) float64 in [0, 1).
        sizes: the number of options of each choice.
        legal: the rows' masks; None: all options are legal.
    """
    chosen = torch.zeros(len(uniforms), 0, dtype=torch.int64, device=uniforms.device)
    for choice, size in enumerate(sizes):
        if legal is None:
            option = (uniforms[:, choice : choice + 1] * size).long()
        else:
            mask = legal(chosen)
            # The k-th legal option, where the running count is k + 1.
            wanted = (uniforms[:, choice] * mask.sum(1)).long().unsqueeze(1)
            option = ((mask.cumsum(1) - 1 == wanted) & mask).byte().argmax(1, keepdim=True)
        chosen = torch.cat((chosen, option), 1)
    return chosen if len(sizes) > 1 else chosen[:, 0]


def block_uniforms(block: int, seed: int) -> Callable[[Tensor, int], Tensor]:
    """Return a function that draws (rows, columns) float64 in [0, 1), the same for all blocks.

    It gets the rows' observations and the number of columns.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(obs: Tensor, columns: int) -> Tensor:
        one = torch.rand(block, columns, generator=generator, dtype=torch.float64)
        return one.to(obs.device).repeat(len(obs) // block, 1)

    return draw


def scripted_entrants(game: Game, params: Any) -> list[Entrant]:
    """Return the game's scripted players, or uniform random play if it has none."""
    found = [ScriptedEntrant(name, player) for name, player in game.scripted(params).items()]
    return [*found] or [RandomEntrant()]


@dataclass(frozen=True)
class PairResults:
    """Results of pairs of players. The last axis is the seat of the pair's first player.

    Attributes:
        points: (pairs, deals, 2), outcomes for the pair's first player: 1 won, 0.5 drawn, 0 lost.
            The other player has 1 minus that.
        lengths: (pairs, deals, 2), numbers of steps.
    """

    points: Floats
    lengths: NDArray[np.int64]


@dataclass(frozen=True)
class Tally:
    """Numbers of games that a player won, drew and lost.

    Attributes:
        points: mean outcome.
    """

    wins: int
    draws: int
    losses: int
    points: float

    @property
    def games(self) -> int:
        """All games."""
        return self.wins + self.draws + self.losses

    def __str__(self) -> str:
        """Format as `120 won, 30 drawn, 50 lost`."""
        return f"{self.wins} won, {self.draws} drawn, {self.losses} lost"


def tally(points: Floats) -> Tally:
    """Count outcomes of any shape: more than one half is a win, less is a loss."""
    wins, losses = int((points > 0.5).sum()), int((points < 0.5).sum())
    return Tally(wins, points.size - wins - losses, losses, float(points.mean()))


def is_versus(game: Game, params: Any) -> bool:
    """Whether the game is one of two players against each other, with outcomes."""
    return game.versus is not None and game.seats(params) == 2


def play_pairs(
    game: Game,
    params: Any,
    entrants: Sequence[Entrant],
    pairs: Sequence[tuple[int, int]],
    deals: int,
    seed: int,
    *,
    device: torch.device | str = "cpu",
    ask: Callable[[], None] = lambda: None,
) -> PairResults:
    """Play all pairs, each with the same deals in both seatings: 2 * deals games.

    Args:
        game: a game for which `is_versus` holds.
        params: its parameters.
        entrants: all players.
        pairs: indices of different players, in the order of all entrants' names. All players of an
            entrant of several must be in equally many pairs.
        deals: number of deals.
        seed: of all random numbers.
        device: where the games are computed.
        ask: called before every step; it may raise to stop.

    Raises:
        InputError: the game is not of that kind, or its outcomes do not sum to 1.
    """
    if not is_versus(game, params) or deals < 1:
        raise InputError(
            f"{game.name} is not a game of two seats with outcomes, or there are no games"
        )
    assert game.versus is not None
    games = 2 * deals * len(pairs)
    env = game.versus([params], games, together=1, device=device)
    assert isinstance(env, TensorGame)
    order = _order(pairs, deals).to(device)
    # Each player of a group sits in as many games as every other player of that group.
    seats = torch.bincount(torch.tensor(pairs).flatten(), minlength=sum(_sizes(entrants)))
    rows = [int(part.sum()) * 2 * deals for part in torch.split(seats, _sizes(entrants))]
    acts = [
        entrant.sit(env, 2 * deals, derive_seed(seed, "player", entrant.names[0]))
        for entrant in entrants
    ]

    table = _Table(env, acts, order, rows)
    limit = env.step_limit(params)
    outcomes, lengths = _play(env, table, limit, deals, derive_seed(seed, "deals"), ask)
    if not torch.allclose(outcomes.sum(1), outcomes.new_ones(games)):
        raise InputError(f"{game.name}: the outcomes of both seats must sum to 1")
    first = outcomes.view(len(pairs), 2, deals, 2)
    # In the second seating, the pair's first player has the second seat.
    points = torch.stack((first[:, 0, :, 0], first[:, 1, :, 1]), -1)
    return PairResults(
        points.cpu().numpy(), lengths.view(len(pairs), 2, deals).transpose(1, 2).cpu().numpy()
    )


class _Table:
    """All seats of all games, and who acts for them.

    Row `game * 2 + seat` is a seat. Every entrant's act gets all of its rows in one call.

    Args:
        env: the environment.
        acts: of the entrants, in order.
        order: (games * 2,) the rows in the order of players.
        rows: number of rows of each entrant.
    """

    def __init__(
        self, env: TensorGame, acts: Sequence[Act], order: Tensor, rows: Sequence[int]
    ) -> None:
        self._env, self._acts, self.order, self._rows = env, acts, order, list(rows)

    def controls(self, state: State, legal: Legal | None) -> Tensor:
        """Return the controls of all seats, (games, 2, …); in turns of the seat to move.

        Args:
            state: of the games.
            legal: the masks of that state, if the game has masks.
        """
        env, order = self._env, self.order
        if not env.in_turns:
            seen = env.active_rules.see(state).to(env.spec.torch_dtype).flatten(0, 1)[order]
            joined = self._act(seen, None, legal, None)
            controls = joined.view(-1, 2, *joined.shape[1:])
            return controls
        mover = env.mover(state)
        # All rows show what the player to move sees, and only its action counts.
        seen = env.active_rules.see(state, mover).to(env.spec.torch_dtype)[order // 2]
        live = order % 2 == mover[order // 2]
        joined = self._act(seen, live, legal, mover)
        both = joined.view(-1, 2, *joined.shape[1:])
        return where_rows(mover == 1, both[:, 1], both[:, 0])

    def _act(
        self, seen: Tensor, live: Tensor | None, legal: Legal | None, mover: Tensor | None
    ) -> Tensor:
        """Return the controls of all rows, by row, from what they see in the order of players."""
        made, first = [], 0
        for act, rows in zip(self._acts, self._rows, strict=True):
            part = slice(first, first + rows)
            first += rows
            if not rows:  # an entrant of no pair
                continue
            if live is None and legal is None:
                made.append(act(seen[part]))
                continue
            own = None
            if legal is not None:
                own = partial(self._mask, legal, mover, self.order[part])
            made.append(act(seen[part], None if live is None else live[part], own))
        joined = torch.cat([part.to(made[0].dtype) for part in made])
        ordered = torch.empty_like(joined)
        ordered[self.order] = joined
        return ordered

    def _mask(self, legal: Legal, mover: Tensor | None, rows: Tensor, chosen: Tensor) -> Tensor:
        """Return the masks of these rows, given their first k choices."""
        every = chosen.new_zeros(len(self.order), chosen.shape[1])
        every[rows] = chosen
        both = every.view(len(every) // 2, 2, chosen.shape[1])
        if mover is None:
            return legal(both).flatten(0, 1)[rows]
        # Of both rows of a game, the one to move counts.
        return legal(where_rows(mover == 1, both[:, 1], both[:, 0]))[rows // 2]


def _sizes(entrants: Sequence[Entrant]) -> list[int]:
    return [len(entrant.names) for entrant in entrants]


def _order(pairs: Sequence[tuple[int, int]], deals: int) -> Tensor:
    """Return (games * 2,) the rows in the order of players; row = (pair, seating, deal, seat)."""
    both = torch.tensor(pairs).view(-1, 1, 1, 2)
    seated = torch.cat((both, both.flip(-1)), 1).expand(-1, -1, deals, -1)
    return torch.argsort(seated.flatten(), stable=True)


@torch.no_grad()
def _play(
    env: TensorGame, table: _Table, limit: int, deals: int, seed: int, ask: Callable[[], None]
) -> tuple[Tensor, Tensor]:
    """Play one episode of every game by the game's rules alone.

    Returns:
        (games, 2) outcomes of both seats, and (games,) lengths.
    """
    games = len(table.order) // 2
    generator = torch.Generator().manual_seed(seed)

    def draw(columns: int) -> Tensor:
        own = torch.rand(deals, columns, generator=generator, dtype=torch.float64)
        return own.repeat(games // deals, 1).to(env.device)

    rules, state = env.active_rules, env.start(draw(env.uniforms_per_start))
    returns = torch.zeros(games, 2, dtype=torch.float64, device=env.device)
    outcomes = torch.full_like(returns, 0.5)
    alive = torch.ones(games, dtype=torch.bool, device=env.device)
    lengths = torch.zeros(games, dtype=torch.int64, device=env.device)
    strict = env.spec.masked or bool(env.spec.action_dims) or env.in_turns
    illegal = torch.zeros_like(alive)
    for step in range(1, limit + 1):
        if step % _CHECK_INTERVAL == 0 and not bool(alive.any()):
            break
        ask()
        legal = env.legal_options(state) if env.spec.masked else None
        controls = table.controls(state, legal)
        if strict:
            controls, right = env.strictly(controls, legal)
            # Such games stay as they are, so that their position can be printed.
            illegal |= alive & ~right
            alive &= right
        moved, reward, over = rules.move(state, controls, draw(env.uniforms_per_move))
        returns += torch.where(alive.unsqueeze(1), reward.double(), 0.0)
        lengths += alive
        ended = alive & (over if step < limit else torch.ones_like(over))
        outcome = env.outcome(moved, returns).double()
        outcomes = torch.where(ended.unsqueeze(1), outcome, outcomes)
        # Games that have ended keep their last state: rules may not define what follows it.
        state = {name: where_rows(alive, moved[name], old) for name, old in state.items()}
        alive = alive & ~ended
    if strict and bool(illegal.any()):
        game = int(illegal.byte().argmax())
        raise RunError(
            f"{env.env_name}: a player gave an illegal action in {int(illegal.sum())} of {games} "
            f"games, in game {game} in step {int(lengths[game]) + 1} in this position: "
            f"{env.describe(state, game)}"
        )
    return outcomes, lengths
