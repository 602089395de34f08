"""Replay buffers for off-policy learning: one ring of transitions per member, on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.envs.core.streams import Streams
from sweepd.envs.core.vec_env import Step, VecEnv
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.upload import upload


class Batch(NamedTuple):
    """Transitions of every member, (G, minibatch, …).

    Attributes:
        obs: (…, obs_dim), as the environment gave them.
        action: (…, columns), as stored.
        reward: (…), scaled.
        alive: (…), 0 where the episode terminated with this step, else 1.
        next_obs: (…, obs_dim).
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    alive: Tensor
    next_obs: Tensor


class ReplayBuffers:
    """Rings of `capacity` steps of num_envs rows for each of G members.

    The oldest step is overwritten first. A rollout is staged step by step with `note`, then written
    to the rings with `store`. The next observation of a truncated episode is its last one
    (`VecEnv.final_obs`), from which values can be bootstrapped.

    Attributes:
        rings: (G, capacity, num_envs, …) by name: obs, next_obs, and side, which is the stored
            action, the reward and whether the episode goes on.
    """

    def __init__(
        self,
        slots: int,
        num_envs: int,
        capacity: int,
        horizon: int,
        obs_dim: int,
        columns: int,
        device: torch.device,
    ) -> None:
        """Allocate the rings.

        Args:
            slots: G.
            num_envs: rows per member.
            capacity: steps that a ring holds.
            horizon: steps per rollout.
            obs_dim: columns of an observation.
            columns: floats of a stored action.
            device: where.
        """
        self.slots, self.num_envs, self.capacity, self.horizon = slots, num_envs, capacity, horizon
        self.device = device
        sizes = {"obs": obs_dim, "next_obs": obs_dim, "side": columns + 2}

        def rings(steps: int) -> dict[str, Tensor]:
            return {
                name: torch.zeros(slots, steps, num_envs, size, device=device)
                for name, size in sizes.items()
            }

        self.rings, self._stage = rings(capacity), rings(horizon)
        self._truncated = torch.zeros(slots, horizon, num_envs, dtype=torch.bool, device=device)
        self._written = [0] * slots  # steps that a member has stored so far
        self._noted = self._settled = 0

    def note(
        self, obs: Tensor, action: Tensor, step: Step, reward_scale: Tensor, env: VecEnv
    ) -> None:
        """Stage the next step of the rollout.

        Args:
            obs: (G, num_envs, obs_dim), before the step.
            action: (G, num_envs, columns), as stored.
            step: what the environment returned.
            reward_scale: (G, 1), factor on rewards.
            env: asked for last observations of truncated episodes.
        """
        at, size = self._noted, (self.slots, self.num_envs)
        self._stage["obs"][:, at] = obs
        self._stage["next_obs"][:, at] = step.obs.view(*size, -1)
        side = self._stage["side"][:, at]
        side[..., :-2] = action
        side[..., -2] = step.reward.view(size) * reward_scale
        # Truncated episodes stay alive: their next observation is bootstrapped from.
        side[..., -1] = ~step.terminated.view(size)
        self._truncated[:, at] = step.truncated.view(size) & ~step.terminated.view(size)
        self._noted += 1
        # `env.final_obs` keeps the last observation of a row's latest truncation. Within
        # `bootstrap_interval` steps there is at most one, so none is lost.
        if self._noted - self._settled == env.bootstrap_interval or self._noted == self.horizon:
            ends = self._truncated[:, self._settled : self._noted].unsqueeze(-1)
            following = self._stage["next_obs"][:, self._settled : self._noted]
            last = env.final_obs().view(self.slots, 1, self.num_envs, -1)
            following.copy_(torch.where(ends, last, following))
            self._settled = self._noted

    def store(self) -> None:
        """Write the staged rollout into the rings."""
        # Members joined at different times, so each ring has its own position.
        positions = [
            slot * self.capacity + (written + step) % self.capacity
            for slot, written in enumerate(self._written)
            for step in range(self.horizon)
        ]
        rows = upload(torch.tensor(positions), self.device)
        for name, ring in self.rings.items():
            ring.flatten(0, 1).index_copy_(0, rows, self._stage[name].flatten(0, 1))
        self._written = [written + self.horizon for written in self._written]
        self._noted = self._settled = 0

    def latest_obs(self) -> Tensor:
        """Return the observations of the latest rollout, (G, horizon * num_envs, obs_dim)."""
        return self._stage["obs"].flatten(1, 2)

    def held(self, slot: int) -> int:
        """Return the number of transitions that a member can sample from."""
        return min(self._written[slot], self.capacity) * self.num_envs

    def draw(self, streams: Streams, batches: int, minibatch: int) -> Tensor:
        """Sample rows for `gather`, (batches, G * minibatch), uniformly per member."""
        # floor(u * held) with u in [0, 1); a ring is filled from its start, so these rows are valid.
        held = torch.tensor([self.held(slot) for slot in range(self.slots)], dtype=torch.float64)
        first = torch.arange(self.slots, device=self.device) * self.capacity * self.num_envs
        uniform = streams.uniform(batches, minibatch, dtype=torch.float64)
        rows = (uniform * upload(held, self.device).unsqueeze(1)).to(torch.int64)
        return (rows + first.unsqueeze(1)).flatten(1)

    def gather(self, rows: Tensor) -> Batch:
        """Return the transitions in `rows` (G * minibatch,), member after member."""
        parts = {
            name: ring.flatten(0, 2).index_select(0, rows).view(self.slots, -1, ring.shape[-1])
            for name, ring in self.rings.items()
        }
        side = parts["side"]
        return Batch(parts["obs"], side[..., :-2], side[..., -2], side[..., -1], parts["next_obs"])

    def clear(self, slot: int) -> None:
        """Empty a member's ring."""
        self._written[slot] = 0
        for ring in self.rings.values():
            ring[slot] = 0

    def get_member(self, slot: int) -> dict[str, Tensor]:
        """Return the filled part of a member's ring, and how many steps it has stored."""
        filled = min(self._written[slot], self.capacity)
        own = {name: ring[slot, :filled] for name, ring in self.rings.items()}
        return own | {"written": torch.tensor(self._written[slot])}

    def check_member(self, state: Mapping[str, Tensor]) -> None:
        """Raise InputError where `state` is not what `get_member` returns for such a ring."""
        filled = min(int(state["written"]), self.capacity)
        for name, ring in self.rings.items():
            wanted, given = (filled, *ring.shape[2:]), tuple(state[name].shape)
            if given != wanted or state[name].dtype != ring.dtype:
                raise InputError(
                    f"The member's replayed {name} are {given} {state[name].dtype}, not {wanted} "
                    f"{ring.dtype}."
                )

    def set_member(self, slot: int, state: Mapping[str, Tensor]) -> None:
        """Restore what `get_member` returned, into this or another slot."""
        self.clear(slot)
        for name, ring in self.rings.items():
            ring[slot, : state[name].shape[0]] = state[name].to(self.device)
        self._written[slot] = int(state["written"])
