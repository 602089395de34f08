"""Bucket Brigade's heuristic players as an algorithm that does not learn.

A search over their parameters is the evolutionary baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agents.networks.shape import Shape
from envs.core.streams import derive_seed
from envs.core.vec_env import VecEnv
from envs.games.bucket_brigade.game import BucketBrigade
from envs.games.bucket_brigade.players import ScriptedPolicy, Theta, heuristic
from envs.support.errors import InputError


@dataclass(frozen=True, kw_only=True)
class HeuristicParams:
    """The parameters of `envs.games.bucket_brigade.players.Theta`; defaults are the firefighter's.

    Raises:
        InputError: a value is not between 0 and 1.
    """

    honesty: float = 1.0
    work: float = 0.9
    own_first: float = 0.8
    rest: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value <= 1:
                raise InputError(f"{field.name} must be a probability from 0 to 1, not {value}.")


class HeuristicStats(NamedTuple):
    """Statistics of a rollout.

    Attributes:
        works: (G,), the probability that a member works.
    """

    works: Tensor


@dataclass
class _Member:
    params: HeuristicParams
    seed: int


class Heuristics:
    """A program whose rollouts take no steps; it implements `agents.engine.learner.Learner`."""

    def __init__(self, shape: Shape, device: torch.device | str = "cpu") -> None:
        if shape.algorithm != "heuristic":
            raise InputError(
                f"algorithm must be 'heuristic' for this program, not {shape.algorithm!r}."
            )
        self.shape, self.device = shape, torch.device(device)
        self._members: list[_Member | None] = [None] * shape.slots

    def add_member(
        self,
        slot: int,
        params: HeuristicParams,
        seed: int,
        total_rollouts: int,
        state_avg: Tensor,
        state_std: Tensor,
    ) -> None:
        """See `Learner.add_member`."""
        del total_rollouts, state_avg, state_std  # unused: it neither learns nor normalises
        self._members[slot] = _Member(params, seed)

    def remove_member(self, slot: int) -> None:
        """See `Learner.remove_member`."""
        self._members[slot] = None

    def begin(self, obs: Tensor, slots: Sequence[int] | None = None) -> None:
        """See `Learner.begin`. No effect: nothing is learned."""

    def import_actor(self, slot: int, actor: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """See `Learner.import_actor`."""
        raise InputError("heuristic cannot start from trained weights: use ppo")

    def train(
        self, env: VecEnv, rollouts: int, on_rollout: Callable[[Any], bool | None] | None = None
    ) -> list[HeuristicStats]:
        """See `Learner.train`. Returns at once: nothing is learned."""
        del env
        works = [
            member.params.work * (1.0 - member.params.rest) if member else 0.0
            for member in self._members
        ]
        history: list[HeuristicStats] = []
        for _ in range(rollouts):
            history.append(HeuristicStats(torch.tensor(works)))
            if on_rollout is not None and on_rollout(history[-1]):
                break
        return history

    @property
    def diverged(self) -> list[bool]:
        """False for every slot."""
        return [False] * self.shape.slots

    def get_member(self, slot: int) -> dict[str, Tensor]:
        """See `Learner.get_member`."""
        member = self._member(slot)
        return {"params": _numbers(member.params), "seed": torch.tensor(member.seed)}

    def set_member(self, slot: int, state: Mapping[str, Tensor]) -> None:
        """See `Learner.set_member`."""
        if set(state) != {"params", "seed"}:
            raise InputError(
                f"A member's state must hold params and seed, and holds {sorted(state)}."
            )
        params = HeuristicParams(**dict(zip(_NAMES, state["params"].tolist(), strict=True)))
        self._members[slot] = _Member(params, int(state["seed"]))

    def act_fn(self, slots: Sequence[int] | None = None) -> Acting:
        """See `Learner.act_fn`. Each member has its own stream of random numbers."""
        chosen = range(self.shape.slots) if slots is None else slots
        return Acting([self._members[slot] for slot in chosen])

    def export_member(self, slot: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return ({"theta": (4,) float64}, {}): `HeuristicParams` in the order of its fields."""
        return {"theta": _numbers(self._member(slot).params)}, {}

    def _member(self, slot: int) -> _Member:
        member = self._members[slot]
        if member is None:
            raise ValueError(f"slot {slot} is empty")
        return member


class Acting:
    """Members that act in the environment passed to `begin`.

    They map (G * k, obs_dim) observations, grouped by member, to (G * k, 3) actions.
    """

    def __init__(self, members: Sequence[_Member | None]) -> None:
        self._members = members
        self._players: list[ScriptedPolicy] = []

    def begin(self, env: BucketBrigade) -> None:
        """Set the environment that observations come from, and restart the random streams."""
        self._players = [
            ScriptedPolicy(
                heuristic(Theta(*astuple(member.params))),
                env.encoder,
                derive_seed(member.seed, "act"),
            )
            if member
            else ScriptedPolicy("rest", env.encoder, 0)
            for member in self._members
        ]

    def __call__(self, obs: Tensor) -> Tensor:
        parts = obs.chunk(len(self._players))
        return torch.cat([player(part) for player, part in zip(self._players, parts, strict=True)])


_NAMES = tuple(field.name for field in fields(HeuristicParams))


def _numbers(params: HeuristicParams) -> Tensor:
    return torch.tensor(astuple(params), dtype=torch.float64)
