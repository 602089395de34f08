"""How many steps each environment makes in a rollout, where those that are ready first go on first.

A rollout has `horizon` steps for one of K environments of a member. An environment makes another
step as soon as it is ready, until the member's steps are used up or it has made `horizon` of them.
So with K = 1 every environment makes `horizon` steps, whatever the timing is.

A policy does not change within a rollout, and an environment's random numbers depend on its own
steps alone. So these counts are all that timing decides: an environment that makes the same number
of steps makes the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sweepd.agents.networks.shape import Shape


class StepQuotas:
    """The steps of one rollout.

    Recurrent networks learn from sequences of `bptt` steps, so an environment that begins a sequence
    makes all of its steps.

    Args:
        shape: the program's.
        rows_each: rows per environment.
        live: whether each slot has a member.
        repeated: of each slot, the steps that its environments have to make, from a record; None:
            those that are ready first go on first.

    Attributes:
        begun: (G * environments,) int64, the steps of each environment so far, with the one that it
            is in.
        stepping: environments that are in a step.
    """

    def __init__(
        self,
        shape: Shape,
        rows_each: int,
        live: Sequence[bool],
        repeated: Sequence[NDArray[np.int32] | None],
    ) -> None:
        self._each = shape.num_envs // rows_each  # environments per member
        self._horizon = shape.horizon
        self._sequence = shape.bptt if shape.recurrent else 1
        self._left = [shape.samples // rows_each * own for own in live]
        self._exactly = np.full(shape.slots * self._each, -1)
        for slot, counts in enumerate(repeated):
            if counts is not None and live[slot]:
                self._exactly[slot * self._each : (slot + 1) * self._each] = counts
        self._live = np.repeat(np.array(live, dtype=bool), self._each)
        self.begun = np.zeros(shape.slots * self._each, dtype=np.int64)
        self.stepping = 0

    def all(self) -> NDArray[np.int64]:
        """Return the environments of all members, which are ready when the rollout begins."""
        return np.flatnonzero(self._live)

    def grant(self, ready: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of these environments make another step. ready: in order."""
        going = [env for env in ready.tolist() if self._goes_on(env)]
        self.stepping += len(going)
        return np.array(going, dtype=np.int64)

    def received(self, envs: NDArray[np.int64]) -> None:
        """Note that these environments have made their step."""
        self.stepping -= len(envs)

    def counts(self) -> NDArray[np.int32]:
        """Return the steps made, (G, environments of each)."""
        return self.begun.reshape(-1, self._each).astype(np.int32)

    def _goes_on(self, env: int) -> bool:
        begun, exactly = self.begun[env], self._exactly[env]
        member = env // self._each
        if exactly >= 0:
            goes = bool(begun < exactly)
        elif begun % self._sequence:  # within a sequence
            goes = True
        else:
            goes = begun < self._horizon and self._left[member] >= self._sequence
            self._left[member] -= self._sequence * goes
        self.begun[env] += goes
        return bool(goes)
