"""Bucket Brigade's heuristic players as an algorithm that does not learn.

A search over their parameters is the evolutionary baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.agents.engine.hyperparameters import Hyperparameters, Share
from sweepd.agents.engine.program import Program, Supported
from sweepd.agents.networks.net import StateDict
from sweepd.agents.networks.shape import Shape
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.players import ScriptedPolicy, Theta, heuristic


class HeuristicParams(Hyperparameters):
    """The parameters of `sweepd.envs.games.bucket_brigade.players.Theta`; defaults are the
    firefighter's.
    """

    honesty: Share = 1.0
    work: Share = 0.9
    own_first: Share = 0.8
    rest: Share = 0.0


class HeuristicStats(NamedTuple):
    """Statistics of a rollout.

    Attributes:
        works: (G,), the probability that a member works.
    """

    works: Tensor


class Heuristics(Program):
    """A program whose rollouts take no steps."""

    algorithm = "heuristic"
    params_type = HeuristicParams
    stats_type = HeuristicStats
    supports = Supported(multi_discrete=True)

    def __init__(self, shape: Shape, device: torch.device | str = "cpu") -> None:
        super().__init__(shape, device)
        self._seeds = torch.zeros(shape.slots, dtype=torch.int64)

    def act_fn(self) -> Acting:
        """See `Program.act_fn`. Each member has its own stream of random numbers."""
        params = [member.params if member else None for member in self.members]
        return Acting(params, self._seeds.tolist())

    def export_member(self, slot: int) -> tuple[StateDict, StateDict]:
        """Return ({"theta": (4,) float64}, {}), the fields of `Theta` in their order."""
        theta = Theta(**dict(self._member(slot).params))
        return {"theta": torch.tensor(theta, dtype=torch.float64)}, {}

    def _fresh(
        self,
        slot: int,
        params: HeuristicParams,  # noqa: ARG002
        seed: int,
        state_avg: Tensor,  # noqa: ARG002
        state_std: Tensor,  # noqa: ARG002
    ) -> None:
        self._seeds[slot] = seed

    def _clear(self, slot: int) -> None:
        self._seeds[slot] = 0

    def _save(self, slot: int) -> StateDict:
        return {"seed": self._seeds[slot]}

    def _collect(self, env: VecEnv) -> None:
        """Do nothing: there is nothing to learn from."""

    def _learn(self) -> HeuristicStats:
        works = [
            member.params.work * (1.0 - member.params.rest) if member else 0.0
            for member in self.members
        ]
        return HeuristicStats(torch.tensor(works))


class Acting:
    """Members that act in the environment passed to `begin`.

    They map (G * k, obs_dim) observations, grouped by member, to (G * k, 3) actions.
    """

    def __init__(self, params: Sequence[HeuristicParams | None], seeds: Sequence[int]) -> None:
        self._params, self._seeds = params, seeds
        self._players: list[ScriptedPolicy] = []

    def begin(self, env: BucketBrigade) -> None:
        """Set the environment that observations come from, and restart the random streams."""
        self._players = [
            ScriptedPolicy(heuristic(Theta(**dict(own))), env.encoder, derive_seed(seed, "act"))
            if own
            else ScriptedPolicy("rest", env.encoder, 0)
            for own, seed in zip(self._params, self._seeds, strict=True)
        ]

    def __call__(self, obs: Tensor) -> Tensor:
        parts = obs.chunk(len(self._players))
        return torch.cat([player(part) for player, part in zip(self._players, parts, strict=True)])
