"""Starts and ends of episodes.

Episodes have fixed lengths, so the host counts their steps and never has to read from the device
whether a row has ended. Starting bars are random, drawn ahead from each member's own stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from sweepd.envs.core.streams import NextNumbers, Streams
from sweepd.envs.crypto.splits import Window
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.upload import upload


class Episodes:
    """The episodes of `members * per_member` rows.

    Args:
        members: number of members.
        per_member: rows per member.
        device: device of the masks and starting bars.
        fixed: row j of a member always trades its window j from start to end, without randomness.
            Otherwise episodes have the member's length, start at random bars of its windows and
            stay within one window.
        stagger: shorten the first episodes of a member's rows by even steps, so that they do not
            all end at once.

    Attributes:
        starts: the first bars of the next episodes.
    """

    def __init__(
        self, members: int, per_member: int, device: torch.device, *, fixed: bool, stagger: bool
    ) -> None:
        rows = members * per_member
        self.members, self.per_member = members, per_member
        self.fixed, self.stagger = fixed, stagger
        self.device = device
        self.lengths = np.ones(rows, dtype=np.int64)
        self._windows: list[np.ndarray] = [np.zeros((0, 2), dtype=np.int64)] * members
        self._streams = Streams(members)
        self.starts = NextNumbers(rows=rows, dtype=torch.int64, device=device)
        self._starts_left = np.zeros(rows, dtype=np.int64)
        # Steps to each episode's end, as of `_uncounted` steps ago.
        self._steps_left = np.zeros(rows, dtype=np.int64)
        self._uncounted = 0
        self._next_end = 0

    def rows(self, member: int) -> slice:
        """Return that member's rows."""
        return slice(member * self.per_member, (member + 1) * self.per_member)

    @property
    def started(self) -> bool:
        """Whether every row has been started."""
        return self._next_end > 0

    @property
    def address(self) -> int:
        """Where the starting bars drawn ahead are in memory; there may be more of them later."""
        return self.starts.pool.data_ptr()

    def configure(self, member: int, windows: Sequence[Window], length: int) -> None:
        """Set the windows and, unless fixed, the episode length from the member's next start on."""
        self._windows[member] = np.array([(int(first), int(last)) for first, last in windows])
        self.lengths[self.rows(member)] = (
            [last - first for first, last in windows] if self.fixed else length
        )

    def seed(self, member: int, seed: int) -> None:
        """Restart the member's stream."""
        self._streams.seed(member, seed)

    def seeded(self, member: int) -> bool:
        """Whether the member's stream has ever had a seed."""
        return self._streams.seeded(member)

    def start(self, member: int) -> Tensor:
        """Start new episodes of a member and return the mask of its rows.

        `next_bars` then has their first bars.
        """
        self._count()
        rows = self.rows(member)
        # Replaces starts drawn ahead: after a new seed they must come from the new stream.
        self._draw(slice(member, member + 1), [1])
        first = self.lengths[rows]
        if self.stagger:
            # ceil(length · j / rows) for j = 1 … rows.
            first = -(-first * np.arange(1, self.per_member + 1) // self.per_member)
        self._steps_left[rows] = first
        started = np.zeros(len(self.lengths), dtype=bool)
        started[rows] = True
        return self._took(started)

    def draw(self, horizon: int) -> None:
        """Draw the starting bars of all episodes that begin within `horizon` steps."""
        if self.fixed:
            return
        self._count()
        # Episodes that end within the horizon: none if the current one lasts longer, else one and
        # as many whole episodes as fit into the rest.
        ends = np.where(
            self._steps_left <= horizon, 1 + (horizon - self._steps_left) // self.lengths, 0
        )
        self._draw(slice(0, self.members), ends.reshape(self.members, -1).max(axis=1).tolist())

    def tick(self) -> bool:
        """Count a step and return whether any episode ends with it."""
        # One comparison of two integers instead of an update of all rows in every step.
        self._uncounted += 1
        return self._uncounted == self._next_end

    def next_bars(self, mask: Tensor) -> Tensor:
        """Return each row's next starting bar, and move on to the following one in rows of `mask`.

        Args:
            mask: (rows,) bool, the rows that start an episode.

        Returns:
            (rows,) int64. Undefined in rows without a starting bar drawn ahead.
        """
        bars = self.starts.next()
        self.starts.turn += mask
        return bars

    def restart_ended(self) -> Tensor:
        """Prepare the next episode of the rows that have just ended; return their mask (rows,)."""
        self._count()
        ended = self._steps_left == 0
        for member in np.unique(
            np.flatnonzero(ended & (self._starts_left == 0)) // self.per_member
        ):
            self._draw(slice(member, member + 1), [1])
        self._steps_left[ended] = self.lengths[ended]
        return self._took(ended)

    def state(self, member: int) -> dict[str, Tensor]:
        """Return the member's exact state."""
        self._count()
        rows = self.rows(member)
        return {
            "stream": self._streams.state(member),
            **self.starts.state(rows),
            "starts_left": torch.from_numpy(self._starts_left[rows].copy()),
            "steps_left": torch.from_numpy(self._steps_left[rows].copy()),
        }

    def set_state(self, member: int, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned, in the same or another slot."""
        self._count()
        rows = self.rows(member)
        self._streams.set_state(member, state["stream"])
        self.starts.set_state(rows, state)
        self._starts_left[rows] = state["starts_left"].numpy()
        self._steps_left[rows] = state["steps_left"].numpy()
        self._next_end = int(self._steps_left.min())

    def _count(self) -> None:
        """Apply the steps counted by `tick` to the host's arrays."""
        self._steps_left -= self._uncounted
        self._next_end -= self._uncounted
        self._uncounted = 0

    def _took(self, mask: np.ndarray) -> Tensor:
        """Account for started episodes and return their mask on the device."""
        self._starts_left[mask] -= 1
        self._next_end = int(self._steps_left.min())
        return upload(torch.from_numpy(mask), self.device)

    def _draw(self, members: slice, rounds: Sequence[int]) -> None:
        """Draw the next starts of members' rows, replacing those not used yet.

        Args:
            members: whose rows.
            rounds: how many starts each member's rows need.
        """
        most, n = max(rounds), self.per_member
        uniform = self._streams.uniform(
            most, n + 1, dtype=torch.float64, members=members, used=rounds
        ).numpy()
        bars = np.empty((most, len(rounds), n), dtype=np.int64)
        for place, member in enumerate(range(members.start, members.stop)):
            bars[:, place] = self._bars(member, uniform[:, place])
        rows = slice(members.start * n, members.stop * n)
        self._starts_left[rows] = of_rows = np.repeat(rounds, n)
        self.starts.put(rows, torch.from_numpy(bars.reshape(most, len(of_rows))), of_rows)

    def _bars(self, member: int, uniform: np.ndarray) -> np.ndarray:
        """Return starting bars of a member's rows, (rounds, rows), given (rounds, rows + 1) numbers.

        Stratified sampling: each row of a round draws from an equal part of the possible starts, and
        one random rotation is applied to all. Each start is uniform, and rows of a round start at
        different bars as far as there are enough.
        """
        n = self.per_member
        first, last = self._windows[member].T
        if self.fixed:
            return np.broadcast_to(first, (len(uniform), n))
        # Starts per window from which an episode ends within the window.
        choices = last - first - self.lengths[self.rows(member).start] + 1
        bounds = choices.cumsum()
        edges = np.arange(n + 1) * bounds[-1] // n
        place = edges[:-1] + (uniform[:, :n] * np.maximum(np.diff(edges), 1)).astype(np.int64)
        chosen = (place + (uniform[:, n:] * bounds[-1]).astype(np.int64)) % bounds[-1]
        # From the index among all possible starts to window and bar.
        window = np.searchsorted(bounds, chosen, side="right")
        found: np.ndarray = first[window] + chosen - (bounds - choices)[window]
        return found


def windows_per_member(
    windows: Sequence[Window] | Sequence[Sequence[Window]], members: int
) -> list[Sequence[Window]]:
    """Return one list of windows per member, given those lists or one list for all members."""
    if members and windows and isinstance(windows[0][0], int):
        return [cast("Sequence[Window]", windows)] * members
    if len(windows) != members or not members:
        raise InputError(
            f"parameters are given for {members} members, but windows for {len(windows)}"
        )
    return list(cast("Sequence[Sequence[Window]]", windows))
