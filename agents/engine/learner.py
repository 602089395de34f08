"""The interface of every algorithm: a program of G slots whose members share one environment.

Training advances by rollouts: `horizon` steps of every environment, then the gradient steps that
follow them. Between rollouts, a member can be saved as a flat dict of tensors and restored into any
slot of a program of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from agents.networks.shape import Shape
from envs.core.vec_env import VecEnv

StateDict = dict[str, Tensor]
Act = Callable[[Tensor], Tensor]


class Learner(Protocol):
    """One program, constructed as `learner(shape, device)`.

    A slot is empty until `add_member` or `set_member` fills it. Empty slots take part in the
    computation with dummy weights. A member's numbers do not depend on its slot or on the other
    members.
    """

    shape: Shape

    def add_member(
        self,
        slot: int,
        params: Any,
        seed: int,
        total_rollouts: int,
        state_avg: Tensor,
        state_std: Tensor,
    ) -> None:
        """Put a new member into a slot, replacing the one there. Then call `begin`.

        Args:
            slot: index from 0.
            params: the algorithm's hyperparameters.
            seed: seed of its weights, exploration and minibatches.
            total_rollouts: rollouts that its schedules span.
            state_avg: mean of observations, (state_dim,) or (obs_dim,); fixed from here on.
            state_std: their standard deviation, likewise.

        Raises:
            InputError: `total_rollouts` or the normaliser is not valid.
        """

    def remove_member(self, slot: int) -> None:
        """Make a slot empty."""

    def begin(self, obs: Tensor, slots: Sequence[int] | None = None) -> None:
        """Set the current observations of rows whose episodes begin.

        Args:
            obs: (G * num_envs, obs_dim), as `VecEnv.reset` returns them.
            slots: the slots to set; None: all.
        """

    def import_actor(self, slot: int, actor: Mapping[str, Tensor]) -> None:
        """Replace a new member's actor and normaliser by those of a trained actor.

        The critic keeps its weights and uses the same normaliser.

        Args:
            slot: the member's slot.
            actor: as `export_member` returns it.

        Raises:
            InputError: the algorithm cannot do this, or the actor does not fit.
        """

    def train(
        self, env: VecEnv, rollouts: int, on_rollout: Callable[[Any], bool | None] | None = None
    ) -> Sequence[Any]:
        """Collect rollouts and make their gradient steps; every member advances by as many.

        Args:
            env: the environment, with as many members as the program has slots.
            rollouts: how many.
            on_rollout: called with the statistics after each rollout. Training stops there if it
                returns True; members may be saved then.

        Returns:
            Statistics of each rollout, a NamedTuple of (G,) tensors.

        Raises:
            RunError: the environment reported a fault; the rollout was not learned from.
            ValueError: environment and shape differ, or a member has no observation yet.
        """

    @property
    def diverged(self) -> list[bool]:
        """Whether each slot's member had a gradient or loss that was not finite.

        It has not been updated since. Reading this synchronises with the device.
        """

    def get_member(self, slot: int) -> StateDict:
        """Return a member's complete state, for an exact continuation: CPU tensors by name."""

    def set_member(self, slot: int, state: Mapping[str, Tensor]) -> None:
        """Restore what `get_member` returned, into this or another slot.

        Raises:
            InputError: the state is incomplete or of another shape.
        """

    def act_fn(self, slots: Sequence[int] | None = None) -> Act:
        """Return a function that acts deterministically with the members' current weights.

        It takes (slots * k, obs_dim) observations for any k, grouped by member, and does not change
        with further training.

        Args:
            slots: the members; None: all. (Bit-identical numbers need all slots.)
        """

    def export_member(self, slot: int) -> tuple[StateDict, StateDict]:
        """Return (actor, critic) as state dicts of ElegantRL's modules."""
