"""The random events of future nights, drawn ahead for every member from its own stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sweepd.envs.core.streams import Streams
from sweepd.envs.games.bucket_brigade.rules import NightEvents, night_events
from sweepd.envs.games.bucket_brigade.scenarios import BucketParams
from sweepd.envs.support.upload import upload

_AHEAD = 64  # nights for which events are drawn ahead if `draw` was not called
_CHUNK = 2**16  # numbers drawn and evaluated at a time, which fit into a processor's cache


class EventBuffer:
    """The events of future nights in all members' games, and the starts of new games.

    Buffers have nights first and games last; the next night is at index `_at`.
    """

    def __init__(
        self, params: Sequence[BucketParams], games_per_member: int, device: torch.device
    ) -> None:
        self._params = list(params)
        self._per_member, self._device = games_per_member, device
        self._houses, self._games = params[0].num_houses, len(params) * games_per_member
        self._streams = Streams(len(params))
        # "spreads" is added while a member plays in continuous mode.
        self._buffers = {
            "needed": self._new(torch.uint8),
            "ignites": self._new(torch.bool),
            "starts": self._new(torch.bool),
        }
        self._at = 0
        self._until = 0  # nights until some member's events are used up
        self._drawn = np.zeros(len(params), dtype=np.int64)  # nights of each member, from index 0

    def configure(self, member: int, params: BucketParams) -> None:
        """Draw by these rules from now on; call `restart` or `set_state` next."""
        self._compact()
        self._params[member] = params
        self._drawn[member] = 0
        if not any(own.continuous for own in self._params):
            self._buffers.pop("spreads", None)
        elif "spreads" not in self._buffers:
            nights = len(self._buffers["needed"])
            self._buffers["spreads"] = self._new(torch.bool, 2, nights=nights)

    def seeded(self, member: int) -> bool:
        """Return whether the member has a stream."""
        return self._streams.seeded(member)

    def restart(self, member: int, seed: int | None) -> Tensor:
        """Discard what was drawn for that member, and seed its stream if a seed is given.

        Returns:
            (H, games_per_member) bool, houses that burn when its games begin.
        """
        if seed is not None:
            self._streams.seed(member, seed)
        self._compact()
        self._drawn[member] = 0
        return self._new_starts(member, 1)[0]

    def draw(self, nights: int) -> None:
        """Draw every member's next nights; what was drawn before is discarded."""
        self._compact()
        for member in range(len(self._params)):
            self._draw(member, nights)

    def next(self) -> tuple[NightEvents, Tensor]:
        """Return the next night's events, and the houses that burn in games begun after it.

        The latter are (H, E) bool.
        """
        if not self._until:
            self._prepare()
        at = self._at
        self._at += 1
        self._until -= 1
        tonight = {name: buffer[at] for name, buffer in self._buffers.items()}
        starts = tonight.pop("starts")
        return NightEvents(tonight["needed"], tonight["ignites"], tonight.get("spreads")), starts

    def state(self, member: int) -> dict[str, Tensor]:
        """Return what that member has drawn, and its stream, as a flat dict of tensors."""
        self._compact()
        drawn, games = int(self._drawn[member]), self._games_of(member)
        own = {name: tensor[:drawn, ..., games] for name, tensor in self._own(member).items()}
        return {**own, "drawn": torch.tensor(drawn), "stream": self._streams.state(member)}

    def set_state(self, member: int, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self._compact()
        drawn, games = int(state["drawn"]), self._games_of(member)
        self._make_room(drawn)
        for name, tensor in self._own(member).items():
            tensor[:drawn, ..., games] = state[name].to(self._device)
        self._drawn[member] = drawn
        self._streams.set_state(member, state["stream"])

    def _games_of(self, member: int) -> slice:
        return slice(member * self._per_member, (member + 1) * self._per_member)

    def _new(self, dtype: torch.dtype, *sides: int, nights: int = 0) -> Tensor:
        return torch.zeros(
            nights, self._houses, *sides, self._games, dtype=dtype, device=self._device
        )

    def _own(self, member: int) -> dict[str, Tensor]:
        """Return the buffers that the member uses."""
        unused = None if self._params[member].continuous else "spreads"
        return {name: buffer for name, buffer in self._buffers.items() if name != unused}

    def _make_room(self, nights: int) -> None:
        for name, buffer in self._buffers.items():
            missing = nights - len(buffer)
            if missing > 0:
                self._buffers[name] = torch.cat(
                    [buffer, buffer.new_zeros(missing, *buffer.shape[1:])]
                )

    def _compact(self) -> None:
        """Move the unused nights to the beginning of the buffers."""
        if self._at:
            left = max(0, int(self._drawn.max()) - self._at)
            for buffer in self._buffers.values():
                # Cloned, because source and destination may overlap.
                buffer[:left] = buffer[self._at : self._at + left].clone()
            self._drawn = np.maximum(self._drawn - self._at, 0)
        self._at = self._until = 0

    def _prepare(self) -> None:
        self._compact()
        for member in np.flatnonzero(self._drawn == 0):
            self._draw(int(member), _AHEAD)
        self._until = int(self._drawn.min())

    def _draw(self, member: int, nights: int) -> None:
        self._make_room(nights)
        params, games = self._params[member], self._games_of(member)
        at_once = max(1, _CHUNK // (self._houses * self._per_member))
        for first in range(0, nights, at_once):
            some = slice(first, min(first + at_once, nights))
            uniform = self._uniform(member, some.stop - first, self._houses, self._per_member)
            events = self._evaluate(params, uniform)
            self._buffers["needed"][some, :, games] = events.needed
            self._buffers["ignites"][some, :, games] = events.ignites
            if "spreads" in self._buffers:
                spreads = False if events.spreads is None else events.spreads
                self._buffers["spreads"][some, ..., games] = spreads
        # Games last at least `shortest_game` nights, so at most one begins in that many nights.
        rounds = -(-nights // params.shortest_game)
        starts = self._new_starts(member, rounds)
        for first in range(0, nights, params.shortest_game):
            last = min(first + params.shortest_game, nights)
            self._buffers["starts"][first:last, :, games] = starts[first // params.shortest_game]
        self._drawn[member] = nights
        self._until = 0

    def _new_starts(self, member: int, rounds: int) -> Tensor:
        uniform = self._uniform(member, rounds, self._houses, self._per_member)
        return uniform < self._params[member].prob_house_catches_fire

    def _uniform(self, member: int, *shape: int) -> Tensor:
        uniform = self._streams.member_uniform(member, *shape, dtype=torch.float32)
        return upload(uniform, self._device)

    def _evaluate(self, params: BucketParams, uniform: Tensor) -> NightEvents:
        """Evaluate one uniform number per house and night, (nights, H, games).

        Drawing is the slowest part, so all events of a house in a night come from one number.
        """
        rest = _rest(uniform, params.prob_house_catches_fire)
        if not params.continuous:
            return night_events(params, uniform, rest, None)
        return night_events(
            params,
            uniform,
            None,
            torch.stack([rest, _rest(rest, params.prob_fire_spreads_to_neighbor)], 2),
        )


def _rest(uniform: Tensor, chance: float) -> Tensor:
    """Return uniform numbers in [0, 1) that are independent of whether `uniform` is below `chance`.

    Each is the relative position of `uniform` in its part, [0, chance) or [chance, 1).
    """
    below = uniform < chance
    rest = torch.where(
        below,
        uniform * (1.0 / (chance or 1.0)),
        (uniform - chance) * (1.0 / ((1.0 - chance) or 1.0)),
    )
    return rest.clamp_max_(1.0 - 2.0**-24)  # rounding may exceed it
