"""Opponents of members in games of two seats: which there are, who meets whom, how they act."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sweepd.envs.core.policies import Policies
from sweepd.envs.core.rows import where_rows
from sweepd.envs.core.vec_env import Legal
from sweepd.envs.support.errors import InputError

# The seats that a member may have, and the probability that it has the first one.
SEATS = {"first": 1.0, "second": 0.0, "either": 0.5}


class Opponents(ABC):
    """The opponents of all members' games, and each member's mixture of them.

    Everything is computed for all games at once, as in `TensorGame`: every game from that game
    alone, without reading a tensor's value. G is the number of games, grouped by member. The
    opponents belong to one environment, with as many members.

    Attributes:
        names: The roster.
        uniforms: Uniform random numbers that `act` gets per game and step, and `begin` per game.
        memory: Columns of memory per game.
        shares: (members, len(names)) float64, the probability of each opponent in an episode of a
            member. Rows sum to 1. Changes apply to episodes that begin later.
        first: (members,) float64, the probability that a member has the first seat in an episode.
        decode: Converts actions, as a policy of the game gives them, to controls. The game sets it
            (`TensorGame.decode`).
    """

    uniforms: int = 0
    memory: int = 0
    decode: Callable[[Tensor], Tensor] = staticmethod(lambda action: action)

    def __init__(
        self, names: Sequence[str], members: int, device: torch.device | str = "cpu"
    ) -> None:
        """Set up a roster for `members` members, with equal shares and either seat.

        Raises:
            InputError: There are no names, or a name is there twice.
        """
        if not names or len(set(names)) < len(names):
            raise InputError(f"opponents must be different names, not {list(names)}")
        self.names = tuple(names)
        shares = torch.full((members, len(names)), 1.0 / len(names), dtype=torch.float64)
        self.shares = shares.to(device)
        self.first = torch.full((members,), SEATS["either"], dtype=torch.float64, device=device)

    def configure_member(
        self, member: int, mixture: Mapping[str, float], seat: str = "either"
    ) -> None:
        """Set whom a member meets in episodes that begin from now on, and its seat.

        Raises:
            InputError: See `check_mixture`.
        """
        check_mixture(mixture, seat, self.names)
        shares = torch.tensor([mixture.get(name, 0.0) for name in self.names], dtype=torch.float64)
        self.shares[member] = (shares / shares.sum()).to(self.shares.device)
        self.first[member] = SEATS[seat]

    @abstractmethod
    def begin(self, uniforms: Tensor) -> Tensor:
        """Return the memory at the start of an episode, (G, memory) float64.

        Args:
            uniforms: (G, uniforms) float64 in [0, 1).
        """

    @abstractmethod
    def act(
        self,
        obs: Tensor,
        chosen: Tensor,
        memory: Tensor,
        uniforms: Tensor,
        legal: Legal | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Play one step.

        In games in turns, what is returned for games in which it is not the opponent's turn is
        dropped.

        Args:
            obs: (G, state_dim), the observations of the opponents' seats.
            chosen: (G,) int64, each game's opponent, an index of `names`.
            memory: (G, memory) float64.
            uniforms: (G, uniforms) float64 in [0, 1).
            legal: In games with masks, maps their first k choices (G, k) int64 to the legal
                options of the next one, (G, options) bool.

        Returns:
            The controls of their seats, in the form that `TensorGame.move` takes; the new memory.
        """

    def begin_rollout(self, policies: Policies) -> None:  # noqa: B027
        """See `VecEnv.begin_rollout`."""

    def reset_member(self, member: int) -> None:  # noqa: B027
        """Forget a slot's member, such as its past selves: another one begins there."""

    def get_member(self, member: int) -> dict[str, Tensor]:
        """Return a member's part, for `VecEnv.get_member`. Subclasses add what they keep."""
        return {"shares": self.shares[member], "first": self.first[member]}

    def set_member(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Restore what `get_member` returned."""
        self.shares[member] = state["shares"].to(self.shares.device)
        self.first[member] = state["first"].to(self.first.device)


class ScriptedPlayer(Protocol):
    """A player that follows fixed rules, for any number of games at once.

    Its method `act` returns the controls of a step and the new memory. In games with masks it is
    `act(obs, memory, uniforms, legal)`, else `act(obs, memory, uniforms)`, with

    - obs: (G, state_dim), of its seat;
    - memory: (G, memory), which only changes where it is its turn;
    - uniforms: (G, uniforms) in [0, 1);
    - legal: see `Opponents.act`. The mask of its next choice, given its earlier ones.

    Attributes:
        uniforms: Uniform random numbers that it needs per game and step, and at the start.
        memory: Columns of its memory per game.
    """

    @property
    def uniforms(self) -> int: ...
    @property
    def memory(self) -> int: ...

    def start(self, uniforms: Tensor) -> Tensor:
        """Return the memory at the start of an episode, (G, memory), from (G, uniforms)."""
        ...

    @property
    def act(self) -> Callable[..., tuple[Tensor, Tensor]]: ...


def scripted_act(
    player: ScriptedPlayer, obs: Tensor, memory: Tensor, uniforms: Tensor, legal: Legal | None
) -> tuple[Tensor, Tensor]:
    """Return `player.act(...)`, with `legal` in games with masks only."""
    own = uniforms[:, : player.uniforms]
    if legal is None:
        return player.act(obs, memory, own)
    return player.act(obs, memory, own, legal)


class Scripted(Opponents):
    """A list of scripted players.

    Every player computes every game, and the game's own opponent counts. The players share the
    random numbers of a game, as only one of them plays it.
    """

    def __init__(
        self,
        players: Mapping[str, ScriptedPlayer],
        members: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """Set up the players by name. See `Opponents`."""
        super().__init__(list(players), members, device)
        self.players = list(players.values())
        self.uniforms = max(player.uniforms for player in self.players)
        self.memory = sum(player.memory for player in self.players)

    def begin(self, uniforms: Tensor) -> Tensor:
        """See `Opponents.begin`."""
        begun = [player.start(uniforms[:, : player.uniforms]) for player in self.players]
        return torch.cat(begun, 1)

    def act(
        self,
        obs: Tensor,
        chosen: Tensor,
        memory: Tensor,
        uniforms: Tensor,
        legal: Legal | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See `Opponents.act`."""
        parts = memory.split_with_sizes([player.memory for player in self.players], 1)
        made = [
            scripted_act(player, obs, own, uniforms, legal)
            for player, own in zip(self.players, parts, strict=True)
        ]
        controls = made[0][0]
        for index, (own, _) in enumerate(made[1:], start=1):
            controls = where_rows(chosen == index, own, controls)
        return controls, torch.cat([own for _, own in made], 1)


def check_mixture(mixture: Mapping[str, float], seat: str, names: Sequence[str]) -> None:
    """Check a mixture of opponents and a seat.

    Raises:
        InputError: An opponent is not one of `names`, a share is negative or not a number, the
            shares do not add up to 1, or the seat is none of `SEATS`.
    """
    if seat not in SEATS:
        raise InputError(f"seat {seat!r} is not one of {', '.join(SEATS)}")
    for name, share in mixture.items():
        if name not in names:
            raise InputError(f"opponent {name!r} is not one of {', '.join(names)}")
        if isinstance(share, bool) or not isinstance(share, int | float) or not share >= 0:
            raise InputError(f"the share of opponent {name} is {share!r}; it must be 0 or more")
    total = sum(mixture.values())
    # Shares such as three times 0.333 are meant to add up to 1.
    if not math.isclose(total, 1.0, abs_tol=2e-3):
        raise InputError(f"the shares of opponents add up to {total:g}; they must add up to 1")
