"""What every algorithm of the engine offers: a program of G slots whose members learn together on one environment.

A rollout is the unit of everything: `horizon` steps of every environment, then the gradient steps that belong to them.
Between rollouts a member is a flat dict of tensors that any slot of a program of the same shape can take up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from agents.networks.mlp import Shape
from envs.core.vec_env import VecEnv

StateDict = dict[str, Tensor]
Act = Callable[[Tensor], Tensor]


class Learner(Protocol):
    """One program. A slot is empty until `add_member` or `set_member`; empty slots compute along as dummies.

    Constructed as `learner(shape, device)`. No member's numbers depend on its slot or on who else is there.
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
        """Put a new member into a slot. params: of the algorithm's own kind. state_avg, state_std: (state_dim,)."""

    def remove_member(self, slot: int) -> None:
        """Make a slot empty."""

    def begin(self, obs: Tensor, slots: Sequence[int] | None = None) -> None:
        """Hand over the rows' present observations, (G * num_envs, obs_dim); of some slots only, if named."""

    def train(
        self, env: VecEnv, rollouts: int, on_rollout: Callable[[Any], bool | None] | None = None
    ) -> Sequence[Any]:
        """That many rollouts with their gradient steps. on_rollout: given a NamedTuple of (G,) tensors after each;
        returning True ends the training there. Raises RunError where the environment latched a fault.
        """

    @property
    def diverged(self) -> list[bool]:
        """Per slot, whether its member stopped being finite; it has learned nothing since."""

    def get_member(self, slot: int) -> StateDict:
        """Everything a member needs to go on exactly: CPU tensors, safetensors-ready."""

    def set_member(self, slot: int, state: Mapping[str, Tensor]) -> None:
        """Put back what `get_member` returned. Raises InputError where it is of another shape or incomplete."""

    def act_fn(self, slots: Sequence[int] | None = None) -> Act:
        """The members as they are now, acting deterministically on (slots * k, obs_dim) observations for any k."""

    def export_member(self, slot: int) -> tuple[StateDict, StateDict]:
        """(actor, critic) as ElegantRL's modules load them."""
