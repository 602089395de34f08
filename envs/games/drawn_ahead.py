"""Random numbers of games, drawn ahead from their members' streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from sweepd.envs.core.rows import where_rows
from sweepd.envs.core.streams import NextNumbers
from sweepd.envs.games.batched_rules import BatchedRules, State

Numbers = dict[str, Tensor]
_AHEAD = 64  # steps for which starts are drawn ahead if `draw` was not called


class StepNumbers:
    """What every step of all games needs of chance, drawn ahead for each member by itself.

    Attributes:
        buffers: By name, (steps, ...) with the games at `axis` of a step's numbers. A member's are
            zeros where it needs none of that name.
    """

    def __init__(
        self,
        members: int,
        games_per_member: int,
        draw: Callable[[slice, int], Numbers],
        device: torch.device,
        *,
        axis: int = 0,
        ahead: int = 1,
    ) -> None:
        """Make empty slots.

        Args:
            members: Number of members.
            games_per_member: Games of each.
            draw: Returns what the games of some members need in the next steps, given members and
                number of steps: (steps, ...) by name.
            device: Device of the numbers.
            axis: Where the games are in a step's numbers: the first axis (0) or the last one (-1).
            ahead: Steps that are drawn at once if `draw` was not called.
        """
        self.buffers: Numbers = {}
        self._members, self._each = members, games_per_member
        self._of_members, self._device, self._ahead = draw, device, ahead
        self._axis = 1 if axis == 0 else -1  # of the buffers
        self._at = 0  # index of the next step
        self._until = 0  # steps until some member's numbers are used up
        self._drawn = np.zeros(members, dtype=np.int64)  # steps of each member, from index 0

    def draw(self, steps: int) -> None:
        """Draw the numbers of the next steps, in place of those that are left."""
        self._at = self._until = 0
        every = slice(0, self._members)
        self._put(every, self._of_members(every, steps), steps)

    def next(self) -> Numbers:
        """Return the numbers of the next step."""
        if not self._until:
            self._compact()
            for member in np.flatnonzero(self._drawn == 0).tolist():
                own = slice(member, member + 1)
                self._put(own, self._of_members(own, self._ahead), self._ahead)
            self._until = int(self._drawn.min())
        at = self._at
        self._at += 1
        self._until -= 1
        return {name: buffer[at] for name, buffer in self.buffers.items()}

    def discard(self, member: int) -> None:
        """Forget what is left of a member, whose stream changes."""
        self._compact()
        self._drawn[member] = 0

    def alone(self, member: int, numbers: Numbers) -> Numbers:
        """Return a member's numbers of one step, (1, ...), beside zeros in the games of others."""
        beside = {name: self._room(1, own) for name, own in numbers.items()}
        for name, own in numbers.items():
            self._part(beside[name], slice(member, member + 1)).copy_(own)
        return {name: room[0] for name, room in beside.items()}

    def state(self, member: int) -> Numbers:
        """Return what is left of a member, as a flat dict of tensors."""
        self._compact()
        drawn, games = int(self._drawn[member]), slice(member, member + 1)
        left = {
            f"ahead_{name}": self._part(buffer[:drawn], games)
            for name, buffer in self.buffers.items()
            if drawn
        }
        return left | {"ahead": torch.tensor(drawn)}

    def set_state(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._compact()
        begins = "ahead_"
        left = {
            name.removeprefix(begins): own.to(self._device)
            for name, own in state.items()
            if name.startswith(begins)
        }
        self._put(slice(member, member + 1), left, int(state["ahead"]))

    def _put(self, members: slice, numbers: Numbers, steps: int) -> None:
        """Replace the numbers of some members, from index 0 on."""
        for name, own in numbers.items():
            buffer = self.buffers.get(name)
            if buffer is None or len(buffer) < steps:
                room = self._room(steps, own)
                if buffer is not None:
                    room[: len(buffer)] = buffer
                buffer = self.buffers[name] = room
            self._part(buffer[:steps], members).copy_(own)
        for name in self.buffers.keys() - numbers.keys():
            self._part(self.buffers[name], members).zero_()
        self._drawn[members] = steps
        self._until = 0

    def _compact(self) -> None:
        """Move the numbers that are left to the beginning of the buffers."""
        if self._at:
            left = max(0, int(self._drawn.max()) - self._at)
            for buffer in self.buffers.values():
                # Cloned, because source and destination may overlap.
                buffer[:left] = buffer[self._at : self._at + left].clone()
            self._drawn = np.maximum(self._drawn - self._at, 0)
        self._at = self._until = 0

    def _room(self, steps: int, like: Tensor) -> Tensor:
        """Return zeros for all games like the numbers of a member, (steps, ...)."""
        shape = [steps, *like.shape[1:]]
        shape[self._axis] = self._members * self._each
        return like.new_zeros(shape)

    def _part(self, tensor: Tensor, members: slice) -> Tensor:
        count = members.stop - members.start
        return tensor.narrow(self._axis, members.start * self._each, count * self._each)


class StartsAhead:
    """The state in which every game's next episode begins, and the numbers of further ones.

    A game cannot begin two episodes within `VecEnv.bootstrap_interval` steps. So those starts
    that were used are replaced at that interval, and a step only copies them. The host counts the
    steps and never reads the device.

    Attributes:
        state: The next start of every game.
    """

    def __init__(self, game: BatchedRules, state: State) -> None:
        """Make room; `state` is any start."""
        self._game = game
        self.state = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        games, columns = game.num_members * game.games_per_member, game.uniforms_per_start
        self.numbers = NextNumbers(columns, rows=games, device=game.device)
        # Steps for which each member's numbers suffice, counted from the last refill.
        self._drawn = np.zeros(game.num_members, dtype=np.int64)
        # Steps since the last refill, and until the next refill or draw.
        self._since = self._until = 0

    def count_step(self) -> None:
        """Count a step, and have a start ready in every game."""
        if not self._until:
            self.refill()
            for member in np.flatnonzero(self._drawn == 0).tolist():
                self._draw(slice(member, member + 1), _AHEAD)
            self._until = min(self._game.bootstrap_interval, int(self._drawn.min()))
        self._until -= 1
        self._since += 1

    def draw(self, steps: int) -> None:
        """Draw the numbers of the starts in the next steps."""
        self.refill()
        self._draw(slice(0, len(self._drawn)), steps)

    def refill(self) -> None:
        """Replace the starts that were used since the last call: of games with a younger episode."""
        game, since = self._game, self._since
        if since:
            if game.native_step is not None:
                game.native_step.refill(self.numbers.pool, self.numbers.turn, since)
            else:
                used = game.age < since
                self._replace(used, self.numbers.next())
                self.numbers.turn += used
            self._drawn -= since
        self._since = self._until = 0

    def renew(self, member: int) -> None:
        """Draw another start for each game of a member, and forget the numbers drawn ahead."""
        self.refill()
        own = self._game.games_of(member)
        numbers = torch.zeros_like(self.numbers.pool[0])
        numbers[:, own] = self._game.draw_starts(slice(member, member + 1), [1])[0]
        games = torch.zeros(numbers.shape[1], dtype=torch.bool, device=numbers.device)
        games[own] = True
        self._replace(games, numbers)
        self._drawn[member] = 0

    def get_member(self, member: int) -> dict[str, Tensor]:
        """Return the numbers drawn ahead for a member."""
        own = self.numbers.state(self._game.games_of(member))
        return {**own, "drawn": torch.tensor(self._drawn[member])}

    def set_member(self, member: int, state: Mapping[str, Tensor]) -> None:
        """Restore what `get_member` returned."""
        self.numbers.set_state(self._game.games_of(member), state)
        self._drawn[member] = int(state["drawn"])

    def _draw(self, members: slice, steps: int) -> None:
        rounds = [-(-steps // shortest) for shortest in self._game.shortest[members]]
        numbers = self._game.draw_starts(members, rounds)
        of_games = np.repeat(rounds, self._game.games_per_member)
        self.numbers.put(self._game.games_of(members), numbers, of_games)
        self._drawn[members] = steps

    def _replace(self, games: Tensor, numbers: Tensor) -> None:
        """Replace the starts of some games, (G,) bool, by those of numbers (columns, G)."""
        for name, begun in self._game.start(numbers.t()).items():
            own = self.state[name]
            own.copy_(where_rows(games, begun, own, self._game.axis))
